"""Known cameras: poses from files in, angles and positions to judge estimates by out.

A camera maps world points to x = K (R X + t), in pixels of OpenCV's convention.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contextdesc.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Pose = tuple[NDArray[np.float64], NDArray[np.float64]]  # (3, 3) and (3,): x2 = R x1 + t


@dataclass(frozen=True, eq=False)
class Camera:
    """A pinhole camera.

    Attributes:
        intrinsics: (3, 3), pixels.
        rotation, translation: (3, 3) and (3,), world to camera.
        size: (width, height) of its image; None if nothing tells.
    """

    intrinsics: NDArray[np.float64]
    rotation: NDArray[np.float64]
    translation: NDArray[np.float64]
    size: tuple[int, int] | None = None

    @property
    def centre(self) -> NDArray[np.float64]:
        return -self.rotation.T @ self.translation


def read_strecha(path: Path) -> Camera:
    """A `.camera` file: K, a line of zeros, R, C, width and height; points x = K R^T (X - C)."""
    try:
        values = np.array(path.read_text(encoding="utf-8").split(), np.float64)
        width, height = (int(value) for value in values[24:26])
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a camera of Strecha's data ({error})") from None
    intrinsics, rotation, centre = values[:9].reshape(3, 3), values[12:21].reshape(3, 3).T, values[21:24]
    if not np.allclose(rotation @ rotation.T, np.eye(3), atol=1e-3):
        raise InputError(f"{path}: its rotation is none; a camera has K, three zeros, R, C, width and height")
    return Camera(intrinsics, rotation, -rotation @ centre, (width, height))


def relative_pose(first: Camera, second: Camera) -> Pose:
    """Rotation and translation from the first camera to the second: x2 = R x1 + t."""
    rotation = second.rotation @ first.rotation.T
    return rotation, second.translation - rotation @ first.translation


def rotation_angle(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Degrees, 0 to 180, that one rotation (3, 3) is from another."""
    cosine = (np.trace(first.T @ second) - 1) / 2
    return float(np.rad2deg(np.arccos(np.clip(cosine, -1, 1))))


def direction_angle(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Degrees, 0 to 90, between two directions (3,) without their sign."""
    cosine = abs(first @ second) / (np.linalg.norm(first) * np.linalg.norm(second))
    return float(np.rad2deg(np.arccos(np.clip(cosine, 0, 1))))


def pose_error(estimated: Pose | None, true: Pose) -> float:
    """Degrees: the larger of the angles of rotation and translation; inf without an estimate.

    The sign of the translation is left out, as in the releases of learned correspondences and SuperGlue.
    """
    if estimated is None:
        return float("inf")
    return max(rotation_angle(estimated[0], true[0]), direction_angle(estimated[1], true[1]))


def similarity(
    points: NDArray[np.float64], target: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """Scale, rotation (3, 3) and shift (3,) that bring points (N, 3) closest to others (Umeyama, 1991)."""
    a, b = points - points.mean(0), target - target.mean(0)
    u, d, v = np.linalg.svd(b.T @ a)
    sign = np.diag([1, 1, np.linalg.det(u @ v)])
    rotation = u @ sign @ v
    scale = float((d * np.diag(sign)).sum() / (a**2).sum())
    return scale, rotation, target.mean(0) - scale * rotation @ points.mean(0)
