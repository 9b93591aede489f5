"""Workers as actors of a Ray cluster, one core (or `threads` of them) each."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any

from contextdesc.errors import ContextDescError, InputError
from contextdesc.processes import thread_limits
from contextdesc.scale.task import Broken, Died, Message, Piece, Task
from contextdesc.scale.worker import Worker

_PATIENCE = 30.0  # seconds without any actor after which we say that we wait
_KNOCK = 10.0  # seconds that the head of a cluster has to answer
_FAILED_STARTS = 5  # actors that die before they are ready, one after another, until we give up


class ClusterPool:
    """Actors, each with one piece at a time; those that die are replaced where the cluster has room.

    Every node must have contextdesc installed and see the images and the output folder under the same paths.

    Args:
        address: of the cluster, or `auto` for the one that Ray finds, else a new one on this machine.
        count: of actors; None for as many as the cluster has cores.
        threads: of each actor.
    """

    def __init__(self, task: Task, folder: Path, address: str, count: int | None, threads: int) -> None:
        self._task, self._folder, self._address = task, folder.resolve(), address
        self._count, self._threads = count, threads
        self._starting: dict[Any, Any] = {}  # reference to come when it is ready -> actor
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, Piece]] = {}  # stream of messages -> actor, piece
        self._failed_starts = 0
        self._ends = ExitStack()  # what is undone at the end

    def __enter__(self) -> ClusterPool:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no reports to anybody
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError:
            raise InputError("--cluster needs an extra: pip install 'contextdesc[cluster]'") from None
        self._ray = ray
        with ExitStack() as stack:
            if not ray.is_initialized():
                stack.enter_context(redirect_stdout(sys.stderr))  # Ray prints there what died
                _connect(ray, self._address)
                stack.callback(ray.shutdown)
            cores = int(ray.cluster_resources().get("CPU", 0))
            count = self._count or cores // self._threads
            if not count:
                raise InputError(f"--cluster {self._address}: {cores} cores; add nodes, or ask for --workers")
            self._ends = stack.pop_all()
        actor: Any = ray.remote(
            num_cpus=self._threads, max_restarts=0, runtime_env={"env_vars": thread_limits(self._threads)}
        )(_Actor)
        self._start: Callable[[], Any] = lambda: actor.remote(self._task, self._folder, self._threads)
        for _ in range(count):
            self._add()
        return self

    def __exit__(self, *_: object) -> None:
        busy = [actor for actor, _ in self._busy.values()]
        for actor in [*self._starting.values(), *self._idle, *busy]:
            self._ray.kill(actor)
        self._ends.close()

    @property
    def free(self) -> int:
        """How many more pieces may be submitted: actors that are ready and have none."""
        return len(self._idle)

    def submit(self, piece: Piece) -> None:
        """Hand a piece to an actor that has none."""
        actor = self._idle.pop()
        stream = actor.handle.options(num_returns="streaming").remote(piece)
        self._busy[stream] = (actor, piece)

    def wait(self) -> list[Message]:
        """Messages of the actors; returns when there is one, or when an actor is ready."""
        waiting = [*self._starting, *self._busy]
        ready, _ = self._ray.wait(waiting, timeout=_PATIENCE)
        if ready:  # and whatever else is, since there may be thousands
            ready, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
        elif not self._busy:
            print(f"waiting for a node of {self._address} to have room for a worker", file=sys.stderr)
        messages: list[Message] = []
        for item in ready:
            if item in self._starting:
                self._started(item)
            else:
                messages += self._read(item)
        return messages

    def _add(self) -> None:
        actor = self._start()
        self._starting[actor.ready.remote()] = actor

    def _started(self, reference: Any) -> None:
        actor = self._starting.pop(reference)
        try:
            self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self._failed_starts += 1
            if self._failed_starts >= _FAILED_STARTS:
                raise ContextDescError(f"workers do not start on the cluster: {_one_line(error)}") from None
            self._add()
        else:
            self._failed_starts = 0
            self._idle.append(actor)

    def _read(self, stream: Any) -> list[Message]:
        actor, piece = self._busy[stream]
        try:
            message: Message = self._ray.get(next(stream))
        except StopIteration:
            del self._busy[stream]
            self._idle.append(actor)
            return []
        except self._ray.exceptions.RayTaskError as error:
            return [Broken(_one_line(error))]
        except self._ray.exceptions.RayError:
            del self._busy[stream]
            self._ray.kill(actor)  # it may be out of reach only
            self._add()
            return [Died(piece, "its worker or node is gone")]
        return [message]


class _Actor:
    """A worker as Ray starts it."""

    def __init__(self, task: Task, folder: Path, threads: int) -> None:
        self._worker = Worker(task, folder, threads)

    def ready(self) -> bool:
        return True

    def handle(self, piece: Piece) -> Iterator[Message]:
        yield from self._worker.handle(piece)


def _connect(ray: Any, address: str) -> None:
    if address.startswith("ray://"):
        raise InputError(
            f"--cluster {address}: Ray's client cannot follow the work; run on a node of the cluster with "
            "--cluster auto (ray job submit does so), or give HOST:PORT of its head"
        )
    where = {} if address == "auto" else {"address": address}
    try:
        if where:
            _knock(address)
        context = ray.init(**where, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"--cluster {address}: no Ray cluster there ({_one_line(error)})") from None
    if context.dashboard_url:
        print(f"Ray's dashboard: http://{context.dashboard_url}", file=sys.stderr)


def _knock(address: str) -> None:
    """Fail at once where nobody listens; Ray itself tries for many minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("give HOST:PORT")
    socket.create_connection((host, int(port)), _KNOCK).close()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
