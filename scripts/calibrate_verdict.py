"""Calibrate the verdict: `python scripts/calibrate_verdict.py --data DIR`, after every change of weights.

DIR has `scenes/` and `photos/`, of which only what the models were not trained on is used. Writes
`src/contextdesc/verdict.json`, and of each model `docs/results/verdict-NAME.json`,
`docs/images/verdict-NAME.png` and its tables in `docs/verdict.md`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any, get_args

import numpy as np

from contextdesc import verdict
from contextdesc.benchmarks import verdict as v
from contextdesc.benchmarks import verdict_pairs as vp
from contextdesc.formats.atomic import replacing
from contextdesc.geometry import Geometry
from contextdesc.model import load
from contextdesc.modelfile import packaged_models

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "verdict.md"
INLIER_RULE = (25, 15)  # the rule by inliers alone that the tables compare with


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with scenes/ and photos/")
    parser.add_argument("--models", default=",".join(packaged_models()), help="comma-separated")
    parser.add_argument("--cache", type=Path, help="folder that keeps base descriptors for the next run")
    parser.add_argument("--images", type=int, default=vp.DEFAULT_SIZE.scene_images, help="of each scene")
    options = parser.parse_args()
    names = options.models.split(",")
    size = vp.Size(scene_images=options.images)
    stored = json.loads(verdict.CALIBRATIONS.read_text(encoding="utf-8"))
    collected = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name in names:
            begun = time.process_time()
            prepared = vp.prepare(
                load(name), options.data, options.cache or Path(temporary), size, quiet=False
            )
            pairs = [vp.collect(prepared, quiet=False), vp.by_chance()]
            evidence = collected[name] = v.Evidence.joined(pairs)
            fits = {geometry: v.cross_validated(evidence, geometry) for geometry in v.GEOMETRIES}
            stored[name] = _entry(prepared.model.checksum, fits)
            _write_calibrations(stored)
            report = _report(evidence, fits) | {
                "model": name, "checksum": prepared.model.checksum, "views": len(prepared.views),
                "turned": vp.turning(prepared), "cpu_seconds": round(time.process_time() - begun),
            }  # fmt: skip
            _write(ROOT / "docs" / "results" / f"verdict-{name}.json", json.dumps(report, indent=2) + "\n")
            _draw(ROOT / "docs" / "images" / f"verdict-{name}.png", name, evidence, fits["fundamental"])
            _fill(name, _tables(name, report))
    if set(names) == set(packaged_models()):
        everything = v.Evidence.joined(list(collected.values()))
        fits = {geometry: v.cross_validated(everything, geometry) for geometry in v.GEOMETRIES}
        stored[verdict.GENERAL] = _entry("", fits)
        _write_calibrations(stored)


def _entry(checksum: str, fits: dict[Geometry, v.Fit]) -> dict[str, Any]:
    """What `verdict.json` holds of a model."""
    geometries = {}
    for geometry, fitted in fits.items():
        found = fitted.calibration
        geometries[geometry] = {
            "intercept": round(found.intercept, 5),
            "coefficients": {
                feature: round(value, 5)
                for feature, value in zip(verdict.FEATURES, found.coefficients, strict=True)
            },
            "same_from": found.same_from,
            "different_below": found.different_below,
        }
    return {"checksum": checksum, "geometries": geometries}


def _report(evidence: v.Evidence, fits: dict[Geometry, v.Fit]) -> dict[str, Any]:
    """Error rates and calibration, from probabilities of fits that saw neither scene of a pair."""
    weights, same = evidence.weights(), evidence.same
    by_geometry = {}
    for geometry, fitted in fits.items():
        found, held_out = fitted.calibration, fitted.held_out
        table = v.reliability(held_out, same, weights)
        by_geometry[geometry] = {
            "same_from": found.same_from,
            "different_below": found.different_below,
            "rates": v.rates(evidence, v.answers(held_out, found.same_from, found.different_below)),
            "rates, by inliers alone": v.rates(evidence, v.answers(evidence.inliers[geometry], *INLIER_RULE)),
            "reliability": table,
            "calibration_error": v.calibration_error(table),
            "brier": float(np.average((held_out - same) ** 2, weights=weights)),
        }
    return {"pairs": len(same), "geometries": by_geometry}


def _tables(name: str, report: dict[str, Any]) -> str:
    main = report["geometries"]["fundamental"]
    alone = main["rates, by inliers alone"]
    head = ["pairs of", "number", "same scene", "unsure", "different scenes", "by inliers alone"]
    rows = [
        [
            kind, row["pairs"], *(f"{row[answer]:.1%}" for answer in get_args(verdict.Answer)),
            " / ".join(f"{alone[kind][answer]:.1%}" for answer in get_args(verdict.Answer)),
        ]
        for kind, row in main["rates"].items()
    ]  # fmt: skip
    geometries = [
        [
            geometry, f"{row['same_from']:g}", f"{row['different_below']:g}",
            f"{row['rates']['different: all, weighted']['same scene']:.1%}",
            f"{row['rates']['same: all, weighted']['different scenes']:.1%}",
            f"{row['rates']['same: all, weighted']['same scene']:.1%}",
            f"{row['calibration_error']:.3f}", f"{row['brier']:.3f}",
        ]
        for geometry, row in report["geometries"].items()
    ]  # fmt: skip
    turned = [
        [
            f"{row['turned']}°", f"{row['inliers, none']:.0f}", f"{row['inliers, auto']:.0f}",
            f"{row['same scene, none']:.0%}", f"{row['same scene, auto']:.0%}", f"{row['turns tried']:.2f}",
        ]
        for row in report["turned"]
    ]  # fmt: skip
    return "\n\n".join([
        f"### {name}",
        f"{report['pairs']} pairs of {report['views']} views; weights `{report['checksum']}`; numbers in "
        f"[verdict-{name}.json](results/verdict-{name}.json).",
        f"![Reliability of {name}](images/verdict-{name}.png)",
        _table(head, rows),
        _table(
            ["geometry", "same from", "different below", "different called same", "same called different",
             "same called same", "calibration error", "Brier score"],
            geometries,
        ),
        f"Rotation, {report['turned'][0]['pairs']} pairs of the same thing with the second image turned:",
        _table(
            ["turned by", "inliers, none", "inliers, auto", "same scene, none", "same scene, auto",
             "turns matched by auto"],
            turned,
        ),
    ])  # fmt: skip


def _table(head: list[str], rows: list[list[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _fill(name: str, tables: str) -> None:
    """Put a model's tables between its two marks on the page."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    if not rest or not after:
        raise SystemExit(f"{PAGE}: lacks the marks {begin} and {end}")
    _write(PAGE, f"{before}{begin}\n\n{tables}\n\n{end}{after}")


