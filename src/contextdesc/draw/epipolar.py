"""Epipolar lines: each point in the colour of the line in the other image that its partner must lie on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from contextdesc.draw.matches import dots
from contextdesc.draw.panel import MIN_HEIGHT, Panel, panels
from contextdesc.draw.picture import Lines, Picture, beside
from contextdesc.errors import ContextDescError, InputError
from contextdesc.image import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.geometry import Verification

MAX_LINES = 16
# Okabe and Ito's palette without black: apart for every common kind of colour blindness.
COLOURS = np.array(
    [
        (86, 180, 233),
        (213, 94, 0),
        (240, 228, 66),
        (0, 158, 115),
        (204, 121, 167),
        (0, 114, 178),
        (230, 159, 0),
    ]
)


def draw_epipolar(first: Source, second: Source, result: Verification, max_lines: int = MAX_LINES) -> Picture:
    """Two images side by side with inliers, spread over the first image, and their epipolar lines.

    Args:
        result: of `verify` with geometry `fundamental`.
        max_lines: of matches that are drawn.
    """
    if result.geometry != "fundamental":
        raise InputError(f"epipolar lines need geometry 'fundamental', this result has {result.geometry!r}")
    if result.matrix is None:
        raise ContextDescError(f"no geometry was found in {len(result.points)} matches: no epipolar lines")
    shown = panels([first, second], min_height=MIN_HEIGHT)
    points = _spread(result.points[result.inliers].astype(np.float64), max_lines)
    colours = COLOURS[np.arange(len(points)) % len(COLOURS)]
    into = (result.matrix.T, result.matrix)  # lines in the first and in the second image
    pictures = []
    for side, panel in enumerate(shown):
        lines = _homogeneous(points[:, 1 - side]) @ into[side].T @ np.linalg.inv(panel.matrix)
        ends, crossing = _clipped(lines, panel)
        here = dots(panel.place(points[:, side]), colours, 2 * panel.stroke)
        pictures.append(panel.picture.on_top(Lines(ends, colours[crossing], panel.stroke), *here))
    return beside(pictures)


def _homogeneous(xy: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.column_stack([xy, np.ones(len(xy))])


def _clipped(lines: NDArray[np.float64], panel: Panel) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Ends (K, 2, 2) of lines (N, 3), a x + b y + c = 0, where they enter and leave a panel, and which."""
    width, height = panel.rgb.shape[1] - 1.0, panel.rgb.shape[0] - 1.0
    ends, crossing = [], []
    for number, (a, b, c) in enumerate(lines):
        candidates = [(x, -(a * x + c) / b) for x in (0.0, width) if b] + [
            (-(b * y + c) / a, y) for y in (0.0, height) if a
        ]
        hits = np.array([(x, y) for x, y in candidates if 0 <= x <= width and 0 <= y <= height])
        if len(hits) < 2:
            continue
        order = np.argsort(hits @ np.array([-b, a]))  # along the line
        ends.append(hits[order[[0, -1]]])
        crossing.append(number)
    return np.array(ends).reshape(-1, 2, 2), np.array(crossing, np.int64)


def _spread(points: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Of matches (M, 2, 2) so many that lie far apart in the first image, each farthest from those before."""
    if not len(points):
        return points
    chosen = [0]
    nearest = np.linalg.norm(points[:, 0] - points[0, 0], axis=1)
    while len(chosen) < min(most, len(points)):
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, np.linalg.norm(points[:, 0] - points[chosen[-1], 0], axis=1))
    return points[chosen]
