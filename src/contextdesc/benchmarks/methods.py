"""Methods to compare: a name in, a function from image and keypoints to descriptors out.

`sift`, `rootsift`, a packaged model or a model folder, each model also with `:TERMS`, such as
`preview:none` for its raw descriptor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, get_args

import numpy as np

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
    model = load(folder, context=terms or "all")  # type: ignore[arg-type]  # checked above
    return lambda image, keypoints, precise: model.describe(image, keypoints).descriptors


def _sift(image: Image, keypoints: Keypoints, precise: bool) -> NDArray[np.float32]:
    descriptors = sift_descriptors(image.gray, keypoints, precise)
    return descriptors / np.maximum(np.linalg.norm(descriptors, axis=1, keepdims=True), 1e-12)
