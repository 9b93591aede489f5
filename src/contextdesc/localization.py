"""Localisation: where a new photograph was taken, within a reconstruction that `contextdesc sfm` made.

The query's features are matched with those of the mapped images that share most with it. Matches with
keypoints that have a 3D point are pairs of a pixel and a point, and PnP with RANSAC (COLMAP's, through
pycolmap) turns them into a pose.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from contextdesc.errors import InputError
from contextdesc.formats.shards import open_features
from contextdesc.image import Image, read
from contextdesc.matching import match, match_descriptors
from contextdesc.overlap import FAILURES
from contextdesc.progress import progress
from contextdesc.sfm.binding import import_pycolmap
from contextdesc.sfm.cameras import CameraConfig, group_cameras
from contextdesc.sfm.settings import FILE as SETTINGS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.features import Features
    from contextdesc.model import ContextDesc

CameraOrigin = Literal["given", "map", "similar", "exif", "guess"]

_NEEDED = ("estimate_and_refine_absolute_pose", "AbsolutePoseEstimationOptions.estimate_focal_length")
_SAMPLE = 256  # descriptors of a query that are matched with every mapped image, to find its candidates
_FEWEST = 4  # pairs of pixel and point to try PnP with
_SAME_FOCAL = 0.1  # relative difference between EXIF and a mapped camera that is taken for the same


@dataclass(frozen=True)
class Settings:
    """How queries are localised."""

    candidates: int = 20  # mapped images that a query is matched with
    ratio: float | None = None  # of the ratio test; None for the model's own
    max_error: float = 12.0  # pixels, of an inlier; COLMAP's own
    min_inliers: int = 20  # fewer are no pose
    camera: CameraConfig = field(default_factory=CameraConfig)  # model, and its parameters if they are known
    focal: float | None = None  # pixels, if it is known

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise InputError(f"candidates is {self.candidates}: give 1 or more")
        if not self.max_error > 0:
            raise InputError(f"max_error is {self.max_error}: give a positive number of pixels")
        if self.min_inliers < _FEWEST:
            raise InputError(f"min_inliers is {self.min_inliers}: give {_FEWEST} or more")
        if self.focal is not None and not self.focal > 0:
            raise InputError(f"focal is {self.focal}: give a positive number of pixels")
        if self.focal is not None and self.camera.params is not None:
            raise InputError("focal and camera parameters are both given; the parameters have a focal length")


@dataclass(frozen=True, eq=False)
class Pose:
    """A camera's place in the reconstruction: x_camera = R x_world + t.

    Attributes:
        quaternion: (4,) float64, w x y z of R.
        translation: (3,) float64, t.
        centre: (3,) float64, the camera's position, -R^T t.
        camera: COLMAP's name of the camera model.
        parameters: of that model, in COLMAP's order and convention.
        origin: where the camera came from: given, that of all mapped images of this size, similar to their
            several ones, EXIF or a guess; the focal length is refined with the pose for the last three.
        error: mean reprojection error of the inliers in pixels.
    """

    quaternion: NDArray[np.float64]
    translation: NDArray[np.float64]
    centre: NDArray[np.float64]
    camera: str
    parameters: tuple[float, ...]
    origin: CameraOrigin
    error: float


@dataclass(frozen=True, eq=False)
class Localization:
    """What became of one query.

    Attributes:
        name: of the query.
        pose: or None.
        inliers: pairs of pixel and point that agree with the pose.
        pairs: those that were found.
        nearest: mapped image with most pairs, or None.
        identical: the nearest image has the very same features: it is the same picture.
        reason: why there is no pose.
    """

    name: str
    pose: Pose | None = None
    inliers: int = 0
    pairs: int = 0
    nearest: str | None = None
    identical: bool = False
    reason: str | None = None


class Map:
    """A reconstruction with the features that it was made of.

    Args:
        folder: with `features.h5` and COLMAP's model in `sparse`, as `contextdesc sfm` writes them.
    """

    def __init__(self, folder: Path) -> None:
        self.pycolmap = import_pycolmap(*_NEEDED)
        self.folder = folder
        model = _find_model(folder)
        try:
            self.reconstruction = self.pycolmap.Reconstruction(str(model))
        except (ValueError, RuntimeError) as error:
            raise InputError(f"{model}: not a COLMAP model ({str(error).splitlines()[-1]})") from None
        self.features = open_features(folder / "features.h5")
        ids = sorted(self.reconstruction.points3D)
        self.xyz = np.array([self.reconstruction.points3D[i].xyz for i in ids], np.float64).reshape(-1, 3)
        row_of = {int(i): row for row, i in enumerate(ids)}
        self._points: dict[str, NDArray[np.int64]] = {}
        self._cameras: dict[tuple[int, int], dict[int, Any]] = {}
        for image in self.reconstruction.images.values():
            if image.has_pose:
                points = [row_of.get(int(p.point3D_id), -1) for p in image.points2D]
                self._points[str(image.name)] = np.array(points, np.int64)
                camera = image.camera
                self._cameras.setdefault((camera.width, camera.height), {})[camera.camera_id] = camera
        if not self._points or not len(self.xyz):
            raise InputError(f"{model}: no registered images or no points; reconstruct it again")
        missing = [name for name in self._points if name not in self.features]
        if missing:
            raise InputError(f"{self.features.path}: no features of {missing[0]}, which {model} has")

    @property
    def names(self) -> list[str]:
        """Registered images."""
        return sorted(self._points)

    @property
    def extraction(self) -> dict[str, Any]:
        """How the features were extracted: `detector` and `max_side`; empty if nobody wrote it down."""
        try:
            stages = json.loads((self.folder / SETTINGS).read_text(encoding="utf-8"))["stages"]
            settings = stages["features"]["settings"]
            return {key: settings[key] for key in ("detector", "max_side")}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    @property
    def made_by(self) -> Features:
        """Features of one image, which say which model made them all."""
        return self.features[self.names[0]]

    def points(self, name: str, features: Features) -> NDArray[np.int64]:
        """(N,) rows of `xyz` for the keypoints of an image, -1 for those without a point."""
        points = self._points[name]
        if len(points) != len(features):
            raise InputError(
                f"{self.folder}: the model has {len(points)} keypoints for {name}, "
                f"features.h5 {len(features)}; reconstruct it again"
            )
        return points

    def cameras(self, size: tuple[int, int]) -> list[Any]:
        """Cameras of the mapped images of a size."""
        return list(self._cameras.get(size, {}).values())


def localize_images(
    map_: Map,
    model: ContextDesc,
    queries: Mapping[str, Path],
    settings: Settings | None = None,
    quiet: bool = False,
) -> list[Localization]:
    """Localise images by name. One that fails does not stop the others: its reason is in the answer."""
    settings = settings or Settings()
    made_by = map_.made_by.source
    if model.source != made_by:
        raise InputError(
            f"{map_.features.path}: holds features of {made_by}, not of {model.source}; "
            "queries need the same model"
        )
    _new_camera((1, 1), None, settings)  # so that a bad one is refused at once
    answers = []
    with progress("localise", len(queries), quiet=quiet) as advance:
        for name, path in queries.items():
            try:
                answers.append(
                    _localize(map_, model, name, read(path, max_pixels=model.max_pixels), settings)
                )
            except FAILURES as error:
                answers.append(Localization(name, reason=str(error)))
            advance()
    return answers


def _localize(map_: Map, model: ContextDesc, name: str, picture: Image, settings: Settings) -> Localization:
    query = model.extract(picture)
    if not len(query):
        return Localization(name, reason="no keypoints in the image")
    pairs, counts = [], {}
    identical = set()
    for candidate in _candidates(map_, query, settings):
        mapped = map_.features[candidate]
        points = map_.points(candidate, mapped)
        rows = match(query, mapped, settings.ratio).indices
        seen = rows[points[rows[:, 1]] >= 0]
        counts[candidate] = len(seen)
        pairs.append(np.column_stack([seen[:, 0], points[seen[:, 1]]]))
        if np.array_equal(query.keypoints.xy, mapped.keypoints.xy):
            identical.add(candidate)
    found = np.unique(np.concatenate(pairs), axis=0)  # (M, 2): keypoint, point
    nearest = max(counts, key=lambda n: counts[n])
    answer = Localization(name, pairs=len(found), nearest=nearest, identical=nearest in identical)
    if len(found) < _FEWEST:
        return replace(answer, reason=f"{len(found)} matches with points of the map")
    xy = query.keypoints.to_colmap()[found[:, 0], :2].astype(np.float64)
    pose, inliers = _solve(map_, picture, xy, map_.xyz[found[:, 1]], settings)
    if pose is None or inliers < settings.min_inliers:
        reason = f"{inliers} inliers among {len(found)} matches; {settings.min_inliers} are asked for"
        return replace(answer, inliers=inliers, reason=reason)
    return replace(answer, pose=pose, inliers=inliers)


def _candidates(map_: Map, query: Features, settings: Settings) -> list[str]:
    """All mapped images if they are few, else those with most matches to a sample of the query."""
    if len(map_.names) <= settings.candidates:
        return map_.names
    rows = np.linspace(0, len(query) - 1, min(_SAMPLE, len(query))).astype(np.int64)
    ratio = query.ratio if settings.ratio is None else settings.ratio
    votes = {}
    for name in map_.names:
        mapped = map_.features[name]
        with_point = map_.points(name, mapped) >= 0
        partners = match_descriptors(query.descriptors[rows], mapped.descriptors, ratio, mutual=False).indices
        votes[name] = len(np.unique(partners[with_point[partners[:, 1]], 1]))
    return sorted(votes, key=lambda name: -votes[name])[: settings.candidates]


def _solve(
    map_: Map, picture: Image, xy: NDArray[np.float64], xyz: NDArray[np.float64], settings: Settings
) -> tuple[Pose | None, int]:
    """Pose and inliers of M pixels (COLMAP's convention) and points."""
    pycolmap = map_.pycolmap
    camera, origin = _camera(map_, picture, settings)
    estimation = pycolmap.AbsolutePoseEstimationOptions()
    refinement = pycolmap.AbsolutePoseRefinementOptions()
    estimation.ransac.max_error = settings.max_error
    estimation.ransac.random_seed = 0
    estimation.estimate_focal_length = origin == "guess"
    refinement.refine_focal_length = origin in ("similar", "exif", "guess")
    answer = pycolmap.estimate_and_refine_absolute_pose(xy, xyz, camera, estimation, refinement)
    if answer is None:
        return None, 0
    pose, inliers = answer["cam_from_world"], np.asarray(answer["inlier_mask"], np.bool_)
    rotation = np.asarray(pose.rotation.matrix(), np.float64)
    translation = np.asarray(pose.translation, np.float64)
    projected = camera.img_from_cam(xyz[inliers] @ rotation.T + translation)
    x, y, z, w = pose.rotation.quat
    return Pose(
        np.array([w, x, y, z], np.float64),
        translation,
        -rotation.T @ translation,
        str(camera.model_name),
        tuple(float(p) for p in camera.params),
        origin,
        float(np.linalg.norm(projected - xy[inliers], axis=1).mean()) if inliers.any() else np.nan,
    ), int(inliers.sum())


def _camera(map_: Map, picture: Image, settings: Settings) -> tuple[Any, CameraOrigin]:
    """The query's camera; see `Pose.origin`. Of several similar ones, that of median focal length."""
    size, focal = picture.original_size, picture.focal
    if settings.focal is not None or settings.camera.params is not None:
        return _new_camera(size, settings.focal, settings), "given"
    alike = [
        camera
        for camera in map_.cameras(size)
        if focal is None or abs(camera.mean_focal_length() / focal - 1) < _SAME_FOCAL
    ]
    if alike:
        alike.sort(key=lambda camera: float(camera.mean_focal_length()))
        camera = alike[len(alike) // 2]
        copy = map_.pycolmap.Camera(
            model=camera.model, width=camera.width, height=camera.height, params=camera.params
        )
        return copy, "map" if len(alike) == 1 else "similar"
    return _new_camera(size, focal, settings), "exif" if focal else "guess"


def _new_camera(size: tuple[int, int], focal: float | None, settings: Settings) -> Any:
    """A camera by the settings; without parameters, its principal point is in the middle."""
    return group_cameras({"query": size}, {"query": focal}, settings.camera)[0].camera


def _find_model(folder: Path) -> Path:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give the output of contextdesc sfm")
    if not (folder / "features.h5").exists():
        raise InputError(f"{folder}: no features.h5 in it; give the output of contextdesc sfm")
    for model in (folder / "sparse", folder / "sparse" / "0"):
        if (model / "images.bin").is_file() or (model / "images.txt").is_file():
            return model
    raise InputError(f"{folder}: no reconstruction in {folder / 'sparse'}; run contextdesc sfm to the end")
