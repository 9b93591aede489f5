"""How fast every stage is beside the machine's limits and beside others, and how much memory each takes.

Everything runs in one process and takes turns, round after round; ratios are taken within a round, between
neighbours in time, so that whatever else the machine does meets both sides. Times are the clock's.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import cv2
import numpy as np

from contextdesc import modelfile
from contextdesc.benchmarks import speed_memory, speed_rivals
from contextdesc.benchmarks.graph_cost import GraphCost
from contextdesc.benchmarks.model_stages import model_stages
from contextdesc.benchmarks.peak_memory import MEASURABLE, in_new_process
from contextdesc.benchmarks.protocol import Protocol, Request, Setting
from contextdesc.benchmarks.report import Report
from contextdesc.benchmarks.speed_report import (
    BFMATCHER,
    COPY,
    DETECT,
    EAGER,
    EAGER_LAST,
    END_TO_END,
    END_TO_END_INT8,
    FAISS,
    INT8,
    INT8_REGIONAL,
    KORNIA,
    KORNIA_GIVEN,
    MATCHING,
    MUTUAL,
    PRODUCT,
    READ,
    SIFT,
    SIFT_CONTEXT,
    SIFT_DETECT,
    VERIFICATION,
    report,
    workload_numbers,
)
from contextdesc.benchmarks.timing import (
    CONTRAST,
    Workload,
    limited_threads,
    load_average,
    machine,
    photographed,
    repeated,
    save,
    timed,
)
from contextdesc.detection import Detector, detect
from contextdesc.engine import Engine, available_cores
from contextdesc.errors import InputError
from contextdesc.geometry import verify
from contextdesc.image import Image, find_images, read
from contextdesc.keypoints import Keypoints
from contextdesc.matching import match, match_descriptors
from contextdesc.model import ContextDesc, Precision, load
from contextdesc.patches import sample_patches
from contextdesc.progress import progress

SIZES = "640x480:2048,896x896:10000,4000x3000:8000"  # a typical one, the paper's, a camera's
PROTOCOL = Protocol(
    layout="photographs; the first one is used, doubled and mirrored at its borders where it is too small",
    source="any sharp photograph with rich texture, such as your own",
    takes=(),
    settings=(
        Setting("repetitions", 5, "rounds that are timed"),
        Setting("threads", 0, "of every library; 0 for every core"),
        Setting("sizes", SIZES, "WIDTHxHEIGHT:KEYPOINTS, comma-separated"),
    ),
)
FEW = 2048  # patches that slow rivals are timed on, where there are more
_SHORT, _MOST = 200, 9  # milliseconds that short work is repeated for in a round, and how often at most
_PAUSE = 0.02  # seconds between pieces of work, in which threads that wait for more go to sleep
# The second view: turned, and slightly smaller
_TURN, _SHRINK = 8.0, 0.96


@dataclass(frozen=True, eq=False)
class Work:
    """A piece of work to be timed.

    Attributes:
        run: does it once.
        cost: of its network, if it has one.
        share: of the whole that it does; its time is divided by it.
        best: short work runs several times in a round; whether the fastest counts, or the median.
    """

    name: str
    run: Callable[[], object]
    cost: GraphCost | None = None
    share: float = 1.0
    best: bool = False

    def milliseconds(self) -> float:
        """Time of one round."""
        time.sleep(_PAUSE)
        times = [timed(self.run)[1]]
        while sum(times) < _SHORT and len(times) < _MOST:
            times.append(timed(self.run)[1])
        return (min(times) if self.best else median(times)) / self.share


@dataclass(frozen=True, eq=False)
class Prepared:
    """A workload, and everything that is timed on it."""

    workload: Workload
    path: Path
    detector: Detector
    detected: int
    works: Sequence[Work]


def run(request: Request) -> Report:
    """Time and memory of every stage and of its rivals on pictures of some sizes."""
    threads = int(request.setting("threads", PROTOCOL)) or available_cores()
    rounds = int(request.setting("repetitions", PROTOCOL))
    if rounds < 1:
        raise InputError(f"--set repetitions={rounds}: at least 1")
    workloads = [Workload.parse(text) for text in str(request.setting("sizes", PROTOCOL)).split(",")]
    first = next(iter(find_images([request.data]).values()))
    photograph = read(first)
    versions = speed_rivals.import_rivals()
    loads = [load_average()]
    with tempfile.TemporaryDirectory() as folder:
        with limited_threads(threads):
            limits = machine_limits(threads)
            prepared = []
            with progress("prepare", len(workloads), quiet=request.quiet) as step:
                for workload in workloads:
                    prepared.append(prepare(photograph, workload, Path(folder), limits, threads))
                    step()
            times = take_turns(prepared, rounds, request.quiet)
        loads.append(load_average())
        peaks = memory(prepared, threads, request.quiet)
    found = {
        str(one.workload): {
            "keypoints": one.workload.keypoints,
            "size": list(one.workload.size),
            "contrast": one.detector.contrast,
            "detected": one.detected,
            **workload_numbers({work.name: work.cost for work in one.works}, times[index]),
            "memory": peaks[index],
        }
        for index, one in enumerate(prepared)
    }
    where = {**machine(), **versions, "threads": threads, "load": loads}
    return report(
        {
            "machine": where,
            "photograph": {"name": first.name, "size": list(photograph.size)},
            "rounds": rounds,
            "workloads": found,
        }
    )


def take_turns(prepared: Sequence[Prepared], rounds: int, quiet: bool) -> list[list[dict[str, float]]]:
    """Milliseconds by workload, round and piece of work.

    Every second round goes backwards: of two neighbours, the first often finds memory and caches colder. The
    smallest picture goes first, untimed, for what libraries do only once.
    """
    for work in min(prepared, key=lambda one: math.prod(one.workload.size)).works:
        work.run()
    times: list[list[dict[str, float]]] = [[] for _ in prepared]
    with progress("time", rounds * sum(len(one.works) for one in prepared), quiet=quiet) as step:
        for number in range(rounds):
            for one, of in zip(prepared, times, strict=True):
                of.append({})
                for work in one.works if number % 2 == 0 else reversed(one.works):
                    of[-1][work.name] = work.milliseconds()
                    step()
    return times


def machine_limits(threads: int) -> list[Work]:
    """Products of matrices and a copy: what the machine can do at most."""
    products = speed_rivals.products(threads)
    works = [Work(PRODUCT + library, product, best=True) for library, product in products.items()]
    return [*works, Work(COPY, speed_rivals.memory_copy(threads))]


def prepare(
    photograph: Image, workload: Workload, folder: Path, limits: Sequence[Work], threads: int
) -> Prepared:
    """A picture of the workload's size as a file, and what is timed on it, warmed up."""
    path = folder / f"{workload.size[0]}x{workload.size[1]}.jpg"
    save(photographed(photograph, workload.size), path)
    image = read(path)
    detector = Detector(workload.keypoints)
    detected = detect(image.gray, detector)
    if len(detected) < workload.keypoints:
        detector = Detector(workload.keypoints, contrast=CONTRAST)
        detected = detect(image.gray, detector)
    if not len(detected):
        raise InputError(f"{photograph.name}: no keypoints; give a photograph with texture")
    keypoints = repeated(detected, workload.keypoints)
    works = list(_works(image, path, keypoints, detector, limits, threads))
    return Prepared(workload, path, detector, len(detected), works)


