"""Peak memory of work, measured in a process of its own: the most that was resident at once (VmHWM of Linux).

Nothing is taken off: Python, its libraries and the weights are in it, and what was resident before the work
is told beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

from contextdesc.errors import ContextDescError

P = ParamSpec("P")
T = TypeVar("T")

MEASURABLE = Path("/proc/self/clear_refs").exists()  # Linux alone can tell
_KB = 1024


def in_new_process(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work`, a function at the top level of a module, returns in a fresh process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        try:
            return pool.submit(work, *args, **kwargs).result()
        except BrokenProcessPool:
            raise ContextDescError(
                f"the process that ran {work.__name__} ended, perhaps for want of memory"
            ) from None


def resident_mb() -> float:
    """Megabytes (1024 x 1024 bytes) of this process that are resident now."""
    return _status("VmRSS")


def peak_mb(work: Callable[[], object]) -> float:
    """The most megabytes of this process that are resident at once while it works."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    work()
    return _status("VmHWM")


def _status(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / _KB for line in lines if line.startswith(f"{key}:"))
