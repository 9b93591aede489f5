"""What the benchmark of speed makes of its times: ratios, which targets they meet, tables and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.benchmarks.graph_cost import GraphCost
from contextdesc.benchmarks.model_stages import BOTH, GEOMETRIC, LOCAL, PATCHES, REGIONAL, VISUAL
from contextdesc.benchmarks.report import Cell, Plot, Report, Table, Theme, look
from contextdesc.benchmarks.speed_rivals import COPIED
from contextdesc.benchmarks.speed_rivals import PRODUCT as PRODUCT_FLOPS
from contextdesc.benchmarks.targets import Target, target_table
from contextdesc.benchmarks.timing import MS, Spread, Workload, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# What is timed, besides the stages of a model
READ, DETECT, MATCHING, VERIFICATION = "read", "detect", "matching", "verification"
END_TO_END, SIFT_CONTEXT = "contextdesc, end to end", "sift-context, end to end"
END_TO_END_INT8 = "contextdesc in int8, end to end"
INT8, INT8_REGIONAL, MUTUAL = "local network, int8", "regional network, int8", "mutual matching"
PRODUCT, COPY = "matrix product, ", "copy in memory"
EAGER, EAGER_LAST = "eager PyTorch, local network", "eager PyTorch, channels last"
KORNIA, KORNIA_GIVEN = "kornia, end to end", "kornia on OpenCV's keypoints, end to end"
SIFT_DETECT, SIFT = "OpenCV SIFT, detect", "OpenCV SIFT, detect and compute"
BFMATCHER, FAISS = "OpenCV BFMatcher, cross-check", "faiss, exact, both directions"

STAGES = (
    READ, DETECT, PATCHES, LOCAL, REGIONAL, GEOMETRIC, VISUAL, BOTH, MATCHING, VERIFICATION,
)  # fmt: skip
PIPELINE = (READ, DETECT, PATCHES, LOCAL, REGIONAL, BOTH)  # of one image, in order
NETWORKS = (LOCAL, REGIONAL, GEOMETRIC, VISUAL)

# Ratios of two pieces of work of a round: name -> (numerator, denominator), both times
RATIOS = {
    "eager PyTorch / local network": (EAGER, LOCAL),
    "eager PyTorch, channels last / local network": (EAGER_LAST, LOCAL),
    "kornia / contextdesc, end to end": (KORNIA, END_TO_END),
    "kornia / contextdesc in int8, end to end": (KORNIA, END_TO_END_INT8),
    "kornia on OpenCV's keypoints / contextdesc, end to end": (KORNIA_GIVEN, END_TO_END),
    "kornia on OpenCV's keypoints / contextdesc in int8, end to end": (KORNIA_GIVEN, END_TO_END_INT8),
    "patches / local network": (PATCHES, LOCAL),
    "both contexts / local network": (BOTH, LOCAL),
    "detect / OpenCV SIFT, detect": (DETECT, SIFT_DETECT),
    "OpenCV BFMatcher / mutual matching": (BFMATCHER, MUTUAL),
    "faiss / mutual matching": (FAISS, MUTUAL),
    "local network: fp32 / int8": (LOCAL, INT8),
    "regional network: fp32 / int8": (REGIONAL, INT8_REGIONAL),
    "sift-context / OpenCV SIFT, detect and compute": (SIFT_CONTEXT, SIFT),
}
GEMM_SHARE = "local network: share of the GEMM peak"

NOISE = 0.05  # by which two runs of the same work differ
TYPICAL, MATCHED = Workload((640, 480), 2048), Workload((4000, 3000), 8000)
TARGETS = (
    Target(GEMM_SHARE, GEMM_SHARE, 0.75, at_least=True),
    *(
        Target(name, name, bound, at_least, at)
        for name, bound, at_least, at in (
            ("eager PyTorch / local network", 2.5, True, None),
            ("kornia / contextdesc, end to end", 3, True, None),
            ("kornia / contextdesc in int8, end to end", 3, True, None),
            ("patches / local network", 0.08, False, None),
            ("both contexts / local network", 0.05, False, None),
            ("detect / OpenCV SIFT, detect", 1 + NOISE, False, None),
            ("OpenCV BFMatcher / mutual matching", 3, True, MATCHED),
            ("local network: fp32 / int8", 1.4, True, None),
            ("sift-context / OpenCV SIFT, detect and compute", 2, False, TYPICAL),
        )
    ),
)
BESIDE = tuple(name for name in (GEMM_SHARE, *RATIOS) if name not in {t.ratio for t in TARGETS})
_GIGA = 1e9


def workload_numbers(
    costs: Mapping[str, GraphCost | None], rounds: Sequence[Mapping[str, float]]
) -> dict[str, Any]:
    """Ratios, limits and times of a workload.

    Args:
        costs: of everything that was timed, None where it has no network.
        rounds: of each round the milliseconds by name.
    """
    products = [name for name in costs if name.startswith(PRODUCT)]
    peaks = [PRODUCT_FLOPS / min(one[name] for name in products) * MS / _GIGA for one in rounds]
    ratios = {
        name: [one[over] / one[under] for one in rounds]
        for name, (over, under) in RATIOS.items()
        if {over, under} <= costs.keys()
    }
    local = costs[LOCAL]
    assert local is not None
    rates = [local.flops / one[LOCAL] * MS / _GIGA for one in rounds]
    ratios = {GEMM_SHARE: np.divide(rates, peaks).tolist(), **ratios}
    return {
        "ratios": {name: asdict(Spread.of(values)) for name, values in ratios.items()},
        "gemm_gflops": asdict(Spread.of(peaks)),
        "copy_gb_per_s": asdict(Spread.of([2 * 4 * COPIED / one[COPY] * MS / _GIGA for one in rounds])),
        "times": {
            name: {
                "ms": asdict(Spread.of([one[name] for one in rounds])),
                **({} if cost is None else asdict(cost)),
            }
            for name, cost in costs.items()
        },
    }


def report(numbers: Mapping[str, Any]) -> Report:
    """What was found, for people: ratios first."""
    found, where = numbers["workloads"], numbers["machine"]
    decided = {
        target.title: {"needed": target.needed, "met": target.met(_ratios(found))} for target in TARGETS
    }
    photograph = numbers["photograph"]
    load = where["load"][0][:1]
    return Report(
        "speed",
        f"Time on the clock with {where['threads']} thread{'s' * (where['threads'] > 1)}, median (least to "
        f"most) of {numbers['rounds']} rounds in which everything takes turns; ratios are of the same round. "
        "End to end is from pixels to descriptors. The GEMM peak is the fastest product of two matrices of "
        "2048 x 2048 numbers by NumPy, ONNX Runtime or PyTorch. Networks of PyTorch and kornia have random "
        f"weights: speed only. {where['cpu']}, {where['cores']} cores; photograph {photograph['name']}, "
        f"{photograph['size'][0]} x {photograph['size'][1]}"
        + (f"; {load[0]:g} processes wanted a core when it began." if load else "."),
        {**numbers, "targets": decided},
        tables(found),
        plots(found),
    )


def tables(found: Mapping[str, Any]) -> list[Table]:
    """Targets, other ratios, stages, rivals, memory."""
    ratios = _ratios(found)
    others: list[list[Cell]] = [
        [name, *(shown(of.get(name), ".3g") for of in ratios.values())]
        for name in BESIDE
        if any(name in of for of in ratios.values())
    ]
    rivals = [name for of in found.values() for name in of["times"] if name not in (*STAGES, INT8)]
    rows: list[list[Cell]] = [
        [name, *_times(found, name)] for name in (*STAGES, INT8, *dict.fromkeys(rivals))
    ]
    rows = [row for row in rows if any(row[1:])]
    rates: list[list[Cell]] = [
        ["GEMM peak, GFLOP/s", *(shown(of["gemm_gflops"], ".0f") for of in found.values())],
        ["copy in memory, GB/s", *(shown(of["copy_gb_per_s"], ".3g") for of in found.values())],
    ]
    rates += [[f"{name}, GFLOP/s", *(f"{rate(of, name):.0f}" for of in found.values())] for name in NETWORKS]
    made = [
        target_table("Targets: ratios of times", TARGETS, ratios),
        Table("Other ratios", ("ratio", *found), others),
        Table("Milliseconds", ("stage", *found), rows),
        Table("Rates", ("", *found), rates),
    ]
    if all(of["memory"] for of in found.values()):
        made += memory_tables(found)
    return made


def memory_tables(found: Mapping[str, Any]) -> list[Table]:
    """Peaks of methods and matchers, and of our stages."""
    kinds = ("methods", "matchers")
    names = {name: kind for of in found.values() for kind in kinds for name in of["memory"][kind]}
    rows: list[list[Cell]] = [
        [name, *(_peak(of["memory"][kind][name]) for of in found.values())] for name, kind in names.items()
    ]
    stages = next(iter(found.values()))["memory"]["stages"]
    parts: list[list[Cell]] = [
        [name, *(f"{of['memory']['stages'][name]:,.0f}" for of in found.values())] for name in stages
    ]
    return [
        Table(
            "Peak memory of a process, MB (before the work)", ("file to descriptors; matching", *found), rows
        ),
        Table("Peak memory during each stage of contextdesc, MB", ("stage", *found), parts),
    ]


def plots(found: Mapping[str, Any]) -> list[Plot]:
    """Shares of stages, ratios to others, and the roofline."""
    shares = {
        work: {name: of["times"][name]["ms"]["median"] for name in PIPELINE} for work, of in found.items()
    }
    faster = {
        "eager\nPyTorch": "eager PyTorch / local network",
        "eager PyTorch,\nchannels last": "eager PyTorch, channels last / local network",
        "kornia,\nend to end": "kornia / contextdesc, end to end",
        "OpenCV\nBFMatcher": "OpenCV BFMatcher / mutual matching",
        "faiss": "faiss / mutual matching",
    }
    beside = {
        work: {title: of["ratios"][name] for title, name in faster.items()} for work, of in found.items()
    }
    largest = max(found.values(), key=lambda of: int(of["keypoints"]))
    points = {
        name: (largest["times"][name]["flops"] / largest["times"][name]["bytes"], rate(largest, name))
        for name in NETWORKS
    }
    roof = largest["gemm_gflops"]["median"], largest["copy_gb_per_s"]["median"]
    return [
        Shares("Where the time of an image goes", "speed-stages", "share of the time, %", "", shares),
        Beside("Times of others over ours", "speed-rivals", "", "times as long as ours", beside),
        Roofline(
            "Operations per byte and per second", "speed-roofline", "operations per byte that has to move",
            "GFLOP/s", points, *roof,
        ),
    ]  # fmt: skip


def rate(of: Mapping[str, Any], name: str) -> float:
    """GFLOP/s of a network of a workload, by its median time."""
    network = of["times"][name]
    return float(network["flops"] / network["ms"]["median"] * MS / _GIGA)


def _ratios(found: Mapping[str, Any]) -> dict[str, Any]:
    return {work: of["ratios"] for work, of in found.items()}


def _times(found: Mapping[str, Any], name: str) -> list[str]:
    times = [of["times"].get(name, {}).get("ms") for of in found.values()]
    return ["" if ms is None else shown(ms, ",.0f" if ms["least"] >= 10 else ".2f") for ms in times]


def _peak(numbers: Mapping[str, float]) -> str:
    return f"{numbers['peak_mb']:,.0f} ({numbers['before_mb']:,.0f})"


@dataclass(frozen=True)
class Shares(Plot):
    """A bar per workload, cut into its stages; milliseconds of all of them at its end."""

    parts: Mapping[str, Mapping[str, float]]  # workload -> stage -> milliseconds

    def draw(self, axes: Axes, theme: Theme) -> None:
        works = list(self.parts)
        totals = np.array([sum(of.values()) for of in self.parts.values()])
        left = np.zeros(len(works))
        for index, stage in enumerate(next(iter(self.parts.values()))):
            width = 100 * np.array([of[stage] for of in self.parts.values()]) / totals
            axes.barh(works, width, 0.6, left, color=look(index, theme)["color"], label=stage)
            left = left + width
        ink = axes.xaxis.label.get_color()
        for row, total in enumerate(totals):
            axes.text(101, row, f"{total:,.0f} ms", va="center", color=ink, fontsize=9)
        axes.set_xlim(0, 115)
        axes.set_xticks(range(0, 101, 20))
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")

    @property
    def alternative(self) -> str:
        return f"{self.x}: a bar per workload, cut into {', '.join(next(iter(self.parts.values())))}"


@dataclass(frozen=True)
class Beside(Plot):
    """Ratios with their spread: groups along the x axis, in each a bar per workload; a line at 1."""

    ratios: Mapping[str, Mapping[str, Mapping[str, float]]]  # workload -> group -> spread

    def draw(self, axes: Axes, theme: Theme) -> None:
        groups = list(next(iter(self.ratios.values())))
        width = 0.8 / len(self.ratios)
        ink = axes.xaxis.label.get_color()
        for index, (work, of) in enumerate(self.ratios.items()):
            places = np.arange(len(groups)) + width * (index + 0.5) - 0.4
            medians = np.array([of[group]["median"] for group in groups])
            reach = [
                medians - [of[group]["least"] for group in groups],
                [of[group]["most"] for group in groups] - medians,
            ]
            axes.bar(
                places, medians, 0.9 * width, yerr=reach, label=work, color=look(index, theme)["color"],
                error_kw={"ecolor": ink, "elinewidth": 0.8},
            )  # fmt: skip
        axes.axhline(1, color=ink, linewidth=0.8)
        axes.set_xticks(range(len(groups)), groups)
        axes.grid(visible=False, axis="x")

    @property
    def alternative(self) -> str:
        groups = ", ".join(group.replace("\n", " ") for group in next(iter(self.ratios.values())))
        return f"{self.y}: {groups}, a bar per workload"


@dataclass(frozen=True)
class Roofline(Plot):
    """Networks below the two limits: bandwidth times operations per byte, and the GEMM peak."""

    points: Mapping[str, tuple[float, float]]
    peak: float  # GFLOP/s
    bandwidth: float  # GB/s

    def draw(self, axes: Axes, theme: Theme) -> None:
        from matplotlib.ticker import LogLocator, NullFormatter

        intensities, ridge = [x for x, _ in self.points.values()], self.peak / self.bandwidth
        x = np.array([min(1, *intensities) / 2, ridge, 2 * max(*intensities, ridge)])
        roof = np.minimum(self.peak, self.bandwidth * x)
        ink = axes.xaxis.label.get_color()
        label = f"limit: {self.bandwidth:.0f} GB/s, then {self.peak:.0f} GFLOP/s"
        axes.loglog(x, roof, color=ink, linewidth=1.2, label=label)
        for index, (name, point) in enumerate(self.points.items()):
            axes.plot(*point, label=name, linestyle="", **{**look(index, theme), "markersize": 8})
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())

    @property
    def alternative(self) -> str:
        return f"{self.y} by {self.x} of {', '.join(self.points)}, below the machine's limits"