def _draw(path: Path, name: str, evidence: v.Evidence, fitted: v.Fit) -> None:
    """The reliability diagram, and below it how often each probability was said."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    blue, orange, gray = "#0072b2", "#d55e00", "#777777"
    table = v.reliability(fitted.held_out, evidence.same, evidence.weights())
    figure, (top, bottom) = pyplot.subplots(
        2, 1, figsize=(5.6, 6.4), sharex=True, height_ratios=(3, 1), layout="constrained"
    )
    top.plot([0, 1], [0, 1], color=gray, linewidth=1, label="perfectly calibrated")
    top.plot(
        [row["probability"] for row in table], [row["same"] for row in table],
        "o-", color=blue, label="pairs of held-out scenes",
    )  # fmt: skip
    for row in table:
        top.annotate(
            f"{row['pairs']}", (row["probability"], row["same"]), xytext=(7, -11), textcoords="offset points",
            fontsize=8, color=blue,
        )  # fmt: skip
    thresholds = fitted.calibration
    for axis in (top, bottom):
        axis.axvline(thresholds.different_below, color=orange, linestyle=":", linewidth=1.5)
        axis.axvline(thresholds.same_from, color=orange, linestyle="--", linewidth=1.5)
    top.plot([], [], color=orange, linestyle=":", label=f"different below {thresholds.different_below:g}")
    top.plot([], [], color=orange, linestyle="--", label=f"same from {thresholds.same_from:g}")
    top.set(ylabel="share that shows the same thing", title=f"Verdict of {name}", ylim=(-0.03, 1.03))
    top.legend(loc="upper left", fontsize=9)
    bins = np.linspace(0, 1, 21)
    said = [fitted.held_out[evidence.same], fitted.held_out[~evidence.same]]
    bottom.hist(said, bins, color=[blue, gray], label=["same thing", "different things"], log=True)
    bottom.set(xlabel="probability", ylabel="pairs", xlim=(-0.02, 1.02))
    bottom.legend(loc="upper center", fontsize=9)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
    pyplot.close(figure)


def _write_calibrations(stored: dict[str, Any]) -> None:
    _write(verdict.CALIBRATIONS, json.dumps(dict(sorted(stored.items())), indent=2) + "\n")
    verdict.forget()


def _write(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
