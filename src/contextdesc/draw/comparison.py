"""What descriptors add: SIFT, raw and augmented descriptors of the same keypoints, matched and verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from contextdesc.draw.matches import matches_between
from contextdesc.draw.panel import panels
from contextdesc.draw.picture import Picture, Text, stacked
from contextdesc.geometry import THRESHOLD, verify
from contextdesc.image import Source, read
from contextdesc.matching import match_descriptors
from contextdesc.rootsift import sift_descriptors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.features import Features
    from contextdesc.geometry import Geometry, Verification
    from contextdesc.model import ContextDesc

SIFT_RATIO = 0.8  # Lowe's
MAX_LINES = 500  # in a row: enough for rows to look different
MAX_HEIGHT, MIN_HEIGHT = 500, 240  # pixels of a row


def compare(
    model: ContextDesc,
    images: Sequence[Source],
    features: Sequence[Features],
    geometry: Geometry = "fundamental",
    threshold: float = THRESHOLD,
    ratio: float | None = None,
) -> dict[str, Verification]:
    """Match the keypoints of two images by SIFT, by raw and by augmented descriptors, and verify each.

    Args:
        model: that extracted the features.
        images: two.
        features: of both, by `model.extract` or `model.describe`.
        ratio: threshold of the ratio test for raw and augmented descriptors; None for the model's own.
            SIFT always has its usual 0.8.

    Returns:
        Results by the name of the descriptor.
    """
    known = features[0].ratio if ratio is None else ratio
    augmented = [found.descriptors for found in features]
    raw = [_unit(model.raw(image, found.keypoints)[0]) for image, found in zip(images, features, strict=True)]
    sift = [_sift(model, image, found) for image, found in zip(images, features, strict=True)]
    rows = {
        f"SIFT, ratio {SIFT_RATIO:g}": (sift, SIFT_RATIO),
        f"{model.spec.name}, raw": (raw, known),
        f"{model.spec.name}, context {model.context}": (augmented, known),
    }
    return {
        name: verify(features[0], features[1], match_descriptors(first, second, limit), geometry, threshold)
        for name, ((first, second), limit) in rows.items()
    }


def draw_comparison(first: Source, second: Source, results: Mapping[str, Verification]) -> Picture:
    """A sheet with a row for each result (see `compare`): its counts, and its inliers as lines."""
    rows = []
    shown = [panel.dimmed for panel in panels([first, second], MAX_HEIGHT, MIN_HEIGHT)]
    for name, result in results.items():
        row = matches_between(shown, result, outliers=False, max_lines=MAX_LINES)
        rows += [_caption(name, result, row), row]
    return stacked(rows)


def _caption(name: str, result: Verification, row: Picture) -> Picture:
    text = (
        f"{name}: {len(result.inliers)} matches, {result.inlier_count} inliers "
        f"({result.inlier_ratio:.0%}, {result.geometry})"
    )
    height = max(14, row.size[1] // 24)
    width = max(row.size[0], round(0.6 * height * len(text)))
    strip = np.full((round(1.9 * height), width, 3), 255, np.uint8)
    return Picture(strip).on_top(Text(text, np.array([height / 2, 1.3 * height]), height))


def _sift(model: ContextDesc, image: Source, found: Features) -> NDArray[np.float32]:
    """Unit SIFT descriptors of keypoints, in the image as the model sees it."""
    picture = read(image, model.max_side, model.max_pixels)
    keypoints = found.keypoints.scaled(np.reciprocal(picture.scale))
    return _unit(sift_descriptors(picture.gray, keypoints, model.detector.precise_upscale))


def _unit(descriptors: NDArray[np.float32]) -> NDArray[np.float32]:
    return descriptors / np.maximum(np.linalg.norm(descriptors, axis=1, keepdims=True), 1e-12)
