"""docs/speed.md is what its script makes of the numbers in docs/results."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from contextdesc.benchmarks import growth_report, speed, speed_report
from contextdesc.benchmarks.registry import PROTOCOLS

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "docs" / "results"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "speed_page.py"))


def numbers(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def test_the_page_is_up_to_date(script: dict[str, Any]) -> None:
    """If this fails after numbers have changed: python scripts/speed_page.py."""
    text, plots = script["build"](RESULTS)
    assert (ROOT / "docs" / "speed.md").read_text(encoding="utf-8") == text
    assert "{{" not in text
    for plot in plots:
        for path in plot.files.values():
            assert f'"{path}"' in text
            assert (ROOT / "docs" / path).is_file(), path


def test_targets_in_the_numbers_are_those_that_the_code_judges() -> None:
    found = numbers("speed")
    ratios = {work: of["ratios"] for work, of in found["workloads"].items()}
    assert {title: of["met"] for title, of in found["targets"].items()} == {
        target.title: target.met(ratios) for target in speed_report.TARGETS
    }
    grown = numbers("growth")
    assert grown["targets"] == growth_report.targets(grown)


def test_commands_on_the_page_exist() -> None:
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    commands = re.findall(r"^contextdesc benchmark (\w+) --data", page, re.MULTILINE)
    assert commands == ["speed", "growth"]
    assert set(commands) <= PROTOCOLS.keys()


def test_words_follow_the_numbers(script: dict[str, Any]) -> None:
    """By hand: 800 GFLOP and 10 GB in 4 s are 80 operations per byte at 200 GFLOP/s, of a peak of 250 at
    25 GB/s, so arithmetic is the limit. Of 5000 ms, 4000 would be 3200 at the peak: 5000 / 4200 is 1.19."""
    giga = 10**9
    times = {name: {"ms": {"median": 200.0}} for name in speed_report.PIPELINE}
    for name in speed_report.NETWORKS:
        times[name] = {"ms": {"median": 200.0}, "flops": giga, "bytes": giga}
    times["local network"] = {"ms": {"median": 4000.0}, "flops": 800 * giga, "bytes": 10 * giga}
    of = {
        "keypoints": 10_000,
        "gemm_gflops": {"median": 250.0},
        "copy_gb_per_s": {"median": 25.0},
        "ratios": {speed_report.GEMM_SHARE: {"median": 0.8}},
        "times": times,
    }
    values = script["roofline_values"]({"a size": of})
    assert values["ridge"] == "10"
    assert values["local_part"] == "80"
    assert values["headroom"] == "1.19"
    assert "| local network | 800 | 80 | 200 | 80 % | arithmetic |" in values["limits"]
    assert "| regional network | 1 | 1 | 5 | 2 % | memory |" in values["limits"]
    assert values["int8"] == ""
    of["ratios"]["local network: fp32 / int8"] = {"median": 1.5}
    assert "1.50 times" in script["roofline_values"]({"a size": of})["int8"]


def test_sizes_are_those_of_the_issue() -> None:
    """So that the committed numbers answer every target."""
    sizes = [speed.Workload.parse(text) for text in speed.SIZES.split(",")]
    assert [str(size) for size in sizes] == list(numbers("speed")["workloads"])


def test_the_target_in_single_precision_by_hand(script: dict[str, Any]) -> None:
    """At 80 % of the peak, a local network of 500 ms could save 100 of 600 ms."""
    names = (speed_report.KORNIA, speed_report.END_TO_END, speed_report.LOCAL)
    times = {name: {"ms": {"median": ms}} for name, ms in zip(names, (1500, 600, 500), strict=True)}
    of = {"times": times, "ratios": {speed_report.GEMM_SHARE: {"median": 0.8}}}
    assert script["kornia_at_peak"](of) == pytest.approx(3)
    of["ratios"] = {speed_report.GEMM_SHARE: {"median": 1.1}}  # noise: nothing is left to gain
    assert script["kornia_at_peak"](of) == pytest.approx(2.5)
