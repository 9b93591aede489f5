"""Single points of the curves of growth, each a function that is run in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from contextdesc import modelfile
from contextdesc.benchmarks.peak_memory import peak_mb, resident_mb
from contextdesc.benchmarks.speed_memory import loaded, random_descriptors
from contextdesc.benchmarks.timing import CONTRAST, MS, limited_threads, repeated, timed
from contextdesc.detection import Detector, detect
from contextdesc.image import find_images, read
from contextdesc.matching import match_descriptors


def describing(path: Path, keypoints: int, threads: int) -> dict[str, float]:
    """Seconds and megabytes of describing so many keypoints of a picture."""
    detector = Detector(keypoints, contrast=CONTRAST)
    model = loaded(modelfile.DEFAULT, detector, threads)
    image = read(path)
    given = repeated(detect(image.gray, detector), keypoints)
    return _measured(lambda: model.describe(image, given), threads)


def matching(keypoints: int, threads: int) -> dict[str, float]:
    """Seconds and megabytes of mutual matching of so many descriptors with as many."""
    first, second = random_descriptors(keypoints)
    match_descriptors(first[:2], second[:2])
    return _measured(lambda: match_descriptors(first, second), threads)


def extracting(path: Path, keypoints: int, threads: int) -> dict[str, float]:
    """Seconds and megabytes of all that `extract` does with a file, at full resolution; how many keypoints it
    finds, at most those asked for."""
    detector = Detector(keypoints)
    model = loaded(modelfile.DEFAULT, detector, threads)
    made: dict[str, Any] = {}

    def step(name: str, work: Callable[[], object]) -> dict[str, float]:
        return {f"{name}_seconds": timed(lambda: made.update({name: work()}))[1] / MS}

    def work() -> None:
        parts = step("read", lambda: read(path))
        parts |= step("detect", lambda: detect(made["read"].gray, detector))
        parts |= step("describe", lambda: model.describe(made["read"], made["detect"]))
        made["parts"] = parts

    numbers = _measured(work, threads)
    return numbers | made["parts"] | {"keypoints": len(made["detect"])}


def one_by_one(folder: Path, images: int, keypoints: int, threads: int) -> dict[str, float]:
    """Images per second of extraction in a plain loop."""
    model = loaded(modelfile.DEFAULT, Detector(keypoints), threads)
    paths = list(find_images([folder]).values())[:images]
    seconds = timed(lambda: [model.extract(path) for path in paths])[1] / MS
    return {"one_by_one_per_second": len(paths) / seconds}


def _measured(work: Callable[[], object], threads: int) -> dict[str, float]:
    before = resident_mb()
    with limited_threads(threads):
        found: list[float] = []
        peak = peak_mb(lambda: found.append(timed(work)[1] / MS))
    return {"seconds": found[0], "before_mb": before, "peak_mb": peak}
