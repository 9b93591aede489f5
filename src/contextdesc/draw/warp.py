"""The second image laid onto the first by a homography, in a checkerboard: edges that go on, agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cv2
import numpy as np

from contextdesc.draw.matches import INLIER
from contextdesc.draw.panel import panels
from contextdesc.draw.picture import Lines, Picture
from contextdesc.errors import ContextDescError, InputError
from contextdesc.image import Source

if TYPE_CHECKING:
    from contextdesc.geometry import Verification

TILES = 9  # of the checkerboard along the longer side


def draw_warp(first: Source, second: Source, result: Verification) -> Picture:
    """The first image, with the warped second in every other tile and a line around where it lies.

    Args:
        result: of `verify` with geometry `homography`.
    """
    if result.geometry != "homography":
        raise InputError(f"a warp needs geometry 'homography', this result has {result.geometry!r}")
    if result.matrix is None:
        raise ContextDescError(f"no homography was found in {len(result.points)} matches: nothing to warp")
    left, right = panels([first, second])
    mapping = right.matrix @ result.matrix @ np.linalg.inv(left.matrix)  # first panel to second panel
    size = left.rgb.shape[1::-1]
    warped = cv2.warpPerspective(right.rgb, mapping, size, flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP)
    everywhere = np.full(right.rgb.shape[:2], 255, np.uint8)
    covered = cv2.warpPerspective(everywhere, mapping, size, flags=cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP)
    tile = max(1, -(-max(size) // TILES))
    row, column = np.indices(left.rgb.shape[:2]) // tile
    from_second = ((row + column) % 2 == 1) & (covered > 0)
    canvas = np.where(from_second[:, :, None], warped, left.rgb)
    outline, _ = cv2.findContours(covered, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    edges = [np.stack([c[:, 0], np.roll(c[:, 0], -1, 0)], 1) for c in outline]
    ends = np.concatenate([np.zeros((0, 2, 2)), *edges])
    return Picture(np.asarray(canvas, np.uint8)).on_top(Lines(ends, INLIER, 2 * left.stroke))
