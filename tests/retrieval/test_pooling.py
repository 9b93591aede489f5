"""Global descriptors: unit vectors from the mean to the maximum of the grid."""

from __future__ import annotations

import numpy as np
import pytest

from contextdesc.retrieval.options import Pooling
from contextdesc.retrieval.pooling import generalised_mean, maximum, mean, pooled


def test_the_generalised_mean_lies_between_mean_and_maximum() -> None:
    grid = np.random.default_rng(0).uniform(0, 1, (8, 3, 4)).astype(np.float32)
    grid[0] = 5
    found = generalised_mean(grid)
    assert np.linalg.norm(found) == pytest.approx(1)
    assert found.argmax() == 0
    assert (found[1:] / found[0] > grid[1:].mean((1, 2)) / 5).all()
    assert (found[1:] / found[0] < grid[1:].max((1, 2)) / 5).all()


def test_mac_is_the_maximum() -> None:
    grid = np.zeros((3, 2, 2), np.float32)
    grid[0, 1, 0], grid[1, 0, 1] = 3, 4
    np.testing.assert_allclose(maximum(grid), [0.6, 0.8, 0], atol=1e-6)
    np.testing.assert_array_equal(pooled(grid, "mac"), maximum(grid))
    np.testing.assert_array_equal(pooled(grid, "gem"), generalised_mean(grid))
    assert pooled(grid, "none") is None


def test_the_mean_reads_negative_values() -> None:
    grid = np.array([[[4, 2]], [[-5, -3]], [[1, -1]]], np.float32)
    np.testing.assert_allclose(mean(grid), [0.6, -0.8, 0], atol=1e-6)
    np.testing.assert_array_equal(pooled(grid, "mean"), mean(grid))


@pytest.mark.parametrize("pooling", ["mean", "gem", "mac"])
def test_a_grid_of_nothing_is_finite(pooling: Pooling) -> None:
    found = pooled(np.zeros((4, 1, 1), np.float32), pooling)
    assert found is not None
    assert np.isfinite(found).all()
