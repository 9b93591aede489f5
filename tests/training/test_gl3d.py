"""GL3D's layout: a miniature with known cameras, points and lens is written as published and read back."""

from __future__ import annotations

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from contextdesc.errors import InputError
from contextdesc.patches import SUPPORT
from contextdesc.training.data.gl3d import find_gl3d, read_cameras, read_gl3d, read_keypoints
from contextdesc.training.data.scenes import Scene

ORIGINAL = np.array([3000, 2000])  # pixels of the photographs
IMAGE = np.array([300, 300])  # pixels of the published images: square, as GL3D's are
INTRINSICS = np.array([[2500.0, 0, 1500], [0, 2500, 1000], [0, 0, 1]])
LENS = np.array([0.02, -0.01, 0.005])
POINTS, IMAGES, SIDE, TURN = 60, 4, 90.0, 20.0  # side in pixels of the photograph; degrees per image


def pose(number: int) -> tuple[NDArray, NDArray]:
    rotation = cv2.Rodrigues(np.array([0.02, -0.05, 0.03]) * number)[0]
    return rotation, np.array([-0.6 * number, 0.1 * number, 0.2])


def points() -> NDArray:
    return np.random.default_rng(1).uniform([-1.2, -0.8, 6], [1.8, 0.8, 8], (POINTS, 3))


def transformations(number: int) -> NDArray[np.float32]:
    """(N, 6): support regions in the distorted photograph, from -1 to 1 between its borders."""
    rotation, translation = pose(number)
    seen = points() @ rotation.T + translation
    k1, k2, k3 = LENS
    pixels = cv2.projectPoints(seen, np.zeros(3), np.zeros(3), INTRINSICS, np.array([k1, k2, 0, 0, k3]))[0]
    angle = np.deg2rad(TURN * number)
    axes = SIDE / 2 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    theta = np.empty((POINTS, 2, 3), np.float32)
    theta[:, :, :2] = axes / (ORIGINAL / 2)[:, None]
    theta[:, :, 2] = pixels[:, 0] / (ORIGINAL / 2) - 1
    return theta.reshape(-1, 6)


@pytest.fixture
def miniature(tmp_path: Path) -> Path:
    """Four images, 60 points; matches of neighbours, and one match that is wrong."""
    folder = tmp_path / "data" / "0123456789abcdef01234567"
    for name in ("undist_images", "geolabel", "img_kpts"):
        (folder / name).mkdir(parents=True)
    lines = []
    for number in range(IMAGES):
        rotation, translation = pose(number)
        values = [2500, 2500, 1500, 1000, 0, *translation, *rotation.ravel(), *LENS, *ORIGINAL]
        lines.append(f"{number} " + " ".join(f"{v:.9g}" for v in values))
        noise = np.random.default_rng(number).integers(0, 255, (IMAGE[1], IMAGE[0]), np.uint8)
        cv2.imwrite(str(folder / "undist_images" / f"{number:08}.jpg"), noise)
        transformations(number).tofile(folder / "img_kpts" / f"{number:08}.bin")
    (folder / "geolabel" / "cameras.txt").write_text("\n".join(lines) + "\n")
    with (folder / "geolabel" / "corr.bin").open("wb") as file:
        for first in range(IMAGES - 1):
            features = np.arange(POINTS, dtype=np.float32)
            pairs = np.column_stack([features, features])
            if first == 0:
                pairs[0, 1], pairs[1, 1] = 1, 0  # swapped: both are wrong
            one, two = (transformations(first + side)[pairs[:, side].astype(int)] for side in (0, 1))
            np.array([first, first + 1, POINTS], "<i8").tofile(file)
            np.column_stack([one, two, np.zeros(POINTS), pairs]).astype("<f4").tofile(file)
    return folder


