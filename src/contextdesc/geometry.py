"""Verification: which matches agree with one camera geometry.

cv2's USAC MAGSAC estimates a homography, a fundamental matrix, or, with intrinsics, an essential matrix
and the relative pose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import cv2
import numpy as np

from contextdesc.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.features import Features
    from contextdesc.matching import Matches

Geometry = Literal["homography", "fundamental", "essential"]

THRESHOLD = 2.0  # pixels, largest error of an inlier
CONFIDENCE = 0.9999
ITERATIONS = 10_000
_MINIMUM = {"homography": 4, "fundamental": 8, "essential": 6}  # matches to try at all

# Inliers that the verdict asks for, set by hand: 276 pairs of unrelated photographs, matched with
# `contextdesc`, had at most 14.
SAME_SCENE, DIFFERENT_SCENE = 25, 15


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
    """

    geometry: Geometry
    matrix: NDArray[np.float64] | None
    points: NDArray[np.float32]
    inliers: NDArray[np.bool_]
    pose: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    @property
    def inlier_count(self) -> int:
        return int(self.inliers.sum())

    @property
    def inlier_ratio(self) -> float:
        return self.inlier_count / len(self.inliers) if len(self.inliers) else 0.0

    @property
    def verdict(self) -> Literal["same scene", "unsure", "different scenes"]:
        """Do the two images show the same thing? By the number of inliers."""
        if self.inlier_count >= SAME_SCENE:
            return "same scene"
        return "unsure" if self.inlier_count >= DIFFERENT_SCENE else "different scenes"


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
    rows = matches.indices
    points = np.stack([first.keypoints.xy[rows[:, 0]], second.keypoints.xy[rows[:, 1]]], 1)
    nothing = Verification(geometry, None, points, np.zeros(len(rows), np.bool_))
    if geometry == "essential":
        if intrinsics is None:
            raise InputError("essential needs the intrinsics of both cameras (--focal, or EXIF)")
        return nothing if len(rows) < _MINIMUM[geometry] else _essential(points, threshold, intrinsics)
    if len(rows) < _MINIMUM[geometry]:
        return nothing
    estimate: Any = cv2.findHomography if geometry == "homography" else cv2.findFundamentalMat
    options = {"maxIters": ITERATIONS, "confidence": CONFIDENCE}
    matrix, mask = estimate(points[:, 0], points[:, 1], cv2.USAC_MAGSAC, threshold, **options)
    if matrix is None or mask is None or matrix.shape != (3, 3):
        return nothing
    return Verification(geometry, np.asarray(matrix, np.float64), points, mask.ravel().astype(np.bool_))


def _essential(
    points: NDArray[np.float32], threshold: float, intrinsics: tuple[NDArray[np.float64], NDArray[np.float64]]
) -> Verification:
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
        return Verification("essential", None, points, np.zeros(len(points), np.bool_))
    inliers = mask.ravel().astype(np.bool_)
    recover: Any = cv2.recoverPose
    _, rotation, translation, _ = recover(matrix, rays[0], rays[1], np.eye(3), mask=mask.copy())
    return Verification("essential", matrix, points, inliers, (rotation, translation.ravel()))


def intrinsics(size: tuple[int, int], focal: float) -> NDArray[np.float64]:
    """(3, 3) of a camera with square pixels and its principal point in the middle; focal in pixels."""
    return np.array([[focal, 0, (size[0] - 1) / 2], [0, focal, (size[1] - 1) / 2], [0, 0, 1]], np.float64)
