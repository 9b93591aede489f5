"""Progress of long work: a bar with rate and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_LINE_EVERY = 10.0  # seconds between plain lines


class Advance(Protocol):
    def __call__(self, note: str = "", failed: bool = False) -> None: ...


@contextmanager
def progress(title: str, total: int, done: int = 0, quiet: bool = False) -> Iterator[Advance]:
    """Report `total` pieces of work on standard error, of which `done` are finished already.

    Yields a function to call after each piece, with a note if there is something to say about it, and
    whether it failed.
    """
    if quiet:
        yield lambda note="", failed=False: None
    elif sys.stderr.isatty():
        with _bar(title, total, done) as advance:
            yield advance
    else:
        yield _Lines(title, total, done).advance


@contextmanager
def _bar(title: str, total: int, done: int) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"), TextColumn("{task.fields[failures]}", style="red"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, completed=done, rate="", failures="")
        begun, finished, failures = time.monotonic(), 0, 0

        def advance(note: str = "", failed: bool = False) -> None:
            nonlocal finished, failures
            finished, failures = finished + 1, failures + failed
            rate = finished / max(1e-9, time.monotonic() - begun)
            bar.update(task, advance=1, rate=f"{rate:.1f}/s", failures=_failures(failures))
            if note:
                bar.console.print(note)

        yield advance


class _Lines:
    def __init__(self, title: str, total: int, done: int) -> None:
        self.title, self.total, self.start, self.done, self.failures = title, total, done, done, 0
        self.begun = self.last = time.monotonic()
        if done:
            print(f"{title}: {done} of {total} were finished before", file=sys.stderr)

    def advance(self, note: str = "", failed: bool = False) -> None:
        self.done, self.failures = self.done + 1, self.failures + failed
        if note:
            print(note, file=sys.stderr)
        now = time.monotonic()
        if now - self.last >= _LINE_EVERY or self.done == self.total:
            self.last = now
            rate = (self.done - self.start) / max(1e-9, now - self.begun)
            left = (self.total - self.done) / max(1e-9, rate)
            parts = [
                f"{self.title}: {self.done} of {self.total}", f"{rate:.1f}/s", _failures(self.failures),
                f"{left:.0f} s left",
            ]  # fmt: skip
            print(", ".join(part for part in parts if part), file=sys.stderr, flush=True)


def _failures(number: int) -> str:
    return f"{number} failed" if number else ""
