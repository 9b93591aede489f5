"""Local features as an index keeps them: small, and enough to match and verify with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from contextdesc.features import Features
from contextdesc.keypoints import Keypoints

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.retrieval.extraction import Extraction

CODES = {"int8": "<i1", "float16": "<f2"}  # how descriptors are kept, to the type of their numbers
_LARGEST = 127.0


@dataclass(frozen=True, eq=False)
class KeptFeatures:
    """The features of one image.

    Attributes:
        keypoints: (N, 4) float32: x, y, size, angle, as in `Keypoints`.
        codes: (N, D) int8 or float16.
        scales: (N,) float32: a descriptor is its code times its scale, made unit length.
        image_size: (2,) int32: width and height of the original image.
    """

    keypoints: NDArray[np.float32]
    codes: NDArray[np.int8] | NDArray[np.float16]
    scales: NDArray[np.float32]
    image_size: NDArray[np.int32]

    @property
    def descriptors(self) -> NDArray[np.float32]:
        """(N, D) float32, unit length."""
        vectors = self.codes.astype(np.float32) * self.scales[:, None]
        norm = np.sqrt(np.square(vectors).sum(1, keepdims=True))
        return np.asarray(vectors / np.maximum(norm, 1e-12), np.float32)

    def features(self, extraction: Extraction) -> Features:
        """As `model.extract` returned them, up to rounding."""
        keypoints = Keypoints(
            np.ascontiguousarray(self.keypoints[:, :2]),
            np.ascontiguousarray(self.keypoints[:, 2]),
            np.ascontiguousarray(self.keypoints[:, 3]),
            np.ones(len(self.keypoints), np.float32),
        )
        width, height = self.image_size.tolist()
        return Features(
            keypoints, self.descriptors, (width, height), extraction.model, extraction.checksum,
            extraction.context, extraction.ratio,
        )  # fmt: skip

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "keypoints": self.keypoints, "codes": self.codes, "scales": self.scales,
            "image_size": self.image_size,
        }  # fmt: skip

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> KeptFeatures:
        return cls(*(arrays[name] for name in ("keypoints", "codes", "scales", "image_size")))


def keep(features: Features, kind: Literal["int8", "float16"]) -> KeptFeatures:
    """Features with their descriptors as bytes, each with a scale of its own, or in half precision."""
    points, vectors = features.keypoints, features.descriptors
    rows = np.column_stack([points.xy, points.size, points.angle]).astype(np.float32).reshape(-1, 4)
    size = np.array(features.image_size, np.int32)
    if kind == "float16":
        return KeptFeatures(rows, vectors.astype(np.float16), np.ones(len(vectors), np.float32), size)
    scales = np.maximum(np.abs(vectors).max(1, initial=0), 1e-12).astype(np.float32) / np.float32(_LARGEST)
    return KeptFeatures(rows, np.rint(vectors / scales[:, None]).astype(np.int8), scales, size)
