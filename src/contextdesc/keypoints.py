"""Keypoints: where a feature is, how large, and which way it points.

Coordinates are OpenCV's throughout: the centre of the top-left pixel is (0, 0); `size` is the diameter
2 sigma of the blob and `angle` is in degrees from the x axis towards the y axis (clockwise on screen).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

import cv2
import numpy as np

from contextdesc.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

SIFT_SIGMA = 1.6
SIFT_LAYERS = 3
DEFAULT_SIZE = 6.0  # pixels, for keypoints given as (x, y) alone: a mid-scale SIFT keypoint


@dataclass(frozen=True, eq=False)
class Keypoints:
    """N keypoints, one row each.

    Attributes:
        xy: (N, 2) float32, pixels, OpenCV convention.
        size: (N,) float32, pixels, diameter.
        angle: (N,) float32, degrees in [0, 360).
        response: (N,) float32, strength of the detection; larger is better.
    """

    xy: NDArray[np.float32]
    size: NDArray[np.float32]
    angle: NDArray[np.float32]
    response: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.xy)

    def __getitem__(self, rows: NDArray[np.generic] | slice) -> Keypoints:
        return Keypoints(self.xy[rows], self.size[rows], self.angle[rows], self.response[rows])

    def scaled(self, factor: NDArray[np.float32]) -> Keypoints:
        """The same keypoints in an image whose sides are `factor` (2,) times as long."""
        xy = (self.xy + 0.5) * factor - 0.5
        size = self.size * np.float32(np.sqrt(factor.prod()))
        return Keypoints(xy.astype(np.float32), size.astype(np.float32), self.angle, self.response)

    @classmethod
    def empty(cls) -> Keypoints:
        return cls(np.zeros((0, 2), np.float32), *(np.zeros(0, np.float32) for _ in range(3)))

    @classmethod
    def concatenate(cls, parts: Sequence[Keypoints]) -> Keypoints:
        if not parts:
            return cls.empty()
        columns = ([getattr(p, name) for p in parts] for name in ("xy", "size", "angle", "response"))
        return cls(*(np.concatenate(column) for column in columns))

    @classmethod
    def from_opencv(cls, keypoints: Sequence[cv2.KeyPoint]) -> Keypoints:
        if not len(keypoints):
            return cls.empty()
        xy = np.asarray(cv2.KeyPoint.convert(keypoints), np.float32)
        size, angle, response = (
            np.fromiter(map(attrgetter(name), keypoints), np.float32, len(keypoints))
            for name in ("size", "angle", "response")
        )
        return cls(xy, size, np.maximum(angle, 0), response)  # OpenCV writes -1 for "no angle"

    @classmethod
    def from_array(cls, array: ArrayLike) -> Keypoints:
        """Keypoints from rows (x, y) or (x, y, size, angle), OpenCV convention, degrees."""
        rows = np.asarray(array, np.float32)
        if rows.size == 0:
            return cls.empty()
        if rows.ndim != 2 or rows.shape[1] not in (2, 4):
            raise InputError(
                f"keypoints of shape {rows.shape}: expected (N, 2) for x, y or (N, 4) for x, y, size, angle"
            )
        if not np.isfinite(rows).all():
            row = int(np.flatnonzero(~np.isfinite(rows).all(1))[0])
            raise InputError(f"keypoint {row} is not finite: {rows[row].tolist()}")
        if rows.shape[1] == 2:
            rows = np.hstack([rows, np.tile(np.array([DEFAULT_SIZE, 0], np.float32), (len(rows), 1))])
        if (rows[:, 2] <= 0).any():
            row = int(np.flatnonzero(rows[:, 2] <= 0)[0])
            raise InputError(f"keypoint {row} has size {rows[row, 2]}: sizes are positive pixels")
        xy, size, angle = rows[:, :2].copy(), rows[:, 2].copy(), np.mod(rows[:, 3], 360)
        return cls(xy, size, angle, np.ones(len(rows), np.float32))

    @classmethod
    def from_colmap(cls, array: ArrayLike) -> Keypoints:
        """Keypoints from COLMAP rows: (x, y), (x, y, scale, orientation) or (x, y, a11, a12, a21, a22).

        COLMAP puts the centre of the top-left pixel at (0.5, 0.5), its scale is sigma and its
        orientation is in radians; an affine shape is reduced to its scale and rotation.
        """
        rows = np.asarray(array, np.float32)
        if rows.ndim == 2 and rows.shape[1] == 6:
            a11, a12, a21, a22 = rows[:, 2:].T
            scale = (np.hypot(a11, a21) + np.hypot(a12, a22)) / 2
            rows = np.column_stack([rows[:, :2], scale, np.arctan2(a21, a11)])
        if rows.ndim == 2 and rows.shape[1] == 4:
            rows = np.column_stack([rows[:, :2], 2 * rows[:, 2], np.rad2deg(rows[:, 3])])
        keypoints = cls.from_array(rows)
        return cls(keypoints.xy - np.float32(0.5), keypoints.size, keypoints.angle, keypoints.response)

    def to_opencv(self) -> list[cv2.KeyPoint]:
        """OpenCV keypoints whose octave field fits their size, as SIFT needs it to describe them."""
        columns = (*self.xy.T, self.size, self.angle, self.response, sift_octave(self.size))
        return list(map(cv2.KeyPoint, *(column.tolist() for column in columns)))

    def to_colmap(self) -> NDArray[np.float32]:
        """(N, 4) float32: x, y, scale, orientation in COLMAP's convention."""
        xy = self.xy + np.float32(0.5)
        return np.column_stack([xy, self.size / 2, np.deg2rad(self.angle)]).astype(np.float32)


def sift_octave(size: NDArray[np.float32]) -> NDArray[np.int32]:
    """OpenCV's packed octave and layer of SIFT keypoints of given size, (N,) int32.

    SIFT writes size = 1.6 * 2^(octave + 1 + layer / 3) with octaves from -1 and layers 1 to 3, and reads
    the octave (not the size) to choose the image that it describes a keypoint in.
    """
    with np.errstate(divide="ignore"):
        steps = np.rint(SIFT_LAYERS * np.log2(np.maximum(size, 1e-3) / SIFT_SIGMA)).astype(np.int32)
    steps = np.maximum(steps, 1)
    octave = (steps - 1) // SIFT_LAYERS - 1
    layer = (steps - 1) % SIFT_LAYERS + 1
    return ((octave & 0xFF) | (layer << 8)).astype(np.int32)
