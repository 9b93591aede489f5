"""Many images at a time: order, overlap, failures, and that memory stays bounded."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from contextdesc.errors import InputError
from contextdesc.model import load
from contextdesc.overlap import process, streams_of

NAMES = {f"{i:02}": i for i in range(12)}


def test_results_are_kept_in_order_although_later_ones_finish_first() -> None:
    kept: list[tuple[str, int]] = []

    def work(_: str, number: int) -> int:
        time.sleep(0.02 if number % 2 == 0 else 0)
        return number * number

    report = process(NAMES, work, lambda *one: kept.append(one), title="", streams=3, quiet=True)
    assert kept == [(name, number * number) for name, number in NAMES.items()]
    assert report.done == list(NAMES)


def test_two_streams_work_at_the_same_time() -> None:
    """Each waits for the other: with one stream this would not end."""
    meeting = threading.Barrier(2, timeout=10)
    report = process(NAMES, lambda *_: meeting.wait(), lambda *_: None, title="", streams=2, quiet=True)
    assert len(report.done) == len(NAMES)


def test_no_more_images_are_begun_than_can_be_kept() -> None:
    begun: list[int] = []
    most = 0

    def keep(name: str, _: None) -> None:
        nonlocal most
        time.sleep(0.01)
        most = max(most, len(begun) - int(name))

    process(NAMES, lambda _, number: begun.append(number), keep, title="", streams=2, quiet=True)
    assert most <= 3


def test_a_failure_is_listed_and_the_rest_goes_on() -> None:
    report = process(NAMES, _no_seven, lambda *_: None, title="", quiet=True, before=4)
    assert report.failed == {"07": "seven: is odd"}
    assert (len(report.done), report.before) == (11, 4)


def test_strict_stops_at_the_first_failure_with_what_was_before_it() -> None:
    kept: list[str] = []
    with pytest.raises(InputError, match="seven"):
        process(NAMES, _no_seven, lambda name, _: kept.append(name), title="", strict=True, quiet=True)
    assert kept == list(NAMES)[:7]


def test_what_is_no_failure_of_an_image_ends_the_run_and_leaves_no_thread() -> None:
    def work(_: str, number: int) -> None:
        if number == 3:
            raise ZeroDivisionError

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        process(NAMES, work, lambda *_: None, title="", quiet=True)
    assert threading.active_count() == before


def test_a_model_with_one_thread_has_one_stream(rootsift_model: Path) -> None:
    assert streams_of(load(rootsift_model, threads=1)) == 1
    assert streams_of(load(rootsift_model, threads=8)) == 2


def _no_seven(_: str, number: int) -> None:
    if number == 7:
        raise InputError("seven: is odd")
