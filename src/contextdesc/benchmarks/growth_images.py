"""Many images through the command `contextdesc extract`, watched from outside: memory and time of the CPU.

The command is watched by what Linux tells of its process and those that it started; how far it is, by the
size of its journal, to which every image adds as much.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from contextdesc.benchmarks.timing import CONTRAST, Workload, filled, save
from contextdesc.engine import available_cores
from contextdesc.errors import ContextDescError
from contextdesc.image import read

EVERY = 0.1  # seconds between samples
BLOCKS = 10  # of samples, whose medians tell the trend
WARM = 0.2  # of the images, after which memory should stay as it is
STUDENT = 2.306  # quantile 0.975 of Student's distribution with BLOCKS - 2 degrees of freedom
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE_MB = (os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096) / 2**20


@dataclass(frozen=True)
class Sample:
    """A look at a running command.

    Attributes:
        seconds: on the clock, since its start.
        images: that were finished.
        resident_mb: of its processes.
        cpu_seconds: that its processes have used.
    """

    seconds: float
    images: float
    resident_mb: float
    cpu_seconds: float


def written(photographs: Sequence[Path], workload: Workload, folder: Path) -> list[Path]:
    """Files of the workload's size."""
    folder.mkdir()
    for number, path in enumerate(photographs):
        save(filled(read(path), workload.size), folder / f"{number:04}.jpg")
    return sorted(folder.iterdir())


def linked(files: Sequence[Path], count: int, folder: Path) -> Path:
    """A folder of so many images: the files, again and again under other names."""
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:05}.jpg").symlink_to(files[number % len(files)])
    return folder


def watch(images: Path, workload: Workload, threads: int) -> list[dict[str, float]]:
    """Samples of `contextdesc extract` on a folder of images, in order."""
    output = images.with_suffix(".h5")
    command = [
        sys.executable, "-m", "contextdesc", "extract", str(images), "-o", str(output), "--quiet",
        "--max-keypoints", str(workload.keypoints), "--contrast", str(CONTRAST), "--threads", str(threads),
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    begun, journal, seen = time.monotonic(), output.with_name(f"{output.name}.journal"), []
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            while process.poll() is None:
                if (size := _size(journal)) is not None:
                    memory, used = _usage(process.pid)
                    seen.append(Sample(time.monotonic() - begun, size, memory, used))
                time.sleep(EVERY)
        except BaseException:
            process.kill()
            raise
        told = process.stderr.read() if process.stderr else ""
    if process.returncode:
        raise ContextDescError(f"{' '.join(command[1:4])} failed: {told.strip()}")
    return finished(seen, len(list(images.iterdir())))


def finished(seen: Sequence[Sample], images: int) -> list[dict[str, float]]:
    """Samples with the number of images in place of the journal's bytes, from the first image to the last."""
    sizes = [one.images for one in seen]
    if not sizes or max(sizes) == min(sizes):
        raise ContextDescError("extract was too fast to be watched: give more images")
    per_image = (max(sizes) - min(sizes)) / images
    last = sizes.index(max(sizes)) + 1
    return [
        asdict(Sample(one.seconds, (one.images - min(sizes)) / per_image, one.resident_mb, one.cpu_seconds))
        for one in seen[:last]
        if one.images > min(sizes)
    ]


def thinned(samples: Sequence[dict[str, float]], kept: int) -> list[dict[str, float]]:
    """Some of many samples, evenly, with the first and the last."""
    rows = np.unique(np.linspace(0, len(samples) - 1, kept).round().astype(int))
    return [samples[row] for row in rows]


def memory_growth(samples: Sequence[dict[str, float]], images: int) -> dict[str, Any]:
    """The trend of resident memory: megabytes that `images` images add, with a 95 % interval.

    A line through the medians of blocks of samples, after the first images. Neighbours in time are alike, so
    single samples would promise too much.
    """
    warm = [one for one in samples if one["images"] >= WARM * images]
    if len(warm) < 2 * BLOCKS:
        raise ContextDescError(f"{len(warm)} samples of memory: give more images")
    blocks = np.array_split(np.array([(one["images"], one["resident_mb"]) for one in warm]), BLOCKS)
    x, y = np.array([np.median(block, axis=0) for block in blocks]).T
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    residuals = y - y.mean() - slope * centred
    error = float(np.sqrt(residuals @ residuals / (BLOCKS - 2) / (centred @ centred)))
    return {
        "resident_mb": float(np.median(y)),
        "added_mb": slope * images,
        "low_mb": (slope - STUDENT * error) * images,
        "high_mb": (slope + STUDENT * error) * images,
    }


def cores_busy(samples: Sequence[dict[str, float]]) -> dict[str, float]:
    """Share of the cores' time that a command used, and images per second, from its first image on."""
    first, last = samples[0], samples[-1]
    seconds = last["seconds"] - first["seconds"]
    return {
        "share": (last["cpu_seconds"] - first["cpu_seconds"]) / (seconds * available_cores()),
        "per_second": (last["images"] - first["images"]) / seconds,
    }


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _usage(pid: int) -> tuple[float, float]:
    """Resident megabytes and seconds of CPU of a process and its descendants."""
    memory = used = 0.0
    for one in _family(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        used += sum(int(fields[index]) for index in (11, 12, 13, 14)) / _TICKS  # own and waited-for children
        memory += int(fields[21]) * _PAGE_MB
    return memory, used


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in path.read_text().split():
                yield from _family(int(child))
    except (FileNotFoundError, ProcessLookupError):
        return
