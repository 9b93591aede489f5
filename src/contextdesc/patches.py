"""The patch sampler: gray image and keypoints in, one 32x32 patch per keypoint out.

Patches are rotated and scaled by their keypoint and read from a Gaussian pyramid at the level where one
patch pixel is about one image pixel, so that large keypoints do not alias (section 3 and the release's
pyramid mode). No loop runs over keypoints, only over pyramid levels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cv2
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.keypoints import Keypoints

PATCH = 32  # pixels, side of a patch
SUPPORT = 10.6  # patch side over keypoint size: the circle that SIFT's descriptor touches

_PYRAMID_BLUR = 0.8  # pixels, before each halving; with the 2x2 mean it leaves sigma 0.47 at the next level
_TILE = 16384  # pixels: cv2.remap reads at most 32767 a side
_BATCH = 4096  # patches per cv2.remap call, bounds the coordinate maps to 32 MB


def sample_patches(
    gray: NDArray[np.uint8],
    keypoints: Keypoints,
    support: float = SUPPORT,
    stretch: NDArray[np.float32] | None = None,
) -> NDArray[np.uint8]:
    """Cut the patch of every keypoint.

    Args:
        gray: (H, W) uint8.
        keypoints: N keypoints in pixels of `gray`; beyond the border its pixels are replicated.
        support: side of the patch over the keypoint's size.
        stretch: (N, 2), factors on the patch's width and height; None for square patches.

    Returns:
        (N, 32, 32) uint8; a patch's x axis points along the keypoint's angle.
    """
    patches = np.empty((len(keypoints), PATCH, PATCH), np.uint8)
    if not len(keypoints):
        return patches
    step = keypoints.size * np.float32(support / PATCH)  # image pixels per patch pixel
    height, width = gray.shape
    # A level so coarse that the image is one pixel is as coarse as it gets.
    last = int(np.ceil(np.log2(max(height, width))))
    level_of = np.clip(np.rint(np.log2(step)), 0, last).astype(np.int64)

    level = gray
    for index in range(int(level_of.max()) + 1):
        if index:
            level = _halve(level)
        rows = np.flatnonzero(level_of == index)
        scale = np.array([level.shape[1] / width, level.shape[0] / height], np.float32)
        centre = (keypoints.xy[rows] + np.float32(0.5)) * scale - np.float32(0.5)
        axes = _patch_axes(step[rows], keypoints.angle[rows]) * scale
        if stretch is not None:
            axes = axes * stretch[rows, :, None]
        for part, tile, origin in _tiles(level, centre, axes):
            patches[rows[part]] = _remap(tile, centre[part] - origin, axes[part])
    return patches


def _halve(level: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Half the size, rounded up, with a grid that is symmetric to the image's centre.

    The symmetry (which cv2.pyrDown lacks for even sides) makes patches turn with the image.
    """
    height, width = level.shape
    blurred = cv2.GaussianBlur(level, (0, 0), _PYRAMID_BLUR, borderType=cv2.BORDER_REPLICATE)
    size = ((width + 1) // 2, (height + 1) // 2)
    return np.asarray(cv2.resize(blurred, size, interpolation=cv2.INTER_LINEAR), np.uint8)


def _patch_axes(step: NDArray[np.float32], angle: NDArray[np.float32]) -> NDArray[np.float32]:
    """(N, 2, 2): image-space vectors of one patch pixel to the right and one down."""
    radians = np.deg2rad(angle)
    cos, sin = step * np.cos(radians), step * np.sin(radians)
    return np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], 1).astype(np.float32)


def _tiles(
    level: NDArray[np.uint8], centre: NDArray[np.float32], axes: NDArray[np.float32]
) -> list[tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.float32]]]:
    """Rows, crop and crop origin for each part of an image too large for cv2.remap; usually one."""
    height, width = level.shape
    if max(height, width) <= 2 * _TILE - 8:
        return [(np.arange(len(centre)), level, np.zeros(2, np.float32))] if len(centre) else []
    reach = int(np.ceil(np.abs(axes).sum(1).max(initial=0) * PATCH / 2)) + 2
    cell = np.clip(centre, 0, [width - 1, height - 1]).astype(np.int64) // _TILE
    tiles = []
    for x, y in np.unique(cell, axis=0):
        rows = np.flatnonzero((cell == (x, y)).all(1))
        left, top = max(0, x * _TILE - reach), max(0, y * _TILE - reach)
        crop = level[top : (y + 1) * _TILE + reach, left : (x + 1) * _TILE + reach]
        tiles.append((rows, np.ascontiguousarray(crop), np.array([left, top], np.float32)))
    return tiles


def _remap(
    image: NDArray[np.uint8], centre: NDArray[np.float32], axes: NDArray[np.float32]
) -> NDArray[np.uint8]:
    offsets = np.arange(PATCH, dtype=np.float32) - np.float32((PATCH - 1) / 2)
    patches = np.empty((len(centre), PATCH, PATCH), np.uint8)
    for start in range(0, len(centre), _BATCH):
        part = slice(start, start + _BATCH)
        # position = centre + column * right + row * down, built from (N, 1, 32) and (N, 32, 1)
        right, down = axes[part, 0, :, None] * offsets, axes[part, 1, :, None] * offsets
        right += centre[part, :, None]
        x = (right[:, 0, None, :] + down[:, 0, :, None]).reshape(-1, PATCH * PATCH)
        y = (right[:, 1, None, :] + down[:, 1, :, None]).reshape(-1, PATCH * PATCH)
        sampled = cv2.remap(image, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        patches[part] = sampled.reshape(-1, PATCH, PATCH)
    return patches
