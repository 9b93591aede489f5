"""Tracks of a COLMAP model: a reconstruction and our keypoints come in, a scene goes out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from contextdesc.keypoints import Keypoints
from contextdesc.training.data.scenes import Scene

# pycolmap's image; pixels of our copy per pixel of the model's in x and y; (width, height) of our copy
Placed: TypeAlias = tuple[Any, NDArray[np.floating], tuple[int, int]]


def scene_of(
    reconstruction: Any, folder: Path, images: Mapping[str, Placed],
    keypoints: Mapping[str, Keypoints], rows: Mapping[str, NDArray[np.integer]],
) -> Scene:  # fmt: skip
    """Tracks of a reconstruction.

    Args:
        images: the registered images.
        rows: for each of the model's 2D points, its row in `keypoints`, or -1.
    """
    cameras: dict[str, list[Any]] = {"K": [], "R": [], "t": []}
    image_of, track_of, parts = [], [], []
    for index, (name, (image, factor, _)) in enumerate(images.items()):
        cameras["K"].append(np.diag([*factor, 1.0]) @ image.camera.calibration_matrix())
        pose = image.cam_from_world()
        cameras["R"].append(pose.rotation.matrix())
        cameras["t"].append(pose.translation)
        points = image.points2D
        seen = np.array([i for i, point in enumerate(points) if point.has_point3D()], np.int64)
        track = np.array([points[i].point3D_id for i in seen], np.int64)
        row = rows[name][seen] if len(seen) else seen
        _, first = np.unique(row, return_index=True)  # of two observations at one keypoint, the first
        kept = np.sort(first[row[first] >= 0])
        image_of.append(np.full(len(kept), index, np.int16))
        track_of.append(track[kept])
        parts.append(keypoints[name][row[kept]])
    observed = Keypoints.concatenate(parts)
    ids, track = np.unique(np.concatenate(track_of), return_inverse=True)
    intrinsics, rotation, translation = (np.array(cameras[key], np.float32) for key in ("K", "R", "t"))
    size = np.array([size for _, _, size in images.values()], np.int32)
    points = [reconstruction.point3D(int(i)).xyz for i in ids]
    return Scene(
        folder / "images", tuple(images), intrinsics, rotation, translation, size, np.concatenate(image_of),
        observed.xy, observed.size, observed.angle, track.astype(np.int32).ravel(),
        np.array(points, np.float32).reshape(-1, 3),
    )  # fmt: skip
