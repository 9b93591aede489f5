"""The driver: hands shards to workers, records those that are finished, and survives what happens to them."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from contextdesc.errors import ContextDescError, InputError
from contextdesc.formats.manifest import Kind
from contextdesc.progress import Advance, progress
from contextdesc.report import Report
from contextdesc.scale.cluster import ClusterPool
from contextdesc.scale.ledger import Ledger
from contextdesc.scale.local import LocalPool
from contextdesc.scale.task import Broken, Died, Finished, Message, Piece, Progress, Task
from contextdesc.scale.worker import begun_note

if TYPE_CHECKING:
    from contextdesc.model import ContextDesc

_ATTEMPTS = 3  # deaths of processes that were at one item, until the item is given up
_OTHER_DEATHS = 5  # of processes that were at none, with no shard finished in between, until the run is


@dataclass(frozen=True)
class Workers:
    """Who does the work.

    Attributes:
        count: of processes; None for as many as a cluster has cores, or for one of this machine.
        cluster: address of a Ray cluster, or `auto`; None for processes of this machine.
        threads: of each process.
    """

    count: int | None = None
    cluster: str | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise InputError(f"workers: {self.count}; give 1 or more")

    def for_model(self, model: ContextDesc) -> Workers:
        """These workers with the threads that a model was loaded with, if that was said."""
        if self.cluster is not None and model.options["device"] == "cuda":
            raise InputError("--device cuda: workers of a cluster run on processors only; leave it out")
        return replace(self, threads=model.options["threads"] or self.threads)

    def pool(self, task: Task, folder: Path) -> _Pool:
        if self.cluster is not None:
            return ClusterPool(task, folder, self.cluster, self.count, self.threads)
        return LocalPool(task, folder, self.count or 1, self.threads)


class _Pool(Protocol):
    """Processes that take one piece each and answer with messages."""

    @property
    def free(self) -> int: ...
    def submit(self, piece: Piece) -> None: ...
    def wait(self) -> list[Message]: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


def run(
    task: Task,
    items: Mapping[str, Any],
    folder: Path,
    workers: Workers,
    *,
    kind: Kind,
    settings: Mapping[str, Any],
    shard_size: int,
    strict: bool = False,
    restart: bool = False,
    quiet: bool = False,
    title: str = "work",
) -> Report:
    """Do a task for items by name; the results are shards in a folder.

    What an earlier run finished is verified by its checksum and kept. An item that fails is listed with its
    reason in the manifest and the report; so is one on which processes die again and again.

    Args:
        folder: of the shards; with a cluster, one that all nodes see under the same path.
        kind: of the results, for their readers.
        settings: whatever must be equal for shards to belong together, as JSON values.
        shard_size: items per shard.
        strict: stop at the first item that fails.
        restart: forget an unfinished run.
    """
    if shard_size < 1:
        raise InputError(f"shard size {shard_size}: give 1 or more")
    ledger = Ledger(folder, kind, settings, items, shard_size, restart)
    try:
        driver = _Driver(ledger, items, strict)
        if ledger.shards:
            with (
                workers.pool(task, folder) as pool,
                progress(title, len(items), driver.known, quiet) as advance,
            ):
                driver.drive(pool, advance)
        ledger.finish()
    except BaseException:
        ledger.close()
        raise
    return driver.report()


class _Driver:
    """The state of a run.

    Attributes:
        known: number of wanted items that were finished, or failed, before.
    """

    def __init__(self, ledger: Ledger, items: Mapping[str, Any], strict: bool) -> None:
        self._ledger, self._items, self._strict = ledger, items, strict
        shards = list(ledger.shards.values())
        self._waiting = deque(
            Piece(shard, {name: items[name] for name in shard.members if name in items}) for shard in shards
        )
        self._seen = {name for shard in shards if shard.sha256 for name in shard.members if name in items}
        self.known = len(self._seen)
        self._kept: set[str] = set()  # files of shards that were whole
        self._suspects: Counter[str] = Counter()
        self._other_deaths = 0

    def drive(self, pool: _Pool, advance: Advance) -> None:
        unfinished = len(self._waiting)
        while unfinished:
            while self._waiting and pool.free:
                pool.submit(self._waiting.popleft())
            for message in pool.wait():
                match message:
                    case Progress(outcomes):
                        self._progress(outcomes, advance)
                    case Finished():
                        self._finished(message)
                        unfinished -= 1
                    case Died():
                        self._waiting.appendleft(self._after_death(message))
                    case Broken(reason):
                        raise ContextDescError(reason)

    def report(self) -> Report:
        """Of the items that were wanted."""
        report = Report()
        for shard in self._ledger.shards.values():
            wanted = [name for name in shard.names if name in self._items]
            if shard.file in self._kept:
                report.before += len(wanted)
            else:
                report.done += wanted
            report.failed |= {n: reason for n, reason in shard.failed.items() if n in self._items}
        report.done.sort()
        return report

    def _progress(self, outcomes: tuple[tuple[str, str | None], ...], advance: Advance) -> None:
        for name, reason in outcomes:
            if reason is not None and self._strict:
                raise InputError(f"{name}: {reason}")
            if name not in self._seen:  # not for the second time after a death
                self._seen.add(name)
                advance("" if reason is None else f"{name}: {reason}", failed=reason is not None)

    def _finished(self, message: Finished) -> None:
        self._other_deaths = 0
        shard = message.shard
        if message.part is None:
            self._kept.add(shard.file)
            return
        folder = self._ledger.folder
        try:
            os.replace(folder / message.part, folder / shard.file)
        except FileNotFoundError:
            raise InputError(
                f"{folder / message.part}: a worker wrote it, but it is not here; the output must be a "
                "folder that all nodes see under the same path"
            ) from None
        self._ledger.record(shard)

    def _after_death(self, death: Died) -> Piece:
        """The piece to try next: carefully, and without an item that killed too often."""
        piece = replace(death.piece, careful=True)
        if not death.piece.careful:
            return piece
        note = begun_note(self._ledger.folder, piece.shard)
        if not note.exists():
            self._other_deaths += 1
            if self._other_deaths >= _OTHER_DEATHS:
                raise ContextDescError(f"workers die, and not on single items: {death.reason}")
            return piece
        name = note.read_text(encoding="utf-8")
        note.unlink()
        self._suspects[name] += 1
        if self._suspects[name] < _ATTEMPTS:
            return piece
        reason = f"the process that worked on it died, {_ATTEMPTS} times ({death.reason})"
        return replace(piece, skip={**piece.skip, name: reason})
