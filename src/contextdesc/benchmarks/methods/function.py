"""A Python function by its import path: `python:MODULE.FUNCTION`.

It is called with the image, (H, W, 3) uint8 RGB, and its keypoints, (N, 4) float32 rows of x, y, size in
pixels and angle in degrees (OpenCV's convention), and returns (N, D) descriptors: numbers, compared by their
angle, or bool for codes, compared by Hamming distance. Nothing is cached, since what it depends on is not
known.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.benchmarks.methods.method import Method, checked, from_bits
from contextdesc.errors import InputError
from contextdesc.keypoints import Keypoints

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.image import Image

_PROBE = np.zeros((64, 64, 3), np.uint8)


def build(name: str, rest: str) -> Method:
    function = _import(name, rest)

    def call(rgb: NDArray[np.uint8], keypoints: Keypoints) -> NDArray[np.generic]:
        rows = np.column_stack([keypoints.xy, keypoints.size, keypoints.angle])
        try:
            return np.asarray(function(rgb.copy(), rows))
        except Exception as error:  # whatever it raises
            raise InputError(f"method {name!r} failed: {type(error).__name__}: {error}") from error

    def describe(image: Image, keypoints: Keypoints, precise: bool) -> NDArray[np.float32]:
        found = call(image.rgb, keypoints)
        values = checked(found, len(keypoints), name)
        return from_bits(found.astype(np.bool_)) if found.dtype == np.bool_ else values

    binary = call(_PROBE, Keypoints.from_array([[32.0, 32.0, 4.0, 0.0]])).dtype == np.bool_
    return Method(name, describe, None, "hamming" if binary else "cosine")


def _import(name: str, path: str) -> Callable[..., Any]:
    module, _, attribute = path.rpartition(".")
    if not module or not attribute:
        raise InputError(f"method {name!r}: python:MODULE.FUNCTION, such as python:mine.describe")
    if "" not in sys.path:
        sys.path.append("")  # modules in the folder where the command is run
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(f"method {name!r}: cannot be imported ({error})") from None
    if not callable(function):
        raise InputError(f"method {name!r}: {attribute} is no function")
    found: Callable[..., Any] = function
    return found
