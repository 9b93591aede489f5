"""Any OpenCV Feature2D by the name of its class, such as `opencv:ORB`; builds differ in what they have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from contextdesc.benchmarks.methods.method import Described, Method, from_bits, unit
from contextdesc.detection import Detector, budget_rows
from contextdesc.errors import InputError
from contextdesc.keypoints import Keypoints

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.image import Image

# They describe a keypoint in the layer of their scale space that found it, which other detectors do not tell.
_ONLY_OWN = ("KAZE", "AKAZE")
_ORB_SIZE, _ORB_FACTOR, _ORB_LEVELS = 31.0, 1.2, 8  # of ORB's keypoints: pixels at level 0, pyramid
_ALL = 1 << 16  # keypoints, for detectors that want a number


def build(name: str, rest: str) -> Method:
    feature = _create(name, rest)
    binary = feature.descriptorType() == cv2.CV_8U
    size = feature.descriptorSize() * (8 if binary else 1)

    def vectors(described: Any) -> NDArray[np.float32]:
        if described is None:
            return np.zeros((0, size), np.float32)
        values = np.asarray(described)
        return from_bits(np.unpackbits(values, axis=1) == 1) if binary else unit(values)

    def describe(image: Image, keypoints: Keypoints, precise: bool) -> NDArray[np.float32]:
        if rest in _ONLY_OWN:
            raise InputError(f"method {name}: describes its own keypoints only; give --keypoints own")
        descriptors = np.zeros((len(keypoints), size), np.float32)
        if len(keypoints):
            kept, described = feature.compute(image.gray, _numbered(keypoints, rest))
            descriptors[[k.class_id for k in kept]] = vectors(described)
        return descriptors

    def extract(image: Image, detector: Detector) -> Described:
        if hasattr(feature, "setMaxFeatures"):
            wanted = detector.max_keypoints if detector.select == "response" else None
            feature.setMaxFeatures(_ALL if wanted is None else wanted)
        found = feature.detect(image.gray, None)
        order = budget_rows(np.array([k.response for k in found], np.float32), detector)
        kept, described = feature.compute(image.gray, [found[i] for i in order])
        return Described(Keypoints.from_opencv(kept), vectors(described))

    identity = f"{rest}, OpenCV {cv2.__version__}"
    return Method(name, describe, identity, "hamming" if binary else "cosine", extract=extract)


def available() -> list[str]:
    """Names of the classes of this OpenCV that describe keypoints and need no arguments."""
    return sorted({name for home in _homes() for name in dir(home) if _describes(getattr(home, name))})


def _create(name: str, rest: str) -> Any:
    if rest not in available():
        raise InputError(f"method {name!r}: this OpenCV has {', '.join(available())}")
    return next(getattr(home, rest) for home in _homes() if hasattr(home, rest)).create()


def _homes() -> list[Any]:
    """Modules with features; those of OpenCV's contributors are in some builds only."""
    return [cv2, *([cv2.xfeatures2d] if hasattr(cv2, "xfeatures2d") else [])]


def _describes(kind: Any) -> bool:
    if not (isinstance(kind, type) and issubclass(kind, cv2.Feature2D) and hasattr(kind, "create")):
        return False
    try:
        return bool(kind.create().descriptorSize() > 0)
    except (cv2.error, TypeError):  # a detector only, or one that has to be given a network
        return False


def _numbered(keypoints: Keypoints, feature: str) -> list[cv2.KeyPoint]:
    """OpenCV keypoints whose class_id is their row, since `compute` drops and reorders them."""
    found = keypoints.to_opencv()
    levels = np.rint(np.log(np.maximum(keypoints.size, 1e-3) / _ORB_SIZE) / np.log(_ORB_FACTOR))
    levels = np.clip(levels, 0, _ORB_LEVELS - 1).astype(np.int64)
    for row, (keypoint, level) in enumerate(zip(found, levels.tolist(), strict=True)):
        keypoint.class_id = row
        if feature == "ORB":  # reads the level of its pyramid, not the size
            keypoint.octave = level
    return found
