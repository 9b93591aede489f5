"""Descriptors as COLMAP stores them: bytes of length 512 whose distances keep their order and ratios."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from contextdesc.errors import InputError
from contextdesc.formats.colmap import LENGTH, SCALE, from_uint8, to_uint8


@pytest.fixture(scope="module")
def vectors() -> NDArray[np.float32]:
    """Signed unit vectors, each with a noisy copy of itself in the second half."""
    rng = np.random.default_rng(0)
    first = rng.normal(size=(100, 128))
    both = np.concatenate([first, first + 0.4 * rng.normal(size=first.shape)])
    return (both / np.linalg.norm(both, axis=1, keepdims=True)).astype(np.float32)


def distances(vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    a, b = np.split(vectors.astype(np.float64), 2)
    return np.asarray(np.sqrt(((a[:, None] - b) ** 2).sum(2)))


def test_every_descriptor_has_the_length_that_colmap_assumes(vectors: NDArray[np.float32]) -> None:
    stored = to_uint8(vectors)
    assert stored.dtype == np.uint8
    length = np.linalg.norm(stored.astype(np.float64), axis=1)
    np.testing.assert_allclose(length, LENGTH, rtol=0.01)


def test_distances_keep_their_scale_and_ratios(vectors: NDArray[np.float32]) -> None:
    before, after = distances(vectors), distances(to_uint8(vectors)) / SCALE
    np.testing.assert_allclose(after, before, rtol=0.08)
    np.testing.assert_array_equal(after.argmin(1), before.argmin(1))
    np.testing.assert_allclose(np.median(np.abs(after / before - 1)), 0, atol=0.01)


def test_the_angle_of_the_gpu_matcher_agrees(vectors: NDArray[np.float32]) -> None:
    a, b = np.split(to_uint8(vectors).astype(np.float64), 2)
    angle = np.arccos(np.minimum(a @ b.T / LENGTH**2, 1))
    right = np.diag(angle)
    wrong = angle[~np.eye(len(angle), dtype=bool)]
    assert (angle.argmin(1) == np.arange(len(angle))).all()
    assert right.max() < wrong.min() < 0.7


def test_what_is_stored_can_be_read_again(vectors: NDArray[np.float32]) -> None:
    centred = vectors - vectors.mean(1, keepdims=True)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    assert ((from_uint8(to_uint8(vectors)) * centred).sum(1) > 0.995).all()


def test_odd_shapes() -> None:
    assert to_uint8(np.zeros((0, 128), np.float32)).shape == (0, 128)
    assert (to_uint8(np.zeros((1, 128), np.float32)) == 43).all()
    with pytest.raises(InputError, match=r"shape \(3, 64\): COLMAP's database takes \(N, 128\)"):
        to_uint8(np.zeros((3, 64), np.float32))
