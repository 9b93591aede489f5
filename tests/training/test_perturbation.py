"""Perturbed patches: ranges that are kept and used, a rotation that both sides share, a true stretch."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from contextdesc.detection import Detector, detect
from contextdesc.image import Image
from contextdesc.keypoints import Keypoints
from contextdesc.patches import PATCH, SUPPORT, sample_patches
from contextdesc.training.data.pairs import PairConfig, photo_pair
from contextdesc.training.data.perturbation import PerturbationConfig, perturb

N = 4000


def keypoints(seed: int = 0) -> Keypoints:
    rng = np.random.default_rng(seed)
    columns = rng.uniform([0, 0, 2, 0], [500, 400, 30, 360], (N, 4))
    return Keypoints.from_array(columns)


def turned(after: Keypoints, before: Keypoints) -> NDArray[np.float32]:
    """Degrees in [-180, 180)."""
    return (after.angle - before.angle + 180) % 360 - 180


def assert_uniform(values: NDArray[np.floating], reach: float) -> None:
    """Spread evenly over [-reach, reach] (Kolmogorov-Smirnov; 0.04 is beyond one chance in 10^5)."""
    assert np.abs(values).max() <= reach * (1 + 1e-4)
    order = np.sort(values / (2 * reach) + 0.5)
    assert np.abs(order - (np.arange(len(order)) + 0.5) / len(order)).max() < 0.04


def test_zero_ranges_change_nothing(photo: Image) -> None:
    found = detect(photo.gray, Detector(300))
    (first, second), stretch = perturb((found, found), np.random.default_rng(0), PerturbationConfig())
    for name in ("xy", "size", "angle", "response"):
        np.testing.assert_array_equal(getattr(first, name), getattr(found, name))
        np.testing.assert_array_equal(getattr(second, name), getattr(found, name))
    np.testing.assert_array_equal(stretch, np.ones((2, 300, 2)))
    np.testing.assert_array_equal(
        sample_patches(photo.gray, first, SUPPORT, stretch[0]), sample_patches(photo.gray, found)
    )


@pytest.mark.parametrize("side", [0, 1])
def test_each_range_is_kept_and_used(side: int) -> None:
    before = (keypoints(1), keypoints(2))
    config = PerturbationConfig(rotation=5, scale=0.3, anisotropy=0.2, translation=0.1)
    after, stretches = perturb(before, np.random.default_rng(0), config)
    one, other, stretch = before[side], after[side], stretches[side]
    assert_uniform(turned(other, one), 5)
    assert_uniform(np.log2(other.size / one.size), 0.3)
    assert_uniform(np.log2(stretch[:, 0]), 0.2)
    np.testing.assert_allclose(stretch.prod(1), 1, rtol=1e-6)  # no change of area
    moved = (other.xy - one.xy) / one.size[:, None]
    assert_uniform(moved[:, 0], 0.1)
    assert_uniform(moved[:, 1], 0.1)
    drawn = np.column_stack([turned(other, one), np.log2(other.size / one.size), stretch[:, 0], moved])
    assert np.abs(np.corrcoef(drawn.T) - np.eye(5)).max() < 0.1  # each on its own
    np.testing.assert_array_equal(other.response, one.response)


def test_both_sides_turn_together_and_each_a_little() -> None:
    before = (keypoints(1), keypoints(2))
    after, _ = perturb(before, np.random.default_rng(0), PerturbationConfig(shared_rotation=90))
    first, second = (turned(a, b) for a, b in zip(after, before, strict=True))
    assert_uniform(first, 90)
    np.testing.assert_allclose(first, second, atol=1e-3)
    config = PerturbationConfig(shared_rotation=90, rotation=5)
    after, _ = perturb(before, np.random.default_rng(0), config)
    first, second = (turned(a, b) for a, b in zip(after, before, strict=True))
    assert 9 < np.abs(first - second).max() <= 10.001
    assert 90 < np.abs(first).max() <= 95


def test_draws_are_of_the_generator() -> None:
    sides = (keypoints(1), keypoints(2))
    config = PerturbationConfig(90, 5, 0.3, 0.2, 0.1)
    once, again, other = (perturb(sides, np.random.default_rng(seed), config)[0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(once[1].xy, again[1].xy)
    assert (once[1].xy != other[1].xy).any(1).mean() > 0.99


@pytest.mark.parametrize(("angle", "factors"), [(0, (0.5, 2.0)), (90, (2.0, 0.5))])
def test_a_stretched_patch_is_one_of_a_squeezed_image(
    photo: Image, angle: float, factors: tuple[float, float]
) -> None:
    """Twice as wide and half as high along the patch's own axes, which turn with the keypoint."""
    gray = cv2.GaussianBlur(photo.gray, (0, 0), 4)
    rows = np.random.default_rng(0).uniform(100, 400, (50, 2))
    square = Keypoints.from_array([[x, y, PATCH / SUPPORT, angle] for x, y in rows])
    stretched = sample_patches(gray, square, SUPPORT, np.tile(np.float32([2, 0.5]), (50, 1))).astype(int)
    squeezed = cv2.resize(gray, None, fx=factors[0], fy=factors[1], interpolation=cv2.INTER_LINEAR)
    there = Keypoints((square.xy + 0.5) * np.float32(factors) - 0.5, *(
        getattr(square, name) for name in ("size", "angle", "response")
    ))  # fmt: skip
    expected = sample_patches(squeezed, there).astype(int)
    assert np.abs(stretched - expected).mean() < 1
    assert np.abs(stretched - expected).max() < 10
    assert np.abs(stretched - sample_patches(gray, square)).mean() > 5  # the test can tell


def test_a_pair_keeps_its_keypoints_and_cuts_perturbed_patches(photo: Image, tmp_path: Path) -> None:
    plain = PairConfig(keypoints=64, min_corresponding=16)
    perturbed = dataclasses.replace(plain, perturbation=PerturbationConfig(shared_rotation=90))
    views = [tmp_path / "a.jpg", tmp_path / "b.jpg"]
    one, other = (photo_pair(photo.rgb, np.random.default_rng(1), c, views) for c in (plain, perturbed))
    assert one.count == other.count > 16
    np.testing.assert_array_equal(one.keypoints, other.keypoints)
    assert np.abs(one.patches.astype(int) - other.patches).mean() > 5
