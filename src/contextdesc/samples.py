"""The sample pair: a real stereo pair with known disparity, out of scikit-image's wheel.

"Motorcycle" of the Middlebury Stereo Datasets (Scharstein et al., GCPR 2014), reduced by scikit-image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from contextdesc.errors import InputError
from contextdesc.image import Image

if TYPE_CHECKING:
    from numpy.typing import NDArray


def sample_pair() -> tuple[Image, Image, NDArray[np.float32]]:
    """Left and right image, and the left image's disparity (H, W) float32 in pixels, NaN where unknown."""
    try:
        from skimage.data import stereo_motorcycle
    except ImportError:
        raise InputError(
            "the sample pair comes with an extra: pip install 'contextdesc[samples]', or give two images"
        ) from None
    left, right, disparity = stereo_motorcycle()
    size = (left.shape[1], left.shape[0])
    known = np.where(np.isfinite(disparity), disparity, np.nan).astype(np.float32)
    return Image(left, size, "motorcycle, left"), Image(right, size, "motorcycle, right"), known


def disparity_precision(
    points: NDArray[np.float32], disparity: NDArray[np.float32], within: float = 3.0
) -> float:
    """Share of matches (M, 2, 2) of the sample pair that its disparity confirms, among those it knows.

    A match of (x, y) on the left is right at (x - disparity, y) on the right, within some pixels.
    """
    column, row = np.rint(points[:, 0]).astype(int).T
    inside = (column >= 0) & (row >= 0) & (column < disparity.shape[1]) & (row < disparity.shape[0])
    shift = disparity[row[inside], column[inside]]
    expected = points[inside, 0] - np.column_stack([shift, np.zeros_like(shift)])
    error = np.linalg.norm(points[inside, 1] - expected, axis=1)[np.isfinite(shift)]
    return float((error <= within).mean()) if len(error) else 0.0
