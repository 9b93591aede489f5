"""Local features that know their surroundings: SIFT-sized descriptors with visual and geometric context.

The public names are loaded when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from contextdesc.detection import Detector
    from contextdesc.draw import (
        Picture,
        compare,
        draw_comparison,
        draw_epipolar,
        draw_keypoints,
        draw_matchability,
        draw_matches,
        draw_overlay,
        draw_warp,
    )
    from contextdesc.errors import ContextDescError, InputError
    from contextdesc.features import Features
    from contextdesc.geometry import Verification, intrinsics, verify
    from contextdesc.image import Image, read
    from contextdesc.keypoints import Keypoints
    from contextdesc.matching import Matches, match
    from contextdesc.model import ContextDesc, load
    from contextdesc.rotation import Matched, match_rotated

_HOME = {
    "Detector": "detection",
    "Picture": "draw",
    "compare": "draw",
    "draw_comparison": "draw",
    "draw_epipolar": "draw",
    "draw_keypoints": "draw",
    "draw_matchability": "draw",
    "draw_matches": "draw",
    "draw_overlay": "draw",
    "draw_warp": "draw",
    "ContextDescError": "errors",
    "InputError": "errors",
    "Features": "features",
    "Verification": "geometry",
    "intrinsics": "geometry",
    "verify": "geometry",
    "Image": "image",
    "read": "image",
    "Keypoints": "keypoints",
    "Matches": "matching",
    "match": "matching",
    "ContextDesc": "model",
    "load": "model",
    "Matched": "rotation",
    "match_rotated": "rotation",
}

__all__ = [
    "ContextDesc",
    "ContextDescError",
    "Detector",
    "Features",
    "Image",
    "InputError",
    "Keypoints",
    "Matched",
    "Matches",
    "Picture",
    "Verification",
    "compare",
    "draw_comparison",
    "draw_epipolar",
    "draw_keypoints",
    "draw_matchability",
    "draw_matches",
    "draw_overlay",
    "draw_warp",
    "intrinsics",
    "load",
    "match",
    "match_rotated",
    "read",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'contextdesc' has no attribute {name!r}")
    return getattr(importlib.import_module(f"contextdesc.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
