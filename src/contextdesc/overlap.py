"""Many images in one process, some at a time: while one is read and detected, networks describe another.

Results are kept in the order of the images, whichever is finished first, so overlap changes no output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import cv2

from contextdesc.engine import available_cores
from contextdesc.errors import ContextDescError
from contextdesc.interrupts import uninterrupted
from contextdesc.progress import progress
from contextdesc.report import Report

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.journal import Journal
    from contextdesc.model import ContextDesc

STREAMS = 2  # images at a time: keeps every core busy, and no more than two images in memory
FAILURES = (ContextDescError, cv2.error, MemoryError)  # what one image may do without ending the run

T = TypeVar("T")
R = TypeVar("R")


def streams_of(model: ContextDesc) -> int:
    """Images that a model works on at a time, by `ContextDesc.shared_by`; one where it has one thread."""
    return min(STREAMS, model.options["threads"] or available_cores())


def process(
    images: Mapping[str, T],
    work: Callable[[str, T], R],
    keep: Callable[[str, R], None],
    *,
    title: str,
    before: int = 0,
    streams: int = STREAMS,
    strict: bool = False,
    quiet: bool = False,
) -> Report:
    """Work on images by name and keep the results.

    Args:
        work: may run in several threads at a time.
        keep: runs in this thread, in the order of the images.
        before: images that were finished before and are not among these.
        strict: raise at the first image that fails, instead of listing it.
    """
    report = Report(before=before)
    with (
        progress(title, before + len(images), before, quiet) as advance,
        closing(_overlapped(images, work, streams)) as results,
    ):
        for name, result in results:
            try:
                kept = result.result()
            except FAILURES as error:
                if strict:
                    raise
                report.failed[name] = str(error)
                advance(f"{name}: {error}", failed=True)
                continue
            with uninterrupted():
                keep(name, kept)
                report.done.append(name)
                advance()
    return report


def process_into(
    journal: Journal,
    model: ContextDesc,
    images: Mapping[str, T],
    work: Callable[[ContextDesc, str, T], Mapping[str, NDArray[Any]]],
    *,
    title: str,
    before: int,
    strict: bool,
    quiet: bool,
) -> Report:
    """As `process`, with a model whose threads the images at a time share; arrays go to a journal, which is
    closed where this ends early."""
    streams = streams_of(model)
    try:
        return process(
            images, partial(work, model.shared_by(streams)), journal.append,
            title=title, before=before, streams=streams, strict=strict, quiet=quiet,
        )  # fmt: skip
    except BaseException:
        journal.close()
        raise


def _overlapped(
    images: Mapping[str, T], work: Callable[[str, T], R], streams: int
) -> Generator[tuple[str, Future[R]], None, None]:
    """Begin on an image as soon as a stream is free; what waits to be kept is bounded."""
    begun: deque[tuple[str, Future[R]]] = deque()
    pool = ThreadPoolExecutor(streams, "image")
    try:
        for name, image in images.items():
            begun.append((name, pool.submit(work, name, image)))
            if len(begun) > streams:
                yield begun.popleft()
        while begun:
            yield begun.popleft()
    finally:
        pool.shutdown(cancel_futures=True)
