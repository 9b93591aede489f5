"""Matchability as a detector: the dense network against patches, peaks by hand, odd images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from contextdesc.dense import RADIUS, STRIDE, MatchabilityDetector, peaks
from contextdesc.errors import InputError
from contextdesc.image import Image
from contextdesc.model import load
from contextdesc.patches import PATCH
from tests.conftest import CI

if not CI:
    pytest.importorskip("onnx")


@pytest.fixture(scope="module")
def detector(small_model: Path) -> MatchabilityDetector:
    return MatchabilityDetector(load(small_model), threads=1)


def test_one_window_is_one_patch(small_model: Path, detector: MatchabilityDetector, photo: Image) -> None:
    """A standardised image of 32 x 32 pixels has one window, and the score that its patch has."""
    model = load(small_model, threads=1)
    window = photo.gray[100 : 100 + PATCH, 200 : 200 + PATCH]
    middle = [200 + (PATCH - 1) / 2, 100 + (PATCH - 1) / 2, PATCH / model.spec.support, 0]
    _, score = model.raw(photo, np.array([middle]))
    standard = (window - window.mean()) / window.std()
    dense = detector._engine.run(image=standard.astype(np.float32)[None, None])[0]
    assert dense.shape == (1, 1, 1, 1)
    assert score is not None
    np.testing.assert_allclose(dense.item(), score[0], rtol=1e-3, atol=1e-4)


def test_the_response_moves_with_the_image(detector: MatchabilityDetector, photo: Image) -> None:
    """Away from the border, 12 pixels to the left and 4 up are 3 columns and 1 row of the response."""
    gray = photo.gray[:160, :200]
    rolled = np.roll(gray, (-4, -12), (0, 1))  # of the same mean and variance
    first, second = (detector.response(np.dstack([g] * 3)) for g in (gray, rolled))
    assert first.shape == (160 // STRIDE, 200 // STRIDE)
    np.testing.assert_allclose(second[15:24, 15:32], first[16:25, 18:35], rtol=1e-3, atol=1e-3)


def test_peaks_by_hand() -> None:
    """A hill whose top is at column 3.25 and row 2, and a lower one: a step is 2 pixels, from -0.5 on."""
    y, x = np.mgrid[:12, :12].astype(np.float32)
    hills = np.maximum(10 - (x - 3.25) ** 2 - (y - 2) ** 2, 8 - (x - 9) ** 2 - (y - 9.25) ** 2)
    found = peaks(hills, 2, 4, 3.0)
    np.testing.assert_allclose(found.xy[0], [3.25 * 2 - 0.5, 2 * 2 - 0.5], atol=1e-5)
    np.testing.assert_allclose(found.xy[1], [9 * 2 - 0.5, 9.25 * 2 - 0.5], atol=1e-5)
    np.testing.assert_allclose(found.response, [10 - 0.25**2, 8 - 0.25**2])
    assert set(found.size) == {3.0}
    assert set(found.angle) == {0.0}


def test_the_highest_within_the_radius_wins() -> None:
    response = np.zeros((9, 9), np.float32)
    response[4, 2], response[4, 4], response[4, 6] = 5, 6, 4
    assert peaks(response, 2, 4, 3.0).response.tolist() == [6]  # both others are two steps from it
    response[4, 6], response[4, 7] = 0, 4
    assert peaks(response, 2, 4, 3.0).response.tolist() == [6, 4]
    assert len(peaks(np.ones((9, 9), np.float32), 2, 4, 3.0)) == 0


def test_keypoints_of_a_photograph(detector: MatchabilityDetector, photo: Image) -> None:
    crop = photo.rgb[50:200, 60:300]
    found = detector.detect(crop, 50)
    assert len(found) == 50
    assert (np.diff(found.response) <= 0).all()
    assert ((found.xy >= -0.5 - STRIDE) & (found.xy <= [240 + STRIDE, 150 + STRIDE])).all()
    apart = np.linalg.norm(found.xy[:, None] - found.xy, axis=2) + np.eye(50) * 99
    assert apart.min() >= RADIUS  # two strides before refinement, which takes half of one from each
    assert len(detector.detect(crop, None)) > 50


@pytest.mark.parametrize("size", [(1, 1), (5, 40), (33, 31), (64, 96)])
def test_images_of_any_size(detector: MatchabilityDetector, photo: Image, size: tuple[int, int]) -> None:
    crop = photo.rgb[100 : 100 + size[0], 100 : 100 + size[1]]
    assert detector.response(crop).shape == (-(-size[0] // STRIDE), -(-size[1] // STRIDE))
    flat = np.full((*size, 3), 77, np.uint8)
    assert np.isfinite(detector.response(flat)).all()


def test_a_model_without_patches_is_refused(rootsift_model: Path) -> None:
    with pytest.raises(InputError, match="rootsift has no patch network to run over an image"):
        MatchabilityDetector(load(rootsift_model))
