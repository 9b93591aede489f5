from __future__ import annotations

import numpy as np
import pytest
import skimage.data

from contextdesc.detection import Detector, detect
from contextdesc.image import Image, read
from contextdesc.rootsift import detect_rootsift, rootsift
from tests.test_detection import assert_same


@pytest.mark.parametrize("name", ["astronaut", "coffee", "camera", "gravel"])
@pytest.mark.parametrize("budget", [1, 150, None])
@pytest.mark.parametrize("precise", [True, False])
def test_one_pass_is_two_passes(name: str, budget: int | None, precise: bool) -> None:
    gray = read(getattr(skimage.data, name)()).gray
    detector = Detector(budget, precise_upscale=precise)
    keypoints, descriptors = detect_rootsift(gray, detector)
    found = detect(gray, detector)
    assert len(found) == budget if budget else len(found) > 500
    assert_same(keypoints, found)
    np.testing.assert_array_equal(descriptors, rootsift(gray, found, precise))


def test_masks_tiles_and_draws_give_the_keypoints_of_detection(photo: Image) -> None:
    """One pass over the image would find others."""
    mask = np.zeros_like(photo.gray)
    mask[:, 200:] = 255
    for detector, allowed in (
        (Detector(100), mask),
        (Detector(100, upright=True), None),
        (Detector(100, "random"), None),
        (Detector(100, tile_above=1000), None),
        (Detector(0), None),
    ):
        keypoints, descriptors = detect_rootsift(photo.gray, detector, allowed)
        found = detect(photo.gray, detector, allowed)
        assert_same(keypoints, found)
        np.testing.assert_array_equal(descriptors, rootsift(photo.gray, found))


def test_a_descriptor_does_not_depend_on_the_other_keypoints(photo: Image) -> None:
    """Left to itself, SIFT describes large keypoints by another pyramid than when small ones are there."""
    keypoints = detect(photo.gray, Detector(None))
    large = keypoints.size > 10
    assert 0 < large.sum() < len(keypoints)
    every, of_large = rootsift(photo.gray, keypoints), rootsift(photo.gray, keypoints[large])
    np.testing.assert_array_equal(every[large], of_large)


def test_no_keypoints_have_no_descriptors() -> None:
    keypoints, descriptors = detect_rootsift(np.full((60, 80), 128, np.uint8), Detector())
    assert len(keypoints) == 0
    assert descriptors.shape == (0, 128)
