"""An object with the methods of OpenCV's `Feature2D`, to stand where `cv2.SIFT_create()` stood."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from contextdesc.model import ContextDesc, load
from contextdesc.modelfile import DEFAULT

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TO_RGB = {3: cv2.COLOR_BGR2RGB, 4: cv2.COLOR_BGRA2RGBA}


class Feature2D:
    """Images are arrays in OpenCV's order, gray, BGR or BGRA; masks are (H, W), zero where nothing may lie.

    Args:
        model: a loaded model, or what `contextdesc.load` takes, with its options.
    """

    def __init__(self, model: ContextDesc | str | Path = DEFAULT, **options: Any) -> None:
        self.model = model if isinstance(model, ContextDesc) else load(model, **options)

    @classmethod
    def create(cls, model: ContextDesc | str | Path = DEFAULT, **options: Any) -> Feature2D:
        return cls(model, **options)

    def detect(self, image: NDArray[Any], mask: NDArray[Any] | None = None) -> list[cv2.KeyPoint]:
        return self.detectAndCompute(image, mask)[0]

    def compute(
        self, image: NDArray[Any], keypoints: Sequence[cv2.KeyPoint]
    ) -> tuple[list[cv2.KeyPoint], NDArray[np.float32]]:
        """The keypoints as they came, none dropped, and their descriptors (N, 128)."""
        kept = list(keypoints)
        return kept, self.model.describe(_rgb(image), kept).descriptors

    def detectAndCompute(  # noqa: N802  # OpenCV's name
        self, image: NDArray[Any], mask: NDArray[Any] | None = None
    ) -> tuple[list[cv2.KeyPoint], NDArray[np.float32]]:
        """Keypoints and their descriptors (N, 128) float32; (0, 128), not None, if there are none."""
        features = self.model.extract(_rgb(image), mask)
        return features.keypoints.to_opencv(), features.descriptors

    def defaultNorm(self) -> int:  # noqa: N802
        return cv2.NORM_L2

    def descriptorSize(self) -> int:  # noqa: N802
        return self.model.spec.descriptor_size

    def descriptorType(self) -> int:  # noqa: N802
        return cv2.CV_32F

    def empty(self) -> bool:
        return False

    def getDefaultName(self) -> str:  # noqa: N802
        return f"Feature2D.{self.model.spec.name}"


def _rgb(image: NDArray[Any]) -> NDArray[Any]:
    channels = image.shape[2] if np.ndim(image) == 3 else 1
    return np.asarray(cv2.cvtColor(image, _TO_RGB[channels])) if channels in _TO_RGB else image
