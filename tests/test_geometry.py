from __future__ import annotations

import cv2
import numpy as np
import pytest

from contextdesc.errors import InputError
from contextdesc.features import Features
from contextdesc.geometry import intrinsics, verify
from contextdesc.keypoints import Keypoints
from contextdesc.matching import Matches

RNG = np.random.default_rng(0)
GOOD, BAD = 120, 80
K = intrinsics((640, 480), 500)
ROTATION = cv2.Rodrigues(np.array([0.05, 0.2, -0.03]))[0]
TRANSLATION = np.array([1.0, 0.1, 0.2]) / np.linalg.norm([1.0, 0.1, 0.2])


def features_at(xy: np.ndarray) -> Features:
    return Features(Keypoints.from_array(xy), np.zeros((len(xy), 128), np.float32), (640, 480), "m", "c")


def two_images(planar: bool) -> tuple[Features, Features, Matches]:
    """Points seen by two cameras; the last rows are random pairs."""
    depth = np.full(GOOD, 5.0) if planar else RNG.uniform(3, 9, GOOD)
    rays = np.column_stack([RNG.uniform(-0.5, 0.5, GOOD), RNG.uniform(-0.4, 0.4, GOOD), np.ones(GOOD)])
    points = rays * depth[:, None]
    first = points @ K.T
    second = (points @ ROTATION.T + TRANSLATION) @ K.T
    xy = [np.vstack([p[:, :2] / p[:, 2:], RNG.uniform(0, 480, (BAD, 2))]) for p in (first, second)]
    xy = [x + RNG.normal(0, 0.3, x.shape) for x in xy]
    rows = np.arange(GOOD + BAD)
    matches = Matches(np.column_stack([rows, rows]), np.ones(len(rows), np.float32))
    return features_at(xy[0]), features_at(xy[1]), matches


@pytest.mark.parametrize("geometry", ["homography", "fundamental", "essential"])
def test_outliers_are_told_apart(geometry: str) -> None:
    first, second, matches = two_images(planar=geometry == "homography")
    result = verify(first, second, matches, geometry, intrinsics=(K, K))  # type: ignore[arg-type]
    assert result.matrix is not None
    assert result.inliers[:GOOD].mean() > 0.9
    assert result.inliers[GOOD:].mean() < 0.15
    assert result.inlier_count == result.inliers.sum()
    assert result.verdict == "same scene"


def test_homography_maps_first_to_second() -> None:
    first, second, matches = two_images(planar=True)
    result = verify(first, second, matches, "homography")
    warped = cv2.perspectiveTransform(first.keypoints.xy[:GOOD, None], result.matrix)[:, 0]
    assert np.median(np.linalg.norm(warped - second.keypoints.xy[:GOOD], axis=1)) < 1


def test_relative_pose() -> None:
    first, second, matches = two_images(planar=False)
    result = verify(first, second, matches, "essential", intrinsics=(K, K))
    assert result.pose is not None
    rotation, translation = result.pose
    turn = np.rad2deg(np.arccos(np.clip((np.trace(rotation.T @ ROTATION) - 1) / 2, -1, 1)))
    assert turn < 1.5
    assert np.rad2deg(np.arccos(translation @ TRANSLATION)) < 5


@pytest.mark.parametrize("geometry", ["homography", "fundamental", "essential"])
@pytest.mark.parametrize("count", [0, 1, 3, 9])
def test_few_matches_are_an_answer_not_an_error(geometry: str, count: int) -> None:
    first, second, matches = two_images(planar=False)
    few = Matches(matches.indices[:count], matches.similarity[:count])
    result = verify(first, second, few, geometry, intrinsics=(K, K))  # type: ignore[arg-type]
    assert result.inliers.shape == (count,)
    assert result.points.shape == (count, 2, 2)
    assert result.verdict != "same scene"


def test_random_matches_do_not_make_a_scene() -> None:
    first, second = (features_at(RNG.uniform(0, 480, (300, 2))) for _ in range(2))
    rows = np.arange(300)
    result = verify(first, second, Matches(np.column_stack([rows, rows]), np.ones(300, np.float32)))
    assert result.verdict != "same scene"


def test_identical_points_do_not_crash() -> None:
    same = features_at(np.full((20, 2), 5.0))
    rows = np.arange(20)
    matches = Matches(np.column_stack([rows, rows]), np.ones(20, np.float32))
    for geometry in ("homography", "fundamental"):
        assert verify(same, same, matches, geometry).inliers.shape == (20,)  # type: ignore[arg-type]


def test_mistakes_are_named() -> None:
    first, second, matches = two_images(planar=False)
    with pytest.raises(InputError, match="essential needs the intrinsics"):
        verify(first, second, matches, "essential")
    with pytest.raises(InputError, match="one of homography, fundamental, essential"):
        verify(first, second, matches, "affine")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="threshold is 0"):
        verify(first, second, matches, threshold=0)
