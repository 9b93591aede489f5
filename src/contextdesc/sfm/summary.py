"""What came out: a model comes in, colours of its points, its numbers and a table go out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contextdesc.image import read

# key of the summary, its title, how it is written
COLUMNS = (
    ("images", "images", ",d"),
    ("registered", "registered", ",d"),
    ("points", "points", ",d"),
    ("observations", "observations", ",d"),
    ("track_length", "track length", ".2f"),
    ("reprojection_error", "reprojection error", ".3f"),
)


def colour_points(model: Any, paths: Mapping[str, Path]) -> None:
    """Give each point of a model the mean colour of the pixels that see it.

    Photographs are read upright, as their keypoints were; COLMAP reads them as they are stored.
    """
    total: dict[int, NDArray[np.float64]] = {}
    for image in registered(model):
        points = image.get_observation_points2D()
        if not points:
            continue
        rgb = read(paths[image.name]).rgb
        xy = np.floor([point.xy for point in points]).astype(np.int64)
        column, row = np.clip(xy, 0, [rgb.shape[1] - 1, rgb.shape[0] - 1]).T
        for point, colour in zip(points, rgb[row, column], strict=True):
            total.setdefault(point.point3D_id, np.zeros(4))[:] += (*colour, 1)
    for point_id, colour in total.items():
        model.point3D(point_id).color = np.rint(colour[:3] / colour[3]).astype(np.uint8)


def summarise(model: Any) -> dict[str, Any]:
    """Numbers of a model, in total and by image; errors are in pixels, means over observations' points."""
    if hasattr(model, "update_point_3d_errors"):
        model.update_point_3d_errors()
    errors = {point_id: float(point.error) for point_id, point in model.points3D.items()}
    images = {}
    for image in sorted(registered(model), key=lambda image: str(image.name)):
        own = [errors[point.point3D_id] for point in image.get_observation_points2D()]
        images[str(image.name)] = {
            "keypoints": image.num_points2D(), "observations": len(own),
            "error": round(float(np.mean(own)), 4) if own else None,
        }  # fmt: skip
    points, observations = model.num_points3D(), model.compute_num_observations()
    return {
        "registered": len(images), "points": points, "observations": observations,
        "track_length": round(observations / points, 4) if points else 0.0,
        "reprojection_error": round(float(np.mean(list(errors.values()))), 4) if errors else 0.0,
        "by_image": images,
    }  # fmt: skip


def table(summary: Mapping[str, Any]) -> str:
    """The numbers as text, a line each."""
    lines = [(title, format(summary[key], how)) for key, title, how in COLUMNS]
    width = max(len(title) for title, _ in lines)
    return "\n".join(f"{title.ljust(width)}  {value:>10}" for title, value in lines)


def registered(model: Any) -> list[Any]:
    return [image for image in model.images.values() if image.has_pose]
