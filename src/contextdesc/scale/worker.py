"""What one process does: make the shards that it is handed, item by item."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from contextdesc.errors import ContextDescError
from contextdesc.formats.manifest import Shard
from contextdesc.modelfile import sha256
from contextdesc.scale.task import Broken, Finished, Message, Piece, Progress, Task

_REPORT_EVERY = 0.2  # seconds
LEFTOVERS = (".shard-*.part", ".shard-*.begun")  # what processes that died leave in the folder


def begun_note(folder: Path, shard: Shard) -> Path:
    """The file that names the item that a careful worker began last."""
    return folder / f".{shard.file}.begun"


class Worker:
    """Makes shards in a folder; the task is opened when the first item needs it.

    Args:
        threads: that OpenCV may use; see `processes.thread_limits` for other libraries.
    """

    def __init__(self, task: Task, folder: Path, threads: int) -> None:
        import cv2

        cv2.setNumThreads(threads)
        self._task, self._folder = task, folder
        self._function: Callable[[str, Any], Any] | None = None

    def handle(self, piece: Piece) -> Iterator[Message]:
        """Make a shard; the last message says that it is finished, or why nothing can be."""
        try:
            if self._is_whole(piece.shard):
                yield Finished(piece.shard, None)
            else:
                yield from self._make(piece)
        except Exception as error:
            yield Broken(_reason(error))

    def _is_whole(self, shard: Shard) -> bool:
        path = self._folder / shard.file
        return (
            shard.sha256 is not None
            and path.is_file()
            and path.stat().st_size == shard.bytes
            and sha256(path) == shard.sha256
        )

    def _make(self, piece: Piece) -> Iterator[Message]:
        """Write a file of a name of its own, since another worker may be at the same shard."""
        import h5py

        if self._function is None:
            self._function = self._task.open()
        shard = piece.shard
        note = begun_note(self._folder, shard)
        part = self._folder / f".{shard.file}.{uuid.uuid4().hex[:12]}.part"
        outcomes: list[tuple[str, str | None]] = []
        failed: dict[str, str] = {}
        reported = time.monotonic()
        with h5py.File(part, "w") as file:
            for name in shard.members:
                if piece.careful:
                    note.write_text(name, encoding="utf-8")
                result, reason = self._result(piece, name)
                if reason is None:
                    self._task.write(file, name, result)
                else:
                    failed[name] = reason
                outcomes.append((name, reason))
                if time.monotonic() - reported > _REPORT_EVERY:
                    yield Progress(tuple(outcomes))
                    outcomes, reported = [], time.monotonic()
        if piece.careful:
            note.unlink(missing_ok=True)
        yield Progress(tuple(outcomes))
        names = tuple(name for name in shard.members if name not in failed)
        yield Finished(Shard(shard.file, names, failed, part.stat().st_size, sha256(part)), part.name)

    def _result(self, piece: Piece, name: str) -> tuple[Any, str | None]:
        """The result of an item, or the reason why there is none."""
        assert self._function is not None
        if name in piece.skip:
            return None, piece.skip[name]
        if name not in piece.items:
            return None, "was lost with a damaged shard, and is not among what was given now"
        try:
            return self._function(name, piece.items[name]), None
        except Exception as error:  # whatever one item of a million may bring
            return None, _reason(error)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, ContextDescError) else f"{type(error).__name__}: {text}"
