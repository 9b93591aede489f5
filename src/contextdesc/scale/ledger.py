"""Which shards a folder shall have, and which it has: the manifest, and a journal while a run lasts.

The manifest is written when a run begins, with all shards that it will make, and when it ends. In between,
a journal gets a record per finished shard, so that the cost does not grow with the set; its lock keeps a
second run away.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from contextdesc.errors import InputError
from contextdesc.formats.manifest import FILE, Kind, Manifest, Shard, read_manifest
from contextdesc.journal import Journal
from contextdesc.scale.worker import LEFTOVERS

_JOURNAL = "manifest.journal"


class Ledger:
    """Open or begin a set of shards.

    A run that was interrupted goes on with the shards that it planned. A set that was complete keeps its
    shards; names that it lacks, or that failed, get shards of their own.

    Args:
        settings: whatever must be equal for shards to belong together, as JSON values.
        names: of all items.
        size: items per shard.
        restart: forget an unfinished run.
    """

    def __init__(
        self, folder: Path, kind: Kind, settings: Mapping[str, Any], names: Iterable[str], size: int,
        restart: bool = False,
    ) -> None:  # fmt: skip
        self.folder, self._kind = folder, kind
        self._settings = json.loads(json.dumps(settings))
        _check_folder(folder)
        path = folder / _JOURNAL
        interrupted = path.exists() and not restart
        if restart:
            path.unlink(missing_ok=True)
        self._journal = Journal(path, self._settings)
        try:
            shards = self._read(restart)
        except InputError:
            self._journal.close()
            if not interrupted:
                path.unlink()
            raise
        names = set(names)
        if not interrupted:
            shards = self._without_failures(shards, names)
        self.shards = {shard.file: shard for shard in _extended(shards, names, size)}
        self._sweep()
        self._write()

    def record(self, shard: Shard) -> None:
        """Note that a shard is finished; safe from a kill when the call returns."""
        text = json.dumps(shard.as_json()).encode()
        self._journal.append(shard.file, {"shard": np.frombuffer(text, np.uint8)})
        self.shards[shard.file] = shard

    def finish(self) -> None:
        """Write the manifest of the finished set."""
        self._sweep()
        self._write()
        self._journal.delete()

    def close(self) -> None:
        """Leave an unfinished run as it is."""
        self._journal.close()

    def _read(self, restart: bool) -> list[Shard]:
        """Shards by the manifest and the journal."""
        if not (self.folder / FILE).exists():
            return []
        manifest = read_manifest(self.folder)
        shards, dropped = [self._recorded(shard) for shard in manifest.shards], []
        if restart:
            dropped = [shard for shard in shards if shard.sha256 is None]
            shards = [shard for shard in shards if shard.sha256 is not None]
        if manifest.kind != self._kind:
            raise InputError(f"{self.folder}: holds {manifest.kind}; choose another folder")
        if shards and manifest.settings != self._settings:
            keys = {**manifest.settings, **self._settings}
            changed = [k for k in keys if manifest.settings.get(k) != self._settings.get(k)]
            raise InputError(
                f"{self.folder}: was made with other settings ({', '.join(changed)}); choose another folder"
            )
        for shard in dropped:
            (self.folder / shard.file).unlink(missing_ok=True)
        return shards

    def _recorded(self, shard: Shard) -> Shard:
        if shard.file not in self._journal:
            return shard
        found = Shard.from_json(json.loads(self._journal[shard.file]["shard"].tobytes()))
        return found if found.members == shard.members else shard

    def _without_failures(self, shards: list[Shard], names: set[str]) -> list[Shard]:
        """Forget which of the names failed, so that they are tried again, and shards with nothing else."""
        kept = []
        for shard in shards:
            failed = {name: reason for name, reason in shard.failed.items() if name not in names}
            if shard.names or failed:
                kept.append(replace(shard, failed=failed))
            else:
                (self.folder / shard.file).unlink(missing_ok=True)
        return kept

    def _sweep(self) -> None:
        for pattern in LEFTOVERS:
            for leftover in self.folder.glob(pattern):
                leftover.unlink(missing_ok=True)

    def _write(self) -> None:
        Manifest(self._kind, self._settings, tuple(self.shards.values())).write(self.folder)


def _check_folder(folder: Path) -> None:
    if folder.suffix == ".h5":
        raise InputError(
            f"{folder}: with --workers or --cluster the output is a folder of shards; name a folder, of "
            "which `contextdesc merge` makes one file"
        )
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; shards are written to a folder")
    known = any((folder / name).exists() for name in (FILE, _JOURNAL))
    if not known and folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder}: holds files that are no shards; choose another folder")


def _extended(shards: list[Shard], names: set[str], size: int) -> list[Shard]:
    """Shards, and new ones for the names that they lack, by sorted name."""
    there = {name for shard in shards for name in shard.members}
    number = max((int(Path(shard.file).stem.rpartition("-")[2]) for shard in shards), default=-1) + 1
    lacking = sorted(names - there)
    starts = range(0, len(lacking), size)
    return shards + [
        Shard(f"shard-{number + i:06}.h5", tuple(lacking[start : start + size]))
        for i, start in enumerate(starts)
    ]
