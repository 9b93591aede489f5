"""The first view of a reconstruction: from where most photographs were taken, upright, all of it in sight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from contextdesc.sfm_page.content import Content

_INSIDE = (2.0, 25.0, 50.0, 75.0, 98.0)  # percentiles of points: ends, quartiles and middle
_REACH = 3.0  # times a quartile's distance from the middle to which points count: a house far behind does not
_STRAY = 5.0  # times the usual distance from the middle at which a camera does not count, either
_AGREE = 0.3  # length of a mean of unit vectors from which on it says something
_BEHIND = 12.0  # degrees that the view is raised above the cameras' own, so that they do not hide the scene
_FRUSTUM = (0.035, 0.12)  # smallest and largest depth of a camera's frustum, in parts of the scene


@dataclass(frozen=True, eq=False)
class View:
    """Where to look from; everything is in the page's coordinates: (world - origin) / scale.

    Attributes:
        origin: (3,) float64, middle of the scene in the model's world, which the view turns around.
        scale: half of the scene's extent in the model's units.
        direction: (3,) float64, where the view looks, unit length.
        up: (3,) float64, unit length; in general not at a right angle to `direction`.
        half: (3,) half extent of points and cameras to the right, upwards and along the view.
        frustum: depth of a camera's frustum.
    """

    origin: NDArray[np.float64]
    scale: float
    direction: NDArray[np.float64]
    up: NDArray[np.float64]
    half: NDArray[np.float64]
    frustum: float


def first_view(content: Content) -> View:
    """Choose the view of a reconstruction; one without cameras or without points has a view, too."""
    poses = content.poses
    centres = np.array([pose.centre for pose in poses]).reshape(-1, 3)
    up, direction = _orientation(
        np.array([pose.up for pose in poses]).reshape(-1, 3),
        np.array([pose.direction for pose in poses]).reshape(-1, 3),
    )
    frame = _frame(direction, up)
    low, high = _extent(content.xyz @ frame.T, centres @ frame.T)
    origin = (low + high) / 2 @ frame
    scale = max(float(np.linalg.norm(high - low)) / 2, 1e-9)
    return View(origin, scale, frame[2], up, (high - low) / 2 / scale, _frustum(centres / scale))


def _orientation(
    ups: NDArray[np.float64], directions: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Up and direction of the view: means where the cameras agree, otherwise the next best.

    Cameras in a ring agree about up; those of a survey flight look down, and fly to and fro.
    """
    if not len(ups):
        return np.array([0.0, -1.0, 0.0]), np.array([0.0, 0.0, 1.0])
    up, direction = ups.mean(0), directions.mean(0)
    if np.linalg.norm(direction) < _AGREE:
        direction = directions[0]
    if np.linalg.norm(up) < _AGREE:
        up = -direction
        direction = ups[0]
    up = up / np.linalg.norm(up)
    sideways = direction - up * (up @ direction)
    if np.linalg.norm(sideways) < 1e-6:
        sideways = np.cross(up, np.eye(3)[np.abs(up).argmin()])
    sideways /= np.linalg.norm(sideways)
    ahead = direction / np.linalg.norm(direction)
    pitch = np.clip(np.arcsin(np.clip(ahead @ up, -1, 1)) - np.deg2rad(_BEHIND), -1.2, 1.2)
    return up, np.cos(pitch) * sideways + np.sin(pitch) * up


def _frame(direction: NDArray[np.float64], up: NDArray[np.float64]) -> NDArray[np.float64]:
    """(3, 3) rows: right, upwards and along the view."""
    right = np.cross(direction, up)
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(right, direction), direction])


def _extent(points: NDArray[np.float64], centres: NDArray[np.float64]) -> NDArray[np.float64]:
    """(2, 3) lower and upper ends of most points and cameras; one of 2 without any."""
    ends = []
    if len(points):
        first, lower, middle, upper, last = np.percentile(points, _INSIDE, axis=0)
        ends.append(np.maximum(first, middle - _REACH * (middle - lower))[None])
        ends.append(np.minimum(last, middle + _REACH * (upper - middle))[None])
    if len(centres):
        away = np.linalg.norm(centres - np.median(centres, axis=0), axis=1)
        near = centres[away <= _STRAY * np.median(away) + 1e-9]
        ends += [near.min(0, keepdims=True), near.max(0, keepdims=True)]
    if not ends:
        return np.array([[-1.0] * 3, [1.0] * 3])
    together = np.concatenate(ends)
    return np.stack([together.min(0), together.max(0)])


def _frustum(centres: NDArray[np.float64]) -> float:
    """Half of the usual distance between neighbouring cameras."""
    smallest, largest = _FRUSTUM
    if len(centres) < 2:
        return largest
    sample = centres[:: max(1, len(centres) // 200)]
    between = np.linalg.norm(sample[:, None] - centres[None], axis=2)
    nearest = np.where(between > 0, between, np.inf).min(1)
    return float(np.clip(np.median(nearest) / 2, smallest, largest))
