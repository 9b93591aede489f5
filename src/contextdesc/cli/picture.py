"""The picture that `contextdesc match --draw KIND` writes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextdesc.draw import Picture
    from contextdesc.features import Features
    from contextdesc.geometry import Geometry, Verification
    from contextdesc.image import Image
    from contextdesc.matching import Matches
    from contextdesc.model import ContextDesc


class Kind(StrEnum):
    matches = "matches"
    overlay = "overlay"
    keypoints = "keypoints"
    matchability = "matchability"
    comparison = "comparison"
    warp = "warp"
    epipolar = "epipolar"


def draw_kind(
    kind: Kind,
    model: ContextDesc,
    images: Sequence[Image],
    features: Sequence[Features],
    matches: Matches,
    result: Verification,
    threshold: float,
    ratio: float | None,
) -> Picture:
    """The picture of a kind. A geometry that it needs and the result lacks is fitted for it."""
    from contextdesc import draw
    from contextdesc.draw.picture import beside
    from contextdesc.geometry import verify

    first, second = images

    def with_geometry(wanted: Geometry) -> Verification:
        if result.geometry == wanted:
            return result
        return verify(features[0], features[1], matches, wanted, threshold)

    if kind is Kind.matches:
        return draw.draw_matches(first, second, result)
    if kind is Kind.overlay:
        return draw.draw_overlay(first, second, result)
    if kind is Kind.warp:
        return draw.draw_warp(first, second, with_geometry("homography"))
    if kind is Kind.epipolar:
        return draw.draw_epipolar(first, second, with_geometry("fundamental"))
    if kind is Kind.comparison:
        geometry: Geometry = "homography" if result.geometry == "homography" else "fundamental"
        results = draw.compare(model, images, features, geometry, threshold, ratio)
        return draw.draw_comparison(first, second, results)
    if kind is Kind.keypoints:
        pictures = [draw.draw_keypoints(i, f) for i, f in zip(images, features, strict=True)]
    else:
        pictures = [draw.draw_matchability(model, image) for image in images]
    return beside(pictures)
