"""The verdict: what verification found in, the probability that two images show the same thing out.

A logistic model on a few numbers of a verified pair. Its coefficients and thresholds are in `verdict.json`,
by model and geometry; `scripts/calibrate_verdict.py` fits them on pairs with known answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import cv2
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Answer = Literal["same scene", "unsure", "different scenes"]

CALIBRATIONS = Path(__file__).with_name("verdict.json")
GENERAL = "general"  # key of the calibration for models that have none of their own
MIN_KEYPOINTS = 8  # in each image; with fewer, no geometry could be found even for the same scene
LIMIT = 0.001  # probabilities beyond this and 1 - this are not claimed: the calibration has too few pairs
FEATURES = ("inlier share", "inlier ratio", "alike", "spread", "closeness")
EXPLAINED = {
    "fundamental": 7,
    "homography": 4,
    "essential": 5,
}  # matches that a geometry fits whatever they are

_PLANE = 3.0  # thresholds: how far from one homography an inlier may lie and still count as planar
_MIRROR = np.array([[1, 1], [-1, 1]], np.float32)  # of the second image's points
_MIRRORED = 10  # inliers, and half of all, that a mirroring homography must explain to be believed
_ALIKE_AT_RANDOM = 3  # inliers of two unrelated images that turn and scale alike
_ALIKE_TURN, _ALIKE_SCALE = 30.0, 0.5  # degrees and octaves within which two matches turn and scale alike
_ALIKE_BY_CHANCE = (1 / 6, 0.4)  # share of matches alike in one of them by chance
_MODES = 100  # matches that are tried as the one that the others are alike to


@dataclass(frozen=True, eq=False)
class PairFacts:
    """What the verdict needs to know of two images beside their matches.

    Attributes:
        sizes: (width, height) of both.
        keypoints: number in each.
        model, checksum: that described them.
        threshold: pixels, largest error of an inlier.
        turns: (M,) float32, degrees from the orientation of a match's first keypoint to that of its second;
            None where keypoints have no orientation.
        scales: (M,) float32, log2 of the ratio of their sizes; None where keypoints have no size.
    """

    sizes: tuple[tuple[int, int], tuple[int, int]]
    keypoints: tuple[int, int]
    model: str
    checksum: str
    threshold: float
    turns: NDArray[np.float32] | None
    scales: NDArray[np.float32] | None


@dataclass(frozen=True)
class Judgement:
    """A probability and the thresholds that turn it into an answer.

    Attributes:
        probability: that the images show the same thing, if half of all pairs do; None where an image has
            too few keypoints to tell (or, in a file of another extractor, no size).
        same_from: probability from which the answer is `same scene`.
        different_below: probability below which it is `different scenes`; `unsure` between.
    """

    probability: float | None
    same_from: float
    different_below: float

    @property
    def answer(self) -> Answer:
        if self.probability is None:
            return "unsure"
        if self.probability >= self.same_from:
            return "same scene"
        return "different scenes" if self.probability < self.different_below else "unsure"

    def __str__(self) -> str:
        known = (
            "too few keypoints to tell" if self.probability is None else f"probability {self.probability:.3f}"
        )
        return (
            f"{self.answer} ({known}; same from {self.same_from:g}, different below {self.different_below:g})"
        )


@dataclass(frozen=True)
class Calibration:
    """Coefficients of `FEATURES`, fitted for one model and geometry, and the thresholds chosen with them."""

    intercept: float
    coefficients: tuple[float, ...]
    same_from: float
    different_below: float

    def probability(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """(N,) of features (N, 5), kept within `LIMIT` and 1 - `LIMIT`."""
        logit = features @ np.array(self.coefficients) + self.intercept
        return np.clip(1 / (1 + np.exp(-np.clip(logit, -30, 30))), LIMIT, 1 - LIMIT)


def judge(
    geometry: str,
    points: NDArray[np.float32],
    inliers: NDArray[np.bool_],
    errors: NDArray[np.float32],
    facts: PairFacts,
) -> Judgement:
    """The judgement of a verified pair.

    Args:
        geometry: that verification fitted.
        points: (M, 2, 2) float32: match, image, (x, y) in pixels.
        inliers: (M,) bool.
        errors: (M,) float32, pixels.
        facts: of the two images.
    """
    calibration = calibration_of(facts.model, facts.checksum, geometry)
    probability = None
    if min(facts.keypoints) >= MIN_KEYPOINTS and min(map(min, facts.sizes)) > 0:
        evidence = measure(geometry, points, inliers, errors, facts)
        probability = float(calibration.probability(evidence[None])[0])
    return Judgement(probability, calibration.same_from, calibration.different_below)


def measure(
    geometry: str,
    points: NDArray[np.float32],
    inliers: NDArray[np.bool_],
    errors: NDArray[np.float32],
    facts: PairFacts,
) -> NDArray[np.float64]:
    """The features (5,) of a verified pair, in the order of `FEATURES`; see `judge` for the arguments.

    Logarithm of the inliers per keypoint; share of the matches that are inliers, beyond those that any
    geometry explains; logarithm of the inliers whose keypoints turn and scale alike; square root of the share
    of the image that the inliers' hull covers (mean of both images); one minus the median error of the
    inliers over the threshold. Pairs without inliers are in the middle of the last, and small constants keep
    shares of few from being extreme. Matches that a mirror explains count as none.
    """
    count, matches = int(inliers.sum()), len(inliers)
    agreeing = points[inliers]
    if _mirrored(agreeing, facts.threshold * _PLANE):  # no two cameras see that
        return measure(geometry, points, np.zeros_like(inliers), errors, facts)
    hulls = [_hull_share(agreeing[:, side], facts.sizes[side]) for side in (0, 1)]
    residual = float(np.median(errors[inliers])) / facts.threshold if count else 0.5
    return np.array([
        np.log((count + 1) / (min(facts.keypoints) + 20)),
        max(0, count - EXPLAINED[geometry]) / (matches + 5),
        np.log(max(0.0, _alike(inliers, facts) - _ALIKE_AT_RANDOM) + 1),
        np.sqrt(np.mean(hulls)),
        1 - residual,
    ])  # fmt: skip


def calibration_of(model: str, checksum: str, geometry: str) -> Calibration:
    """The calibration of these very weights, or the general one."""
    stored = _calibrations()
    own = stored.get(model)
    entry = own if own is not None and own["checksum"] == checksum else stored[GENERAL]
    values = entry["geometries"][geometry]
    return Calibration(
        values["intercept"],
        tuple(values["coefficients"][name] for name in FEATURES),
        values["same_from"],
        values["different_below"],
    )


def forget() -> None:
    """Read `verdict.json` again at the next judgement."""
    _calibrations.cache_clear()


@lru_cache(1)
def _calibrations() -> dict[str, Any]:
    return json.loads(CALIBRATIONS.read_text(encoding="utf-8"))


def _hull_share(xy: NDArray[np.float32], size: Sequence[int]) -> float:
    """Area of the convex hull of points (N, 2) over that of their image."""
    if len(xy) < 3:
        return 0.0
    return cv2.contourArea(cv2.convexHull(xy.astype(np.float32))) / (size[0] * size[1])


def _mirrored(points: NDArray[np.float32], threshold: float) -> bool:
    """Whether a homography that mirrors explains most of the matches (N, 2, 2), and more than any other."""
    mirrored = _planar(points * _MIRROR, threshold)
    return mirrored >= max(_MIRRORED, len(points) / 2) and mirrored > _planar(points, threshold)


def _planar(points: NDArray[np.float32], threshold: float) -> int:
    """How many of the matches (N, 2, 2) one homography explains; USAC finds none that mirrors."""
    if len(points) < 5:  # four always fit
        return 0
    try:
        _, mask = cv2.findHomography(points[:, 0], points[:, 1], cv2.USAC_MAGSAC, threshold, maxIters=500)
    except cv2.error:  # its answer to some degenerate points
        return 0
    return 0 if mask is None else int(mask.sum())


def _alike(inliers: NDArray[np.bool_], facts: PairFacts) -> float:
    """The largest number of inliers that turn and scale like one of them.

    Keypoints without orientation, or without size, count as often as they would be alike by chance.
    """
    rows = np.flatnonzero(inliers)
    if not len(rows):
        return 0.0
    modes = rows[np.linspace(0, len(rows) - 1, min(len(rows), _MODES)).astype(int)]
    alike = np.ones((len(modes), len(rows)), np.bool_)
    by_chance = 1.0
    if facts.turns is None:
        by_chance *= _ALIKE_BY_CHANCE[0]
    else:
        apart = facts.turns[modes, None] - facts.turns[None, rows]
        alike &= np.abs((apart + 180) % 360 - 180) <= _ALIKE_TURN
    if facts.scales is None:
        by_chance *= _ALIKE_BY_CHANCE[1]
    else:
        alike &= np.abs(facts.scales[modes, None] - facts.scales[None, rows]) <= _ALIKE_SCALE
    return by_chance * float(alike.sum(1).max())
