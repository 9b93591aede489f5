"""What a method is: descriptors of given keypoints, those of its own keypoints, and how they compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import cv2
import numpy as np

from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.keypoints import Keypoints
from contextdesc.matching import Matches, match_descriptors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.image import Image

Metric: TypeAlias = Literal["cosine", "hamming"]

# (image, keypoints, whether they were detected with precise upscaling) -> (N, D) unit-length descriptors
Describe: TypeAlias = "Callable[[Image, Keypoints, bool], NDArray[np.float32]]"


@dataclass(frozen=True, eq=False)
class Described:
    """Keypoints of an image and their unit-length descriptors (N, D), row by row."""

    keypoints: Keypoints
    descriptors: NDArray[np.float32]

    @property
    def arrays(self) -> dict[str, NDArray[np.float32]]:
        return {**vars(self.keypoints), "descriptors": self.descriptors}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Described:
        columns = {name: arrays[name] for name in ("xy", "size", "angle", "response")}
        return cls(Keypoints(**columns), arrays["descriptors"])


@dataclass(frozen=True, eq=False)
class PatchRoute:
    """How a method describes patches that somebody else cut.

    Attributes:
        name: of the method on patches; a model has its raw descriptor there, since they have no context.
        describe: square gray patches (N, S, S) uint8 to unit-length descriptors (N, D).
    """

    name: str
    describe: Callable[[NDArray[np.uint8]], NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class Steps:
    """A method in two steps, of which the first is done once for many subsets of an image's keypoints.

    Attributes:
        first: as `Method.describe`, to arrays that can be kept.
        second: (image, keypoints, arrays, rows) to descriptors of the keypoints in these rows, as if there
            were no others.
    """

    first: Callable[[Image, Keypoints, bool], Mapping[str, NDArray[np.float32]]]
    second: Callable[
        [Image, Keypoints, Mapping[str, NDArray[np.float32]], NDArray[np.int64]], NDArray[np.float32]
    ]

    @classmethod
    def without_context(cls, describe: Describe) -> Steps:
        """Of a method that looks at each keypoint alone."""
        return cls(
            lambda image, keypoints, precise: {"descriptors": describe(image, keypoints, precise)},
            lambda image, keypoints, arrays, rows: arrays["descriptors"][rows],
        )


@dataclass(frozen=True, eq=False)
class Method:
    """A way to describe keypoints, called with an image, its keypoints and how they were detected.

    All descriptors are unit vectors compared by cosine, row i for keypoint i; a keypoint that a method cannot
    describe has a row of zeros. A code of B bits is a vector of B values +-1 / sqrt(B), of which the nearest
    by cosine is the nearest by Hamming distance.

    Attributes:
        name: as `build_method` takes it.
        describe: descriptors of given keypoints.
        identity: all that the descriptors depend on, such as checksums; None if that cannot be known, and
            nothing is cached.
        metric: what a ratio of distances is of.
        ratio: threshold of the ratio test that the method is used with.
        extract: keypoints and descriptors of an image, within a detector's budget; None for SIFT keypoints.
        threads: that it was built with.
        patches: how it describes patches; None if it only describes keypoints of an image.
        steps: how it describes many subsets of keypoints; None if each is as much work as any other.
    """

    name: str
    describe: Describe
    identity: str | None
    metric: Metric = "cosine"
    ratio: float = 0.8
    extract: Callable[[Image, Detector], Described] | None = None
    threads: int = 0
    patches: PatchRoute | None = None
    steps: Steps | None = None

    def __call__(self, image: Image, keypoints: Keypoints, precise_upscale: bool) -> NDArray[np.float32]:
        """Unit-length descriptors (N, D) of given keypoints."""
        return self.describe(image, keypoints, precise_upscale)

    def own(self, image: Image, detector: Detector) -> Described:
        """Keypoints of the method's own detector, within the budget of `detector`, and their descriptors."""
        if self.extract is not None:
            return self.extract(image, detector)
        keypoints = detect(image.gray, detector)
        return Described(keypoints, self(image, keypoints, detector.precise_upscale))

    def match(
        self,
        first: NDArray[np.float32],
        second: NDArray[np.float32],
        ratio: float = 1.0,
        mutual: bool = True,
    ) -> Matches:
        """Match descriptors (N, D) and (M, D) of this method; see `contextdesc.match`.

        A ratio of Hamming distances is the square of that of the vectors' distances.
        """
        return match_descriptors(first, second, ratio**0.5 if self.metric == "hamming" else ratio, mutual)

    def __reduce__(self) -> tuple[Callable[..., Method], tuple[str, int]]:
        """Another process builds the method again, once."""
        return _rebuilt, (self.name, self.threads)


@cache
def _rebuilt(name: str, threads: int) -> Method:
    from contextdesc.benchmarks.methods import build_method

    return build_method(name, threads)


def unit(descriptors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows scaled to unit length; rows of zeros stay."""
    norm = np.linalg.norm(descriptors, axis=1, keepdims=True)
    return np.asarray(descriptors / np.maximum(norm, 1e-12), np.float32)


def resized(patches: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Square patches (N, S, S) at another size, (N, side, side)."""
    return np.stack(
        [np.zeros((side, side), np.uint8)]
        + [cv2.resize(patch, (side, side), interpolation=cv2.INTER_AREA) for patch in patches]
    )[1:]


def from_bits(bits: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Unit vectors of codes (N, B), see `Method`."""
    value = np.float32(1 / np.sqrt(max(1, bits.shape[1])))
    return np.where(bits, value, -value)


def checked(descriptors: NDArray[np.generic], rows: int, name: str) -> NDArray[np.float32]:
    """Descriptors that others made, as unit vectors, if there is a finite row for each keypoint."""
    if descriptors.ndim != 2 or len(descriptors) != rows:
        raise InputError(f"method {name}: {descriptors.shape} descriptors of {rows} keypoints")
    values = np.asarray(descriptors, np.float32)
    if not np.isfinite(values).all():
        raise InputError(f"method {name}: descriptors with values that are not finite")
    return unit(values)
