"""Pictures made to be looked at: matches, keypoints, matchability, comparisons and geometry.

Every function returns a `Picture`, which saves itself as PNG, JPEG or SVG. Colours never rely on red
against green, and lines are as wide as the picture's size asks for.
"""

from contextdesc.draw.comparison import compare, draw_comparison
from contextdesc.draw.epipolar import draw_epipolar
from contextdesc.draw.keypoints import draw_keypoints
from contextdesc.draw.matchability import draw_matchability, matchability_map
from contextdesc.draw.matches import INLIER, OUTLIER, draw_matches, draw_overlay
from contextdesc.draw.picture import Picture, Svg
from contextdesc.draw.warp import draw_warp

__all__ = [
    "INLIER",
    "OUTLIER",
    "Picture",
    "Svg",
    "compare",
    "draw_comparison",
    "draw_epipolar",
    "draw_keypoints",
    "draw_matchability",
    "draw_matches",
    "draw_overlay",
    "draw_warp",
    "matchability_map",
]
