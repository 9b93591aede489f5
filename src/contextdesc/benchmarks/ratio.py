"""The ratio threshold of a descriptor: the one whose precision equals SIFT's at 0.80 (the paper's A.3).

Measured on pairs of views that the descriptor was not trained on and of which every match is known to be
right or wrong: two photographs of a reconstructed scene, or a photograph and a warped view of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from contextdesc.benchmarks.methods import Method, build_method
from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.image import Image, read
from contextdesc.training.data.homography import HomographyConfig, two_views, warp_points
from contextdesc.training.data.scenes import PairRules, Scene

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.keypoints import Keypoints

    # Points (M, 2) of both views -> (M,) pixels by which they miss each other
    Errors: TypeAlias = Callable[[NDArray[np.float32], NDArray[np.float32]], NDArray[np.float64]]

SIFT_RATIO = 0.80
DISTANCE = 2.5  # pixels, of a right match
KEYPOINTS = 2048
PER_SCENE = 12  # pairs
_CANDIDATES = np.arange(0.50, 1.0001, 0.01)


@dataclass(frozen=True, eq=False)
class TwoViews:
    """Two images with their keypoints, and the error of a match between them."""

    images: tuple[Image, Image]
    keypoints: tuple[Keypoints, Keypoints]
    errors: Errors


@dataclass(frozen=True, eq=False)
class Candidates:
    """Mutual nearest neighbours: their distance over that of the second nearest, and which are right."""

    ratio: NDArray[np.float32]
    right: NDArray[np.bool_]

    def precision(self, threshold: float) -> float:
        kept = self.right[self.ratio <= threshold]
        return float(kept.mean()) if len(kept) else 1.0

    def right_matches(self, threshold: float) -> int:
        return int(self.right[self.ratio <= threshold].sum())


def choose_ratio(views: Iterable[TwoViews], model: str | Path) -> float:
    """The threshold of a model, on views held out from its training."""
    found = candidates(views, {"sift": build_method("sift"), "model": build_method(str(model))})
    return equal_precision(found["sift"], found["model"])


def equal_precision(sift: Candidates, other: Candidates) -> float:
    """The largest threshold at which `other` is at least as precise as SIFT at 0.80."""
    if not len(sift.ratio) or not len(other.ratio):
        raise InputError("no matches to choose a ratio on: give images with more texture")
    target = sift.precision(SIFT_RATIO)
    good = [float(r) for r in _CANDIDATES if other.precision(r) >= target]
    return round(max(good, default=float(_CANDIDATES[0])), 2)


def photo_views(photos: Sequence[Path], seed: int = 0) -> Iterator[TwoViews]:
    """Each photograph and a warped view of it."""
    for index, path in enumerate(photos):
        rng = np.random.default_rng([seed, index])
        first, second, homography = two_views(read(path).gray, rng, HomographyConfig())
        yield _detected(read(first), read(second), _warp_errors(homography))


def scene_views(folders: Sequence[Path], per_scene: int = PER_SCENE, seed: int = 0) -> Iterator[TwoViews]:
    """Pairs of photographs of reconstructed scenes, drawn among those that share tracks."""
    for index, folder in enumerate(folders):
        scene = Scene.load(folder)
        pairs = np.random.default_rng([seed, index]).permutation(scene.select_pairs(PairRules()))[:per_scene]
        for first, second in pairs.tolist():
            views = (read(scene.path(first)), read(scene.path(second)))
            yield _detected(*views, _epipolar_errors(scene.fundamental(first, second)))


def candidates(views: Iterable[TwoViews], methods: Mapping[str, Method]) -> dict[str, Candidates]:
    """Matches of every method on the same keypoints of the same pairs of views."""
    empty = (np.zeros(0, np.float32), np.zeros(0, np.bool_))
    parts = {name: [empty] for name in methods}
    for pair in views:
        if min(map(len, pair.keypoints)) < 2:
            continue
        for name, method in methods.items():
            one, two = (method(i, k, True) for i, k in zip(pair.images, pair.keypoints, strict=True))
            rows, partners, ratio = mutual_with_ratio(one, two)
            error = pair.errors(pair.keypoints[0].xy[rows], pair.keypoints[1].xy[partners])
            parts[name].append((ratio, error <= DISTANCE))
    return {
        name: Candidates(*(np.concatenate(column) for column in zip(*found, strict=True)))
        for name, found in parts.items()
    }


def mutual_with_ratio(
    first: NDArray[np.float32], second: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Rows, their mutual nearest neighbours, and the larger of both sides' nearest over second nearest."""
    similarity = first @ second.T
    nearest = similarity.argmax(1)
    rows = np.flatnonzero(similarity.argmax(0)[nearest] == np.arange(len(first)))
    partners = nearest[rows]
    sides = [_ratio(similarity[rows]), _ratio(similarity[:, partners].T)]
    return rows, partners, np.maximum(*sides)


def _ratio(similarity: NDArray[np.float32]) -> NDArray[np.float32]:
    """(N,) of similarities (N, M): distance of the nearest over that of the second nearest."""
    two_best = np.partition(similarity, -2, axis=1)[:, -2:]
    distance = np.sqrt(np.maximum(0, 2 - 2 * two_best))
    return np.asarray(distance[:, 1] / np.maximum(distance[:, 0], 1e-12), np.float32)


def _detected(first: Image, second: Image, errors: Errors) -> TwoViews:
    found = (detect(first.gray, Detector(KEYPOINTS)), detect(second.gray, Detector(KEYPOINTS)))
    return TwoViews((first, second), found, errors)


def _warp_errors(homography: NDArray[np.float64]) -> Errors:
    return lambda one, two: np.linalg.norm(two - warp_points(one, homography), axis=1)


def _epipolar_errors(fundamental: NDArray[np.float64]) -> Errors:
    """The larger distance of a point from its epipolar line: a wrong match rarely falls on it by chance."""

    def errors(one: NDArray[np.float32], two: NDArray[np.float32]) -> NDArray[np.float64]:
        points = [np.column_stack([xy, np.ones(len(xy))]) for xy in (one, two)]
        lines = points[0] @ fundamental.T, points[1] @ fundamental
        residual = np.abs((points[1] * lines[0]).sum(1))
        return residual / np.maximum(np.minimum(*(np.hypot(*line.T[:2]) for line in lines)), 1e-12)

    return errors
