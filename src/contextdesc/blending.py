"""Blending: images with their place on a canvas in, one image out, by OpenCV's stitching parts.

Gains even out the exposure, seams run where images agree, and bands of frequency are blended across them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.image import Image

_SEAM_PIXELS = 300_000  # of the canvas in which seams are looked for
_BLEND_SHARE = 0.05  # width of the blend over the side of a square of the canvas' area

# Of one gray level: the blender cuts off fractions in every band, which darkens by some levels without.
_STEPS = np.float32(32)


@dataclass(frozen=True, eq=False)
class View:
    """An image and the homography from its original pixels to the canvas."""

    image: Image
    homography: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Warped:
    """The part of the canvas that a view covers: left and upper border, colours, and 255 where it lies."""

    corner: tuple[int, int]
    rgb: NDArray[np.uint8]
    mask: NDArray[np.uint8]


def blend(views: Sequence[View], size: tuple[int, int]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Blend views on a canvas of (width, height).

    Returns:
        (H, W, 3) uint8, black where nothing is, and (H, W) bool, where something is. The first view keeps
        its exposure.
    """
    factor = min(1.0, (_SEAM_PIXELS / (size[0] * size[1])) ** 0.5)
    small = [_warp(view, size, factor) for view in views]
    gains = _gains(small)
    seams = _seams(small)
    blender: Any = cv2.detail.MultiBandBlender()
    width = _BLEND_SHARE * (size[0] * size[1]) ** 0.5
    blender.setNumBands(max(1, int(np.log2(max(2.0, width)))))
    blender.prepare((0, 0, *size))
    covered = np.zeros(size[::-1], np.bool_)
    for view, gain, seam in zip(views, gains, seams, strict=True):
        part = _warp(view, size)
        (x, y), (h, w) = part.corner, part.mask.shape
        covered[y : y + h, x : x + w] |= part.mask > 0
        wide = cv2.dilate(seam, np.ones((3, 3), np.uint8))  # no gap between neighbours after enlarging
        share = cv2.bitwise_and(cv2.resize(wide, (w, h), interpolation=cv2.INTER_LINEAR), part.mask)
        values = (part.rgb * np.float32(gain)).clip(0, 255) * _STEPS
        blender.feed(np.rint(values).astype(np.int16), share, part.corner)
    blended, _ = blender.blend(None, None)
    rgb = np.rint(blended / _STEPS).clip(0, 255).astype(np.uint8)
    rgb[~covered] = 0
    return rgb, covered


def _warp(view: View, size: tuple[int, int], factor: float = 1.0) -> _Warped:
    """A view on the canvas, or on one that is `factor` times as large."""
    matrix = _scaling(factor, factor) @ view.homography @ _scaling(*view.image.scale.tolist())
    width, height = view.image.size
    frame = np.array([[(0, 0), (width, 0), (width, height), (0, height)]], np.float64) - 0.5
    corners = cv2.perspectiveTransform(frame, matrix)[0]
    limit = np.maximum(1, np.ceil(np.array(size) * factor))
    low = np.clip(np.floor(corners.min(0)), 0, limit - 1).astype(int)
    high = np.clip(np.ceil(corners.max(0)) + 1, low + 1, limit).astype(int)
    move = np.array([[1, 0, -low[0]], [0, 1, -low[1]], [0, 0, 1]], np.float64)
    extent = (high - low).tolist()
    rgb = cv2.warpPerspective(
        view.image.rgb, move @ matrix, extent, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
    )
    everywhere = np.full((height, width), 255, np.uint8)
    mask = cv2.warpPerspective(everywhere, move @ matrix, extent, flags=cv2.INTER_NEAREST)
    return _Warped((int(low[0]), int(low[1])), np.asarray(rgb, np.uint8), np.asarray(mask, np.uint8))


def _scaling(x: float, y: float) -> NDArray[np.float64]:
    """Pixels of an image to those of one that is so many times as wide and high."""
    return np.array([[x, 0, x / 2 - 0.5], [0, y, y / 2 - 0.5], [0, 0, 1]])


def _gains(parts: Sequence[_Warped]) -> list[float]:
    """Factors that make overlaps equally bright; the first is 1."""
    compensator: Any = cv2.detail.ExposureCompensator.createDefault(cv2.detail.ExposureCompensator_GAIN)
    compensator.feed([p.corner for p in parts], [p.rgb for p in parts], [p.mask for p in parts])
    gains = [float(np.ravel(gain)[0]) for gain in compensator.getMatGains()]
    return [gain / gains[0] for gain in gains]


def _seams(parts: Sequence[_Warped]) -> list[NDArray[np.uint8]]:
    """The part of each mask that its view fills."""
    finder: Any = cv2.detail.GraphCutSeamFinder("COST_COLOR_GRAD")
    colours = [p.rgb.astype(np.float32) for p in parts]
    masks = finder.find(colours, [p.corner for p in parts], [p.mask.copy() for p in parts])
    return [np.asarray(m.get() if hasattr(m, "get") else m, np.uint8) for m in masks]
