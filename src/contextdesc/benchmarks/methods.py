"""Methods to compare: a name in, a function from image and keypoints to descriptors out.

`sift`, `rootsift`, a packaged model or a model folder, each model also with `:TERMS`, such as
`contextdesc:none` for its raw descriptor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, get_args
from weakref import WeakKeyDictionary

import numpy as np

from contextdesc.detection import Detector
from contextdesc.errors import InputError
from contextdesc.keypoints import Keypoints
from contextdesc.model import Context, ContextDesc, load
from contextdesc.rootsift import rootsift, sift_descriptors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.image import Image

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
    context: Context = terms or "all"  # type: ignore[assignment]  # checked above
    models = {
        precise: load(folder, context=context, detector=Detector(precise_upscale=precise))
        for precise in (True, False)
    }
    return lambda image, keypoints, precise: _described(models[precise], image, keypoints)


def _described(model: ContextDesc, image: Image, keypoints: Keypoints) -> NDArray[np.float32]:
    """Descriptors of a model; what several of its contexts share is computed once for the same keypoints."""
    known = _SHARED.setdefault(keypoints, {})
    base = (model.checksum, model.detector.precise_upscale)
    if base not in known:
        known[base] = model.raw(image, keypoints)
    raw, score = known[base]
    if "visual" in model.terms and model.checksum not in known:
        known[model.checksum] = model.regional(image)
    regional = known.get(model.checksum) if "visual" in model.terms else None
    return model.augment(raw, keypoints, image.size, regional=regional, matchability=score)


# Raw descriptors and regional grids, as long as somebody holds the keypoints
_SHARED: WeakKeyDictionary[Keypoints, dict[Any, Any]] = WeakKeyDictionary()


def _sift(image: Image, keypoints: Keypoints, precise: bool) -> NDArray[np.float32]:
    descriptors = sift_descriptors(image.gray, keypoints, precise)
    return descriptors / np.maximum(np.linalg.norm(descriptors, axis=1, keepdims=True), 1e-12)
