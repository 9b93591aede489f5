"""Near-duplicates: groups of files that are one picture, resized, compressed again or cropped a little.

The rule: matches of two images agree with one homography, it does no more than scale and shift, and most of
both images is common to them. Photographs of a flat thing from nearly one place pass it, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import cv2
import numpy as np

from contextdesc.errors import InputError
from contextdesc.geometry import verify
from contextdesc.matching import match
from contextdesc.progress import progress
from contextdesc.retrieval.linking import ordered

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.features import Features
    from contextdesc.retrieval.index import Index

CANDIDATES = 10  # images that each image is compared with
_IN_MEMORY = 128  # images whose features are


@dataclass(frozen=True)
class Rule:
    """When two images are one picture.

    Attributes:
        inliers: matches that agree with one homography, at least.
        agreeing: their share of all matches, at least.
        common: area that both images show, over the area that either shows, at least.
        bent: how far a corner may lie from where scaling and shifting alone would put it, at most, over
            the diagonal of the image.
        pixels: largest error of an inlier, over the diagonal of the image.
    """

    inliers: int = 20
    agreeing: float = 0.75
    common: float = 0.7
    bent: float = 0.02
    pixels: float = 0.003


def duplicates(index: Index, rule: Rule | None = None, quiet: bool = False) -> list[list[str]]:
    """Groups of names, each two or more in order; groups in order of their first name.

    Whoever is a duplicate of one of a group belongs to it.
    """
    rule = rule or Rule()
    if len(index) and not index.keeps_features:
        raise InputError(f"{index.folder}: keeps no local features to compare; build it with --features int8")
    features = lru_cache(_IN_MEMORY)(index.features)
    pairs = {
        ordered(entry.name, name)
        for entry in index.entries()
        for name, _ in index.search(entry.words, entry.weights, CANDIDATES + 1)
        if name != entry.name
    }
    found = []
    with progress("compare", len(pairs), 0, quiet) as advance:
        for first, second in sorted(pairs):
            if same_picture(features(first), features(second), rule):
                found.append((first, second))
            advance()
    return grouped(found)


def same_picture(first: Features, second: Features, rule: Rule | None = None) -> bool:
    """Whether two images are one picture, by the rule."""
    rule = rule or Rule()
    matches = match(first, second)
    threshold = rule.pixels * float(np.hypot(*second.image_size))
    result = verify(first, second, matches, "homography", threshold)
    if result.matrix is None or result.inlier_count < rule.inliers or result.inlier_ratio < rule.agreeing:
        return False
    corners = _corners(first.image_size)
    mapped = cv2.perspectiveTransform(corners[None], result.matrix)[0]
    upright = _scaled_and_shifted(corners, mapped)
    if np.linalg.norm(mapped - upright, axis=1).max() > rule.bent * np.hypot(*second.image_size):
        return False
    return _common(upright, _corners(second.image_size)) >= rule.common


def grouped(pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Names that pairs connect, directly or over others."""
    group_of: dict[str, list[str]] = {}
    for first, second in pairs:
        joined = group_of.get(first, [first])
        for name in group_of.get(second, [second]):
            if name not in joined:
                joined.append(name)
        for name in joined:
            group_of[name] = joined
    return sorted({id(group): sorted(group) for group in group_of.values()}.values())


def _corners(size: tuple[int, int]) -> NDArray[np.float64]:
    """(4, 2): of the image's area, in pixels, OpenCV convention."""
    width, height = size
    return np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64) - 0.5


def _scaled_and_shifted(corners: NDArray[np.float64], mapped: NDArray[np.float64]) -> NDArray[np.float64]:
    """Corners moved nearest to where they were mapped, by a scale and a shift for x and for y."""
    centred, target = corners - corners.mean(0), mapped - mapped.mean(0)
    return np.asarray(centred * ((centred * target).sum(0) / np.square(centred).sum(0)) + mapped.mean(0))


def _common(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Area of the intersection of two upright rectangles over that of their union."""
    low, high = np.maximum(first.min(0), second.min(0)), np.minimum(first.max(0), second.max(0))
    both = float(np.prod(np.maximum(0, high - low)))
    areas = [float(np.prod(np.ptp(corners, axis=0))) for corners in (first, second)]
    return both / (sum(areas) - both)
