"""RootSIFT: the 128-d base descriptor that needs no network (Arandjelovic and Zisserman, CVPR 2012)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cv2
import numpy as np

from contextdesc.keypoints import SIFT_LAYERS, SIFT_SIGMA

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.keypoints import Keypoints


def sift_descriptors(
    gray: NDArray[np.uint8], keypoints: Keypoints, precise_upscale: bool = True
) -> NDArray[np.float32]:
    """OpenCV's SIFT descriptors of given keypoints, (N, 128) float32, row i for keypoint i."""
    if not len(keypoints):
        return np.zeros((0, 128), np.float32)
    sift = cv2.SIFT.create(0, SIFT_LAYERS, sigma=SIFT_SIGMA, enable_precise_upscale=precise_upscale)
    _, descriptors = sift.compute(gray, keypoints.to_opencv())
    return np.asarray(descriptors, np.float32)


def rootsift(
    gray: NDArray[np.uint8], keypoints: Keypoints, precise_upscale: bool = True
) -> NDArray[np.float32]:
    """Square root of L1-normalised SIFT: unit vectors, (N, 128) float32, row i for keypoint i."""
    descriptors = sift_descriptors(gray, keypoints, precise_upscale)
    descriptors /= np.maximum(descriptors.sum(1, keepdims=True), 1e-12)
    return np.sqrt(descriptors, out=descriptors)
