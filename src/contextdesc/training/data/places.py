"""Places: which keypoints of two images lie on one spot, and how many of them descriptors find."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAME = 2.5  # pixels between keypoints of one place, as in the paper's recall


def at_place(
    place: NDArray[np.float32], xy: NDArray[np.float32], distance: float = SAME
) -> NDArray[np.bool_]:
    """(K, L) bool: keypoint j of the second image, at `xy` (L, 2), lies at the place (K, 2) of i.

    Unknown places are NaN: nothing lies there.
    """
    across, down = place[:, :1] - xy[:, 0], place[:, 1:] - xy[:, 1]
    return np.asarray(across**2 + down**2 <= distance**2)


def place_recall(
    first: NDArray[Any], second: NDArray[Any], place: NDArray[np.float32], xy: NDArray[np.float32]
) -> float:
    """Recall of section 5.1: of the keypoints with any of the other image at their place, how many find one.

    Args:
        first, second: (K, D) and (L, D), L2-normalised descriptors.
        place: (K, 2), where the first image's keypoints lie in the second.
        xy: (L, 2), the second image's keypoints.
    """
    right = at_place(place, xy)
    nearest = (first @ second.T).argmax(1)
    return float(right[np.arange(len(right)), nearest][right.any(1)].mean())
