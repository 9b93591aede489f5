"""The cache: what training prepares once, in folders whose names are keys of all their settings.

A change of settings makes another folder, so stale data is never read. Beyond the size limit, the folders
that were not used for longest are deleted, never one that this run reads.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

DONE = "done"  # file of a finished folder; its time is that of the last use
FINISHED = "finished.npy"  # (jobs,) uint8: which parts of an unfinished folder are done
GIGABYTE = 1e9
_NAME = re.compile(r"[a-z]+-[0-9a-f]{16}")  # of an entry: all else in the folder is not ours to delete


class Cache:
    """Folders of prepared data below one folder, together at most `limit` bytes (None: no limit)."""

    def __init__(self, folder: Path, limit: float | None = None) -> None:
        self.folder, self.limit = folder, limit
        self._used: set[Path] = set()

    def entry(self, kind: str, settings: Any) -> Path:
        """The folder of `settings`, which may not exist yet; it is safe from deletion in this run."""
        text = json.dumps(settings, sort_keys=True, default=str)
        path = self.folder / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        self._used.add(path)
        if (path / DONE).exists():
            os.utime(path / DONE)
        return path

    def make_room(self, entry: Path, size: float) -> None:
        """Create the folder `entry` for `size` bytes; delete others, least recently used first."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.limit is not None:
            self._delete_for(entry, size, self.limit)
        entry.mkdir(exist_ok=True)

    def _delete_for(self, entry: Path, size: float, limit: float) -> None:
        others = {path: _size(path) for path in self._entries() if path != entry}
        needed = size + sum(others[path] for path in others.keys() & self._used)
        if needed > limit:  # whatever is deleted
            raise InputError(
                f"{self.folder}: this training prepares {needed / GIGABYTE:.3g} GB, and the cache may hold "
                f"{limit / GIGABYTE:.3g}: raise the limit, or prepare fewer pairs or keypoints"
            )
        total = size + sum(others.values())
        for path in sorted(others.keys() - self._used, key=_last_use):
            if total <= limit:
                return
            shutil.rmtree(path)
            total -= others[path]

    def _entries(self) -> list[Path]:
        return [path for path in self.folder.iterdir() if path.is_dir() and _NAME.fullmatch(path.name)]


def open_array(path: Path, shape: tuple[int, ...], dtype: Any) -> np.memmap[Any, Any]:
    """A file array to write into: the one of an interrupted run, or a new one of zeros.

    Of the arrays of a folder, `finished.npy` comes last.
    """
    if not path.exists():
        if path.with_name(FINISHED).exists():
            raise damaged(path, "missing")
        return np.lib.format.open_memmap(path, "w+", dtype, shape)
    load_array(path, shape, dtype)  # opened to write, a file that was cut off is filled up with zeros
    return np.lib.format.open_memmap(path, "r+")


def load_array(
    path: Path, shape: tuple[int | None, ...] | None = None, dtype: Any = None
) -> np.memmap[Any, Any]:
    """A file array, mapped; one clear line if it is missing, cut off, or not of `shape` and `dtype`.

    None in `shape` stands for any length.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # NumPy raises many types, down to those of Python's tokenizer
        raise damaged(path, " ".join(str(error).split())) from None
    if not isinstance(array, np.memmap):
        raise damaged(path, "not one array")
    fits = shape is None or (
        array.ndim == len(shape)
        and all(n in (None, m) for n, m in zip(shape, array.shape, strict=True))
        and array.dtype == np.dtype(dtype)
    )
    if not fits:
        wanted = f"({', '.join('any' if n is None else str(n) for n in shape or ())})"
        raise damaged(path, f"{array.dtype} {array.shape} where {np.dtype(dtype)} {wanted} belongs")
    return array


def load_small(path: Path, shape: tuple[int | None, ...], dtype: Any) -> NDArray[Any]:
    """A file array, in memory."""
    return np.array(load_array(path, shape, dtype))


def damaged(path: Path, reason: str) -> InputError:
    return InputError(f"{path}: damaged cache ({reason}); delete the folder {path.parent} and start again")


def _size(folder: Path) -> int:
    # Blocks, not lengths: arrays of a run under way are files with holes.
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def _last_use(folder: Path) -> float:
    done = folder / DONE
    return done.stat().st_mtime if done.exists() else folder.stat().st_mtime
