"""COLMAP's descriptors: unit vectors in, 128 x uint8 that its own matchers read out, and back.

COLMAP's SIFT descriptors are non-negative bytes of length 512, and its matchers rely on it: on the CPU they
compare Euclidean distances, on a GPU and by brute force the angle acos(a . b / 512^2), which is an angle only
if every vector has that length. Ours have negative values. So each vector loses its mean, is normalised,
scaled by `SCALE` and shifted by `ZERO`. A vector of mean zero then has the length
sqrt(SCALE^2 + 128 ZERO^2) = 512 whatever its values, and distances are SCALE times those between the vectors
without their means, so their order and ratios are kept. Lost are one dimension of 128 (the mean), values
below -ZERO / SCALE = -0.27, and half a unit by rounding. Unrelated vectors come to lie 0.44 radians apart:
COLMAP's `max_distance` of 0.7 rejects nothing, only its ratio test does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIZE, LENGTH = 128, 512  # values of a descriptor of COLMAP's SIFT, and its length
ZERO = 43  # what a value of zero becomes: three standard deviations of a unit vector's values fit below it
SCALE = float(np.sqrt(LENGTH**2 - SIZE * ZERO**2))


def to_uint8(descriptors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """(N, 128) unit vectors to (N, 128) uint8 of length 512."""
    if descriptors.ndim != 2 or descriptors.shape[1] != SIZE:
        raise InputError(f"descriptors of shape {descriptors.shape}: COLMAP's database takes (N, {SIZE})")
    centred = descriptors - descriptors.mean(1, keepdims=True)
    centred /= np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    return np.clip(np.rint(SCALE * centred + ZERO), 0, 255).astype(np.uint8)


def from_uint8(stored: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(N, 128) uint8 of ours to unit vectors without their mean."""
    vectors = (stored.astype(np.float32) - ZERO) / np.float32(SCALE)
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12), np.float32)


def write_descriptors(database: Any, image_id: int, descriptors: NDArray[np.float32]) -> None:
    """Store unit vectors in an open pycolmap database, as SIFT where it knows types of descriptors."""
    from contextdesc.sfm.binding import import_pycolmap

    pycolmap = import_pycolmap()
    stored: Any = to_uint8(descriptors)
    if hasattr(pycolmap, "FeatureDescriptors"):  # since 4.0
        stored = pycolmap.FeatureDescriptors(type=pycolmap.FeatureExtractorType.SIFT, data=stored)
    database.write_descriptors(image_id, stored)


def read_descriptors(database: Any, image_id: int) -> NDArray[np.uint8]:
    """(N, 128) uint8 of an image of an open pycolmap database."""
    stored = database.read_descriptors(image_id)
    return np.asarray(stored if isinstance(stored, np.ndarray) else stored.data)
