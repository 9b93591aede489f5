"""SIFT, RootSIFT, and our models with any of their context terms."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, get_args
from weakref import WeakKeyDictionary

import cv2
import numpy as np
import onnxruntime

from contextdesc.benchmarks.methods.method import Method, PatchRoute, Steps, resized, unit
from contextdesc.benchmarks.methods.sizes import parsed, sized, summed
from contextdesc.detection import Detector
from contextdesc.engine import Engine
from contextdesc.errors import InputError
from contextdesc.keypoints import Keypoints
from contextdesc.model import Context, ContextDesc, Precision, load
from contextdesc.modelfile import LOCAL, resolve
from contextdesc.patches import PATCH
from contextdesc.rootsift import rootsift, sift_descriptors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.image import Image

# Thresholds of the ratio test; RootSIFT's has the precision of SIFT's (scripts/sfm_numbers.py).
SIFT = {"sift": 0.80, "rootsift": 0.83}
INT8 = ":int8"  # after a model's name: its 8-bit networks
SIFT_PATCH = 5.303  # side of a patch over the size of the keypoint in its centre, as HPatches describes SIFT
_OTHERS = "other methods: sift, rootsift, kornia:HardNet=FILE, opencv:ORB, h5:FILE, python:MODULE.FUNCTION"


def sift_method(name: str) -> Method:
    sift = _unit_sift if name == "sift" else rootsift

    def describe(image: Image, keypoints: Keypoints, precise: bool) -> NDArray[np.float32]:
        return sift(image.gray, keypoints, precise)

    return Method(
        name,
        describe,
        f"{name}, OpenCV {cv2.__version__}",
        ratio=SIFT[name],
        patches=PatchRoute(name, _sift_of_patches if name == "sift" else _rootsift_of_patches),
        steps=Steps.without_context(describe),
    )


def _unit_sift(gray: NDArray[np.uint8], keypoints: Keypoints, precise: bool) -> NDArray[np.float32]:
    return unit(sift_descriptors(gray, keypoints, precise))


def _sift_of_patches(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
    """SIFT of an upright keypoint in the centre of each patch, in the patch as it is."""
    side = patches.shape[-1]
    keypoint = cv2.KeyPoint((side - 1) / 2, (side - 1) / 2, side / SIFT_PATCH, 0)
    sift = cv2.SIFT.create()
    rows = [sift.compute(patch, [keypoint])[1][0] for patch in patches]
    return unit(np.array(rows, np.float32).reshape(-1, 128))


def _rootsift_of_patches(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
    descriptors = _sift_of_patches(patches)
    return np.sqrt(descriptors / np.maximum(descriptors.sum(1, keepdims=True), 1e-12))


def model_method(name: str, threads: int) -> Method:
    """`MODEL` or `MODEL:TERMS`, either also as `:int8`, and with the sizes of `sizes.py`."""
    whole, sizes = parsed(name)
    plain = whole.removesuffix(INT8)
    precision: Precision = "fp32" if plain == whole else "int8"
    folder, colon, terms = plain.rpartition(":")
    if not colon or "/" in terms or "\\" in terms:  # such as C:\\model
        folder, terms = plain, "all"
    elif terms not in get_args(Context):
        raise InputError(f"method {name!r}: after the colon one of {', '.join(get_args(Context))}; {_OTHERS}")
    context: Context = terms  # type: ignore[assignment]  # checked above
    try:
        if sizes and not (resolve(folder) / LOCAL).is_file():
            return summed(model_method(whole, threads), name, sizes)
        models = {
            precise: load(
                folder,
                context=context,
                detector=Detector(precise_upscale=precise),
                precision=precision,
                threads=threads,
            )
            for precise in (True, False)
        }
    except InputError as error:
        raise InputError(f"{error}; {_OTHERS}") from None
    model = models[True]

    def first(image: Image, keypoints: Keypoints, precise: bool) -> dict[str, NDArray[np.float32]]:
        return _raw(models[precise], image, keypoints, sizes or (1.0,))

    def describe(image: Image, keypoints: Keypoints, precise: bool) -> NDArray[np.float32]:
        every = np.arange(len(keypoints))
        return _augmented(model, image, keypoints, first(image, keypoints, precise), every)

    return Method(
        name,
        describe,
        f"{model.source}, sizes {sizes or 1}, {threads} threads, OpenCV {cv2.__version__}, "
        f"ONNX Runtime {onnxruntime.__version__}",
        ratio=model.spec.ratio,
        threads=threads,
        patches=None if sizes else _patch_route(model, folder, threads),
        steps=Steps(first, partial(_augmented, model)),
    )


def _patch_route(model: ContextDesc, folder: str, threads: int) -> PatchRoute | None:
    """The raw descriptor of a model on patches."""
    name = f"{folder}:none{'' if model.precision == 'fp32' else INT8}"
    if model.spec.base == "rootsift":
        return PatchRoute(name, _rootsift_of_patches)
    if model.spec.base != "local":
        return None

    def describe(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
        if not len(patches):
            return np.zeros((0, model.spec.raw_size), np.float32)
        network = Engine(model.network(LOCAL), threads=threads)
        return unit(network.run_batched(patches=resized(patches, PATCH))[0])

    return PatchRoute(name, describe)


def _raw(
    model: ContextDesc, image: Image, keypoints: Keypoints, sizes: tuple[float, ...]
) -> dict[str, NDArray[np.float32]]:
    """What a model adds its context to; several contexts and sizes share it for the same keypoints."""
    known = _SHARED.setdefault(keypoints, {})
    parts = []
    for size in sizes:
        key = (model.checksum, model.precision, model.detector.precise_upscale, size)
        if key not in known:
            known[key] = model.raw(image, sized(keypoints, size))
        parts.append(known[key])
    found = {"raw": np.sum([raw for raw, _ in parts], axis=0), "score": parts[0][1]}
    if "visual" in model.terms:
        network = (model.checksum, model.precision)
        if network not in known:
            known[network] = model.regional(image)
        found["regional"] = known[network]
    return {name: array for name, array in found.items() if array is not None}


def _augmented(
    model: ContextDesc,
    image: Image,
    keypoints: Keypoints,
    arrays: Mapping[str, NDArray[np.float32]],
    rows: NDArray[np.int64],
) -> NDArray[np.float32]:
    score = arrays["score"][rows] if "score" in arrays else None
    return model.augment(
        arrays["raw"][rows], keypoints[rows], image.size, regional=arrays.get("regional"), matchability=score
    )


# Raw descriptors and regional grids, as long as somebody holds the keypoints
_SHARED: WeakKeyDictionary[Keypoints, dict[Any, Any]] = WeakKeyDictionary()
