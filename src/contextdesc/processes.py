"""Threads of processes, and a pool of processes of one thread each, which end with the one that starts it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process

# Read by libraries when a process starts: else each starts a thread per core
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def thread_limits(threads: int) -> dict[str, str]:
    """Environment of a process whose numerical libraries shall use so many threads."""
    return dict.fromkeys(_THREADS, str(threads))


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables for processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def processes(workers: int) -> Iterator[ProcessPoolExecutor]:
    """A pool whose processes end at once if the block fails or is interrupted, or this process is killed.

    They start fresh: a forked child of a process with running OpenCV or PyTorch threads hangs.
    """
    others = set(active_children())
    with environment(thread_limits(1)):
        pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin)
        try:
            yield pool
        except BaseException:
            for process in set(active_children()) - others:
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Of a process: Ctrl-C is for the one that started it, and it ends when that one is killed."""
    import cv2

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    cv2.setNumThreads(1)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
