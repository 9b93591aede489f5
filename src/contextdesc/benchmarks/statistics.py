"""Means with their uncertainty: values of independent units in, an interval by bootstrap out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from contextdesc.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

RESAMPLES = 10_000
_AT_ONCE = 100  # draws, which bounds memory where units are many


@dataclass(frozen=True)
class Mean:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.low == self.high:  # of one unit, or of units that all agree
            return f"{self.mean:.1f}"
        return f"{self.mean:.1f} ({self.low:.1f} to {self.high:.1f})"


@dataclass(frozen=True)
class Difference(Mean):
    """A mean of differences and its 95 % interval, shown with its sign."""

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.mean:+.1f}"
        return f"{self.mean:+.1f} ({self.low:+.1f} to {self.high:+.1f})"


def bootstrap(values: ArrayLike, seed: int = 0) -> Mean:
    """Mean of values (N,) of independent units, such as image pairs or sequences.

    The interval is of the means of `RESAMPLES` draws of N units with replacement.
    """
    units = np.asarray(values, np.float64)
    if not len(units):
        raise InputError("no values to take a mean of")
    rng = np.random.default_rng(seed)
    drawn = (rng.integers(len(units), size=(_AT_ONCE, len(units))) for _ in range(RESAMPLES // _AT_ONCE))
    low, high = np.percentile(np.concatenate([units[rows].mean(1) for rows in drawn]), [2.5, 97.5])
    return Mean(float(units.mean()), float(low), float(high))


def difference(values: ArrayLike, baseline: ArrayLike, seed: int = 0) -> Difference:
    """Mean of values (N,) less those of a baseline on the same units, in the same order."""
    found = bootstrap(np.asarray(values, np.float64) - np.asarray(baseline, np.float64), seed)
    return Difference(found.mean, found.low, found.high)
