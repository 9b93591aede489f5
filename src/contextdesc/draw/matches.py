"""Matches as lines: between two images side by side, or as displacements on one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from contextdesc.draw.panel import Panel, panels
from contextdesc.draw.picture import WHITE, Circles, Lines, Picture, Shape, beside
from contextdesc.image import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.geometry import Verification

# Blue and orange stay apart for every common kind of colour blindness (Okabe and Ito's palette).
INLIER, OUTLIER = (86, 180, 233), (213, 94, 0)
MAX_LINES = 150  # of each kind; more would hide the images
_OPACITY = 0.7  # of so many lines, less of more; their ends are opaque


def draw_matches(
    first: Source,
    second: Source,
    result: Verification,
    outliers: bool = True,
    max_lines: int = MAX_LINES,
) -> Picture:
    """Two images side by side with lines between their matches.

    Args:
        first, second: the images that the features were extracted from.
        result: of `verify`; its points are in pixels of the original images.
        outliers: draw matches that did not agree, too.
        max_lines: of each kind; an even sample is drawn of more.

    Returns:
        A picture; `.save("matches.png")` writes it.
    """
    return matches_between(panels([first, second]), result, outliers, max_lines)


def matches_between(
    shown: Sequence[Panel], result: Verification, outliers: bool = True, max_lines: int = MAX_LINES
) -> Picture:
    """As `draw_matches`, of two panels."""
    left, right = shown
    picture = beside([panel.picture for panel in shown])
    ends = np.stack([left.place(result.points[:, 0]), right.place(result.points[:, 1])], 1)  # (M, 2, 2)
    ends[:, 1, 0] += picture.size[0] - right.rgb.shape[1]
    stroke = max(panel.stroke for panel in shown)
    return picture.on_top(*_lines_with_ends(ends, result.inliers, stroke, outliers, max_lines))


def draw_overlay(
    first: Source, second: Source, result: Verification, outliers: bool = True, max_lines: int = MAX_LINES
) -> Picture:
    """The first image, in gray, with a line from where each match is to where it is in the second.

    The dot is the place in the first image. Where the images differ in size, places in the second are
    those after stretching it to the size of the first. The arguments are those of `draw_matches`.
    """
    left, right = panels([first, second])
    to_left = np.array(left.rgb.shape[1::-1]) / np.array(right.rgb.shape[1::-1])
    there = (right.place(result.points[:, 1]) + 0.5) * to_left - 0.5
    ends = np.stack([left.place(result.points[:, 0]), there], 1)
    shapes = _lines_with_ends(ends, result.inliers, left.stroke, outliers, max_lines, second_end=False)
    return Picture(left.paled, tuple(shapes))


def _lines_with_ends(
    ends: NDArray[np.float64],
    inliers: NDArray[np.bool_],
    stroke: float,
    outliers: bool,
    max_lines: int,
    second_end: bool = True,
) -> list[Shape]:
    """Lines (M, 2, 2) as shapes: outliers thin and below, inliers on top, and dots at their ends."""
    kinds = [(sample(ends[inliers], max_lines), INLIER, stroke)]
    if outliers:
        kinds.insert(0, (sample(ends[~inliers], max_lines), OUTLIER, max(1.0, stroke / 2)))
    opacity = _OPACITY * min(1.0, (MAX_LINES / max(1, len(kinds[-1][0]))) ** 0.5)
    shapes: list[Shape] = [Lines(kind, colour, width, opacity) for kind, colour, width in kinds]
    for kind, colour, width in kinds:
        points = kind.reshape(-1, 2) if second_end else kind[:, 0]
        shapes += dots(points, colour, width)
    return shapes


def dots(points: NDArray[np.float64], colour: object, width: float) -> list[Shape]:
    """Points (N, 2) as dots with a white rim, for lines of a width; colour: one, or (N, 3)."""
    return [
        Circles(points, width + 2, WHITE),
        Circles(points, (width + 2) * 2 / 3, np.asarray(colour)),
    ]


def sample(rows: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """At most so many rows, evenly."""
    if len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).astype(int)]
