"""Write docs/speed.md and its plots: `python scripts/speed_page.py`.

Fills `speed_page.md`, which has the words, with docs/results/speed.json and growth.json, as the benchmarks
`speed` and `growth` write them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contextdesc.benchmarks import growth_report, speed, speed_report
from contextdesc.benchmarks.model_stages import BOTH, LOCAL, REGIONAL
from contextdesc.benchmarks.report import Cell, Plot, Table, write_page
from contextdesc.detection import TILE_ABOVE

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "docs" / "results", ROOT / "docs" / "speed.md"
TEMPLATE = Path(__file__).with_suffix(".md")
MEGA, GIGA = 1e6, 1e9


def main() -> None:
    write_page(PAGE, *build(RESULTS))


def build(results: Path) -> tuple[str, list[Plot]]:
    """The page and its plots."""
    fast, grown = (json.loads((results / f"{name}.json").read_text()) for name in ("speed", "growth"))
    plots = [*speed_report.plots(fast["workloads"]), *growth_report.plots(grown)]
    values = speed_values(fast) | growth_values(grown) | pictures(plots)
    text = re.sub(r"{{(\w+)}}", lambda match: values[match[1]], TEMPLATE.read_text(encoding="utf-8"))
    return re.sub(r"\n{3,}", "\n\n", text), plots


def pictures(plots: Sequence[Plot]) -> dict[str, str]:
    """The plots by the names of their places."""
    shown = {plot.name: plot.markdown for plot in plots}
    grown = [name for name in shown if name.startswith("growth-") and name != "growth-images"]
    single = {f"{name.removeprefix('speed-')}_plot": shown[name] for name in shown if name not in grown}
    single["images_plot"] = shown["growth-images"]
    return single | {"growth_plots": "\n\n".join(shown[name] for name in grown)}


def speed_values(numbers: Mapping[str, Any]) -> dict[str, str]:
    found, machine, photograph = numbers["workloads"], numbers["machine"], numbers["photograph"]
    targets, others, times, _, *memory = speed_report.tables(found)
    libraries = ("onnxruntime", "opencv", "numpy", "torch", "kornia", "faiss")
    few = [
        f"{of['detected']:,} of {work} are found" for work, of in found.items()
        if of["detected"] < of["keypoints"]
    ]  # fmt: skip
    return {
        "speed_command": numbers["origin"]["command"],
        "machine": f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads; "
        + ", ".join(f"{name} {machine[name]}" for name in libraries),
        "photograph": f"{photograph['name']}, a photograph of {photograph['size'][0]} x "
        f"{photograph['size'][1]} pixels",
        "rounds": str(numbers["rounds"]),
        "few": str(speed.FEW),
        "targets": targets.markdown,
        "others": others.markdown,
        "times": times.markdown,
        "detected": f"SIFT finds fewer keypoints than asked for ({'; '.join(few)}), so they are repeated."
        if few
        else "",
        "memory": "\n\n".join(f"**{table.title}**\n\n{table.markdown}" for table in memory),
        "kornia_at_peak": _listed([f"{kornia_at_peak(of):.2f}" for of in found.values()]),
        **roofline_values(found),
    }


def kornia_at_peak(of: Mapping[str, Any]) -> float:
    """Kornia's time over ours of a workload, if the local network ran at the GEMM peak."""
    kornia, whole, local = (
        of["times"][name]["ms"]["median"] for name in (speed_report.KORNIA, speed_report.END_TO_END, LOCAL)
    )
    share = min(1, of["ratios"][speed_report.GEMM_SHARE]["median"])
    return kornia / (whole - local * (1 - share))


def _listed(words: Sequence[str]) -> str:
    """As `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def roofline_values(found: Mapping[str, Any]) -> dict[str, str]:
    """Of the workload with the most keypoints."""
    work, of = max(found.items(), key=lambda item: int(item[1]["keypoints"]))
    peak, copy = of["gemm_gflops"]["median"], of["copy_gb_per_s"]["median"]
    ridge = peak / copy
    medians = {name: of["times"][name]["ms"]["median"] for name in speed_report.PIPELINE}
    total, local = sum(medians.values()), medians[LOCAL]
    share = of["ratios"][speed_report.GEMM_SHARE]["median"]
    rows: list[list[Cell]] = []
    for name in speed_report.NETWORKS:
        cost = of["times"][name]
        intensity = cost["flops"] / cost["bytes"]
        rows.append([name, f"{cost['flops'] / GIGA:.3g}", f"{intensity:.0f}"])
        rows[-1] += [
            f"{speed_report.rate(of, name):.0f}",
            f"{100 * speed_report.rate(of, name) / peak:.0f} %",
        ]
        rows[-1].append("arithmetic" if intensity > ridge else "memory")
    head = ("network", "GFLOP", "operations per byte", "GFLOP/s", "of the GEMM peak", "limit")
    return {
        "gemm": f"{peak:.0f}",
        "copy": f"{copy:.3g}",
        "ridge": f"{ridge:.0f}",
        "workload": str(work),
        "limits": Table("", head, rows).markdown,
        "local_part": f"{100 * local / total:.0f}",
        "context_part": f"{100 * (medians[REGIONAL] + medians[BOTH]) / total:.0f}",
        "local_share": f"{100 * share:.0f}",
        "headroom": f"{total / (total - local + local * min(1, share)):.2f}",
        "int8": _int8(of["ratios"].get("local network: fp32 / int8")),
    }


def _int8(ratio: Mapping[str, float] | None) -> str:
    """A sentence about cheaper operations, if there are any."""
    if ratio is None:
        return ""
    return (
        "Integers of 8 bits are such operations: with `--precision int8` the local network is "
        f"{ratio['median']:.2f} times as fast. "
    )


def growth_values(numbers: Mapping[str, Any]) -> dict[str, str]:
    largest, images, busy = (numbers[name] for name in ("largest", "images", "busy"))
    targets, fits, rates, *points = growth_report.tables(numbers)
    return {
        "growth_command": numbers["origin"]["command"],
        "growth_targets": targets.markdown,
        "fits": fits.markdown,
        "rates": rates.markdown,
        "points": "\n\n".join(f"**{table.title}**\n\n{table.markdown}" for table in points),
        "tiled": f"{TILE_ABOVE / MEGA:g}",
        "most": f"{largest['pixels'] / MEGA:.1f} megapixels and {largest['keypoints']:,} keypoints",
        "busy": f"{100 * busy['share']:.0f}",
        "cores": str(numbers["machine"]["cores"]),
        "busy_images": str(busy["count"]),
        "busy_workload": busy["workload"],
        "many_images": str(images["count"]),
        "many_workload": images["workload"],
        "added": f"{images['growth']['added_mb']:+.1f}",
        "added_low": f"{images['growth']['low_mb']:+.1f}",
        "added_high": f"{images['growth']['high_mb']:+.1f}",
    }


if __name__ == "__main__":
    main()
