"""Write docs/benchmarks.md and its plots from the numbers in docs/results.

`python scripts/benchmarks_page.py` fills `benchmarks_page.md`, which has the words. A section whose numbers
are not there is left out and named on standard error. The paper's numbers are those of its tables.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from contextdesc.benchmarks import ablation, cost, heinly, hsequences, ratio, sfm
from contextdesc.benchmarks.protocol import Request
from contextdesc.benchmarks.report import Cell, Curves, Intervals, Plot, Table, write_page
from contextdesc.benchmarks.statistics import Difference, Mean
from contextdesc.modelfile import packaged_models, read_spec, resolve

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "docs" / "results", ROOT / "docs" / "benchmarks.md"
TEMPLATE = Path(__file__).with_suffix(".md")
SECTION = re.compile(r"<!-- section ?(\S*) -->\n\n")

# Heinly's benchmark: recall of SIFT, GeoDesc and ContextDesc+
PAPER_HEINLY = {
    "JPEG": (60.7, 66.1, 78.6), "blur": (41.0, 47.7, 57.8), "exposure": (78.2, 86.4, 88.2),
    "scale and rotation": (29.6, 33.7, 38.0), "planar": (48.2, 59.1, 61.7),
}  # fmt: skip
# Recall on HPatches sequences: illumination, viewpoint
PAPER_SEQUENCES = {
    "SIFT": (47.36, 53.06), "L2-Net": (47.58, 53.96), "HardNet": (57.63, 63.36), "GeoDesc": (59.46, 71.24),
    "ContextDesc": (66.55, 75.52), "ContextDesc+": (67.14, 76.42), "ContextDesc++": (67.53, 77.20),
}  # fmt: skip
# HPatches: mAP of verification, matching, retrieval
PAPER_PATCHES = {
    "SIFT": (65.0, 25.4, 41.8), "L2-Net": (85.5, 44.5, 64.2), "HardNet": (88.4, 52.8, 69.8),
    "GeoDesc": (91.1, 59.1, 74.9), "ContextDesc+ without context": (90.2, 59.2, 76.0),
}  # fmt: skip
# Fountain: points, observations
PAPER_FOUNTAIN = {"SIFT": ("10,004", "44K"), "GeoDesc": ("16,687", "83K"), "ContextDesc+": ("16,965", "84K")}
# Milliseconds on a GPU, GFLOPs, millions of parameters
PAPER_COST = {
    "local network": ("351", "802.9", "2.4"), "regional network": ("49", "123.4", "24.5"),
    "geometric context": ("5", "1.7", "<0.1"), "visual context": ("14", "13.9", "3.1"),
    "both contexts": ("18", "15.7", "3.2"),
}  # fmt: skip
# Recall of ContextDesc+ by domain size: illumination, viewpoint
PAPER_DOMAIN = {
    "0.5": (61.59, 69.79), "2": (62.84, 71.86), "1": (67.14, 76.42), "1+0.5": (67.31, 76.16),
    "1+2": (67.74, 77.51),
}  # fmt: skip

Numbers = Mapping[str, Mapping[str, Any]]  # of files, by name


@dataclass(frozen=True)
class Filling:
    """What goes into a section of the template: text by name, and plots."""

    text: Mapping[str, str]
    plots: Sequence[Plot] = field(default_factory=tuple)


def main() -> None:
    text, plots, missing = build(RESULTS)
    for name in missing:
        print(f"left out: no docs/results/{name}.json", file=sys.stderr)
    write_page(PAGE, text, plots)


def build(results: Path) -> tuple[str, list[Plot], list[str]]:
    """The page, its plots, and the files whose sections are left out."""
    head, *rest = SECTION.split(TEMPLATE.read_text(encoding="utf-8"))
    parts, missing = [head], []
    plots: list[Plot] = []
    for files, template in zip(rest[::2], rest[1::2], strict=True):
        if not files:
            parts.append(template)
            continue
        found = {path.stem: _read(path) for path in sorted(results.glob(f"{files}.json"))}
        if not found:
            missing.append(files)
            continue
        filling = SECTIONS[files](found)
        pictures = "\n\n".join(plot.markdown for plot in filling.plots)
        values = {"source": _source(found), "plots": pictures, **filling.text}
        parts.append(re.sub(r"{{(\w+)}}", lambda match, values=values: values[match[1]], template))
        plots += filling.plots
    return re.sub(r"\n{3,}", "\n\n", "".join(parts)), plots, missing


def _read(path: Path) -> dict[str, Any]:
    numbers: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return numbers


def _source(found: Numbers) -> str:
    """The commands that made the numbers, where they are, and whether they are of earlier weights."""
    commands = [
        numbers.get("origin", {}).get("command", f"contextdesc benchmark {name.partition('-')[0]} --data DIR")
        for name, numbers in found.items()
    ]
    lines = "\n".join(dict.fromkeys(commands))
    files = ", ".join(f"[{name}.json](results/{name}.json)" for name in found)
    earlier = "".join(
        f" {name}.json is of earlier weights of {', '.join(models)}."
        for name, numbers in found.items()
        if (models := _changed_since(numbers))
    )
    return f"```sh\n{lines}\n```\n\nNumbers: {files}.{earlier}"


def _changed_since(numbers: Mapping[str, Any]) -> list[str]:
    """Packaged models that were measured with other weights than they have."""
    measured = numbers.get("origin", {}).get("methods", {}).values()  # such as "contextdesc (CHECKSUM, ..."
    changed = []
    for name in packaged_models():
        now = f"{name} ({read_spec(resolve(name))[1]},"
        if any(text.startswith(f"{name} (") and not text.startswith(now) for text in measured):
            changed.append(name)
    return changed


def _titled(tables: Sequence[Table]) -> str:
    return "\n\n".join(f"**{table.title}**\n\n{table.markdown}" for table in tables)


def oxford(found: Numbers) -> Filling:
    recall: dict[str, dict[str, float]] = {}
    intervals: dict[str, Any] = {}
    gains: dict[str, Any] = {}
    baseline = ""
    for numbers in found.values():
        recall |= numbers["recall"]
        intervals |= numbers.get("intervals", {})
        gains |= numbers.get("difference", {})
        baseline = numbers.get("baseline", baseline)
    methods = _ordered(recall)
    scenes = list(recall[methods[0]])
    plain = [m for m in methods if ":" not in m]
    rows: list[list[Cell]] = []
    for kind, paper in PAPER_HEINLY.items():
        of = [scene for scene, its in heinly.OXFORD_SCENES.items() if its == kind]
        ours = {m: float(np.mean([recall[m][scene] for scene in of])) for m in plain}
        rows.append([f"{kind} ({', '.join(of)})", *paper, *ours.values()])
        rows[-1] += [f"{paper[2] / paper[0]:.2f}", f"{ours['contextdesc'] / ours['sift']:.2f}"]
    head = ("recall", "paper: SIFT", "GeoDesc", "ContextDesc+", *(f"here: {m}" for m in plain))
    plots = []
    if all(m in intervals for m in plain):
        groups = {s: {m: Mean(**intervals[m][s]) for m in plain} for s in scenes}
        plots.append(Intervals("Recall by Oxford scene", "benchmarks-oxford", "", "recall, %", groups))
    columns = ("recall", *scenes, f"mean less {baseline}'s") if gains else ("recall", *scenes)
    table: list[list[Cell]] = [[m, *(recall[m][s] for s in scenes)] for m in methods]
    for m, row in zip(methods, table, strict=True):
        if m in intervals:
            row[-1] = Mean(**intervals[m][heinly.MEAN])
        if gains:
            row.append(Difference(**gains[m][heinly.MEAN]) if m in gains else None)
    return Filling(
        {
            "table": Table("", columns, table).markdown,
            "paper": Table(
                "", (*head, "paper: ContextDesc+ / SIFT", "here: contextdesc / sift"), rows
            ).markdown,
        },
        plots,
    )


def _ordered(methods: Mapping[str, Any]) -> list[str]:
    """SIFT, RootSIFT, then the models, each with few terms first."""
    first = [m for m in ("sift", "rootsift") if m in methods]
    rest = [m for m in methods if m not in first]
    names = sorted({m.partition(":")[0] for m in rest}, reverse=True)
    return first + [m for name in names for m in rest if m.partition(":")[0] == name]


def sequences(found: Numbers) -> Filling:
    (numbers,) = found.values()
    made = hsequences.report(Request(Path(), {}), numbers, {})
    mma = next(plot for plot in made.curves if isinstance(plot, Curves))
    lines = {method: points for method, points in mma.lines.items() if ":" not in method}
    rows = [(method, f"{i:.2f}", f"{v:.2f}") for method, (i, v) in PAPER_SEQUENCES.items()]
    return Filling(
        {
            "table": made.tables[0].markdown,
            "paper": Table("", ("paper", "illumination", "viewpoint"), rows).markdown,
        },
        [Curves(mma.title, "benchmarks-mma", mma.x, mma.y, lines)],
    )


def patches(found: Numbers) -> Filling:
    (numbers,) = found.values()
    tasks = list(next(iter(numbers["mAP"].values())))
    rows = [[method, *(Mean(**of[task]["all"]) for task in tasks)] for method, of in numbers["mAP"].items()]
    paper = [(method, *values) for method, values in PAPER_PATCHES.items()]
    return Filling(
        {
            "table": Table("", ("mAP", *tasks), rows).markdown,
            "paper": Table("", ("published: mAP", *tasks), paper).markdown,
        }
    )


def pose(found: Numbers) -> Filling:
    (numbers,) = found.values()
    kinds = {"nearest": "no ratio test", "ratio": "ratio test"}
    titles = list(next(iter(numbers["summary"].values()))["ratio"])
    rows: list[list[Cell]] = [
        [method, kinds[kind], *(Mean(**of[kind][title]) for title in titles)]
        for kind in kinds
        for method, of in numbers["summary"].items()
    ]
    lines = {}
    for method in numbers["summary"]:
        errors = [np.inf if e is None else e for e in numbers["scores"][method]["ratio"]["error"]]
        degrees = 2 ** np.arange(-4, 5.01, 0.5)
        lines[method] = [(float(d), 100 * float(np.mean(np.array(errors) <= d))) for d in degrees]
    detector = numbers["detector"]
    keypoints = f"the {detector['max_keypoints']} strongest SIFT keypoints at contrast {detector['contrast']}"
    plot = Curves(
        "Pairs by pose error, with the ratio test", "benchmarks-pose", "pose error, degrees", "pairs, %",
        lines, log_x=True,
    )  # fmt: skip
    return Filling(
        {"keypoints": keypoints, "table": Table("", ("method", "matches", *titles), rows).markdown}, [plot]
    )


def reconstructions(found: Numbers) -> Filling:
    (numbers,) = found.values()
    paper = [(method, "11/11", points, seen) for method, (points, seen) in PAPER_FOUNTAIN.items()]
    return Filling(
        {
            "table": sfm.table(numbers["scenes"]).markdown,
            "paper": Table("", ("paper", "images", "points", "observations"), paper).markdown,
        }
    )


def costs(found: Numbers) -> Filling:
    (numbers,) = found.values()
    machine, tables = numbers["machine"], []
    for work, of in numbers["workloads"].items():
        table = cost.stage_table(work, of["methods"])
        kept = [i for i, title in enumerate(table.columns) if title != "clock, ms"]
        head = tuple(table.columns[i] for i in kept)
        rows: list[list[Cell]] = [[row[i] for i in kept] for row in table.rows]
        if of["keypoints"] == 10_000:
            head += ("paper: GPU, ms", "paper: GFLOPs", "paper: parameters, M")
            for row in rows:
                row += PAPER_COST.get(str(row[1]), ("",) * 3) if row[0] == "contextdesc" else ("",) * 3
        tables += [cost.ratio_table(work, of["methods"], numbers["baseline"]), Table(work, head, rows)]
    threads = f"{machine['threads']} thread{'s' * (machine['threads'] > 1)}"
    return Filling(
        {
            "machine": f"{machine['cpu']}, {machine['cores']} cores, {threads}, ONNX Runtime "
            f"{machine['onnxruntime']}, OpenCV {machine['opencv']}.",
            "rounds": str(numbers["rounds"]),
            "detected": "".join(
                f"; {of['detected']:,} of {work} are found, and repeated"
                for work, of in numbers["workloads"].items()
                if of["detected"] < of["keypoints"]
            ),
            "table": _titled(tables),
        }
    )


def density(found: Numbers) -> Filling:
    tables, plots = [], []
    for name, numbers in found.items():
        for kind, of in numbers["summary"].items():
            used, recall = of["keypoints"], of["recall"]
            rows = [[n, str(round(used[n])), *(Mean(**by[n]) for by in recall.values())] for n in used]
            title = f"Recall, {of['sequences']} sequences, {kind}; SIFT at contrast {numbers['contrast']}"
            tables.append(Table(title, ("keypoints", "used, mean", *recall), rows))
            lines = {method: [(used[n], by[n]["mean"]) for n in used] for method, by in recall.items()}
            title, file = f"Recall by number of keypoints, {kind}", f"benchmarks-{name}-{kind}"
            plots.append(Curves(title, file, "keypoints of an image, mean", "recall, %", lines, log_x=True))
    return Filling({"table": _titled(tables)}, plots)


def ratios(found: Numbers) -> Filling:
    (numbers,) = found.values()
    rows: list[list[Cell]] = []
    for kind, of in numbers["methods"].items():
        for method, one in of.items():
            chosen, plain = one["at_equal_precision"], one["at_1"]
            interval = "{mean:.2f} ({low:.2f} to {high:.2f})".format(**one["equal_precision"])
            rows.append([method, f"{one['pairs']} of {kind}", interval, f"{one['at_own']['ratio']:.2f}"])
            rows[-1] += [chosen["precision"], chosen["recall"], plain["precision"], plain["recall"]]
    head = (
        "method", "pairs", "ratio", "ratio in use", "precision, %", "recall, %", "no test: precision, %",
        "no test: recall, %",
    )  # fmt: skip
    last = list(numbers["methods"])[-1]
    curves = ratio.curves(numbers["methods"][last], numbers["thresholds"])[-1]
    plot = Curves(curves.title, "benchmarks-ratio", curves.x, curves.y, curves.lines)
    return Filling({"table": Table("", head, rows).markdown}, [plot])


def domains(found: Numbers) -> Filling:
    tables = []
    for numbers in found.values():
        for kind, of in numbers["summary"].items():
            recall, gains = of["recall"], of["difference from 1x"]
            rows: list[list[Cell]] = []
            for size in next(iter(recall.values())):
                rows.append([f"({size})x" if "+" in size else f"{size}x"])
                rows[-1] += [Mean(**by[size]) for by in recall.values()]
                rows[-1] += [Difference(**by[size]) if size in by else "" for by in gains.values()]
                rows[-1].append("{:.2f} / {:.2f}".format(*PAPER_DOMAIN[size]) if size in PAPER_DOMAIN else "")
            head = ("size", *recall, *(f"{method}: difference from 1x" for method in gains), "paper: i / v")
            tables.append(Table(f"Recall, {of['sequences']} sequences, {kind}", head, rows))
    return Filling({"table": _titled(tables)})


def repeated(found: Numbers) -> Filling:
    tables, plots = [], []
    for name, numbers in found.items():
        for kind, of in numbers["summary"].items():
            titles = list(next(iter(of.values())))
            among = [s for s in numbers["sequences"] if kind == "all" or s.startswith(f"{kind[0]}_")]
            rows = [[detector, *(Mean(**by[title]) for title in titles)] for detector, by in of.items()]
            tables.append(Table(f"{len(among)} sequences, {kind}", ("detector", *titles), rows))
            lines = {}
            for detector in of:
                curves = [numbers["sequences"][s][detector]["repeatability"][-1] for s in among]
                points = zip(numbers["pixels"], np.mean(curves, axis=0).tolist(), strict=True)
                lines[detector] = [(float(pixels), share) for pixels, share in points]
            title, file = f"Repeatability by distance, {kind}", f"benchmarks-{name}-{kind}"
            x, y = "largest distance of partners, pixels", "repeated keypoints, %"
            plots.append(Curves(title, file, x, y, lines))
    return Filling({"table": _titled(tables)}, plots)


def ablations(found: Numbers) -> Filling:
    tables, plots = [], []
    for name, numbers in found.items():
        tables += ablation.tables(numbers)
        plots += [
            Intervals(p.title, f"benchmarks-{name}", p.x, p.y, p.groups) for p in ablation.plots(numbers)
        ]
    minutes = {f"{numbers['minutes']:g}" for numbers in found.values()}
    return Filling({"minutes": " or ".join(sorted(minutes)), "table": _titled(tables)}, plots)


# Files in docs/results, as the template names them -> what fills their section
SECTIONS: dict[str, Callable[[Numbers], Filling]] = {
    "heinly-*": oxford,
    "hsequences-two": sequences,
    "hpatches-two": patches,
    "pairs-strecha": pose,
    "sfm-strecha": reconstructions,
    "cost": costs,
    "density*": density,
    "ratio": ratios,
    "domain*": domains,
    "repeatability*": repeated,
    "ablation*": ablations,
}


if __name__ == "__main__":
    main()