def test_matches_become_tracks_with_their_points(miniature: Path) -> None:
    scene = read_gl3d(miniature)
    assert scene.names == tuple(f"{n:08}.jpg" for n in range(IMAGES))
    assert len(scene.points) == POINTS - 2  # without the two that the wrong matches joined
    assert len(scene.track) == IMAGES * (POINTS - 2)
    expected = points()[2:]
    distance = np.linalg.norm(scene.points[:, None] - expected[None], axis=2).min(1)
    assert distance.max() < 2e-3
    assert scene.shared_tracks[1].tolist() == [POINTS - 2] * 6


def test_keypoints_lie_where_the_undistorted_image_shows_them(miniature: Path) -> None:
    scene = read_gl3d(miniature)
    for image in range(IMAGES):
        keypoints, track = scene.keypoints(image)
        place = scene.project(image, scene.points[track])[0]
        assert np.linalg.norm(place - keypoints.xy, axis=1).max() < 0.02
    factor = IMAGE / ORIGINAL
    np.testing.assert_allclose(keypoints.size, SIDE * np.sqrt(factor.prod()) / SUPPORT, rtol=1e-4)
    direction = np.array([np.cos(np.deg2rad(TURN * 3)), np.sin(np.deg2rad(TURN * 3))]) * factor
    np.testing.assert_allclose(keypoints.angle, np.rad2deg(np.arctan2(*direction[::-1])), rtol=1e-4)


def test_all_keypoints_of_an_image_are_read(miniature: Path) -> None:
    camera = read_cameras(miniature / "geolabel" / "cameras.txt")[2]
    keypoints = read_keypoints(miniature, 2, camera, (300, 300))
    scene = read_gl3d(miniature)
    assert len(keypoints) == POINTS
    np.testing.assert_allclose(keypoints.xy[2:], scene.keypoints(2)[0].xy, atol=1e-3)
    with pytest.raises(InputError, match=r"00000009.bin: cannot be read"):
        read_keypoints(miniature, 9, camera, (300, 300))


def test_a_read_scene_is_saved_as_any_other(miniature: Path, tmp_path: Path) -> None:
    scene = read_gl3d(miniature)
    scene.save(tmp_path / "scene")
    again = Scene.load(tmp_path / "scene")
    np.testing.assert_allclose(again.xy, scene.xy, atol=0.01)
    assert again.path(0).read_bytes() == scene.path(0).read_bytes()


def test_scenes_are_found_from_any_level(miniature: Path) -> None:
    name = miniature.name
    for folder in (miniature, miniature.parent, miniature.parent.parent):
        assert list(find_gl3d(folder)) == [name]
    with pytest.raises(InputError, match="no scene of GL3D here"):
        find_gl3d(miniature / "undist_images")


def test_missing_images_are_left_out(miniature: Path) -> None:
    (miniature / "undist_images" / "00000003.jpg").unlink()
    assert len(read_gl3d(miniature)) == 3
    shutil.rmtree(miniature / "undist_images")
    with pytest.raises(InputError, match="none of the 4 images is here"):
        read_gl3d(miniature)


def test_damaged_files_are_named(miniature: Path) -> None:
    labels = miniature / "geolabel"
    whole = (labels / "corr.bin").read_bytes()
    for length in (len(whole) - 7, 10, 40):
        (labels / "corr.bin").write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"corr.bin: truncated"):
            read_gl3d(miniature)
    (labels / "corr.bin").unlink()
    with pytest.raises(InputError, match=r"corr.bin: cannot be read"):
        read_gl3d(miniature)
    (labels / "corr.bin").write_bytes(whole)
    lines = (labels / "cameras.txt").read_text().splitlines()
    (labels / "cameras.txt").write_text("\n".join([lines[0], lines[1][:50]]))
    with pytest.raises(InputError, match=r"cameras.txt, line 2: expected 23 numbers"):
        read_gl3d(miniature)
    turned = [f"{(number + 1) % IMAGES} {line.split(' ', 1)[1]}" for number, line in enumerate(lines)]
    (labels / "cameras.txt").write_text("\n".join(turned))  # the cameras of other images
    with pytest.raises(InputError, match=r"no match of geolabel/corr.bin fits"):
        read_gl3d(miniature)
