"""A global descriptor per image: the regional grid comes in, one unit vector goes out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.retrieval.options import Pooling

_POWER = 3.0  # of the generalised mean; the usual choice
_SMALLEST = 1e-6  # value of the grid


def pooled(grid: NDArray[np.float32], pooling: Pooling) -> NDArray[np.float32] | None:
    """(C, h, w) to a unit vector (C,), by the pooling's name; None for `none`."""
    match pooling:
        case "mean":
            return mean(grid)
        case "gem":
            return generalised_mean(grid)
        case "mac":
            return maximum(grid)
        case "none":
            return None


def mean(grid: NDArray[np.float32]) -> NDArray[np.float32]:
    """SPoC without its weights (Babenko and Lempitsky, 2015): (C, h, w) to a unit vector (C,).

    The only one here that reads negative values, which features before an activation have.
    """
    return _unit(grid.mean((1, 2), dtype=np.float64))


def generalised_mean(grid: NDArray[np.float32]) -> NDArray[np.float32]:
    """GeM (Radenovic et al., 2018): (C, h, w) to a unit vector (C,)."""
    values = np.maximum(grid, _SMALLEST).astype(np.float64)
    return _unit(np.power(np.power(values, _POWER).mean((1, 2)), 1 / _POWER))


def maximum(grid: NDArray[np.float32]) -> NDArray[np.float32]:
    """MAC (Razavian et al., 2014): (C, h, w) to a unit vector (C,)."""
    return _unit(np.maximum(grid, _SMALLEST).max((1, 2)).astype(np.float64))


def _unit(vector: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.asarray(vector / max(_SMALLEST, float(np.linalg.norm(vector))), np.float32)
