"""How time and memory grow: with the number of keypoints, with pixels, and over many images.

Every point is measured in a process of its own, which loads the model first; memory is its peak. Many images
go through the command `contextdesc extract`, which is watched from outside.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contextdesc.benchmarks.growth_images import cores_busy, linked, memory_growth, thinned, watch, written
from contextdesc.benchmarks.growth_points import describing, extracting, matching, one_by_one
from contextdesc.benchmarks.growth_report import report
from contextdesc.benchmarks.peak_memory import MEASURABLE, in_new_process
from contextdesc.benchmarks.protocol import Protocol, Request, Setting
from contextdesc.benchmarks.report import Report
from contextdesc.benchmarks.timing import Workload, filled, load_average, machine, save
from contextdesc.engine import available_cores
from contextdesc.errors import InputError
from contextdesc.image import Image, find_images, read
from contextdesc.progress import progress

PROTOCOL = Protocol(
    layout="photographs; the first one is resized, all of them go through extract",
    source="any sharp photographs with rich texture, such as your own",
    takes=(),
    settings=(
        Setting("threads", 0, "of the networks; 0 for every core"),
        Setting("keypoints", "500,1000,2000,5000,10000,20000,50000", "numbers of keypoints"),
        Setting("megapixels", "0.3,1,3,6,12,25,50", "sizes of the picture"),
        Setting("images", 500, "small images through extract, for its memory"),
        Setting("busy", 40, "images of 640 x 480 with 2048 keypoints through extract, for the cores"),
    ),
)
PICTURE = (1600, 1200)  # on which the number of keypoints grows
KEYPOINTS = 2048  # in pictures that grow
SMALL, TYPICAL = Workload((320, 240), 100), Workload((640, 480), KEYPOINTS)  # of many images
ALONE = 20  # images that are extracted one by one, to compare
_DISTINCT = 20  # small images; the others are the same under other names
KEPT = 100  # samples of memory in the numbers
_MEGA = 1e6


def run(request: Request) -> Report:
    """Time and memory by keypoints, pixels and images."""
    if not MEASURABLE:
        raise InputError("benchmark growth reads Linux's /proc, which this system does not have")
    threads = int(request.setting("threads", PROTOCOL)) or available_cores()
    counts = [int(value) for value in _numbers(request, "keypoints")]
    sizes = [_size(value * _MEGA) for value in _numbers(request, "megapixels")]
    images, many = (int(request.setting(name, PROTOCOL)) for name in ("images", "busy"))
    photographs = list(find_images([request.data]).values())
    photograph = read(photographs[0])
    loads = [load_average()]
    steps = 2 * len(counts) + len(sizes) + 4
    with tempfile.TemporaryDirectory() as name, progress("measure", steps, quiet=request.quiet) as step:
        folder = Path(name)

        def measured(work: Callable[..., dict[str, Any]], *args: object) -> dict[str, Any]:
            numbers = in_new_process(work, *args)
            step()
            return numbers

        picture = _picture(photograph, PICTURE, folder)
        keypoints = [{"keypoints": n, **measured(describing, picture, n, threads)} for n in counts]
        matches = [{"keypoints": n, **measured(matching, n, threads)} for n in counts]
        pictures = {size: _picture(photograph, size, folder) for size in sizes}
        pixels = [
            {"pixels": size[0] * size[1], **measured(extracting, path, KEYPOINTS, threads)}
            for size, path in pictures.items()
        ]
        asked = {"pixels": pixels[-1]["pixels"], "asked": counts[-1]}
        largest = asked | measured(extracting, pictures[sizes[-1]], counts[-1], threads)
        small = written(photographs[:_DISTINCT], SMALL, folder / "small")
        samples = watch(linked(small, images, folder / "many"), SMALL, threads)
        step()
        typical = linked(written(photographs[:many], TYPICAL, folder / "typical"), many, folder / "more")
        busy = cores_busy(watch(typical, TYPICAL, threads))
        step()
        alone = measured(one_by_one, typical, min(many, ALONE), KEYPOINTS, threads)
    return report(
        {
            "machine": {**machine(), "threads": threads, "load": [*loads, load_average()]},
            "photograph": {"name": photographs[0].name, "size": list(photograph.size)},
            "describing": {"size": list(PICTURE), "points": keypoints},
            "matching": {"points": matches},
            "extracting": {"keypoints": KEYPOINTS, "points": pixels},
            "largest": largest,
            "images": {
                "workload": str(SMALL),
                "count": images,
                "growth": memory_growth(samples, images),
                "samples": thinned(samples, KEPT),
            },
            "busy": {"workload": str(TYPICAL), "count": many, **busy, **alone},
        }
    )


def _numbers(request: Request, name: str) -> list[float]:
    """Positive numbers of a setting, smallest first."""
    text = str(request.setting(name, PROTOCOL))
    try:
        values = sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise InputError(f"--set {name}={text}: numbers, comma-separated") from None
    if len(values) < 3 or values[0] <= 0:
        raise InputError(f"--set {name}={text}: at least three positive numbers")
    return values


def _size(pixels: float) -> tuple[int, int]:
    """Width and height of so many pixels, 4 : 3."""
    height = round((pixels * 3 / 4) ** 0.5)
    return round(height * 4 / 3), height


def _picture(photograph: Image, size: tuple[int, int], folder: Path) -> Path:
    path = folder / f"{size[0]}x{size[1]}.jpg"
    save(filled(photograph, size), path)
    return path
