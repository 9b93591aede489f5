from __future__ import annotations

import cv2
import numpy as np
import pytest

from contextdesc.errors import InputError
from contextdesc.image import Image
from contextdesc.keypoints import Keypoints, sift_octave
from contextdesc.rootsift import rootsift, sift_descriptors


def test_opencv_round_trip_keeps_everything_sift_needs(photo: Image) -> None:
    """Octaves derived from sizes are SIFT's own, so descriptors computed later equal its own."""
    found, expected = cv2.SIFT_create(contrastThreshold=0.02).detectAndCompute(photo.gray, None)
    keypoints = Keypoints.from_opencv(found)
    packed = np.array([k.octave & 0xFFFF for k in found])
    np.testing.assert_array_equal(sift_octave(keypoints.size), packed)
    np.testing.assert_array_equal(sift_descriptors(photo.gray, keypoints, precise_upscale=False), expected)


def test_rootsift_is_the_root_of_normalised_sift(photo: Image) -> None:
    keypoints = Keypoints.from_opencv(cv2.SIFT_create(50).detect(photo.gray, None))
    root = rootsift(photo.gray, keypoints)
    sift = sift_descriptors(photo.gray, keypoints)
    np.testing.assert_allclose(root**2, sift / sift.sum(1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(root, axis=1), 1, atol=1e-5)


def test_arrays_of_two_and_four_columns() -> None:
    points = Keypoints.from_array([[1, 2], [3, 4]])
    np.testing.assert_array_equal(points.xy, [[1, 2], [3, 4]])
    assert (points.size > 0).all()
    full = Keypoints.from_array([[1, 2, 8, 370]])
    assert full.size[0] == 8
    assert full.angle[0] == pytest.approx(10)
    assert len(Keypoints.from_array(np.zeros((0, 2)))) == len(Keypoints.from_array([])) == 0


def test_colmap_pixels_start_half_a_pixel_earlier() -> None:
    keypoints = Keypoints.from_colmap([[10.5, 20.5, 3.0, np.pi / 2]])
    np.testing.assert_allclose(keypoints.xy, [[10, 20]])
    assert keypoints.size[0] == 6
    assert keypoints.angle[0] == pytest.approx(90)
    np.testing.assert_allclose(keypoints.to_colmap(), [[10.5, 20.5, 3, np.pi / 2]], rtol=1e-6)


def test_colmap_affine_shape_is_reduced_to_scale_and_rotation() -> None:
    angle, scale = np.deg2rad(30), 4.0
    cos, sin = scale * np.cos(angle), scale * np.sin(angle)
    keypoints = Keypoints.from_colmap([[0.5, 0.5, cos, -sin, sin, cos]])
    assert keypoints.size[0] == pytest.approx(8)
    assert keypoints.angle[0] == pytest.approx(30, abs=1e-4)


def test_scaling_keeps_pixel_centres() -> None:
    """The corner pixel of a halved image covers the four corner pixels of the original."""
    half = Keypoints.from_array([[0, 0, 4, 0]])
    full = half.scaled(np.float32([2, 2]))
    np.testing.assert_allclose(full.xy, [[0.5, 0.5]])
    assert full.size[0] == 8


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1, 2, 3]], r"shape \(1, 3\)"),
        ([[1, np.nan]], "keypoint 0 is not finite"),
        ([[1, 2, 5, 0], [1, 2, -5, 0]], "keypoint 1 has size -5"),
    ],
)
def test_bad_arrays(rows: list[list[float]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Keypoints.from_array(rows)
