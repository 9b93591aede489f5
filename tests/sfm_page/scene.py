"""A small reconstruction whose every number is known: a painted column on a floor, seen from half a ring."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from contextdesc.features import Features
from contextdesc.formats import hloc
from contextdesc.keypoints import Keypoints
from contextdesc.sfm.binding import import_pycolmap

WIDTH, HEIGHT, FOCAL = 320, 240, 300.0
HOSTILE = "</script><b>.jpg"  # which is also a folder and a file on disk
NAMES = (HOSTILE, 'a & b\'s "photograph".jpg', *(f"{number:03}.jpg" for number in range(6)))
LEFT_OUT = "not registered.jpg"
WITHOUT = 15  # keypoints of each image that have no 3D point
OFFSET = np.array([0.3, 0.4])  # pixels between a keypoint and its point, times the row of the image plus 1


@dataclass(frozen=True, eq=False)
class KnownScene:
    """Where it was written, and what it holds: points, cameras, and who sees what."""

    directory: Path
    images: Path
    xyz: NDArray[np.float64]  # (P, 3)
    rgb: NDArray[np.uint8]  # (P, 3)
    centres: NDArray[np.float64]  # (8, 3)
    visible: NDArray[np.bool_]  # (8, P)


def write_scene(
    folder: Path, points: int = 400, stray: int = 0, origin: tuple[float, float, float] = (0, 0, 0)
) -> KnownScene:
    """Write images, features and a COLMAP model as `contextdesc sfm` does.

    Args:
        stray: of the points, how many are a thousand units away.
        origin: where the world's middle is.
    """
    rng = np.random.default_rng(7)
    xyz, rgb = _column(rng, points)
    xyz[:stray, 0] += 1000
    turns = np.linspace(-1.2, 1.2, len(NAMES))
    centres = np.column_stack([5 * np.sin(turns), -5 * np.cos(turns), np.full(len(NAMES), 2.0)])
    visible = rng.random((len(NAMES), points)) < 0.7
    visible[:2] = True  # every point is seen twice at least
    xyz, centres = xyz + origin, centres + origin
    pycolmap = import_pycolmap()
    model = pycolmap.Reconstruction()
    parameters = [FOCAL, WIDTH / 2, HEIGHT / 2]
    camera = pycolmap.Camera(
        model="SIMPLE_PINHOLE", width=WIDTH, height=HEIGHT, params=parameters, camera_id=1
    )
    model.add_camera_with_trivial_rig(camera)
    features = {}
    for row, (name, centre) in enumerate(zip(NAMES, centres, strict=True)):
        rotation = _look_at(centre, np.add(origin, [0, 0, 1]))
        seen = (xyz[visible[row]] - centre) @ rotation.T
        exact = seen[:, :2] / seen[:, 2:] * FOCAL + [WIDTH / 2, HEIGHT / 2]
        others = rng.uniform([0, 0], [WIDTH, HEIGHT], (WITHOUT, 2))
        xy = np.concatenate([others, exact + OFFSET * (row + 1)])  # in COLMAP's convention
        pose = pycolmap.Rigid3d(pycolmap.Rotation3d(rotation), -rotation @ centre)
        image = pycolmap.Image(name=name, keypoints=xy, camera_id=1, image_id=row + 1)
        model.add_image_with_trivial_frame(image, pose)
        features[name] = _features(xy)
        _photograph(folder / "images" / name, exact, rgb[visible[row]], seen[:, 2])
    for point in range(points):
        seen_by = np.flatnonzero(visible[:, point])
        rank = [WITHOUT + int(visible[row, :point].sum()) for row in seen_by]
        elements = [pycolmap.TrackElement(int(r) + 1, k) for r, k in zip(seen_by, rank, strict=True)]
        model.add_point3D(xyz[point], pycolmap.Track(elements), rgb[point])
    features[LEFT_OUT] = _features(np.array([[0.0, 0.0], [160.0, 120.0], [320.0, 240.0]]))
    _photograph(folder / "images" / LEFT_OUT, np.zeros((0, 2)), rgb[:0], np.zeros(0))
    (folder / "sparse").mkdir()
    model.write(str(folder / "sparse"))
    hloc.write(folder / "features.h5", features)
    return KnownScene(folder, folder / "images", xyz, rgb, centres, visible)


def _column(rng: np.random.Generator, points: int) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Points on a column of height 2 and on the floor around it, banded in colour."""
    turn = rng.uniform(0, 2 * np.pi, points)
    floor = rng.random(points) < 0.4
    radius = np.where(floor, rng.uniform(0.7, 2, points), 0.7)
    height = np.where(floor, 0, rng.uniform(0, 2, points))
    bands = np.array([[198, 64, 48], [236, 196, 92], [52, 116, 168], [240, 240, 232]], np.uint8)
    rgb = np.where(floor[:, None], np.uint8([116, 124, 108]), bands[(height * 2).astype(int) % 4])
    return np.column_stack([radius * np.cos(turn), radius * np.sin(turn), height]), rgb


def _look_at(centre: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """World to camera: rows are right, down and ahead; z is up in this world."""
    ahead = (target - centre) / np.linalg.norm(target - centre)
    right = np.cross(ahead, [0, 0, 1])
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(ahead, right), ahead])


def _features(xy: NDArray[np.float64]) -> Features:
    count = len(xy)
    ones = np.ones(count, np.float32)
    keypoints = Keypoints((xy - 0.5).astype(np.float32), 4 * ones, 0 * ones, ones)
    descriptors = np.tile(np.eye(1, 128, dtype=np.float32), (count, 1))
    return Features(keypoints, descriptors, (WIDTH, HEIGHT), "test", "0")


def _photograph(
    path: Path, xy: NDArray[np.float64], rgb: NDArray[np.uint8], depth: NDArray[np.float64]
) -> None:
    """Discs where the points are, near ones last, before a pale sky."""
    picture = np.linspace(250, 205, HEIGHT)[:, None, None] * np.array([0.92, 0.97, 1.0])
    picture = np.ascontiguousarray(np.broadcast_to(picture, (HEIGHT, WIDTH, 3)).astype(np.uint8))
    for i in np.argsort(-depth):
        cv2.circle(picture, tuple(map(int, xy[i])), 5, tuple(map(int, rgb[i])), -1, cv2.LINE_AA)
    path.parent.mkdir(parents=True, exist_ok=True)
    encoded = cv2.imencode(".jpg", picture[:, :, ::-1])[1]
    path.write_bytes(encoded.tobytes())
