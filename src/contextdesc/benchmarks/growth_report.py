"""What the benchmark of growth makes of its points: targets, lines with what departs from them, plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.benchmarks.report import Cell, Curves, Plot, Report, Table, Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_GB = 4.0  # peak of the largest picture with the most keypoints
LARGEST = (50e6, 50_000)  # pixels and keypoints that this is about
MOST_ADDED = 0.02  # of resident memory, that many images may add
BUSY = 0.9  # share of the cores
_MEGA, _GIGA = 1e6, 1024  # pixels in a megapixel, megabytes in a gigabyte


def report(numbers: Mapping[str, Any]) -> Report:
    """What was found, for people: targets first."""
    where, photograph = numbers["machine"], numbers["photograph"]
    load = where["load"][0][:1]
    fitted = {name: fits(numbers[name]["points"], key) for name, key in CURVES.items()}
    judged = targets(numbers)
    return Report(
        "growth",
        f"Time on the clock with {where['threads']} thread{'s' * (where['threads'] > 1)} and the peak of "
        "resident memory, all of the process, each point in a process of its own. Lines a + b x have the "
        f"least relative errors. {where['cpu']}, {where['cores']} cores; photograph {photograph['name']}, "
        f"{photograph['size'][0]} x {photograph['size'][1]}"
        + (f"; {load[0]:g} processes wanted a core when it began." if load else "."),
        {**numbers, "fits": fitted, "targets": judged},
        tables({**numbers, "fits": fitted, "targets": judged}),
        plots(numbers),
    )


# Parts of the numbers with points, and what grows in each
CURVES = {"describing": "keypoints", "matching": "keypoints", "extracting": "pixels"}


def fits(points: Sequence[Mapping[str, float]], key: str) -> dict[str, dict[str, float]]:
    """Of seconds and of the peak: a line a + b x by least squares of relative errors, the largest relative
    departure from it, and the power of x by which the last three points grow."""
    x = np.array([point[key] for point in points], np.float64)
    found = {}
    for what in ("seconds", "peak_mb"):
        y = np.array([point[what] for point in points])
        line, *_ = np.linalg.lstsq(np.column_stack([1 / y, x / y]), np.ones(len(y)), rcond=None)
        found[what] = {
            "constant": float(line[0]),
            "each": float(line[1]),
            "departure": float(np.abs((line[0] + line[1] * x) / y - 1).max()),
            "power": float(np.polyfit(np.log(x[-3:]), np.log(y[-3:]), 1)[0]),
        }
    return found


def targets(numbers: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """What is needed, what was measured, and whether that is enough, by target."""
    largest, images, busy = numbers["largest"], numbers["images"], numbers["busy"]
    growth = images["growth"]
    pixels = largest["pixels"]
    whole = pixels >= 0.99 * LARGEST[0] and largest["keypoints"] >= LARGEST[1]
    return {
        "peak of 50 MP with 50,000 keypoints, full resolution": {
            "needed": f"at most {MOST_GB:g} GB",
            "measured": f"{largest['peak_mb'] / _GIGA:.2f} GB at {pixels / _MEGA:.1f} MP with "
            f"{largest['keypoints']:,} keypoints",
            "met": _answer(largest["peak_mb"] / _GIGA <= MOST_GB) if whole else "not measured",
        },
        f"memory that {images['count']} images add in extract": {
            "needed": f"at most {100 * MOST_ADDED:g} % of what is resident",
            "measured": f"{growth['added_mb']:+.1f} MB ({growth['low_mb']:+.1f} to {growth['high_mb']:+.1f}) "
            f"to {growth['resident_mb']:.0f} MB",
            "met": _answer(growth["high_mb"] <= MOST_ADDED * growth["resident_mb"]),
        },
        "time of the cores that extract uses": {
            "needed": f"at least {100 * BUSY:g} %",
            "measured": f"{100 * busy['share']:.0f} % ({busy['count']} images, {busy['workload']})",
            "met": _answer(busy["share"] >= BUSY),
        },
    }


def _answer(met: bool) -> str:
    return "yes" if met else "no"


def target_table(numbers: Mapping[str, Any]) -> Table:
    rows = [[title, of["needed"], of["measured"], of["met"]] for title, of in numbers["targets"].items()]
    return Table("Targets", ("target", "needed", "measured", "met"), rows)


def tables(numbers: Mapping[str, Any]) -> list[Table]:
    """Targets, lines, points."""
    busy, largest = numbers["busy"], numbers["largest"]
    rates: list[list[Cell]] = [
        ["extract, images per second", f"{busy['per_second']:.2f}"],
        ["one by one in a loop, images per second", f"{busy['one_by_one_per_second']:.2f}"],
    ]
    size = numbers["describing"]["size"]
    titles = {
        "describing": f"Describing keypoints of a picture of {size[0]} x {size[1]}",
        "matching": "Mutual matching of as many descriptors with as many",
        "extracting": f"Files to features, at most {numbers['extracting']['keypoints']:,} keypoints; in the "
        f"last row at most {largest['asked']:,}",
    }
    made = [
        target_table(numbers),
        fit_table(numbers["fits"]),
        Table(f"Many images, {busy['workload']}", ("", ""), rates),
    ]
    for name, key in CURVES.items():
        points = [*numbers[name]["points"], *([largest] if name == "extracting" else [])]
        made.append(point_table(titles[name], points, key))
    return made


def fit_table(fitted: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Table:
    """A row per line: what it costs at once, what each thousand or million more costs."""
    rows: list[list[Cell]] = []
    for name, of in fitted.items():
        key = CURVES[name]
        many, unit = (1e3, "1000 keypoints") if key == "keypoints" else (_MEGA, "MP")
        for what, (label, how) in {"seconds": ("s", ".3g"), "peak_mb": ("MB", ".3g")}.items():
            line = of[what]
            rows.append([f"{name}, {'time' if what == 'seconds' else 'peak memory'}"])
            rows[-1] += [
                f"{line['constant']:{how}} {label} + {many * line['each']:{how}} {label} per {unit}",
                f"{100 * line['departure']:.0f} %",
                f"{line['power']:.2f}",
            ]
    head = ("", "line", "largest departure from it", "power of the last three points")
    return Table("Growth", head, rows)


def point_table(title: str, points: Sequence[Mapping[str, float]], key: str) -> Table:
    """A row per point."""
    parts = [name for name in ("read", "detect", "describe") if f"{name}_seconds" in points[0]]
    rows: list[list[Cell]] = []
    for point in points:
        first = [f"{point['pixels'] / _MEGA:.1f}"] if key == "pixels" else []
        rows.append([*first, f"{point['keypoints']:,.0f}", f"{point['seconds']:.3f}"])
        rows[-1] += [f"{point[f'{name}_seconds']:.3f}" for name in parts]
        rows[-1] += [f"{point['peak_mb']:,.0f}", f"{point['before_mb']:,.0f}"]
    head = [*(["megapixels"] if key == "pixels" else []), "keypoints", "seconds"]
    return Table(title, (*head, *(f"{name}, s" for name in parts), "peak, MB", "before, MB"), rows)


def plots(numbers: Mapping[str, Any]) -> list[Plot]:
    """Time and memory by keypoints and by pixels; memory over many images."""
    describing, matching = numbers["describing"]["points"], numbers["matching"]["points"]
    extracting, samples = numbers["extracting"]["points"], numbers["images"]["samples"]

    def line(points: Sequence[Mapping[str, float]], key: str, what: str) -> list[tuple[float, float]]:
        return [(point[key] / (_MEGA if key == "pixels" else 1), point[what]) for point in points]

    parts = {"in all": "seconds", **{name: f"{name}_seconds" for name in ("read", "detect", "describe")}}
    by_keypoints = {"describe": describing, "match with as many": matching}
    memory = {"resident": [(one["images"], one["resident_mb"]) for one in samples]}
    return [
        LogLog(
            "Time by number of keypoints", "growth-keypoints", "keypoints", "seconds",
            {name: line(points, "keypoints", "seconds") for name, points in by_keypoints.items()},
        ),
        LogLog(
            "Peak memory by number of keypoints", "growth-keypoints-memory", "keypoints", "MB",
            {name: line(points, "keypoints", "peak_mb") for name, points in by_keypoints.items()},
        ),
        LogLog(
            "Time by pixels", "growth-pixels", "megapixels", "seconds",
            {name: line(extracting, "pixels", what) for name, what in parts.items()},
        ),
        LogLog(
            "Peak memory by pixels", "growth-pixels-memory", "megapixels", "MB",
            {"extract": line(extracting, "pixels", "peak_mb")},
        ),
        Trace("Memory over many images", "growth-images", "images", "MB resident", memory),
    ]  # fmt: skip


@dataclass(frozen=True)
class LogLog(Curves):
    """Curves on logarithmic axes: what grows in proportion is as steep as the grid's diagonal."""

    def draw(self, axes: Axes, theme: Theme) -> None:
        super().draw(axes, theme)
        from matplotlib.ticker import LogLocator, NullFormatter

        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:,g}")
            axis.set_minor_formatter(NullFormatter())

    @property
    def alternative(self) -> str:
        return f"{self.y} by {self.x}: {', '.join(self.lines)}"


@dataclass(frozen=True)
class Trace(Curves):
    """Many samples without markers, from zero."""

    def draw(self, axes: Axes, theme: Theme) -> None:
        super().draw(axes, theme)
        for drawn in axes.lines:
            drawn.set_marker("")
        axes.set_ylim(0, 1.15 * max(y for points in self.lines.values() for _, y in points))

    @property
    def alternative(self) -> str:
        return f"{self.y} by number of {self.x}"
