"""RootSIFT: the 128-d base descriptor that needs no network (Arandjelovic and Zisserman, CVPR 2012)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cv2
import numpy as np

from contextdesc.detection import Detector, budget_rows, detect, one_large, scan_rows
from contextdesc.keypoints import SIFT_LAYERS, SIFT_SIGMA, Keypoints

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A keypoint of SIFT's finest octave: with it, SIFT describes in the pyramid that it detects in, which it
# else begins at the finest octave of the keypoints that it is given.
_FINEST = Keypoints.from_array([[0, 0, 2 * SIFT_SIGMA, 0]])


def sift_descriptors(
    gray: NDArray[np.uint8], keypoints: Keypoints, precise_upscale: bool = True
) -> NDArray[np.float32]:
    """OpenCV's SIFT descriptors of given keypoints, (N, 128) float32, row i for keypoint i."""
    if not len(keypoints):
        return np.zeros((0, 128), np.float32)
    sift = cv2.SIFT.create(0, SIFT_LAYERS, sigma=SIFT_SIGMA, enable_precise_upscale=precise_upscale)
    _, descriptors = sift.compute(gray, Keypoints.concatenate([keypoints, _FINEST]).to_opencv())
    return np.asarray(descriptors[:-1], np.float32)


def rootsift(
    gray: NDArray[np.uint8], keypoints: Keypoints, precise_upscale: bool = True
) -> NDArray[np.float32]:
    """Square root of L1-normalised SIFT: unit vectors, (N, 128) float32, row i for keypoint i."""
    return _root(sift_descriptors(gray, keypoints, precise_upscale))


def detect_rootsift(
    gray: NDArray[np.uint8], detector: Detector, mask: NDArray[np.generic] | None = None
) -> tuple[Keypoints, NDArray[np.float32]]:
    """What `detect` finds and `rootsift` of it, in one pass over the image wherever that finds the same."""
    if mask is not None or not detector.takes_strongest or gray.size > detector.tile_above:
        keypoints = detect(gray, detector, mask)
        return keypoints, rootsift(gray, keypoints, detector.precise_upscale)
    with one_large(gray):
        found, descriptors = detector.sift(detector.max_keypoints or 0).detectAndCompute(gray, None)
    if not len(found):
        return Keypoints.empty(), np.zeros((0, 128), np.float32)
    keypoints = Keypoints.from_opencv(found)
    rows = scan_rows(keypoints)
    rows = rows[budget_rows(keypoints.response[rows], detector)]
    return keypoints[rows], _root(np.asarray(descriptors, np.float32)[rows])


def _root(descriptors: NDArray[np.float32]) -> NDArray[np.float32]:
    descriptors /= np.maximum(descriptors.sum(1, keepdims=True), 1e-12)
    return np.sqrt(descriptors, out=descriptors)
