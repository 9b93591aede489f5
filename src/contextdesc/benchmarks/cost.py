"""What each stage of a model costs: time, operations and parameters (the paper's table of cost).

The stages of every method run in turn, round after round, so that whatever else the machine does meets all
of them alike. Times are CPU times: what the work takes of a core, however many others want it; wall-clock
times stand beside them. Ratios are taken within a round.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import cv2
import numpy as np
import onnxruntime

from contextdesc import modelfile
from contextdesc.benchmarks.graph_cost import GraphCost, graph_cost
from contextdesc.benchmarks.methods import Method
from contextdesc.benchmarks.protocol import Protocol, Request, Setting
from contextdesc.benchmarks.ratio_views import model_of
from contextdesc.benchmarks.report import Cell, Report, Table
from contextdesc.detection import Detector, detect
from contextdesc.engine import Engine, available_cores
from contextdesc.errors import InputError
from contextdesc.image import Image, find_images, read
from contextdesc.model import Context, ContextDesc, load, regional_image
from contextdesc.patches import sample_patches
from contextdesc.progress import progress
from contextdesc.rootsift import rootsift

if TYPE_CHECKING:
    from contextdesc.keypoints import Keypoints

Times: TypeAlias = Mapping[str, tuple[float, float]]  # of a round: milliseconds of CPU and clock by stage

PROTOCOL = Protocol(
    layout="photographs; the first one is used, cropped and resized",
    source="any photograph of 896 x 896 pixels or more with rich texture",
    takes=("methods", "baseline"),
    settings=(
        Setting("repetitions", 5, "rounds that are timed"),
        Setting("threads", 1, "of networks and OpenCV; 0 for every core"),
    ),
)
CONTRAST = 0.0067  # of SIFT, for 10,000 keypoints
# Stages of the paper's table, which ours stand beside
BASE, REGIONAL, BOTH = ("local network", "RootSIFT", "descriptor"), "regional network", "both contexts"
_MS, _GIGA = 1e3, 1e9


@dataclass(frozen=True)
class Workload:
    """An image of a size (width, height) with so many keypoints."""

    size: tuple[int, int]
    keypoints: int

    def __str__(self) -> str:
        return f"{self.keypoints:,} keypoints, {self.size[0]} x {self.size[1]}"


WORKLOADS = (Workload((896, 896), 10_000), Workload((640, 480), 2048))  # the paper's, and a typical one


@dataclass(frozen=True, eq=False)
class Stage:
    """A step of a method.

    Attributes:
        run: does it once.
        cost: of its network, if it has one.
        summed: whether it is part of the total; a term alone is not, where both are computed.
    """

    name: str
    run: Callable[[], object]
    cost: GraphCost | None = None
    summed: bool = True


@dataclass(frozen=True)
class Spread:
    """Median, least and most of the rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(float(np.median(values)), float(min(values)), float(max(values)))


def run(request: Request) -> Report:
    """Cost of every stage of every method on the workloads."""
    threads = int(request.setting("threads", PROTOCOL)) or available_cores()
    rounds = int(request.setting("repetitions", PROTOCOL))
    if rounds < 1:
        raise InputError(f"--set repetitions={rounds}: at least 1")
    photograph = read(next(iter(find_images([request.data]).values())))
    loads = [_load()]
    with _opencv_threads(threads), progress("rounds", rounds * len(WORKLOADS), quiet=request.quiet) as step:
        found = {
            str(work): measure(request, cropped(photograph, work.size), work, threads, rounds, step)
            for work in WORKLOADS
        }
    loads.append(_load())
    return report(request, found, {**machine(), "threads": threads, "load": loads}, rounds)


def measure(
    request: Request, image: Image, work: Workload, threads: int, rounds: int, advance: Callable[[], None]
) -> dict[str, Any]:
    """Numbers of a workload by method."""
    detector = Detector(work.keypoints, contrast=CONTRAST)
    detected = detect(image.gray, detector)
    if not len(detected):
        raise InputError(f"{image.name}: no keypoints; give a photograph with texture")
    keypoints = detected[np.resize(np.arange(len(detected)), work.keypoints)]
    stages = {
        name: stages_of(method, image, keypoints, detector, threads)
        for name, method in request.methods.items()
    }
    times: dict[str, list[Times]] = {name: [] for name in stages}
    for _ in range(rounds):
        for name, steps in stages.items():
            times[name].append({stage.name: timed(stage.run) for stage in steps})
        advance()
    return {
        "keypoints": work.keypoints,
        "size": list(work.size),
        "detected": len(detected),
        "methods": summarise(stages, times, request.baseline or next(iter(stages))),
    }