def _works(
    image: Image,
    path: Path,
    keypoints: Keypoints,
    detector: Detector,
    limits: Sequence[Work],
    threads: int,
) -> Iterator[Work]:
    """In the order of a round, or its reverse: what is compared stands side by side."""

    def loaded(name: str, precision: Precision = "fp32") -> ContextDesc:
        return load(name, detector=detector, device="cpu", threads=threads, precision=precision)

    def fresh() -> Image:
        return Image(image.rgb, image.size)  # whose gray values are not computed yet

    model, light = loaded(modelfile.DEFAULT), loaded("sift-context")
    light.extract(fresh())
    stages = list(model_stages(model.folder, "all", image, keypoints, threads))
    patches = sample_patches(image.gray, keypoints, model.spec.support)
    few, share = patches[:FEW], min(1.0, FEW / len(patches))
    sift, kornia = speed_rivals.plain_sift(detector), speed_rivals.kornia_features(detector.max_keypoints)
    kornia_given = speed_rivals.kornia_pipeline(detector)

    yield Work(READ, lambda: read(path).gray)
    yield Work(DETECT, lambda: detect(image.gray, detector))
    yield Work(SIFT_DETECT, lambda: sift.detect(image.gray, None))
    yield Work(stages[0].name, stages[0].run)
    yield from limits
    yield Work(stages[1].name, stages[1].run, stages[1].cost)
    file = model.folder / modelfile.int8_file(modelfile.LOCAL)
    if has_int8 := file.is_file():
        local = Engine(file, "cpu", threads)
        local.run_batched(patches=few)
        yield Work(INT8, lambda: local.run_batched(patches=patches))
    for name, eager in (
        (EAGER, speed_rivals.eager_local()),
        (EAGER_LAST, speed_rivals.eager_local(channels_last=True)),
    ):
        eager(few[:64])
        yield Work(name, lambda eager=eager: eager(few), share=share)  # type: ignore[misc]
    yield from (Work(stage.name, stage.run, stage.cost) for stage in stages[2:])
    if (model.folder / modelfile.int8_file(modelfile.REGIONAL)).is_file():
        reduced = load(model.folder, device="cpu", threads=threads, precision="int8")
        reduced.regional(image)
        yield Work(INT8_REGIONAL, lambda: reduced.regional(image))
    if has_int8:
        integer_model = loaded(modelfile.DEFAULT, "int8")
        integer_model.extract(fresh())
        yield Work(END_TO_END_INT8, lambda: integer_model.extract(fresh()))
    yield Work(END_TO_END, lambda: model.extract(fresh()))
    yield Work(KORNIA, lambda: kornia(image.gray))
    yield Work(KORNIA_GIVEN, lambda: kornia_given(image.gray))
    yield Work(SIFT_CONTEXT, lambda: light.extract(fresh()))
    yield Work(SIFT, lambda: sift.detectAndCompute(image.gray, None))

    one = model.describe(image, keypoints)
    seen = second_view(image)
    two = model.describe(seen, repeated(detect(seen.gray, detector), len(keypoints)))
    first, second = one.descriptors, two.descriptors
    matches = match(one, two)
    yield Work(MATCHING, lambda: match(one, two))
    yield Work(MUTUAL, lambda: match_descriptors(first, second))
    yield Work(BFMATCHER, lambda: speed_rivals.opencv_mutual(first, second))
    yield Work(FAISS, lambda: speed_rivals.faiss_mutual(first, second))
    yield Work(VERIFICATION, lambda: verify(one, two, matches))


