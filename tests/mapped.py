"""A reconstruction with known truth: rendered views, features as extracted, points where they truly are."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import cv2
import numpy as np

from contextdesc.features import Features
from contextdesc.formats import hloc
from contextdesc.model import ContextDesc
from tests.training.test_scenes import HEIGHT, INTRINSICS, WIDTH, View


def write_map(folder: Path, views: dict[str, View], model: ContextDesc, cameras: int = 1) -> None:
    """`features.h5`, `sparse` and the settings of extraction as `contextdesc sfm` leaves them.

    Every keypoint with a depth has a point.

    Args:
        cameras: 1 for one that all images share, else one per image.
    """
    import pycolmap

    features = {name: model.extract(view.rgb) for name, view in views.items()}
    hloc.write(folder / "features.h5", features)
    extraction = {"detector": asdict(model.detector), "max_side": model.max_side}
    settings = {"stages": {"features": {"settings": extraction}}}
    (folder / "settings.json").write_text(json.dumps(settings))
    reconstruction = pycolmap.Reconstruction()
    for number, (name, view) in enumerate(views.items(), 1):
        camera_id = 1 if cameras == 1 else number
        if camera_id not in reconstruction.cameras:
            params = [INTRINSICS[0, 0], WIDTH / 2, HEIGHT / 2]
            camera = pycolmap.Camera(
                camera_id=camera_id, model="SIMPLE_PINHOLE", width=WIDTH, height=HEIGHT, params=params
            )
            reconstruction.add_camera_with_trivial_rig(camera)
        pixels = features[name].keypoints.to_colmap()[:, :2].astype(np.float64)
        points2d = [pycolmap.Point2D(xy) for xy in pixels]
        image = pycolmap.Image(name=name, image_id=number, camera_id=camera_id, points2D=points2d)
        pose = pycolmap.Rigid3d(pycolmap.Rotation3d(view.rotation), view.translation)
        reconstruction.add_image_with_trivial_frame(image, pose)
        for row, xyz in enumerate(true_points(view, features[name])):
            if np.isfinite(xyz).all():
                track = pycolmap.Track()
                track.add_element(number, row)
                reconstruction.add_point3D(xyz, track)
    (folder / "sparse").mkdir(parents=True, exist_ok=True)
    reconstruction.write(str(folder / "sparse"))


def true_points(view: View, features: Features) -> np.ndarray:
    """(N, 3) world coordinates of keypoints, not finite where the view has no depth."""
    xy = features.keypoints.xy.astype(np.float64)
    column, row = np.rint(xy).astype(int).T
    depth = view.depth[np.clip(row, 0, HEIGHT - 1), np.clip(column, 0, WIDTH - 1)]
    rays = np.column_stack([xy + 0.5, np.ones(len(xy))]) @ np.linalg.inv(INTRINSICS).T
    with np.errstate(invalid="ignore"):
        return (rays * depth[:, None] - view.translation) @ view.rotation


def write_image(path: Path, view: View) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), view.rgb[:, :, ::-1])
    return path


def position_error(centre: np.ndarray, view: View) -> float:
    return float(np.linalg.norm(centre + view.rotation.T @ view.translation))
