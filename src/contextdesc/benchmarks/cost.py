"""What each stage of a model costs: time, operations and parameters (the paper's table of cost).

The stages of every method run in turn, round after round, so that whatever else the machine does meets all
of them alike. Times are CPU times: what the work takes of a core, however many others want it; wall-clock
times stand beside them. Ratios are taken within a round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from contextdesc.benchmarks.methods import Method
from contextdesc.benchmarks.model_stages import (
    LOCAL,
    MATCHABILITY,
    PATCHES,
    REGIONAL,
    ROOTSIFT,
    Stage,
    model_stages,
)
from contextdesc.benchmarks.protocol import Protocol, Request, Setting
from contextdesc.benchmarks.ratio_views import model_of
from contextdesc.benchmarks.report import Cell, Report, Table
from contextdesc.benchmarks.timing import (
    CONTRAST,
    Spread,
    Workload,
    cropped,
    limited_threads,
    load_average,
    machine,
    repeated,
    shown,
    timed,
)
from contextdesc.detection import Detector, detect
from contextdesc.engine import available_cores
from contextdesc.errors import InputError
from contextdesc.image import Image, find_images, read
from contextdesc.progress import progress

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
DESCRIPTION = (PATCHES, LOCAL, ROOTSIFT, MATCHABILITY, "descriptor")  # before context
WORKLOADS = (Workload((896, 896), 10_000), Workload((640, 480), 2048))  # the paper's, and a typical one
_GIGA = 1e9


def run(request: Request) -> Report:
    """Cost of every stage of every method on the workloads."""
    threads = int(request.setting("threads", PROTOCOL)) or available_cores()
    rounds = int(request.setting("repetitions", PROTOCOL))
    if rounds < 1:
        raise InputError(f"--set repetitions={rounds}: at least 1")
    photograph = read(next(iter(find_images([request.data]).values())))
    loads = [load_average()]
    with limited_threads(threads), progress("rounds", rounds * len(WORKLOADS), quiet=request.quiet) as step:
        found = {
            str(work): measure(request, cropped(photograph, work.size), work, threads, rounds, step)
            for work in WORKLOADS
        }
    loads.append(load_average())
    return report(request, found, {**machine(), "threads": threads, "load": loads}, rounds)


def measure(
    request: Request, image: Image, work: Workload, threads: int, rounds: int, advance: Callable[[], None]
) -> dict[str, Any]:
    """Numbers of a workload by method."""
    detector = Detector(work.keypoints, contrast=CONTRAST)
    detected = detect(image.gray, detector)
    if not len(detected):
        raise InputError(f"{image.name}: no keypoints; give a photograph with texture")
    keypoints = repeated(detected, work.keypoints)
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


def stages_of(
    method: Method, image: Image, keypoints: Keypoints, detector: Detector, threads: int
) -> list[Stage]:
    """The steps of a method, in order; what they read has been computed, which warms them up as well."""
    first = Stage("detect", lambda: detect(image.gray, detector))
    model = model_of(method.name)
    if model is None:
        method(image, keypoints, True)
        return [first, Stage("descriptor", lambda: method(image, keypoints, True))]
    return [first, *model_stages(*model, image, keypoints, threads)]


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
        description = _summed(rounds, DESCRIPTION)
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
        [method, *(shown(of["ratios"].get(name), ".3g") for name in titles)] for method, of in methods.items()
    ]
    return Table(f"Ratios of CPU time: {work}", ("method", *titles.values()), rows)


def stage_table(work: str, methods: Mapping[str, Any]) -> Table:
    rows: list[list[Cell]] = []
    for method, of in methods.items():
        for stage, numbers in [*of["stages"].items(), ("total", of["total"])]:
            rows.append([method, stage, shown(numbers["cpu_ms"], ",.0f")])
            rows[-1] += [f"{numbers['wall_ms']['median']:,.0f}", *network_cells(numbers)]
    head = ("method", "stage", "CPU, ms", "clock, ms", "GFLOPs", "parameters, M")
    return Table(work, head, rows)


def network_cells(numbers: Mapping[str, Any]) -> tuple[str, str]:
    """Operations and parameters of a stage; empty where it has no network."""
    if not numbers.get("flops"):
        return "", ""
    return f"{numbers['flops'] / _GIGA:.3g}", f"{numbers['parameters'] / 1e6:.2f}"