def second_view(image: Image) -> Image:
    """The image, turned by some degrees about its middle and made a little smaller."""
    width, height = image.size
    matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), _TURN, _SHRINK)
    turned = cv2.warpAffine(image.rgb, matrix, image.size, borderMode=cv2.BORDER_REFLECT)
    return Image(np.asarray(turned, np.uint8), image.size, image.name)


def memory(prepared: Sequence[Prepared], threads: int, quiet: bool) -> list[dict[str, Any]]:
    """Megabytes by workload; nothing where they cannot be measured."""
    if not MEASURABLE:
        return [{} for _ in prepared]
    found = []
    steps = len(prepared) * (1 + len(speed_memory.METHODS) + len(speed_memory.MATCHERS))
    with progress("memory", steps, quiet=quiet) as step:

        def measured(work: Callable[..., dict[str, float]], *args: object) -> dict[str, float]:
            numbers = in_new_process(work, *args)
            step()
            return numbers

        for one in prepared:
            given = (one.path, one.detector, threads)
            found.append(
                {
                    "stages": measured(speed_memory.stage_peaks, *given),
                    "methods": {
                        name: measured(speed_memory.method_peak, name, *given)
                        for name in speed_memory.METHODS
                    },
                    "matchers": {
                        name: measured(speed_memory.matcher_peak, name, one.workload.keypoints)
                        for name in speed_memory.MATCHERS
                    },
                }
            )
    return found
