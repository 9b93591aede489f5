"""A set in shards: a folder of HDF5 files, and `manifest.json`, which says what is in each of them.

It names every shard with its checksum, the names that it holds, and those that failed with their reason, so
that nothing can be missing or be there twice without being seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from contextdesc.errors import InputError
from contextdesc.formats.atomic import replacing

FILE = "manifest.json"
_FORMAT = 1

Kind = Literal["features", "matches", "described", "words"]


@dataclass(frozen=True)
class Shard:
    """One file of a set.

    Attributes:
        file: its name in the folder.
        names: what it holds, sorted; of a shard without a checksum, what it shall hold.
        failed: what it should have held, with the reason why it does not.
        bytes: its size.
        sha256: checksum of the file; None until it is finished.
    """

    file: str
    names: tuple[str, ...]
    failed: Mapping[str, str] = field(default_factory=dict)
    bytes: int = 0
    sha256: str | None = None

    @property
    def members(self) -> tuple[str, ...]:
        """All that belongs to it: what it holds and what failed."""
        return tuple(sorted((*self.names, *self.failed)))

    def as_json(self) -> dict[str, Any]:
        return {
            "file": self.file, "count": len(self.names), "bytes": self.bytes, "sha256": self.sha256,
            "names": list(self.names), "failed": dict(self.failed),
        }  # fmt: skip

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Shard:
        shard = cls(
            str(values["file"]), tuple(map(str, values["names"])), dict(values["failed"]),
            int(values["bytes"]), values["sha256"],
        )  # fmt: skip
        if Path(shard.file).name != shard.file or len(shard.names) != values["count"]:
            raise ValueError(shard.file)
        return shard


@dataclass(frozen=True)
class Manifest:
    """What a folder of shards holds, and the settings that it was made with (JSON values)."""

    kind: Kind
    settings: Mapping[str, Any]
    shards: tuple[Shard, ...]

    @property
    def finished(self) -> bool:
        return all(shard.sha256 is not None for shard in self.shards)

    @property
    def failed(self) -> dict[str, str]:
        return {name: reason for shard in self.shards for name, reason in shard.failed.items()}

    def write(self, folder: Path) -> None:
        values = {
            "format": _FORMAT, "kind": self.kind, "finished": self.finished,
            "settings": self.settings, "shards": [shard.as_json() for shard in self.shards],
        }  # fmt: skip
        with replacing(folder / FILE) as temporary:
            temporary.write_text(json.dumps(values, indent=1), encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder, of which some shards may still be unfinished."""
    path = folder / FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["format"] != _FORMAT:
            raise InputError(f"{path}: format {values['format']}, this version reads {_FORMAT}")
        shards = tuple(Shard.from_json(shard) for shard in values["shards"])
        return Manifest(values["kind"], values["settings"], shards)
    except FileNotFoundError:
        raise InputError(f"{folder}: no {FILE} in it, so it is not a folder of shards") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: damaged; choose another folder and make the shards again") from None


def read_finished(folder: Path, kind: Kind) -> Manifest:
    """Read the manifest of a complete set of a kind."""
    manifest = read_manifest(folder)
    if manifest.kind != kind:
        raise InputError(f"{folder}: holds {manifest.kind}, not {kind}")
    if not manifest.finished:
        raise InputError(f"{folder}: unfinished; the command that began it goes on with it")
    return manifest


def check_size(folder: Path, shard: Shard) -> Path:
    """The path of a shard whose file is there and as large as it was."""
    path = folder / shard.file
    size = path.stat().st_size if path.is_file() else None
    if size != shard.bytes:
        found = "missing" if size is None else f"{size} bytes, {FILE} says {shard.bytes}"
        raise InputError(f"{path}: {found}; run the command that made it again, which finds and mends it")
    return path


def pair_name(first: str, second: str) -> str:
    """The name of a pair in a set of matches."""
    return f"{first}\t{second}"


def shard_of_pair(folder: Path, first: str, second: str) -> Path:
    """The shard of a set of matches that holds a pair, in either order."""
    stamp = (folder / FILE).stat().st_mtime_ns if (folder / FILE).exists() else 0
    shards = _shards_by_name(folder, stamp)
    shard = shards.get(pair_name(first, second)) or shards.get(pair_name(second, first))
    if shard is None:
        raise InputError(f"{folder}: no pair {first} {second}")
    return check_size(folder, shard)


@lru_cache(maxsize=4)
def _shards_by_name(folder: Path, stamp: int) -> dict[str, Shard]:
    """`stamp` changes when the manifest does."""
    manifest = read_finished(folder, "matches")
    return {name: shard for shard in manifest.shards for name in shard.names}
