"""Panorama: photographs of a plane, or of anything from one spot, to one image.

features ─ homographies between pairs ─ spanning tree ─ refinement ─ canvas ─ exposure, seams, blending
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import cv2
import numpy as np

from contextdesc.blending import View, blend
from contextdesc.errors import ContextDescError, InputError
from contextdesc.geometry import verify
from contextdesc.image import Image, Source, read
from contextdesc.matching import match
from contextdesc.progress import progress

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.features import Features
    from contextdesc.model import ContextDesc

THRESHOLD = 3.0  # pixels of the image as the model sees it; lenses are no perfect pinholes
MIN_INLIERS = 15
MAX_STRETCH = 12.0  # times its own area that an image may take in the panorama
MAX_SIDE, MAX_PIXELS = 30_000, 60_000_000  # of the panorama; OpenCV warps at most 32,767 pixels a side
_ROUNDS = 10  # of the refinement


@dataclass(frozen=True, eq=False)
class Panorama:
    """Stitched images.

    Attributes:
        rgb: (H, W, 3) uint8, black where no image lies.
        covered: (H, W) bool, where some image lies.
        homographies: of the images in it, by their position in the input: (3, 3) float64, pixels of the
            original image to pixels of the panorama.
        left_out: the other images, by position, with the reason.
    """

    rgb: NDArray[np.uint8]
    covered: NDArray[np.bool_]
    homographies: dict[int, NDArray[np.float64]]
    left_out: dict[int, str]


@dataclass(frozen=True, eq=False)
class Link:
    """Two images that overlap: `homography` takes pixels of the first to the second, `points` (M, 2, 2)
    are the inliers."""

    first: int
    second: int
    homography: NDArray[np.float64]
    points: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.points)

    def seen_from(self, image: int) -> tuple[int, NDArray[np.float64]]:
        """The other image, and the points with those of `image` first."""
        return (self.second, self.points) if image == self.first else (self.first, self.points[:, ::-1])


def stitch(sources: Sequence[Source], model: ContextDesc, quiet: bool = True) -> Panorama:
    """Stitch images, given in any order.

    The image with the best connections stays flat, the others are warped into its plane. Images that
    cannot be read or do not connect are left out.

    Args:
        sources: two or more images.
        quiet: report no progress.
    """
    images, left_out = _read(sources, model)
    with progress("features", len(images), quiet=quiet) as advance:
        features = {}
        for number, image in images.items():
            features[number] = model.extract(image)
            advance()
    links = _links(images, features, model, quiet)
    group = _largest_group(links)
    root, placed = _placed(links, group)
    placed = _refined(placed, root, [link for link in links if link.first in group])
    left_out |= {number: "connects with no image of the panorama" for number in images if number not in group}
    size, homographies = _canvas(images, placed, root)
    rgb, covered = blend([View(images[n], h) for n, h in homographies.items()], size)
    return Panorama(rgb, covered, homographies, left_out)


def _read(sources: Sequence[Source], model: ContextDesc) -> tuple[dict[int, Image], dict[int, str]]:
    images, failed = {}, {}
    for number, source in enumerate(sources):
        try:
            images[number] = read(source, MAX_SIDE, model.max_pixels)
        except ContextDescError as error:
            failed[number] = str(error)
    if len(images) < 2:
        raise InputError("; ".join(["a panorama needs two images or more", *failed.values()]))
    return images, failed


def _links(
    images: Mapping[int, Image], features: Mapping[int, Features], model: ContextDesc, quiet: bool
) -> list[Link]:
    """The pairs of images that a homography connects."""
    links, most = [], 0
    pairs = list(combinations(images, 2))
    with progress("pairs", len(pairs), quiet=quiet) as advance:
        for first, second in pairs:
            longest = max(*images[first].original_size, *images[second].original_size)
            threshold = THRESHOLD * max(1.0, longest / (model.max_side or longest))
            matches = match(features[first], features[second])
            result = verify(features[first], features[second], matches, "homography", threshold)
            most = max(most, result.inlier_count)
            # Brown and Lowe (IJCV 2007): true overlaps have more inliers than a share of their matches.
            if result.matrix is not None and result.inlier_count > max(MIN_INLIERS, 8 + 0.3 * len(matches)):
                points = result.points[result.inliers].astype(np.float64)
                links.append(Link(first, second, result.matrix, points))
            advance()
    if not links:
        raise InputError(
            f"no two of the {len(images)} images overlap (at most {most} inliers, a link needs more than "
            f"{MIN_INLIERS}); give photographs of a plane, or from one spot, that share a third of their view"
        )
    return links


def _largest_group(links: Sequence[Link]) -> set[int]:
    """The connected images: the most, and among equals those with most inliers."""
    groups: list[set[int]] = []
    for link in links:
        touched = [group for group in groups if {link.first, link.second} & group]
        groups = [group for group in groups if group not in touched]
        groups.append({link.first, link.second}.union(*touched))
    return max(groups, key=lambda group: (len(group), sum(len(k) for k in links if k.first in group)))


def _placed(links: Sequence[Link], group: set[int]) -> tuple[int, dict[int, NDArray[np.float64]]]:
    """The image with the best connections, and for each of the group the homography to it.

    They follow the spanning tree with most inliers (Prim's algorithm).
    """
    inliers = {n: sum(len(link) for link in links if n in (link.first, link.second)) for n in group}
    root = max(sorted(group), key=lambda number: inliers[number])
    placed = {root: np.eye(3)}
    while len(placed) < len(group):
        border = [k for k in links if k.first in group and (k.first in placed) != (k.second in placed)]
        best = max(border, key=len)
        if best.first in placed:
            placed[best.second] = placed[best.first] @ np.linalg.inv(best.homography)
        else:
            placed[best.first] = placed[best.second] @ best.homography
    return root, {number: matrix / matrix[2, 2] for number, matrix in placed.items()}


def _refined(
    placed: Mapping[int, NDArray[np.float64]], root: int, links: Sequence[Link]
) -> dict[int, NDArray[np.float64]]:
    """Homographies that agree on all links, not only on those of the tree.

    Each image but the root is fitted in turn to where its neighbours put the points that they share.
    """
    current = dict(placed)
    for _ in range(_ROUNDS if len(current) > 2 else 0):
        for number in current:
            if number == root:
                continue
            shared = [k.seen_from(number) for k in links if number in (k.first, k.second)]
            here = np.concatenate([points[:, 0] for _, points in shared])
            there = np.concatenate([project(current[other], points[:, 1]) for other, points in shared])
            matrix, _ = cv2.findHomography(here, there, 0)
            if matrix is not None:
                current[number] = np.asarray(matrix, np.float64)
    return current if _error(current, links) < _error(placed, links) else dict(placed)


def _error(placed: Mapping[int, NDArray[np.float64]], links: Sequence[Link]) -> float:
    """Mean distance of linked points in the root's plane, pixels."""
    gaps = [
        project(placed[k.first], k.points[:, 0]) - project(placed[k.second], k.points[:, 1]) for k in links
    ]
    return float(np.linalg.norm(np.concatenate(gaps), axis=1).mean())


def _canvas(
    images: Mapping[int, Image], placed: Mapping[int, NDArray[np.float64]], root: int
) -> tuple[tuple[int, int], dict[int, NDArray[np.float64]]]:
    """(width, height) of the panorama, and the homographies into it."""
    corners = []
    for number, matrix in placed.items():
        width, height = images[number].original_size
        frame = np.array([(0, 0), (width, 0), (width, height), (0, height)]) - 0.5
        depth = np.column_stack([frame, np.ones(4)]) @ matrix[2]
        warped = project(matrix, frame)
        area = abs(cv2.contourArea(warped.astype(np.float32)))
        if depth.min() <= 1e-3 or area > MAX_STRETCH * width * height:
            raise InputError(
                f"{images[number].name}: turned too far from {images[root].name} for a flat panorama; "
                "leave it out, or stitch fewer images"
            )
        corners.append(warped)
    low, high = np.concatenate(corners).min(0), np.concatenate(corners).max(0)
    extent = high - low
    factor = min(1.0, MAX_SIDE / extent.max(), (MAX_PIXELS / extent.prod()) ** 0.5)
    width, height = (max(1, round(side * factor)) for side in extent)
    # The frame's corner `low` becomes the corner of the first pixel, whose centre is (0, 0).
    shift = -low * factor - 0.5
    to_canvas = np.array([[factor, 0, shift[0]], [0, factor, shift[1]], [0, 0, 1]])
    return (width, height), {number: to_canvas @ matrix for number, matrix in placed.items()}


def project(matrix: NDArray[np.float64], xy: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 2) points mapped by a homography."""
    mapped = np.column_stack([xy, np.ones(len(xy))]) @ matrix.T
    return np.asarray(mapped[:, :2] / mapped[:, 2:])
