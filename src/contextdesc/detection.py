"""Detection: gray image in, SIFT keypoints out, within a budget.

OpenCV's SIFT with the release's settings (3 layers, sigma 1.6, edge 10). Large images are detected in
overlapping tiles, since one pass over 12 megapixels takes near 3 GB.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Literal

import cv2
import numpy as np

from contextdesc.errors import InputError
from contextdesc.keypoints import SIFT_LAYERS, SIFT_SIGMA, Keypoints

if TYPE_CHECKING:
    from numpy.typing import NDArray

TILE_ABOVE = 16_000_000  # pixels that are detected in one pass
_TILE = 2048  # pixels, side of the area that one tile answers for
_OVERLAP = 512  # pixels around it; multiples of 2^9 keep the octaves' sampling grids in step

_LARGE = 4_000_000  # pixels, near 1 GB: images from here on are detected one at a time, whoever asks
_one_large = Lock()


@dataclass(frozen=True)
class Detector:
    """Settings of detection; the defaults are the release's for HPatches and its demo.

    Attributes:
        max_keypoints: budget, None for all.
        select: which keypoints fill the budget: the strongest, or a random draw (the paper's protocol).
        seed: of the random draw.
        contrast: SIFT's contrast threshold; 0.0067 for SfM and localisation in the release.
        edge: SIFT's edge threshold.
        upright: set every angle to 0, for images that are known not to turn.
        precise_upscale: remove the 0.25 pixel bias of OpenCV's doubled base image.
        tile_above: pixels above which detection runs in tiles.
    """

    max_keypoints: int | None = 2048
    select: Literal["response", "random"] = "response"
    seed: int = 0
    contrast: float = 0.04
    edge: float = 10.0
    upright: bool = False
    precise_upscale: bool = True
    tile_above: int = TILE_ABOVE

    def __post_init__(self) -> None:
        if self.max_keypoints is not None and self.max_keypoints < 0:
            raise InputError(f"max_keypoints is {self.max_keypoints}: give 0 or more, or None for all")
        if self.select not in ("response", "random"):
            raise InputError(f"select is {self.select!r}: one of response, random")

    @property
    def takes_strongest(self) -> bool:
        """Whether SIFT's strongest keypoints are the wanted ones, as long as no mask takes some away."""
        return self.select == "response" and not self.upright

    def sift(self, strongest: int = 0) -> cv2.SIFT:
        """OpenCV's SIFT; it keeps so many keypoints and those as strong as their last, 0 for all."""
        return cv2.SIFT.create(
            nfeatures=strongest,
            nOctaveLayers=SIFT_LAYERS,
            contrastThreshold=self.contrast,
            edgeThreshold=self.edge,
            sigma=SIFT_SIGMA,
            enable_precise_upscale=self.precise_upscale,
        )


def detect(
    gray: NDArray[np.uint8], detector: Detector | None = None, mask: NDArray[np.generic] | None = None
) -> Keypoints:
    """Detect SIFT keypoints.

    Args:
        gray: (H, W) uint8.
        detector: settings.
        mask: (H, W), zero where no keypoint may lie.

    Returns:
        At most `max_keypoints` keypoints, strongest first, or in random order.
    """
    detector = detector or Detector()
    with one_large(gray):
        if gray.size > detector.tile_above:
            found = _detect_tiled(gray, detector)
        else:
            strongest = detector.max_keypoints if detector.takes_strongest and mask is None else None
            found = Keypoints.from_opencv(detector.sift(strongest or 0).detect(gray, None))
    keypoints = found[scan_rows(found)]
    if mask is not None:
        keypoints = keypoints[_inside(keypoints, gray, mask)]
    if detector.upright:
        keypoints = _without_angle(keypoints)
    return keypoints[budget_rows(keypoints.response, detector)]


def one_large(gray: NDArray[np.uint8]) -> AbstractContextManager[object]:
    """Held while an image is detected, so that no two large ones take their memory at a time."""
    return _one_large if gray.size > _LARGE else nullcontext()


def scan_rows(keypoints: Keypoints) -> NDArray[np.int64]:
    """Rows from left to right, then down, from large to small and by angle.

    OpenCV's own order if it keeps all; how it keeps the strongest, or how tiles are cut, leaves no trace.
    """
    x, y = keypoints.xy.T
    return np.lexsort((keypoints.angle, -keypoints.size, y, x))


def budget_rows(response: NDArray[np.float32], detector: Detector) -> NDArray[np.int64]:
    """Rows of the detector's choice, by response (N,); ties keep their order, so it is reproducible, and a
    smaller budget's rows are the first of a larger one's."""
    if detector.select == "random":
        order = np.random.default_rng(detector.seed).permutation(len(response))
    else:
        order = np.argsort(-response, kind="stable")
    return order[: detector.max_keypoints]


def _inside(keypoints: Keypoints, gray: NDArray[np.uint8], mask: NDArray[np.generic]) -> NDArray[np.bool_]:
    if mask.shape != gray.shape:
        raise InputError(
            f"mask is {mask.shape[1]} x {mask.shape[0]} pixels, its image "
            f"{gray.shape[1]} x {gray.shape[0]}: they must agree"
        )
    column, row = np.rint(keypoints.xy).astype(np.int64).T
    kept = mask[np.clip(row, 0, gray.shape[0] - 1), np.clip(column, 0, gray.shape[1] - 1)] != 0
    return np.asarray(kept, np.bool_)


def _without_angle(keypoints: Keypoints) -> Keypoints:
    """Angle 0 everywhere; several orientations of one blob become one keypoint."""
    blobs = np.column_stack([keypoints.xy, keypoints.size])
    first = np.sort(np.unique(blobs, axis=0, return_index=True)[1])
    kept = keypoints[first]
    return Keypoints(kept.xy, kept.size, np.zeros_like(kept.angle), kept.response)


def _detect_tiled(gray: NDArray[np.uint8], detector: Detector) -> Keypoints:
    """Detect in tiles that overlap; each keypoint belongs to the tile whose area holds its centre.

    Tile origins are multiples of 512 pixels, so that SIFT halves the same pixel columns in a tile as in
    the whole image and finds the very same keypoints away from the tile's border.
    """
    height, width = gray.shape
    sift = detector.sift()
    parts = []
    for top in range(0, height, _TILE):
        for left in range(0, width, _TILE):
            y, x = max(0, top - _OVERLAP), max(0, left - _OVERLAP)
            tile = gray[y : top + _TILE + _OVERLAP, x : left + _TILE + _OVERLAP]
            found = Keypoints.from_opencv(sift.detect(np.ascontiguousarray(tile), None))
            xy = found.xy + np.array([x, y], np.float32)
            # half-open on the rounded pixel, and open-ended at the image's border
            low = np.where([left == 0, top == 0], -np.inf, [left - 0.5, top - 0.5])
            right, bottom = left + _TILE, top + _TILE
            high = np.where([right >= width, bottom >= height], np.inf, [right - 0.5, bottom - 0.5])
            mine = np.asarray(((xy >= low) & (xy < high)).all(1))
            parts.append(Keypoints(xy, found.size, found.angle, found.response)[mine])
    return Keypoints.concatenate(parts)
