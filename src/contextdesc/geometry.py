"""Verification: which matches agree with one camera geometry.

cv2's USAC MAGSAC estimates a homography, a fundamental matrix, or, with intrinsics, an essential matrix
and the relative pose.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import cv2
import numpy as np

from contextdesc.errors import InputError
from contextdesc.verdict import Answer, Judgement, PairFacts, judge

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.features import Features
    from contextdesc.matching import Matches

Geometry = Literal["homography", "fundamental", "essential"]

THRESHOLD = 2.0  # pixels, largest error of an inlier
CONFIDENCE = 0.9999
ITERATIONS = 10_000
_MINIMUM = {"homography": 4, "fundamental": 8, "essential": 6}  # matches to try at all


@dataclass(frozen=True, eq=False)
class Verification:
    """Matches and the geometry that explains them.

    Attributes:
        geometry: kind of `matrix`.
        matrix: (3, 3) float64, or None if none was found. A homography maps pixels of the first image to
            the second; the others satisfy x2^T M x1 = 0, in pixels or, for `essential`, in normalised
            coordinates.
        points: (M, 2, 2) float32: match, image, (x, y) in pixels.
        inliers: (M,) bool.
        pose: rotation (3, 3) and unit translation (3,), x2 = R x1 + t, for `essential`; else None.
        errors: (M,) float32, pixels: Sampson's distance, or with a homography the distance from the mapped
            point; infinite without a matrix.
        facts: of the two images, for the verdict; None where nobody knows them.
    """

    geometry: Geometry
    matrix: NDArray[np.float64] | None
    points: NDArray[np.float32]
    inliers: NDArray[np.bool_]
    pose: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
    errors: NDArray[np.float32] | None = None
    facts: PairFacts | None = None

    @property
    def inlier_count(self) -> int:
        return int(self.inliers.sum())

    @property
    def inlier_ratio(self) -> float:
        return self.inlier_count / len(self.inliers) if len(self.inliers) else 0.0

    @cached_property
    def judgement(self) -> Judgement | None:
        """The probability that both images show the same thing, with the thresholds of the verdict."""
        if self.facts is None or self.errors is None:
            return None
        return judge(self.geometry, self.points, self.inliers, self.errors, self.facts)

    @property
    def probability(self) -> float | None:
        """That both images show the same thing, if half of all pairs do; None if nothing tells."""
        return None if self.judgement is None else self.judgement.probability

    @property
    def verdict(self) -> Answer:
        """Do the two images show the same thing? By `probability`."""
        return "unsure" if self.judgement is None else self.judgement.answer

    def _repr_html_(self) -> str:
        from contextdesc.notebook import html_table

        rows = {
            "matches": len(self.inliers),
            "inliers": f"{self.inlier_count} ({self.inlier_ratio:.0%})",
            "geometry": self.geometry,
            "verdict": self.verdict,
        }
        return html_table("Verification", rows)


def verify(
    first: Features,
    second: Features,
    matches: Matches,
    geometry: Geometry = "fundamental",
    threshold: float = THRESHOLD,
    intrinsics: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None,
) -> Verification:
    """Keep the matches that agree with one geometry.

    Args:
        geometry: `fundamental` for scenes with depth, `homography` for planes and turning cameras,
            `essential` for calibrated cameras.
        threshold: pixels.
        intrinsics: (3, 3) of both cameras, for `essential`; see `intrinsics`.
    """
    if geometry not in _MINIMUM:
        raise InputError(f"geometry is {geometry!r}: one of {', '.join(_MINIMUM)}")
    if not threshold > 0:
        raise InputError(f"threshold is {threshold}: give a positive number of pixels")
    if geometry == "essential" and intrinsics is None:
        raise InputError("essential needs the intrinsics of both cameras (--focal, or EXIF)")
    rows = matches.indices
    points = np.stack([first.keypoints.xy[rows[:, 0]], second.keypoints.xy[rows[:, 1]]], 1)
    sizes = [np.log2(np.maximum(side.keypoints.size, 1e-3)) for side in (first, second)]
    facts = PairFacts(
        (first.image_size, second.image_size),
        (len(first), len(second)),
        first.model,
        first.checksum,
        threshold,
        _changes(first.keypoints.angle, second.keypoints.angle, rows),
        _changes(sizes[0], sizes[1], rows),
    )
    matrix, mask, pose = None, None, None
    if len(rows) >= _MINIMUM[geometry]:
        if intrinsics is not None and geometry == "essential":
            matrix, mask, pose = _essential(points, threshold, intrinsics)
        else:
            estimate: Any = cv2.findHomography if geometry == "homography" else cv2.findFundamentalMat
            options = {"maxIters": ITERATIONS, "confidence": CONFIDENCE}
            with suppress(cv2.error):  # OpenCV's answer to some degenerate matches
                matrix, mask = estimate(points[:, 0], points[:, 1], cv2.USAC_MAGSAC, threshold, **options)
    if matrix is None or mask is None or matrix.shape != (3, 3):
        nothing, far = np.zeros(len(rows), np.bool_), np.full(len(rows), np.inf, np.float32)
        return Verification(geometry, None, points, nothing, None, far, facts)
    matrix = np.asarray(matrix, np.float64)
    cameras = intrinsics if geometry == "essential" else None
    errors = _errors(points, matrix, geometry == "homography", cameras)
    return Verification(geometry, matrix, points, mask.ravel().astype(np.bool_), pose, errors, facts)


def _changes(
    first: NDArray[np.float32], second: NDArray[np.float32], rows: NDArray[np.int64]
) -> NDArray[np.float32] | None:
    """(M,) second minus first of each match; None if the values of an image are all one."""
    if any(len(values) > 1 and np.ptp(values) == 0 for values in (first, second)):
        return None
    return second[rows[:, 1]] - first[rows[:, 0]]


def _essential(
    points: NDArray[np.float32], threshold: float, intrinsics: tuple[NDArray[np.float64], NDArray[np.float64]]
) -> tuple[Any, Any, tuple[NDArray[np.float64], NDArray[np.float64]] | None]:
    """Matrix, mask and pose; the first two as OpenCV returns them."""
    rays = [
        cv2.undistortPoints(points[:, side].astype(np.float64), intrinsics[side], None).reshape(-1, 2)
        for side in (0, 1)
    ]
    focal = np.mean([k[0, 0] + k[1, 1] for k in intrinsics]) / 2
    estimate: Any = cv2.findEssentialMat
    matrix, mask = estimate(
        rays[0], rays[1], np.eye(3), cv2.USAC_MAGSAC, CONFIDENCE, threshold / focal, ITERATIONS
    )
    if matrix is None or mask is None or matrix.shape != (3, 3):
        return None, None, None
    recover: Any = cv2.recoverPose
    _, rotation, translation, _ = recover(matrix, rays[0], rays[1], np.eye(3), mask=mask.copy())
    return matrix, mask, (rotation, translation.ravel())


def _errors(
    points: NDArray[np.float32],
    matrix: NDArray[np.float64],
    planar: bool,
    intrinsics: tuple[NDArray[np.float64], NDArray[np.float64]] | None,
) -> NDArray[np.float32]:
    """(M,) float32, pixels: how far matches are from a geometry; see `Verification`."""
    if intrinsics is not None:
        inverse = [np.linalg.inv(camera) for camera in intrinsics]
        matrix = inverse[1].T @ matrix @ inverse[0]
    one, two = (np.column_stack([points[:, side], np.ones(len(points))]) for side in (0, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        if planar:
            mapped = one @ matrix.T
            errors = np.linalg.norm(mapped[:, :2] / mapped[:, 2:] - two[:, :2], axis=1)
        else:
            lines, back = one @ matrix.T, two @ matrix
            slopes = np.hypot(np.linalg.norm(lines[:, :2], axis=1), np.linalg.norm(back[:, :2], axis=1))
            errors = np.abs((two * lines).sum(1)) / slopes
    return np.nan_to_num(errors, nan=np.inf, posinf=np.inf).astype(np.float32)


def intrinsics(size: tuple[int, int], focal: float) -> NDArray[np.float64]:
    """(3, 3) of a camera with square pixels and its principal point in the middle; focal in pixels."""
    return np.array([[focal, 0, (size[0] - 1) / 2], [0, focal, (size[1] - 1) / 2], [0, 0, 1]], np.float64)
