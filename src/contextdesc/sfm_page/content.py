"""What the page shows: a COLMAP model and our features come in, arrays and per-image statistics go out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from contextdesc.errors import InputError
from contextdesc.formats.hloc import open_h5
from contextdesc.image import find_images
from contextdesc.sfm.binding import import_pycolmap

_Extracted: TypeAlias = tuple[tuple[int, int], NDArray[np.float32]]  # size, and keypoints in parts of it
_WIDEST = 2.0  # tangent of a frustum's half angle at most: wider lenses are drawn narrower than they are


@dataclass(frozen=True, eq=False)
class Pose:
    """A registered camera in the model's world.

    Attributes:
        centre: (3,) float64.
        corners: (4, 3) float64, from the centre to the image's corners (top left, top right, bottom right,
            bottom left) at depth 1.
        model: COLMAP's name of the camera model.
        focal: pixels, or None for a camera without a focal length.
    """

    centre: NDArray[np.float64]
    corners: NDArray[np.float64]
    model: str
    focal: float | None

    @property
    def direction(self) -> NDArray[np.float64]:
        """(3,) where the camera looks, unit length."""
        return _unit(self.corners.sum(0))

    @property
    def up(self) -> NDArray[np.float64]:
        """(3,) where the image's upper edge is, unit length."""
        return _unit(self.corners[:2].sum(0) - self.corners[2:].sum(0))


@dataclass(frozen=True, eq=False)
class Photograph:
    """One image of the set.

    Attributes:
        size: (width, height) in pixels; (0, 0) if nothing tells it.
        pose: None for an image that was not registered.
        keypoints: (N, 2) float32 in parts of width and height, from the upper left corner of the image; those
            with a 3D point come first.
        points: (T,) int64, rows of the 3D points of the first T keypoints.
        error: mean reprojection error of these in pixels; NaN for none.
        track: mean number of images that see these points; NaN for none.
        reason: why it is not registered, where that is known.
    """

    name: str
    size: tuple[int, int]
    pose: Pose | None
    keypoints: NDArray[np.float32]
    points: NDArray[np.int64]
    error: float = float("nan")
    track: float = float("nan")
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Content:
    """A reconstruction: photographs by name, and P points.

    Attributes:
        xyz: (P, 3) float64, in the model's world.
        rgb: (P, 3) uint8.
        error: (P,) float32, mean reprojection error in pixels.
        track: (P,) int64, images that see the point.
    """

    photographs: list[Photograph]
    xyz: NDArray[np.float64]
    rgb: NDArray[np.uint8]
    error: NDArray[np.float32]
    track: NDArray[np.int64]

    @property
    def poses(self) -> list[Pose]:
        return [photograph.pose for photograph in self.photographs if photograph.pose is not None]


def read_content(directory: Path, images: Path) -> Content:
    """Read `sparse/` of a reconstruction's folder, and `features.h5` and `summary.json` if they are there.

    Every image that the model, the features or the folder of images know is listed; those that are not
    registered have the keypoints of the features, if these were kept.
    """
    model = _read_model(directory / "sparse")
    ids = np.array(sorted(model.points3D), np.int64)
    points = [model.points3D[int(i)] for i in ids]
    xyz = np.array([point.xyz for point in points], np.float64).reshape(-1, 3)
    track = np.array([point.track.length() for point in points], np.int64)
    total, seen = np.zeros(len(ids)), np.zeros(len(ids))
    registered: dict[str, Photograph] = {}
    for image in model.images.values():
        if image.has_pose:
            photograph, errors = _registered(image, ids, xyz, track)
            registered[photograph.name] = photograph
            known = np.isfinite(errors)
            np.add.at(total, photograph.points[known], errors[known])
            np.add.at(seen, photograph.points[known], 1)
    others = _not_registered(directory, images, set(registered))
    return Content(
        sorted([*registered.values(), *others], key=lambda photograph: photograph.name),
        xyz,
        np.array([point.color for point in points], np.uint8).reshape(-1, 3),
        (total / np.maximum(seen, 1)).astype(np.float32),
        track,
    )


def _read_model(folder: Path) -> Any:
    pycolmap = import_pycolmap()
    if not folder.is_dir():
        raise InputError(f"{folder}: no reconstruction here; make one with contextdesc sfm")
    try:
        return pycolmap.Reconstruction(str(folder))
    except (ValueError, RuntimeError) as error:
        raise InputError(f"{folder}: not a COLMAP model ({str(error).splitlines()[-1]})") from None


