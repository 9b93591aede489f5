from __future__ import annotations

import time

import cv2
import numpy as np
import pytest

from contextdesc.detection import Detector, detect
from contextdesc.engine import Engine
from contextdesc.image import Image
from contextdesc.keypoints import Keypoints
from contextdesc.modelfile import DEFAULT, LOCAL, resolve
from contextdesc.patches import PATCH, SUPPORT, sample_patches


def turned(keypoints: Keypoints, matrix: np.ndarray, degrees: float) -> Keypoints:
    xy = keypoints.xy @ matrix[:, :2].T + matrix[:, 2]
    return Keypoints(
        xy.astype(np.float32), keypoints.size, (keypoints.angle + degrees) % 360, keypoints.response
    )


@pytest.mark.parametrize("crop", [(512, 512), (471, 313)])
def test_patches_turn_with_the_image_by_90_degrees(photo: Image, crop: tuple[int, int]) -> None:
    gray = photo.gray[: crop[0], : crop[1]]
    keypoints = detect(gray, Detector(500))
    matrix = np.array([[0, -1, gray.shape[0] - 1], [1, 0, 0]], float)
    clockwise = np.ascontiguousarray(np.rot90(gray, -1))
    difference = sample_patches(clockwise, turned(keypoints, matrix, 90)).astype(int) - sample_patches(
        gray, keypoints
    )
    assert keypoints.size.max() > 20  # several pyramid levels take part
    assert np.abs(difference).max() <= 2
    assert np.abs(difference).mean() < 0.1  # gray values: rounding of 8-bit interpolation


def test_patches_turn_with_the_image_by_30_degrees_up_to_interpolation(photo: Image) -> None:
    gray = cv2.GaussianBlur(photo.gray, (0, 0), 1.5)
    centre = (255.5, 255.5)
    matrix = cv2.getRotationMatrix2D(centre, -30, 1)  # OpenCV counts anticlockwise, keypoints clockwise
    rotated = cv2.warpAffine(gray, matrix, (512, 512), flags=cv2.INTER_CUBIC)
    keypoints = detect(gray, Detector(None))
    reach = keypoints.size * SUPPORT * 0.75
    keypoints = keypoints[np.linalg.norm(keypoints.xy - centre, axis=1) + reach < 250]
    assert len(keypoints) > 50
    first = sample_patches(gray, keypoints).astype(float)
    second = sample_patches(rotated, turned(keypoints, matrix, 30)).astype(float)
    assert np.abs(first - second).mean() < 1.0
    unturned = sample_patches(rotated, turned(keypoints, matrix, 0)).astype(float)
    assert np.abs(first - unturned).mean() > 10  # the test can tell


def test_patch_is_the_image_where_scale_is_one() -> None:
    rng = np.random.default_rng(0)
    gray = rng.integers(0, 256, (64, 64), dtype=np.uint8)
    keypoint = Keypoints.from_array([[31.5, 31.5, PATCH / SUPPORT, 0]])
    np.testing.assert_array_equal(sample_patches(gray, keypoint)[0], gray[16:48, 16:48])


def test_x_axis_of_a_patch_points_along_the_angle() -> None:
    gray = np.tile(np.arange(128, dtype=np.uint8), (128, 1)) * 2  # brighter to the right
    patch = sample_patches(gray, Keypoints.from_array([[64, 64, 3, 90]]))[0].astype(int)
    assert (np.abs(np.diff(patch, axis=1)) <= 1).all()  # image x is the patch's y, upwards
    assert patch[0].mean() > patch[-1].mean() + 50


def test_large_keypoints_do_not_alias() -> None:
    """A fine checkerboard is uniform gray from afar."""
    board = np.indices((512, 512)).sum(0) % 2 * np.uint8(255)
    patch = sample_patches(board.astype(np.uint8), Keypoints.from_array([[255, 255, 30, 17]]))[0]
    assert patch.std() < 3
    assert abs(patch.mean() - 127.5) < 3


def test_borders_are_replicated() -> None:
    gray = np.zeros((50, 50), np.uint8)
    gray[:, 0] = 200
    patch = sample_patches(gray, Keypoints.from_array([[-60, 25, 3, 0]]))[0]
    assert (patch == 200).all()


def test_support_scales_the_patch() -> None:
    gray = np.random.default_rng(0).integers(0, 256, (200, 200), dtype=np.uint8)
    once = sample_patches(gray, Keypoints.from_array([[100, 100, 8, 20]]))
    twice = sample_patches(gray, Keypoints.from_array([[100, 100, 4, 20]]), 2 * SUPPORT)
    np.testing.assert_array_equal(once, twice)


@pytest.mark.parametrize("shape", [(1, 1), (20000, 50), (50, 40000)])
def test_odd_sizes(shape: tuple[int, int]) -> None:
    gray = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    ends = [
        [0, 0, 2, 0],
        [shape[1] - 1, shape[0] - 1, 500, 45],
        [shape[1] * 0.75 - 0.5, shape[0] / 2 - 0.5, PATCH / SUPPORT, 0],
    ]
    patches = sample_patches(gray, Keypoints.from_array(ends))
    assert patches.shape == (3, 32, 32)
    if shape == (50, 40000):  # wider than cv2.remap reads
        np.testing.assert_array_equal(patches[2], gray[9:41, 29984:30016])
    assert sample_patches(gray, Keypoints.empty()).shape == (0, 32, 32)


@pytest.mark.slow
def test_sampling_takes_less_than_a_tenth_of_the_network(photo: Image) -> None:
    gray = cv2.resize(photo.gray, (896, 896), interpolation=cv2.INTER_CUBIC)
    base = detect(gray, Detector(None, contrast=0.0))
    keypoints = base[np.resize(np.arange(len(base)), 10_000)]
    engine = Engine(resolve(DEFAULT) / LOCAL)
    engine.run_batched(patches=sample_patches(gray, keypoints[:512]))

    def seconds(work: object) -> float:
        start = time.perf_counter()
        work()  # type: ignore[operator]
        return time.perf_counter() - start

    sampling = min(seconds(lambda: sample_patches(gray, keypoints)) for _ in range(3))
    patches = sample_patches(gray, keypoints)
    network = min(seconds(lambda: engine.run_batched(patches=patches)) for _ in range(2))
    assert sampling < network / 10, f"sampling {sampling:.3f} s, network {network:.3f} s"
