"""ContextDesc: the whole road from an image to its features.

    image ─ keypoints ─ patches ─ local network ─ raw, score ─┬─ geometric context ─┐
          └ regional network ─ grid ──────────────────────────┴─ visual context ────┴─ sum ─ L2

Which context terms are in the sum is the caller's choice; no term needs another model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, get_args

import cv2
import numpy as np

from contextdesc import modelfile
from contextdesc.detection import Detector, detect
from contextdesc.engine import Device, Engine, available_cores
from contextdesc.errors import InputError
from contextdesc.features import Features, source_of
from contextdesc.image import MAX_PIXELS, Image, Source, read
from contextdesc.keypoints import Keypoints
from contextdesc.patches import sample_patches
from contextdesc.rootsift import detect_rootsift, rootsift

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Context = Literal["all", "both", "visual", "geometric", "none"]
Precision = Literal["fp32", "int8"]

REGIONAL_STRIDE = 32
TERM_SIZE = 128  # of a context term
_EPS = 1e-12


def load(
    model: str | Path = modelfile.DEFAULT,
    *,
    context: Context = "all",
    detector: Detector | None = None,
    max_side: int | None = None,
    max_pixels: int = MAX_PIXELS,
    domain_sizes: Sequence[float] = (1.0,),
    precision: Precision = "fp32",
    device: Device = "auto",
    threads: int = 0,
) -> ContextDesc:
    """Load a packaged model by name, or a model folder; see `ContextDesc` for the options."""
    return ContextDesc(
        modelfile.resolve(model),
        context=context,
        detector=detector,
        max_side=max_side,
        max_pixels=max_pixels,
        domain_sizes=domain_sizes,
        precision=precision,
        device=device,
        threads=threads,
    )


class ContextDesc:
    """A loaded model.

    Args:
        folder: with `model.json` and its ONNX files.
        context: terms to add to the raw descriptor; `all` that the model has.
        detector: settings of `extract`; RootSIFT bases also read from it how SIFT upscales.
        max_side: images with a longer side are downscaled; keypoints come back in original pixels.
        max_pixels: files that decode to more pixels are refused.
        domain_sizes: sizes of the patch support, times the model's own, whose raw descriptors are summed
            (the paper's A.4); `(1.0, 2.0)` doubles the cost.
        precision: `int8` for the 8-bit networks of a model that has them: faster, and nearly the same.
        device: `auto`, `cpu` or `cuda`.
        threads: of ONNX Runtime; 0 for all cores.
    """

    def __init__(
        self,
        folder: Path,
        *,
        context: Context = "all",
        detector: Detector | None = None,
        max_side: int | None = None,
        max_pixels: int = MAX_PIXELS,
        domain_sizes: Sequence[float] = (1.0,),
        precision: Precision = "fp32",
        device: Device = "auto",
        threads: int = 0,
    ) -> None:
        self.folder = folder
        self.spec, self.checksum = modelfile.read_spec(folder)
        self.terms = _chosen_terms(self.spec, context)
        self.detector = detector or Detector()
        self.max_side, self.max_pixels = max_side, max_pixels
        self.domain_sizes = tuple(domain_sizes)
        if not self.domain_sizes or min(self.domain_sizes) <= 0:
            raise InputError(f"domain_sizes are {self.domain_sizes}: give one or more positive factors")
        if self.domain_sizes != (1.0,) and self.spec.base != "local":
            raise InputError(f"domain_sizes need a patch network; {self.spec.name} has base {self.spec.base}")
        if precision not in get_args(Precision):
            raise InputError(f"precision is {precision!r}: one of {', '.join(get_args(Precision))}")
        self.precision = precision
        self._int8_files = (
            modelfile.read_int8(folder, self.spec, self.checksum).files if precision == "int8" else {}
        )
        self._context, self._device, self._threads = context, device, threads
        self._engines: dict[str, Engine] = {}
        self._loading = Lock()

    def extract(self, image: Source, mask: Source | None = None) -> Features:
        """Detect keypoints in an image and describe them.

        Args:
            image: path, bytes, array or `Image`; see `contextdesc.image.read`.
            mask: image of the same size, black where no keypoint may lie.
        """
        picture = read(image, self.max_side, self.max_pixels)
        allowed = None if mask is None else self._mask(mask, picture)
        rootsifts = None
        with self._regional_beside(picture) as regional:
            if self.spec.base == "rootsift":
                keypoints, rootsifts = detect_rootsift(picture.gray, self.detector, allowed)
            else:
                keypoints = detect(picture.gray, self.detector, allowed)
        return self._features(picture, keypoints, keypoints.scaled(picture.scale), regional, rootsifts)

    def describe(self, image: Source, keypoints: Keypoints | ArrayLike | Sequence[cv2.KeyPoint]) -> Features:
        """Describe given keypoints of an image, in their order.

        Args:
            keypoints: in pixels of the original image: `Keypoints`, OpenCV keypoints, or an array with
                rows (x, y) or (x, y, size, angle).
        """
        picture = read(image, self.max_side, self.max_pixels)
        given = as_keypoints(keypoints)
        regional = partial(self.regional, picture)
        return self._features(picture, given.scaled(np.reciprocal(picture.scale)), given, regional)

    def augment(
        self,
        descriptors: NDArray[np.float32],
        keypoints: Keypoints | ArrayLike | Sequence[cv2.KeyPoint],
        size: tuple[int, int],
        image: Source | None = None,
        regional: NDArray[np.float32] | None = None,
        matchability: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Add context to descriptors that the caller has.

        Args:
            descriptors: (N, 128) float32 of the model's base (see `raw`), or for base `given` the
                caller's own kind, the one that the model was trained on.
            keypoints: N keypoints.
            size: (width, height) of the image that the keypoints refer to.
            image: for the visual term, unless `regional` is given.
            regional: (C, h, w) grid of regional features.
            matchability: (N,) scores; needed for the geometric term where the base's matchability reads
                the patch network's map, else computed from the descriptors.

        Returns:
            (N, 128) float32, unit length.
        """
        given = as_keypoints(keypoints)
        raw = np.asarray(descriptors, np.float32)
        if raw.shape != (len(given), self.spec.raw_size):
            expected = (len(given), self.spec.raw_size)
            raise InputError(f"descriptors of shape {raw.shape}: expected {expected} for these keypoints")
        if not np.isfinite(raw).all():
            raise InputError("descriptors hold values that are not finite")
        reads_score = "geometric" in self.terms and "score" in self._engine(modelfile.GEOMETRIC).inputs
        if matchability is None and reads_score and len(given):
            if modelfile.MATCHABILITY not in self.spec.files:
                raise InputError(
                    f"{self.spec.name} reads matchability off its patches: pass matchability= as `raw` "
                    "returns it, or load the model with context 'visual' or 'none'"
                )
            (matchability,) = self._engine(modelfile.MATCHABILITY).run_batched(raw=raw)
        if "visual" in self.terms and regional is None:
            if image is None:
                raise InputError(
                    "the visual term needs image= or regional=; or load with context 'geometric'"
                )
            regional = self.regional(image)
        return self._augment(raw, matchability, given, size, regional)

    def raw(
        self, image: Source, keypoints: Keypoints | ArrayLike | Sequence[cv2.KeyPoint]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """The base's descriptors (N, 128), of any length, and matchability scores (N,), for `augment`."""
        picture = read(image, self.max_side, self.max_pixels)
        return self._raw(picture, as_keypoints(keypoints).scaled(np.reciprocal(picture.scale)))

    def regional(self, image: Source) -> NDArray[np.float32]:
        """The grid of regional features of an image, (C, h, w) float32."""
        if modelfile.REGIONAL not in self.spec.files:
            raise InputError(f"{self.spec.name} has no regional network: pass regional=, a grid of your own")
        picture = read(image, self.max_side, self.max_pixels)
        pixels = regional_image(picture, self.spec.regional_max_side)
        return self._engine(modelfile.REGIONAL).run(image=pixels)[0]

    @cached_property
    def context(self) -> str:
        """The terms in the descriptors, as features record it, with precision and domain sizes if unusual."""
        precision = "" if self.precision == "fp32" else f":{self.precision}"
        sizes = "" if self.domain_sizes == (1.0,) else "@" + "+".join(f"{s:g}" for s in self.domain_sizes)
        return ("+".join(self.terms) or "none") + precision + sizes

    @property
    def options(self) -> dict[str, Any]:
        """What `load` was given besides the model: enough for another process to load the same."""
        return {
            "context": self._context, "detector": self.detector, "max_side": self.max_side,
            "max_pixels": self.max_pixels, "domain_sizes": self.domain_sizes, "precision": self.precision,
            "device": self._device, "threads": self._threads,
        }  # fmt: skip

    def network(self, name: str) -> Path:
        """The file that stands for one of `model.json`'s in the model's precision."""
        variant = modelfile.int8_file(name)
        return self.folder / (variant if variant in self._int8_files else name)

    def shared_by(self, streams: int) -> ContextDesc:
        """This model for so many images at a time, each with its part of the threads."""
        if streams == 1:
            return self
        threads = -(-(self._threads or available_cores()) // streams)
        return ContextDesc(self.folder, **self.options | {"threads": threads})

    @property
    def source(self) -> str:
        """What the features of this model have as their source."""
        return source_of(self.spec.name, self.checksum, self.context)

    def _features(
        self,
        picture: Image,
        local: Keypoints,
        original: Keypoints,
        regional: Callable[[], NDArray[np.float32]],
        rootsifts: NDArray[np.float32] | None = None,
    ) -> Features:
        raw, score = self._raw(picture, local, rootsifts)
        grid = regional() if "visual" in self.terms and len(local) else None
        descriptors = self._augment(raw, score, local, picture.size, grid)
        matchability = None if score is None else np.tanh(score)
        return Features(
            original, descriptors, picture.original_size, self.spec.name, self.checksum, self.context,
            self.spec.ratio, matchability,
        )  # fmt: skip

    @contextmanager
    def _regional_beside(self, picture: Image) -> Iterator[Callable[[], NDArray[np.float32]]]:
        """The grid of regional features, computed while the caller detects if there are cores for both."""
        if "visual" not in self.terms or (self._threads or available_cores()) == 1:
            yield partial(self.regional, picture)
            return
        with ThreadPoolExecutor(1) as beside:
            yield beside.submit(self.regional, picture).result

    def _raw(
        self, picture: Image, keypoints: Keypoints, rootsifts: NDArray[np.float32] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """Keypoints here are in pixels of `picture`; their RootSIFT may be there already."""
        spec = self.spec
        if spec.base == "given":
            raise InputError(f"{spec.name} augments descriptors of your own: call augment")
        if not len(keypoints):
            empty = np.zeros(0, np.float32)
            has_score = modelfile.LOCAL in spec.files or modelfile.MATCHABILITY in spec.files
            return np.zeros((0, spec.raw_size), np.float32), empty if has_score else None
        if spec.base == "rootsift":
            raw = rootsifts
            if raw is None:
                raw = rootsift(picture.gray, keypoints, self.detector.precise_upscale)
            if modelfile.MATCHABILITY not in spec.files:
                return raw, None
            return raw, self._engine(modelfile.MATCHABILITY).run_batched(raw=raw)[0]
        total, score = self._describe_patches(picture, keypoints, self.domain_sizes[0])
        for size in self.domain_sizes[1:]:
            total = total + self._describe_patches(picture, keypoints, size)[0]
        return total, score

    def _describe_patches(
        self, picture: Image, keypoints: Keypoints, domain_size: float
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        patches = sample_patches(picture.gray, keypoints, self.spec.support * domain_size)
        raw, score = self._engine(modelfile.LOCAL).run_batched(patches=patches)
        return raw, score

    def _augment(
        self,
        raw: NDArray[np.float32],
        score: NDArray[np.float32] | None,
        keypoints: Keypoints,
        size: tuple[int, int],
        regional: NDArray[np.float32] | None,
    ) -> NDArray[np.float32]:
        if not len(raw):
            return np.zeros((0, self.spec.descriptor_size), np.float32)
        xy = unit_coordinates(keypoints, size)
        terms = {}
        if "visual" in self.terms:
            grid = np.asarray(regional, np.float32)
            if grid.ndim != 3 or grid.shape[0] != self.spec.regional_channels or 0 in grid.shape:
                raise InputError(
                    f"regional grid of shape {grid.shape}: expected ({self.spec.regional_channels}, h, w)"
                )
            terms["visual"] = self._engine(modelfile.VISUAL).run_named(grid=grid, xy=xy, raw=raw)[0]
        if "geometric" in self.terms:
            reads = {"xy": xy, "raw": raw, "direction": directions(keypoints)}
            if score is not None:
                reads["score"] = np.asarray(score, np.float32)
            terms["geometric"] = self._engine(modelfile.GEOMETRIC).run_named(**reads)[0]
        total = self._aggregate(raw, terms)
        norm = np.sqrt(np.square(total).sum(1, keepdims=True))
        return np.asarray(total / np.maximum(norm, _EPS), np.float32)

    def _aggregate(
        self, raw: NDArray[np.float32], terms: dict[str, NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        """Raw descriptors and those terms that are on, to one array; a term that is off is 0."""
        if self.spec.aggregation == "sum":
            return np.sum([raw, *terms.values()], axis=0)
        off = np.zeros((len(raw), TERM_SIZE), np.float32)
        every = {name: terms.get(name, off) for name in self.spec.terms}
        if self.spec.aggregation == "concat":
            return np.concatenate([raw, *every.values()], axis=1)
        return self._engine(modelfile.AGGREGATION).run(raw=raw, **every)[0]

    def _mask(self, mask: Source, picture: Image) -> NDArray[np.uint8]:
        allowed = read(mask, max_pixels=self.max_pixels)
        if allowed.original_size != picture.original_size:
            mask_size, size = (" x ".join(map(str, i.original_size)) for i in (allowed, picture))
            raise InputError(
                f"mask {allowed.name} is {mask_size} pixels, its image {picture.name} {size}: they must agree"
            )
        return np.asarray(cv2.resize(allowed.gray, picture.size, interpolation=cv2.INTER_NEAREST), np.uint8)

    def _engine(self, name: str) -> Engine:
        with self._loading:
            if name not in self._engines:
                self._engines[name] = Engine(self.network(name), self._device, self._threads)
        return self._engines[name]


def as_keypoints(keypoints: Keypoints | ArrayLike | Sequence[cv2.KeyPoint]) -> Keypoints:
    """Keypoints from any of the forms that callers have them in."""
    if isinstance(keypoints, Keypoints):
        return keypoints
    if isinstance(keypoints, (list, tuple)) and keypoints and isinstance(keypoints[0], cv2.KeyPoint):
        return Keypoints.from_opencv(keypoints)
    return Keypoints.from_array(keypoints)  # type: ignore[arg-type]  # an array by now


def unit_coordinates(keypoints: Keypoints, size: tuple[int, int]) -> NDArray[np.float32]:
    """(N, 2) float32: the image's left and upper border at -1, its right and lower at 1."""
    return ((keypoints.xy + 0.5) / np.array(size, np.float32) * 2 - 1).astype(np.float32)


def directions(keypoints: Keypoints) -> NDArray[np.float32]:
    """(N, 2) float32: which way keypoints point, as unit vectors along x and y."""
    angle = np.deg2rad(keypoints.angle)
    return np.column_stack([np.cos(angle), np.sin(angle)]).astype(np.float32)


def regional_image(image: Image, max_side: int) -> NDArray[np.float32]:
    """(1, 3, H, W) float32 RGB, 0 to 255: the image as regional networks see it, sides multiples of 32."""
    target = [side * REGIONAL_STRIDE for side in grid_size(image.size, max_side)]
    shrinks = max(image.size) > max_side
    resized = cv2.resize(image.rgb, target, interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
    return np.ascontiguousarray(resized.transpose(2, 0, 1)[None], np.float32)


def grid_size(size: tuple[int, int], max_side: int) -> tuple[int, int]:
    """Width and height of the regional grid of an image of `size`."""
    factor = min(1.0, max_side / max(size))
    width, height = (max(1, round(side * factor / REGIONAL_STRIDE)) for side in size)
    return width, height


def _chosen_terms(spec: modelfile.ModelSpec, context: Context) -> tuple[str, ...]:
    if context not in get_args(Context):
        raise InputError(f"context is {context!r}: one of {', '.join(get_args(Context))}")
    if context == "all":
        return spec.terms
    wanted = {"both": ("visual", "geometric"), "none": ()}.get(context, (context,))
    for term in wanted:
        if term not in spec.terms:
            has = " and ".join(spec.terms) or "none"
            raise InputError(f"context {context!r}: {spec.name} has no {term} term (it has {has})")
    return tuple(wanted)
