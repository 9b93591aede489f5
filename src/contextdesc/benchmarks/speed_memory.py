"""Peak memory of our stages, and of whole ways from a file to descriptors; each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from contextdesc import modelfile
from contextdesc.benchmarks import speed_rivals
from contextdesc.benchmarks.methods.method import unit
from contextdesc.benchmarks.model_stages import BOTH, LOCAL, PATCHES, REGIONAL
from contextdesc.benchmarks.peak_memory import peak_mb, resident_mb
from contextdesc.detection import Detector, detect
from contextdesc.engine import Engine
from contextdesc.geometry import verify
from contextdesc.image import read
from contextdesc.matching import match, match_descriptors
from contextdesc.model import ContextDesc, load
from contextdesc.patches import sample_patches

if TYPE_CHECKING:
    from numpy.typing import NDArray

MODELS = ("contextdesc", "sift-context")
METHODS = (*MODELS, "kornia", "OpenCV SIFT")
MATCHERS: dict[str, Callable[..., object]] = {
    "mutual matching": match_descriptors,
    "OpenCV BFMatcher": speed_rivals.opencv_mutual,
    "faiss": speed_rivals.faiss_mutual,
}


def method_peak(method: str, path: Path, detector: Detector, threads: int) -> dict[str, float]:
    """Megabytes before and at the peak of the way from a file to its descriptors."""
    work = _way(method, path, detector, threads)
    return {"before_mb": resident_mb(), "peak_mb": peak_mb(work)}


def _way(method: str, path: Path, detector: Detector, threads: int) -> Callable[[], object]:
    if method in MODELS:
        model = loaded(method, detector, threads)
        return lambda: model.extract(path)
    if method == "kornia":
        pipeline = speed_rivals.kornia_features(detector.max_keypoints)
        return lambda: pipeline(_gray(path))
    sift = speed_rivals.plain_sift(detector)
    return lambda: sift.detectAndCompute(_gray(path), None)


def loaded(name: str, detector: Detector, threads: int) -> ContextDesc:
    """A model whose networks are loaded, by a first image."""
    model = load(name, detector=detector, device="cpu", threads=threads)
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    model.describe(noise, [[32.0, 32.0]])
    return model


def _gray(path: Path) -> Any:
    return cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)


def matcher_peak(matcher: str, keypoints: int) -> dict[str, float]:
    """Megabytes before and at the peak of matching as many descriptors of 128 numbers with as many."""
    first, second = random_descriptors(keypoints)
    MATCHERS[matcher](first[:2], second[:2])  # loads what it needs
    return {"before_mb": resident_mb(), "peak_mb": peak_mb(lambda: MATCHERS[matcher](first, second))}


def random_descriptors(keypoints: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Twice as many unit vectors (N, 128)."""
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal((keypoints, 128), np.float32) for _ in range(2))
    return unit(first), unit(second)


def stage_peaks(path: Path, detector: Detector, threads: int) -> dict[str, float]:
    """Megabytes at the peak of every stage of the default model, one after the other as `extract` runs them;
    what earlier stages left is in it."""
    model = loaded(modelfile.DEFAULT, detector, threads)
    local = Engine(model.folder / modelfile.LOCAL, "cpu", threads)
    made: dict[str, Any] = {}
    steps: dict[str, Callable[[], object]] = {
        "read": lambda: read(path),
        "detect": lambda: detect(made["read"].gray, detector),
        PATCHES: lambda: sample_patches(made["read"].gray, made["detect"], model.spec.support),
        LOCAL: lambda: local.run_batched(patches=made[PATCHES]),
        REGIONAL: lambda: model.regional(made["read"]),
        BOTH: lambda: model.augment(
            made[LOCAL][0], made["detect"], made["read"].size, regional=made[REGIONAL],
            matchability=made[LOCAL][1],
        ),
    }  # fmt: skip

    def peak(name: str, step: Callable[[], object]) -> float:
        return peak_mb(lambda: made.update({name: step()}))

    peaks = {name: peak(name, step) for name, step in steps.items()}
    features = model.describe(made["read"], made["detect"])
    peaks["matching"] = peak("matches", lambda: match(features, features))
    peaks["verification"] = peak_mb(lambda: verify(features, features, made["matches"]))
    return peaks
