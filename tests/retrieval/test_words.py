"""The words of an image: counted, shared among neighbours, and damped where they repeat."""

from __future__ import annotations

import numpy as np
import pytest

from contextdesc.errors import InputError
from contextdesc.retrieval.options import Options
from contextdesc.retrieval.words import words_of
from tests.retrieval.conftest import plain_vocabulary

ROWS = np.array([[0.1], [4.2], [3.9], [2.0], [4.0], [4.1]], np.float32)  # words 0, 4, 4, 2, 4, 4


def test_words_are_counted() -> None:
    words, weights = words_of(plain_vocabulary(6), ROWS, Options(burstiness="none"))
    assert (words.tolist(), weights.tolist()) == ([0, 2, 4], [1, 1, 4])
    assert (words.dtype, weights.dtype) == (np.int32, np.float32)


def test_burstiness_takes_the_square_root() -> None:
    _, weights = words_of(plain_vocabulary(6), ROWS, Options(burstiness="root"))
    assert weights.tolist() == [1, 1, 2]


def test_soft_assignment_shares_a_descriptor_by_distance() -> None:
    """At 0.25 from word 0 and 0.75 from word 1: exp(-0.0625 / 0.5) to exp(-0.5625 / 0.5) with sigma 0.5."""
    options = Options(neighbours=2, sigma=0.5, burstiness="none")
    words, weights = words_of(plain_vocabulary(3), np.array([[0.25]], np.float32), options)
    first, second = np.exp(-0.125), np.exp(-1.125)
    assert words.tolist() == [0, 1]
    np.testing.assert_allclose(weights, np.array([first, second]) / (first + second), rtol=1e-5)
    many = words_of(plain_vocabulary(6), ROWS, options)[1]
    assert many.sum() == pytest.approx(len(ROWS))


def test_more_neighbours_than_words() -> None:
    words, weights = words_of(plain_vocabulary(2), ROWS[:1], Options(neighbours=5, sigma=10))
    assert words.tolist() == [0, 1]
    assert np.isfinite(weights).all()


def test_no_descriptors_are_no_words() -> None:
    words, weights = words_of(plain_vocabulary(3), np.zeros((0, 1), np.float32), Options(neighbours=2))
    assert (words.shape, weights.shape) == ((0,), (0,))


def test_options_are_checked() -> None:
    with pytest.raises(InputError, match="neighbours is 0: give 1 or more"):
        Options(neighbours=0)
    with pytest.raises(InputError, match="sigma is 0"):
        Options(sigma=0)
    with pytest.raises(InputError, match="burstiness is 'log': one of none, root"):
        Options(burstiness="log")  # type: ignore[arg-type]
