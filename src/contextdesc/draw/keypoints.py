"""Keypoints as circles of their size with a line towards their orientation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import cv2
import numpy as np

from contextdesc.draw.panel import MIN_HEIGHT, panels
from contextdesc.draw.picture import Circles, Lines, Picture
from contextdesc.features import Features
from contextdesc.image import Source
from contextdesc.keypoints import Keypoints
from contextdesc.model import as_keypoints

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

MAX_KEYPOINTS = 500
_COLOUR, _HALO = (240, 228, 66), (0, 0, 0)  # Okabe and Ito's yellow on black shows on any ground


def draw_keypoints(
    image: Source,
    keypoints: Features | Keypoints | ArrayLike | Sequence[cv2.KeyPoint],
    max_keypoints: int = MAX_KEYPOINTS,
) -> Picture:
    """An image with its keypoints, the strongest of them.

    Args:
        keypoints: in pixels of the original image: features, or keypoints in any form that
            `ContextDesc.describe` takes. The circle's diameter is twice the keypoint's size (four sigma),
            the line points along its angle.
        max_keypoints: those of largest response are drawn.
    """
    (panel,) = panels([image], min_height=MIN_HEIGHT)
    given = keypoints.keypoints if isinstance(keypoints, Features) else as_keypoints(keypoints)
    shown = given[np.argsort(-given.response, kind="stable")[:max_keypoints]]
    centres = panel.place(shown.xy)
    radii = np.maximum(shown.size * np.sqrt(panel.scale.prod()), 2 * panel.stroke)
    angle = np.deg2rad(shown.angle)
    rims = centres + radii[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    ends = np.stack([centres, rims], 1)
    thin = panel.stroke
    return panel.picture.on_top(
        Circles(centres, radii, _HALO, 2 * thin + 1),
        Lines(ends, _HALO, 2 * thin + 1),
        Circles(centres, radii, _COLOUR, thin),
        Lines(ends, _COLOUR, thin),
    )