def cropped(image: Image, size: tuple[int, int]) -> Image:
    """The middle of an image at a size (width, height), as large a part as has its shape."""
    width, height = image.size
    scale = max(size[0] / width, size[1] / height)
    part = (round(size[0] / scale), round(size[1] / scale))
    left, top = (width - part[0]) // 2, (height - part[1]) // 2
    middle = image.rgb[top : top + part[1], left : left + part[0]]
    how = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    return Image(np.asarray(cv2.resize(middle, size, interpolation=how), np.uint8), size, image.name)


def stages_of(
    method: Method, image: Image, keypoints: Keypoints, detector: Detector, threads: int
) -> list[Stage]:
    """The steps of a method, in order; what they read has been computed, which warms them up as well."""
    first = Stage("detect", lambda: detect(image.gray, detector))
    model = model_of(method.name)
    if model is None:
        method(image, keypoints, True)
        return [first, Stage("descriptor", lambda: method(image, keypoints, True))]
    return [first, *_model_stages(*model, image, keypoints, threads)]


def _model_stages(
    folder: Path, context: Context, image: Image, keypoints: Keypoints, threads: int
) -> Iterator[Stage]:
    def loaded(terms: Context) -> ContextDesc:
        return load(folder, context=terms, device="cpu", threads=threads)

    def network(name: str, **inputs: Sequence[int]) -> GraphCost:
        return graph_cost(folder / name, **inputs)

    model, count = loaded(context), len(keypoints)
    spec = model.spec
    raw, score = model.raw(image, keypoints)
    if spec.base == "local":
        patches = sample_patches(image.gray, keypoints, spec.support)
        local = Engine(folder / modelfile.LOCAL, "cpu", threads)
        yield Stage("patches", lambda: sample_patches(image.gray, keypoints, spec.support))
        yield Stage(
            "local network",
            lambda: local.run_batched(patches=patches),
            network(modelfile.LOCAL, patches=patches.shape),
        )
    else:
        yield Stage("RootSIFT", lambda: rootsift(image.gray, keypoints))
        if modelfile.MATCHABILITY in spec.files:
            scorer = Engine(folder / modelfile.MATCHABILITY, "cpu", threads)
            yield Stage(
                "matchability",
                lambda: scorer.run_batched(raw=raw),
                network(modelfile.MATCHABILITY, raw=raw.shape),
            )
    grid = None
    if "visual" in model.terms:
        grid = model.regional(image)
        pixels = regional_image(image, spec.regional_max_side)
        yield Stage(REGIONAL, lambda: model.regional(image), network(modelfile.REGIONAL, image=pixels.shape))
    files = {"geometric": modelfile.GEOMETRIC, "visual": modelfile.VISUAL}
    shapes = {"xy": (count, 2), "raw": (count, spec.raw_size), "score": (count,)}
    shapes |= {} if grid is None else {"grid": grid.shape}
    costs = {term: network(file, **shapes) for term, file in files.items() if term in model.terms}

    def augmented(terms: Context) -> Callable[[], object]:
        augment = loaded(terms).augment
        work = partial(augment, raw, keypoints, image.size, regional=grid, matchability=score)
        work()
        return work

    for term, cost in costs.items():
        yield Stage(f"{term} context", augmented(term), cost, summed=len(costs) == 1)  # type: ignore[arg-type]
    if len(costs) > 1:
        both = GraphCost(*(sum(getattr(c, n) for c in costs.values()) for n in ("flops", "parameters")))
        yield Stage(BOTH, augmented("both"), both)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds that it takes: of the CPU, and on the clock."""
    begun = time.process_time(), time.perf_counter()
    work()
    return _MS * (time.process_time() - begun[0]), _MS * (time.perf_counter() - begun[1])


def summarise(
    stages: Mapping[str, Sequence[Stage]],
    times: Mapping[str, Sequence[Times]],
    baseline: str,
) -> dict[str, Any]:
    """By method: its stages, their sum, and ratios, each with its spread over the rounds."""
    totals = {
        method: [_summed(times[method], [s.name for s in steps if s.summed], kind) for kind in (0, 1)]
        for method, steps in stages.items()
    }
    found: dict[str, Any] = {}
    for method, steps in stages.items():
        rounds = times[method]
        ratios = {"total over baseline": np.divide(totals[method][0], totals[baseline][0]).tolist()}
        description = _summed(rounds, ("patches", "matchability", *BASE))
        if len(context := [s.name for s in steps if s.summed and "context" in s.name]):
            ratios["context over description"] = np.divide(_summed(rounds, context), description).tolist()
            more = _summed(rounds, (REGIONAL, *context))
            ratios["with regional network"] = np.divide(more, description).tolist()
        found[method] = {
            "ratios": {name: asdict(Spread.of(values)) for name, values in ratios.items()},
            "stages": {
                stage.name: {
                    "cpu_ms": asdict(Spread.of([one[stage.name][0] for one in rounds])),
                    "wall_ms": asdict(Spread.of([one[stage.name][1] for one in rounds])),
                    **({} if stage.cost is None else asdict(stage.cost)),
                }
                for stage in steps
            },
            "total": {
                "cpu_ms": asdict(Spread.of(totals[method][0])),
                "wall_ms": asdict(Spread.of(totals[method][1])),
                "flops": sum(s.cost.flops for s in steps if s.summed and s.cost is not None),
                "parameters": sum(s.cost.parameters for s in steps if s.summed and s.cost is not None),
            },
        }
    return found


def _summed(rounds: Sequence[Times], stages: Sequence[str], kind: int = 0) -> list[float]:
    """Time of some stages together by round: 0 for that of the CPU, 1 for the clock's."""
    return [sum(one[name][kind] for name in stages if name in one) for one in rounds]


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


