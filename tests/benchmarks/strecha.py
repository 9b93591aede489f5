"""Rendered views with known cameras as files in the layout of Strecha's data."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.training.test_scenes import HEIGHT, INTRINSICS, WIDTH, View, write

OPENCV = INTRINSICS - [[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]]  # intrinsics of the views, OpenCV's convention


def write_strecha(images: list[View], scene: Path) -> Path:
    """`images/` and `gt_dense_cameras/`."""
    write(images, scene / "images")
    (scene / "gt_dense_cameras").mkdir()
    for number, view in enumerate(images):
        path = scene / "gt_dense_cameras" / f"{number:03}.png.camera"
        path.write_text(camera_text(OPENCV, view.rotation, view.translation, (WIDTH, HEIGHT)))
    return scene


def camera_text(
    intrinsics: np.ndarray, rotation: np.ndarray, translation: np.ndarray, size: tuple[int, int]
) -> str:
    """K, zeros, R and C such that x = K R^T (X - C), width and height."""
    centre = -rotation.T @ translation
    rows = [*intrinsics, [0, 0, 0], *rotation.T, centre, size]
    return "".join(" ".join(f"{value:.9g}" for value in row) + "\n" for row in rows)
