"""Workers as processes of this machine."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from contextdesc.processes import environment, thread_limits
from contextdesc.scale.task import Broken, Died, Finished, Message, Piece, Task
from contextdesc.scale.worker import Worker

_GONE = (EOFError, OSError, pickle.UnpicklingError)  # what reading from a process that died raises


class LocalPool:
    """Up to `count` processes, each with one piece at a time; those that die are replaced.

    Args:
        threads: of each process.
    """

    def __init__(self, task: Task, folder: Path, count: int, threads: int) -> None:
        self._task, self._folder, self._count, self._threads = task, folder, count, threads
        self._context = multiprocessing.get_context("spawn")
        self._processes: dict[Connection, BaseProcess] = {}
        self._pieces: dict[Connection, Piece] = {}

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._processes:
            connection.close()
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join()

    @property
    def free(self) -> int:
        """How many more pieces may be submitted."""
        return self._count - len(self._pieces)

    def submit(self, piece: Piece) -> None:
        """Hand a piece to a process that has none."""
        for connection in [c for c in self._processes if c not in self._pieces]:
            try:
                connection.send(piece)
            except OSError:  # it died while it was idle
                self._bury(connection)
            else:
                self._pieces[connection] = piece
                return
        connection = self._start()
        self._pieces[connection] = piece
        with suppress(OSError):  # a process that dies at once is noticed when it is read from
            connection.send(piece)

    def wait(self) -> list[Message]:
        """Messages of the processes; returns when there is one."""
        messages: list[Message] = []
        for connection in wait(list(self._pieces)):
            assert isinstance(connection, Connection)
            try:
                message: Message = connection.recv()
            except _GONE:
                piece = self._pieces.pop(connection)
                message = Died(piece, self._bury(connection))
            if isinstance(message, Finished | Broken):
                del self._pieces[connection]
            messages.append(message)
        return messages

    def _start(self) -> Connection:
        ours, theirs = self._context.Pipe()
        arguments = (theirs, self._task, self._folder, self._threads)
        process = self._context.Process(target=_serve, args=arguments, daemon=True)
        with environment(thread_limits(self._threads)):
            process.start()
        theirs.close()
        self._processes[ours] = process
        return ours

    def _bury(self, connection: Connection) -> str:
        """Forget a process that died; how it did."""
        process = self._processes.pop(connection)
        connection.close()
        process.join()
        code = process.exitcode or 0
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _serve(connection: Connection, task: Task, folder: Path, threads: int) -> None:
    """The life of a process: pieces in, messages out, until the driver is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    worker = Worker(task, folder, threads)
    with suppress(EOFError, ConnectionError):
        while True:
            for message in worker.handle(connection.recv()):
                connection.send(message)
