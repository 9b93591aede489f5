from __future__ import annotations

import signal
import threading

import pytest

from contextdesc.interrupts import uninterrupted


def test_ctrl_c_waits_for_the_block() -> None:
    steps = []

    def work() -> None:
        with uninterrupted():
            with uninterrupted():
                signal.raise_signal(signal.SIGINT)
                steps.append("inner")
            steps.append("outer")
        steps.append("after")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == ["inner", "outer"]
    with pytest.raises(KeyboardInterrupt):  # and is as before
        signal.raise_signal(signal.SIGINT)


def test_without_ctrl_c_nothing_happens_and_errors_pass() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="its own"), uninterrupted():
        raise ValueError("its own")
    with uninterrupted():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_are_left_alone() -> None:
    done = []

    def work() -> None:
        with uninterrupted():
            done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [signal.getsignal(signal.SIGINT)]
