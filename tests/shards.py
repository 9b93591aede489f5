"""Features in shards, written without the processes that make them."""

from __future__ import annotations

from pathlib import Path

from contextdesc.formats import hloc
from contextdesc.formats.manifest import Manifest, Shard
from contextdesc.modelfile import sha256


def write_shards(features: Path, folder: Path, size: int = 2) -> Path:
    """A folder of shards with the features of a file."""
    shards = []
    with hloc.FeatureFile(features) as file:
        for start in range(0, len(file.names), size):
            names = file.names[start : start + size]
            path = folder / f"shard-{start // size:06}.h5"
            hloc.write(path, {name: file[name] for name in names})
            shards.append(Shard(path.name, tuple(names), {}, path.stat().st_size, sha256(path)))
    Manifest("features", {}, tuple(shards)).write(folder)
    return folder
