"""The ratio threshold of a descriptor: the one whose precision equals SIFT's at 0.80 (the paper's A.3).

Measured on photographs that the descriptor was not trained on, each matched with a warped view of itself,
so that every match is known to be right or wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contextdesc.benchmarks.methods import Method, build_method
from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.image import read
from contextdesc.training.data.homography import HomographyConfig, two_views, warp_points

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIFT_RATIO = 0.80
DISTANCE = 2.5  # pixels, of a right match
KEYPOINTS = 2048
_CANDIDATES = np.arange(0.50, 1.0001, 0.01)


@dataclass(frozen=True)
class Candidates:
    """Mutual nearest neighbours: their distance over that of the second nearest, and which are right."""

    ratio: NDArray[np.float32]
    right: NDArray[np.bool_]

    def precision(self, threshold: float) -> float:
        kept = self.right[self.ratio <= threshold]
        return float(kept.mean()) if len(kept) else 1.0


def choose_ratio(photos: Sequence[Path], model: str | Path, seed: int = 0) -> float:
    """The threshold of a model, on photographs held out from its training."""
    methods = {"sift": build_method("sift"), "model": build_method(str(model))}
    found = candidates(photos, methods, seed)
    return equal_precision(found["sift"], found["model"])


def equal_precision(sift: Candidates, other: Candidates) -> float:
    """The largest threshold at which `other` is at least as precise as SIFT at 0.80."""
    if not len(sift.ratio) or not len(other.ratio):
        raise InputError("no matches to choose a ratio on: give photographs with more texture")
    target = sift.precision(SIFT_RATIO)
    good = [float(r) for r in _CANDIDATES if other.precision(r) >= target]
    return round(max(good, default=float(_CANDIDATES[0])), 2)


def candidates(photos: Sequence[Path], methods: dict[str, Method], seed: int) -> dict[str, Candidates]:
    """Matches of every method on the same keypoints of the same pairs of views."""
    parts: dict[str, list[tuple[NDArray[np.float32], NDArray[np.bool_]]]] = {name: [] for name in methods}
    for index, path in enumerate(photos):
        rng = np.random.default_rng([seed, index])
        first, second, homography = two_views(read(path).gray, rng, HomographyConfig())
        views = [read(view) for view in (first, second)]
        keypoints = [detect(view.gray, Detector(KEYPOINTS)) for view in views]
        if min(map(len, keypoints)) < 2:
            continue
        warped = warp_points(keypoints[0].xy, homography)
        for name, method in methods.items():
            described = [method(v, k, True) for v, k in zip(views, keypoints, strict=True)]
            rows, partner, ratio = mutual_with_ratio(described[0], described[1])
            error = np.linalg.norm(keypoints[1].xy[partner] - warped[rows], axis=1)
            parts[name].append((ratio, error <= DISTANCE))
    empty = (np.zeros(0, np.float32), np.zeros(0, np.bool_))
    return {
        name: Candidates(*(np.concatenate(column) for column in zip(*(found or [empty]), strict=True)))
        for name, found in parts.items()
    }


def mutual_with_ratio(
    first: NDArray[np.float32], second: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Rows, their mutual nearest neighbours, and nearest over second nearest distance."""
    similarity = first @ second.T
    nearest = similarity.argmax(1)
    rows = np.flatnonzero(similarity.argmax(0)[nearest] == np.arange(len(first)))
    two_best = np.partition(similarity[rows], -2, axis=1)[:, -2:]
    distance = np.sqrt(np.maximum(0, 2 - 2 * two_best))
    return rows, nearest[rows], distance[:, 1] / np.maximum(distance[:, 0], 1e-12)
