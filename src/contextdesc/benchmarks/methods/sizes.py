"""Methods that look at a larger or smaller region of each keypoint: `METHOD@2`, `METHOD@1+0.5` (A.4).

The number is a factor on the region's side. A model with a patch network sums the raw descriptors of several
sizes before it adds context; any other method describes keypoints of so many times their size, and the
descriptors of several sizes are summed and normalised.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from contextdesc.benchmarks.methods.method import Method, unit
from contextdesc.errors import InputError
from contextdesc.keypoints import Keypoints

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.image import Image

_NUMBER = r"\d*\.?\d+"
_NAME = re.compile(rf"(?P<method>.+)@(?P<sizes>{_NUMBER}(\+{_NUMBER})*)")


def parsed(name: str) -> tuple[str, tuple[float, ...]]:
    """The method of a name and its sizes; none where the name has no sizes."""
    found = _NAME.fullmatch(name)
    if found is None:
        return name, ()
    sizes = tuple(float(size) for size in found["sizes"].split("+"))
    if min(sizes) <= 0:
        raise InputError(f"method {name!r}: after the @ one or more sizes above 0, such as 0.5 or 1+2")
    return found["method"], sizes


def summed(method: Method, name: str, sizes: tuple[float, ...]) -> Method:
    """A method whose descriptors are the normalised sum of those at several sizes of the keypoints."""

    def describe(image: Image, keypoints: Keypoints, precise: bool) -> NDArray[np.float32]:
        parts = [method(image, sized(keypoints, size), precise) for size in sizes]
        return unit(np.sum(parts, axis=0))

    identity = method.identity and f"{method.identity}, keypoint sizes x {sizes}"
    return replace(
        method, name=name, describe=describe, identity=identity, extract=None, patches=None, steps=None
    )


def sized(keypoints: Keypoints, factor: float) -> Keypoints:
    """Keypoints of so many times their size."""
    if factor == 1:
        return keypoints
    return Keypoints(keypoints.xy, keypoints.size * factor, keypoints.angle, keypoints.response)