def _registered(
    image: Any, ids: NDArray[np.int64], xyz: NDArray[np.float64], track: NDArray[np.int64]
) -> tuple[Photograph, NDArray[np.float64]]:
    """A registered image, and the (T,) reprojection errors of its triangulated keypoints in pixels."""
    camera, pose = image.camera, image.cam_from_world()
    rotation, translation = np.asarray(pose.rotation.matrix()), np.asarray(pose.translation)
    found = image.points2D
    xy = np.array([point.xy for point in found], np.float64).reshape(-1, 2)
    triangulated = np.array([point.has_point3D() for point in found], bool)
    point_ids = np.array([point.point3D_id for point in found if point.has_point3D()], np.int64)
    points = np.searchsorted(ids, point_ids)
    projected = _project(camera, xyz[points] @ rotation.T + translation)
    errors = np.linalg.norm(projected - xy[triangulated], axis=1)
    size = (int(camera.width), int(camera.height))
    corners, focal = _corner_rays(camera)
    order = np.argsort(~triangulated, kind="stable")
    finite = errors[np.isfinite(errors)]
    photograph = Photograph(
        str(image.name),
        size,
        Pose(-rotation.T @ translation, corners @ rotation, str(camera.model.name), focal),
        (xy[order] / size).astype(np.float32),
        points,
        float(finite.mean()) if len(finite) else float("nan"),
        float(track[points].mean()) if len(points) else float("nan"),
    )
    return photograph, errors


def _project(camera: Any, points: NDArray[np.float64]) -> NDArray[np.float64]:
    """(T, 2) pixels of points in the camera's frame; rows of points that it cannot see are not finite."""
    return np.asarray(camera.img_from_cam(points)) if len(points) else np.zeros((0, 2))


def _corner_rays(camera: Any) -> tuple[NDArray[np.float64], float | None]:
    """(4, 3) image corners at depth 1 in the camera's frame, distortion left out, and the focal length."""
    width, height = camera.width, camera.height
    pixels = np.array([[0, 0, 1], [width, 0, 1], [width, height, 1], [0, height, 1]], np.float64)
    if len(camera.focal_length_idxs()):
        matrix, focal = np.asarray(camera.calibration_matrix()), float(camera.mean_focal_length())
    else:  # a panorama: a right angle stands for it
        matrix = np.array([[width / 2, 0, width / 2], [0, width / 2, height / 2], [0, 0, 1]])
        focal = None
    rays = pixels @ np.linalg.inv(matrix).T
    rays[:, :2] *= min(1.0, _WIDEST / np.abs(rays[:, :2]).max())
    return rays, focal


def _not_registered(directory: Path, images: Path, registered: set[str]) -> list[Photograph]:
    """Images of the folder and of the features that the model lacks."""
    found: dict[str, _Extracted] = {n: ((0, 0), np.zeros((0, 2), np.float32)) for n in find_images([images])}
    if (directory / "features.h5").exists():
        found |= _read_keypoints(directory / "features.h5", registered)
    reasons = _read_reasons(directory / "summary.json")
    nothing = np.zeros(0, np.int64)
    return [
        Photograph(name, size, None, keypoints, nothing, reason=reasons.get(name, ""))
        for name, (size, keypoints) in found.items()
        if name not in registered
    ]


def _read_keypoints(path: Path, without: set[str]) -> dict[str, _Extracted]:
    """Image size and keypoints in parts of it, by name; descriptors are not read."""
    found: dict[str, _Extracted] = {}

    def visit(name: str, group: Any) -> None:
        if name in without or not hasattr(group, "keys") or not {"keypoints", "image_size"} <= group.keys():
            return
        try:
            width, height = (int(side) for side in group["image_size"])
            xy = np.asarray(group["keypoints"], np.float32)[:, :2] + np.float32(0.5)
        except (OSError, ValueError, IndexError) as error:
            raise InputError(f"{path}: keypoints of {name} are damaged ({error}); extract again") from None
        found[name] = (width, height), (xy / [max(1, width), max(1, height)]).astype(np.float32)

    with open_h5(path) as file:
        file.visititems(visit)
    return found


def _read_reasons(path: Path) -> dict[str, str]:
    """Why images were left out, by name: they could not be read, or are copies of others."""
    if not path.exists():
        return {}
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        copies = {name: f"a copy of {other}" for name, other in summary.get("copies", {}).items()}
        return {**copies, **{name: str(reason) for name, reason in summary.get("failed", {}).items()}}
    except (ValueError, AttributeError) as error:
        raise InputError(
            f"{path}: not a summary ({error}); delete it and run contextdesc sfm again"
        ) from None


def _unit(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    return vector / max(float(np.linalg.norm(vector)), 1e-12)