def _load() -> tuple[float, ...]:
    """Processes that want a core, mean of the last 1, 5 and 15 minutes; empty where that is not known."""
    return tuple(round(value, 1) for value in os.getloadavg()) if hasattr(os, "getloadavg") else ()


@contextmanager
def _opencv_threads(threads: int) -> Iterator[None]:
    before = cv2.getNumThreads()
    cv2.setNumThreads(threads)
    try:
        yield
    finally:
        cv2.setNumThreads(before)


def report(request: Request, found: Mapping[str, Any], where: Mapping[str, Any], rounds: int) -> Report:
    """What `run` found, for people."""
    baseline = request.baseline or next(iter(request.methods))
    tables = []
    for work, numbers in found.items():
        tables += [ratio_table(work, numbers["methods"], baseline), stage_table(work, numbers["methods"])]
    load = where["load"][0][:1]
    return Report(
        "cost",
        f"CPU time in milliseconds with {where['threads']} thread{'s' * (where['threads'] > 1)}, median "
        f"(least to most) of {rounds} rounds in which all stages of all methods take turns; ratios are of "
        "the same round. Operations are two per multiplication and addition in convolutions and matrix "
        "products. The total has both context terms, not each alone, and no reading of the file. Where SIFT "
        f"finds fewer keypoints than asked for, they are repeated. {where['cpu']}, {where['cores']} cores, "
        f"ONNX Runtime {where['onnxruntime']}, OpenCV {where['opencv']}"
        + (f"; {load[0]:g} processes wanted a core when it began." if load else "."),
        {"machine": dict(where), "rounds": rounds, "baseline": baseline, "workloads": dict(found)},
        tables,
    )


def ratio_table(work: str, methods: Mapping[str, Any], baseline: str) -> Table:
    titles = {
        "total over baseline": f"total over {baseline}",
        "context over description": "context terms over description",
        "with regional network": "with the regional network",
    }
    rows: list[list[Cell]] = [
        [method, *(_spread(of["ratios"].get(name), ".3g") for name in titles)]
        for method, of in methods.items()
    ]
    return Table(f"Ratios of CPU time: {work}", ("method", *titles.values()), rows)


def stage_table(work: str, methods: Mapping[str, Any]) -> Table:
    rows: list[list[Cell]] = []
    for method, of in methods.items():
        for stage, numbers in [*of["stages"].items(), ("total", of["total"])]:
            rows.append([method, stage, _spread(numbers["cpu_ms"], ",.0f")])
            rows[-1] += [f"{numbers['wall_ms']['median']:,.0f}", *network_cells(numbers)]
    head = ("method", "stage", "CPU, ms", "clock, ms", "GFLOPs", "parameters, M")
    return Table(work, head, rows)


def network_cells(numbers: Mapping[str, Any]) -> tuple[str, str]:
    """Operations and parameters of a stage; empty where it has no network."""
    if not numbers.get("flops"):
        return "", ""
    return f"{numbers['flops'] / _GIGA:.3g}", f"{numbers['parameters'] / 1e6:.2f}"


def _spread(numbers: Mapping[str, float] | None, how: str) -> str:
    if numbers is None:
        return ""
    middle, least, most = (format(numbers[name], how) for name in ("median", "least", "most"))
    return middle if least == most else f"{middle} ({least} to {most})"
