"""Methods to compare: a name in, a function from image and keypoints to descriptors out.

`sift`, `rootsift`, a packaged model or a model folder, each model also with `:TERMS`, such as
`preview:none` for its raw descriptor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, get_args

import numpy as np

from contextdesc.detection import Detector
from contextdesc.errors import InputError
from contextdesc.model import Context, load
from contextdesc.rootsift import rootsift, sift_descriptors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.image import Image
    from contextdesc.keypoints import Keypoints

# (image, keypoints, whether they were detected with precise upscaling) -> (N, D) unit descriptors
Method: TypeAlias = "Callable[[Image, Keypoints, bool], NDArray[np.float32]]"


def build_method(name: str) -> Method:
    if name == "sift":
        return _sift
    if name == "rootsift":
        return lambda image, keypoints, precise: rootsift(image.gray, keypoints, precise)
    folder, _, terms = name.partition(":")
    if terms and terms not in get_args(Context):
        raise InputError(f"method {name!r}: after the colon one of {', '.join(get_args(Context))}")
    models = {
        precise: load(folder, context=terms or "all", detector=Detector(precise_upscale=precise))  # type: ignore[arg-type]  # checked above
        for precise in (True, False)
    }
    return lambda image, keypoints, precise: models[precise].describe(image, keypoints).descriptors


def _sift(image: Image, keypoints: Keypoints, precise: bool) -> NDArray[np.float32]:
    descriptors = sift_descriptors(image.gray, keypoints, precise)
    return descriptors / np.maximum(np.linalg.norm(descriptors, axis=1, keepdims=True), 1e-12)
