"""The cache of benchmarks: keypoints and descriptors of an image, in files named by all they depend on.

A file that was damaged is computed again. Beyond the size limit the files that were not used for longest are
deleted.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import contextdesc
from contextdesc.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.image import Image
    from contextdesc.keypoints import Keypoints

LIMIT = 8e9  # bytes; 2048 descriptors of an image by one method take 1 MB
_DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)


def default_folder() -> Path:
    """Where caches of a user belong."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "contextdesc" / "benchmarks"


class Cache:
    """Files of arrays below a folder, together at most `limit` bytes after `prune`."""

    def __init__(self, folder: Path, limit: float = LIMIT) -> None:
        self.folder, self.limit = folder, limit

    def fetch(
        self, key: str, compute: Callable[[], Mapping[str, NDArray[np.generic]]]
    ) -> Mapping[str, NDArray[Any]]:
        """The arrays of a key: read, or computed and then kept."""
        path = self.folder / key[:2] / f"{key}.npz"
        with suppress(*_DAMAGE):
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            with suppress(OSError):  # in a folder of somebody else
                os.utime(path)
            return arrays
        computed = compute()
        try:
            _write(path, computed)
        except OSError as error:
            raise InputError(
                f"{self.folder}: cannot be written ({error.strerror}); give another --cache, or --no-cache"
            ) from None
        return computed

    def prune(self) -> None:
        """Delete the files that were not used for longest until the rest is within the limit."""
        files = []
        for path in self.folder.glob("??/*"):  # with what a killed process left unfinished
            with suppress(FileNotFoundError):  # another run may delete, too
                files.append((path.stat(), path))
        total = sum(state.st_size for state, _ in files)
        for state, path in sorted(files, key=lambda file: file[0].st_mtime):
            if total <= self.limit:
                break
            path.unlink(missing_ok=True)
            total -= state.st_size


def key_of(*parts: object) -> str:
    """A name for what depends on all of `parts`, and on the code that makes descriptors."""
    text = "\n".join([_code(), *map(repr, parts)])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def pixels_of(image: Image) -> str:
    """A name for the content of an image, whatever its file is called."""
    return _digest(image.rgb)


def keypoints_of(keypoints: Keypoints) -> str:
    """A name for keypoints."""
    return _digest(np.column_stack([keypoints.xy, keypoints.size, keypoints.angle]))


def _digest(array: NDArray[np.generic]) -> str:
    content = hashlib.blake2b(array.tobytes(), digest_size=16)
    content.update(repr(array.shape).encode())
    return content.hexdigest()


@cache
def _code() -> str:
    """The version of the package; its files too, so that somebody who changes it never meets old results."""
    package = Path(contextdesc.__file__).parent
    content = hashlib.blake2b(contextdesc.__version__.encode(), digest_size=16)
    for path in sorted([*package.glob("*.py"), *(package / "benchmarks" / "methods").glob("*.py")]):
        content.update(path.read_bytes())
    return content.hexdigest()


def _write(path: Path, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Atomically; two processes may write one file at the same time, so neither uses the other's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # NumPy's stub takes them for its own option
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
