"""What measurements of time share: pictures of a size, clocks, numbers of threads, and the machine."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime

from contextdesc.errors import InputError
from contextdesc.image import Image
from contextdesc.keypoints import Keypoints

CONTRAST = 0.0067  # of SIFT, for 10,000 keypoints
MS = 1e3  # in a second
_QUALITY = 95  # of JPEG files


@dataclass(frozen=True)
class Workload:
    """An image of a size (width, height) with so many keypoints."""

    size: tuple[int, int]
    keypoints: int

    def __str__(self) -> str:
        return f"{self.keypoints:,} keypoints, {self.size[0]} x {self.size[1]}"

    @classmethod
    def parse(cls, text: str) -> Workload:
        """From WIDTHxHEIGHT:KEYPOINTS."""
        size, _, keypoints = text.strip().partition(":")
        width, _, height = size.partition("x")
        if not all(part.isdecimal() and int(part) for part in (width, height, keypoints)):
            raise InputError(f"{text!r}: not a size such as 640x480:2048 (width x height : keypoints)")
        return cls((int(width), int(height)), int(keypoints))


@dataclass(frozen=True)
class Spread:
    """Median, least and most of the rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(float(np.median(values)), float(min(values)), float(max(values)))


def shown(numbers: Mapping[str, float] | None, how: str) -> str:
    """A spread, as JSON has it, for a table; empty for none."""
    if numbers is None:
        return ""
    middle, least, most = (format(numbers[name], how) for name in ("median", "least", "most"))
    return middle if least == most else f"{middle} ({least} to {most})"


def cropped(image: Image, size: tuple[int, int]) -> Image:
    """The middle of an image at a size (width, height), as large a part as has its shape."""
    width, height = image.size
    scale = max(size[0] / width, size[1] / height)
    part = (round(size[0] / scale), round(size[1] / scale))
    left, top = (width - part[0]) // 2, (height - part[1]) // 2
    middle = image.rgb[top : top + part[1], left : left + part[0]]
    how = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    return Image(np.asarray(cv2.resize(middle, size, interpolation=how), np.uint8), size, image.name)


def filled(image: Image, size: tuple[int, int]) -> Image:
    """As `cropped`, but a smaller image is mirrored at its borders until it is large enough, instead of being
    upscaled: so a large picture has the texture of a sharp one."""
    missing = [max(0, wanted - had) for wanted, had in zip(size, image.size, strict=True)]
    if not any(missing):
        return cropped(image, size)
    rgb = np.pad(image.rgb, ((0, missing[1]), (0, missing[0]), (0, 0)), "symmetric")
    return Image(np.ascontiguousarray(rgb[: size[1], : size[0]]), size, image.name)


def photographed(image: Image, size: tuple[int, int]) -> Image:
    """As `filled`, but a picture that is twice as large or more is made of the image at twice its size: a
    camera's many pixels are softer than those of a photograph that was shrunk."""
    if all(wanted >= 2 * had for wanted, had in zip(size, image.size, strict=True)):
        width, height = image.size
        doubled = cv2.resize(image.rgb, (2 * width, 2 * height), interpolation=cv2.INTER_CUBIC)
        image = Image(np.asarray(doubled, np.uint8), (2 * width, 2 * height), image.name)
    return filled(image, size)


def save(image: Image, path: Path) -> None:
    """Write a JPEG file of good quality."""
    cv2.imwrite(str(path), np.ascontiguousarray(image.rgb[..., ::-1]), [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])


def repeated(keypoints: Keypoints, count: int) -> Keypoints:
    """So many keypoints: the first ones, or all of them again and again."""
    return keypoints[np.resize(np.arange(len(keypoints)), count)]


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds that it takes: of the CPU, and on the clock."""
    begun = time.process_time(), time.perf_counter()
    work()
    return MS * (time.process_time() - begun[0]), MS * (time.perf_counter() - begun[1])


@contextmanager
def limited_threads(threads: int) -> Iterator[None]:
    """So many threads for OpenCV and for every library of linear algebra that is loaded by now: NumPy's,
    PyTorch's, faiss's. ONNX Runtime has its number in each session."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise InputError("limiting threads needs an extra: pip install 'contextdesc[benchmark]'") from None
    before = cv2.getNumThreads()
    cv2.setNumThreads(threads)
    try:
        with threadpool_limits(threads):
            yield
    finally:
        cv2.setNumThreads(before)


def machine() -> dict[str, Any]:
    """The processor and the versions that times depend on."""
    return {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()}, {platform.machine()}",
        "python": platform.python_version(),
        "opencv": cv2.__version__,
        "onnxruntime": onnxruntime.__version__,
        "numpy": np.__version__,
    }


def _processor() -> str:
    """Its model name, as Linux tells it, or what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def load_average() -> tuple[float, ...]:
    """Processes that want a core, mean of the last 1, 5 and 15 minutes; empty where that is not known."""
    return tuple(round(value, 1) for value in os.getloadavg()) if hasattr(os, "getloadavg") else ()
