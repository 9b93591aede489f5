"""Errors of relative poses in, one number out: mAP of the learned correspondences, AUC of SuperGlue.

Errors are in degrees, infinite where no pose was found, along the last axis, so that many resamples of them
are scored at once: (..., P) to (...).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from contextdesc.benchmarks.statistics import RESAMPLES, Difference, Mean
from contextdesc.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]

BIN = 5  # degrees: steps of the mAP
_TOGETHER = 2_000_000  # values of resamples that are held at a time


def mean_precision(errors: NDArray[np.float64], degrees: int) -> NDArray[np.float64]:
    """mAP in percent: mean of the shares of pairs below 5, 10, ... degrees, up to `degrees`."""
    shares = [(errors < limit).mean(-1) for limit in range(BIN, degrees + 1, BIN)]
    return np.asarray(100 * np.mean(shares, axis=0))


def area_under_curve(errors: NDArray[np.float64], degrees: float) -> NDArray[np.float64]:
    """AUC in percent: the area below the curve of recall by error, up to `degrees`.

    The curve is that of SuperGlue's evaluation: straight lines from (0, 0) through (e_i, i / P) of the
    sorted errors below `degrees`, then level. Its area is that of steps, plus the triangles between steps
    and lines, whose widths add up to the largest error below.
    """
    below = errors < degrees
    steps = np.where(below, degrees - errors, 0).sum(-1)
    triangles = np.where(below, errors, 0).max(-1) / 2
    return np.asarray(100 * (steps + triangles) / (errors.shape[-1] * degrees))


def median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.median(values, axis=-1))


def interval(
    statistic: Statistic, values: NDArray[np.float64], minus: NDArray[np.float64] | None = None, seed: int = 0
) -> Mean:
    """A statistic of values (P,) of pairs with its 95 % interval over resamples of the pairs.

    Args:
        minus: values of the same pairs; the answer is the difference of both statistics.
    """
    if not len(values):
        raise InputError("no pairs to score")

    def score(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        return statistic(values[rows]) - (0 if minus is None else statistic(minus[rows]))

    rng, pairs = np.random.default_rng(seed), len(values)
    block = max(1, _TOGETHER // pairs)
    drawn = [
        score(rng.integers(pairs, size=(min(block, RESAMPLES - start), pairs)))
        for start in range(0, RESAMPLES, block)
    ]
    low, high = np.percentile(np.concatenate(drawn), [2.5, 97.5])
    kind = Mean if minus is None else Difference
    return kind(float(score(np.arange(pairs))), float(low), float(high))
