"""Shards opened as one set, and the one place where a reader's file or folder of features is opened."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import h5py

from contextdesc.errors import InputError
from contextdesc.formats import hloc, manifest
from contextdesc.formats.atomic import replacing
from contextdesc.formats.manifest import Kind, Manifest, check_size, read_finished, read_manifest
from contextdesc.modelfile import sha256
from contextdesc.progress import progress

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.features import Features

File = TypeVar("File", hloc.FeatureFile, h5py.File)

_OPEN = 64  # shards that are kept open


class FeatureSet(Protocol):
    """Features by image name, whether in one file or in shards."""

    path: Path
    names: list[str]

    def __contains__(self, name: str) -> bool: ...
    def __getitem__(self, name: str) -> Features: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


def open_features(path: Path) -> FeatureSet:
    """Open a feature file in hloc's layout, or a folder of shards."""
    return FeatureShards(path) if path.is_dir() else hloc.FeatureFile(path)


def stamp(path: Path) -> list[int]:
    """Changes when a file is written again, or a folder of shards becomes another one."""
    if path.is_dir():
        content = (path / manifest.FILE).read_bytes()
        return [len(content), zlib.crc32(content)]
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


class _Folder(Generic[File]):
    """An open folder of shards, of which those read last stay open."""

    def __init__(self, path: Path, kind: Kind, opened: Callable[[Path], File]) -> None:
        self.path = path
        self._opened: Callable[[Path], File] = opened
        shards = read_finished(path, kind).shards
        self._shard_of = {name: shard for shard in shards for name in shard.names}
        self.names = sorted(self._shard_of)
        self._recent: OrderedDict[str, File] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        return name in self._shard_of

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._recent:
            self._recent.popitem()[1].__exit__()

    def _file_of(self, name: str) -> File:
        if name not in self:
            raise InputError(f"{self.path}: no image called {name}")
        shard = self._shard_of[name]
        if shard.file not in self._recent:
            self._recent[shard.file] = self._opened(check_size(self.path, shard))
            if len(self._recent) > _OPEN:
                self._recent.popitem(last=False)[1].__exit__()
        self._recent.move_to_end(shard.file)
        return self._recent[shard.file]


class FeatureShards(_Folder[hloc.FeatureFile]):
    """Features in shards: `names` of the images, and `shards[name]` for their features."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "features", hloc.FeatureFile)

    def __getitem__(self, name: str) -> Features:
        return self._file_of(name)[name]


class ArrayShards(_Folder[h5py.File]):
    """Named arrays in shards, as `write_arrays` puts them there: `shards[name]` for those of an image."""

    def __init__(self, path: Path, kind: Kind) -> None:
        super().__init__(path, kind, hloc.open_h5)

    def __getitem__(self, name: str) -> dict[str, NDArray[Any]]:
        return {key: values[()] for key, values in self._file_of(name)[name].items()}


def write_arrays(file: h5py.File, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Put the arrays of an image into a shard."""
    group = file.create_group(name)
    for key, values in arrays.items():
        group[key] = values


def merge(folder: Path, output: Path, quiet: bool = False) -> Manifest:
    """Write a folder of shards as one file; every shard's checksum is verified on the way."""
    kind = read_manifest(folder).kind
    found = read_finished(folder, kind)
    if output.is_dir():
        raise InputError(f"{output}: is a folder; name a file such as {output / f'{kind}.h5'}")
    with (
        replacing(output) as temporary,
        h5py.File(temporary, "w") as file,
        progress("merge", len(found.shards), quiet=quiet) as advance,
    ):
        for shard in found.shards:
            path = check_size(folder, shard)
            if sha256(path) != shard.sha256:
                raise InputError(
                    f"{path}: checksum differs from {manifest.FILE}; run the command that made it again, "
                    "which finds and mends it"
                )
            with hloc.open_h5(path) as part:
                for name in shard.names:
                    group = hloc.pair_group(*name.split("\t")) if kind == "matches" else name
                    part.copy(part[group], file, group)
            advance()
    return found
