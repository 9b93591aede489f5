from __future__ import annotations

import numpy as np
import pytest

from contextdesc.draw import INLIER, OUTLIER, draw_matches
from contextdesc.geometry import Verification
from contextdesc.samples import disparity_precision, sample_pair


def count(picture: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((picture == colour).all(2).sum())


def result(inliers: int, outliers: int, size: float = 100) -> Verification:
    rng = np.random.default_rng(0)
    points = rng.uniform(0, size, (inliers + outliers, 2, 2)).astype(np.float32)
    return Verification("fundamental", None, points, np.arange(inliers + outliers) < inliers)


def test_inliers_and_outliers_have_their_colours() -> None:
    gray = np.full((100, 100), 90, np.uint8)
    picture = np.asarray(draw_matches(gray, gray, result(5, 5)))
    assert picture.shape[0] == 100
    assert count(picture, INLIER) > 20
    assert count(picture, OUTLIER) > 10
    assert count(np.asarray(draw_matches(gray, gray, result(5, 5), outliers=False)), OUTLIER) == 0
    assert count(np.asarray(draw_matches(gray, gray, result(0, 0))), INLIER) == 0


SHAPES = [((200, 300), (50, 20)), ((1, 1), (10, 10)), ((3000, 20), (100, 5000)), ((200, 200), (20000, 50))]


@pytest.mark.parametrize("shapes", SHAPES)
def test_images_of_any_sizes_stand_side_by_side(shapes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    images = [np.full(shape, 90, np.uint8) for shape in shapes]
    width, height = draw_matches(*images, result(3, 3)).size
    assert height <= min(1200, max(shape[0] for shape in shapes))
    assert width <= 2 * 2400 + 12


def test_lines_end_where_the_points_are() -> None:
    gray = np.full((400, 400), 90, np.uint8)
    points = np.float32([[[50, 100], [300, 250]]])
    picture = np.asarray(draw_matches(gray, gray, Verification("homography", None, points, np.array([True]))))
    gap = picture.shape[1] - 800
    assert tuple(picture[100, 50]) == INLIER
    assert tuple(picture[250, 400 + gap + 300]) == INLIER


def test_disparity_tells_right_from_wrong() -> None:
    _, _, disparity = sample_pair()
    rows, columns = np.nonzero(np.isfinite(disparity[100:400, 300:600]))
    left = np.column_stack([columns[::500] + 300, rows[::500] + 100]).astype(np.float32)
    shift = disparity[left[:, 1].astype(int), left[:, 0].astype(int)]
    right = left - np.column_stack([shift, np.zeros_like(shift)])
    assert disparity_precision(np.stack([left, right], 1), disparity) == 1
    assert disparity_precision(np.stack([left, right + 5], 1), disparity) == 0
