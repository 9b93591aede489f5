"""State behind the page: images with what is computed once from them, and the matches of two of them.

An image is detected and described once, with a large budget. Keypoints come strongest first, so a smaller
budget is the first rows; context depends on the set of keypoints and is added anew for each.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from contextdesc.benchmarks.methods import build_method
from contextdesc.demo import Method, Terms
from contextdesc.demo.recent import Recent
from contextdesc.detection import Detector, detect
from contextdesc.draw.comparison import SIFT_RATIO
from contextdesc.errors import InputError
from contextdesc.features import Features
from contextdesc.geometry import Verification, verify
from contextdesc.image import Image, read
from contextdesc.keypoints import Keypoints
from contextdesc.matching import Matches, match
from contextdesc.model import Context, ContextDesc
from contextdesc.patches import sample_patches
from contextdesc.samples import sample_pair

if TYPE_CHECKING:
    from numpy.typing import NDArray

Seconds: TypeAlias = dict[str, float]

BUDGET = 4096  # keypoints that are kept of an image
IMAGES = 12  # kept in memory, about 20 MB each
RESULTS = 24  # kept in memory, at most 4 MB each


class ForgottenError(InputError):
    """An image that is no longer in memory."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """An image and what does not depend on the page's controls.

    Attributes:
        is_sample: one of the sample pair.
        picture: the image, downscaled to the model's `max_side`.
        keypoints: N keypoints in pixels of the original, strongest first.
        raw: (N, 128) float32, the base's descriptors.
        score: (N,) float32, matchability before `tanh`, or None.
        sift: (N, 128) float32, OpenCV's descriptors, unit length.
        regional: (C, h, w) float32, or None for a model without visual context.
        seconds: by stage.
    """

    id: str
    is_sample: bool
    picture: Image
    keypoints: Keypoints
    raw: NDArray[np.float32]
    score: NDArray[np.float32] | None
    sift: NDArray[np.float32]
    regional: NDArray[np.float32] | None
    seconds: Seconds


@dataclass(frozen=True, eq=False)
class Result:
    """Two images matched by one method."""

    features: tuple[Features, Features]
    matches: Matches
    verification: Verification
    seconds: Seconds


class Session:
    """What the page works with.

    Args:
        load: gives the model with the context terms that it is called with.
    """

    def __init__(self, load: Callable[[Context], ContextDesc]) -> None:
        self.model_with = cache(load)
        self.model = self.model_with("all")
        self._images: Recent[str, Prepared] = Recent(IMAGES)
        self._results: Recent[tuple[str, str, int, float, Method], Result] = Recent(RESULTS)
        self._samples: list[Prepared] = []
        self._one_at_a_time = threading.Lock()  # so that a burst of uploads waits instead of filling memory

    @property
    def contexts(self) -> list[Terms]:
        """The choices of context that the model has."""
        parts: dict[Terms, tuple[str, ...]] = {
            "none": (), "visual": ("visual",), "geometric": ("geometric",), "both": ("visual", "geometric"),
        }  # fmt: skip
        return [terms for terms, needed in parts.items() if set(needed) <= set(self.model.terms)]

    def warm_up(self) -> None:
        """Run every network once on a small picture, so that the first photograph need not wait for it."""
        noise = np.random.default_rng(0).integers(0, 256, (96, 96), np.uint8)
        image = self._prepare(read(noise), "noise")
        for context in self.contexts:
            self.features(image, BUDGET, context)

    def add(self, data: bytes, name: str) -> Prepared:
        """Read, detect and describe an image file, and keep it."""
        with self._one_at_a_time:
            image = self._prepare(data, name)
        return self._images.put(image.id, image)

    def samples(self) -> list[Prepared]:
        """The sample pair, prepared once."""
        with self._one_at_a_time:
            if not self._samples:
                pair = sample_pair()[:2]
                self._samples = [self._prepare(image, image.name, is_sample=True) for image in pair]
        return [self._images.put(image.id, image) for image in self._samples]

    def image(self, image_id: str) -> Prepared:
        image = self._images.get(image_id)
        if image is None:
            raise ForgottenError("this photograph is no longer in memory: choose it again")
        return image

    def features(self, image: Prepared, budget: int, method: Method) -> Features:
        """The strongest keypoints of an image, described by a method."""
        keypoints, size = image.keypoints[:budget], image.picture.original_size
        if method == "sift":
            return Features(keypoints, image.sift[:budget], size, "sift", "opencv")
        model = self.model_with(method)
        score = None if image.score is None else image.score[:budget]
        descriptors = model.augment(
            image.raw[:budget], keypoints, size, regional=image.regional, matchability=score
        )
        matchability = None if score is None else np.tanh(score)
        spec = model.spec
        return Features(
            keypoints, descriptors, size, spec.name, model.checksum, model.context, spec.ratio, matchability
        )

    def result(self, first: str, second: str, budget: int, ratio: float, method: Method) -> Result:
        """Two images matched and verified, from memory where this was asked before.

        The ratio is that of the model's descriptors; SIFT's is always its usual one.
        """
        key = (first, second, budget, SIFT_RATIO if method == "sift" else ratio, method)
        return self._results.get(key) or self._results.put(key, self._match(*key))

    def patch(self, image: Prepared, row: int) -> NDArray[np.uint8]:
        """(32, 32) uint8: what the network sees of a keypoint."""
        if not 0 <= row < len(image.keypoints):
            raise InputError(f"keypoint {row}: this photograph has {len(image.keypoints)}")
        local = image.keypoints[row : row + 1].scaled(np.reciprocal(image.picture.scale))
        return sample_patches(image.picture.gray, local, self.model.spec.support)[0]

    def _prepare(self, source: bytes | Image, name: str, is_sample: bool = False) -> Prepared:
        seconds: Seconds = {}
        with _timed(seconds, "read"):
            picture = self._read(source, name)
        with _timed(seconds, "detect"):
            local = detect(picture.gray, Detector(max_keypoints=BUDGET))
        keypoints = local.scaled(picture.scale)
        with _timed(seconds, "describe"):
            raw, score = self.model.raw(picture, keypoints)
        regional = None
        if "visual" in self.model.terms:
            with _timed(seconds, "regional"):
                regional = self.model.regional(picture)
        with _timed(seconds, "sift"):
            sift = build_method("sift")(picture, local, True)
        identity = secrets.token_urlsafe(12)
        return Prepared(identity, is_sample, picture, keypoints, raw, score, sift, regional, seconds)

    def _read(self, source: bytes | Image, name: str) -> Image:
        try:
            picture = read(source, self.model.max_side, self.model.max_pixels)
        except InputError as error:
            raise InputError(f"{name}: {str(error).removeprefix('bytes: ')}") from None
        return Image(picture.rgb, picture.original_size, name, picture.focal)

    def _match(self, first: str, second: str, budget: int, ratio: float, method: Method) -> Result:
        seconds: Seconds = {}
        images = self.image(first), self.image(second)
        with _timed(seconds, "augment"):
            a, b = (self.features(image, budget, method) for image in images)
        with _timed(seconds, "match"):
            matches = match(a, b, ratio)
        with _timed(seconds, "verify"):
            verification = verify(a, b, matches)
        return Result((a, b), matches, verification, seconds)


@contextmanager
def _timed(seconds: Seconds, stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - start
