"""docs/benchmarks.md is what its script makes of the numbers in docs/results."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from contextdesc.modelfile import read_spec, resolve

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmarks_page", ROOT / "scripts" / "benchmarks_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchmarks_page"] = module  # where its dataclasses look for their types
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(script: ModuleType) -> None:
    """If this fails after numbers have changed: python scripts/benchmarks_page.py."""
    text, plots, missing = script.build(ROOT / "docs" / "results")
    assert (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8") == text
    for plot in plots:
        for suffix in ("", "-dark"):
            assert (ROOT / "docs" / "images" / f"{plot.name}{suffix}.png").is_file(), plot.name
    assert "{{" not in text
    assert len(missing) < len(script.SECTIONS) / 2


def test_sections_without_numbers_are_left_out(script: ModuleType, tmp_path: Path) -> None:
    text, plots, missing = script.build(tmp_path)
    assert missing == list(script.SECTIONS)
    assert plots == []
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["What goes wrong", "The paper's data"]


def test_a_section_is_made_of_its_numbers(script: ModuleType, tmp_path: Path) -> None:
    """By hand: blur is the mean of bikes and trees; 30 / 20 is 1.50, and in the paper 57.8 / 41.0 is 1.41."""
    scenes = ("bark", "bikes", "boat", "graf", "leuven", "trees", "ubc", "wall", "mean")
    recall = {
        "contextdesc": dict.fromkeys(scenes, 50.0) | {"bikes": 40.0, "trees": 20.0},
        "sift": dict.fromkeys(scenes, 40.0) | {"bikes": 25.0, "trees": 15.0},
    }
    origin = {"command": "contextdesc benchmark heinly --data oxford"}
    numbers: dict[str, object] = {"recall": recall, "origin": origin}
    (tmp_path / "heinly-x.json").write_text(json.dumps(numbers))
    text, plots, _ = script.build(tmp_path)
    assert plots == []
    assert "| sift | 40.0 | 25.0 | 40.0 |" in text
    assert "| blur (bikes, trees) | 41.0 | 47.7 | 57.8 | 20.0 | 30.0 | 1.41 | 1.50 |" in text
    assert "```sh\ncontextdesc benchmark heinly --data oxford\n```" in text
    assert "[heinly-x.json](results/heinly-x.json)" in text


def test_numbers_of_earlier_weights_are_told(script: ModuleType) -> None:
    checksum = read_spec(resolve("contextdesc"))[1]
    methods = {"sift": "sift, OpenCV 5", "contextdesc:none": f"contextdesc ({checksum}, context none)"}
    assert "earlier" not in script._source({"x": {"origin": {"methods": methods}}})
    methods["contextdesc"] = "contextdesc (0123456789abcdef, context visual)"
    text = script._source({"x": {"origin": {"methods": methods}}})
    assert text.endswith("[x.json](results/x.json). x.json is of earlier weights of contextdesc.")


def test_intervals_and_differences_stand_beside_means(script: ModuleType, tmp_path: Path) -> None:
    scenes = ("bark", "bikes", "boat", "graf", "leuven", "trees", "ubc", "wall", "mean")
    interval = {"mean": 40.0, "low": 30.0, "high": 50.0}
    numbers = {
        "recall": {m: dict.fromkeys(scenes, 40.0) for m in ("sift", "contextdesc")},
        "intervals": {m: dict.fromkeys(scenes, interval) for m in ("sift", "contextdesc")},
        "baseline": "sift",
        "difference": {"contextdesc": {"mean": {"mean": 4.0, "low": 3.0, "high": 5.0}}},
    }
    (tmp_path / "heinly-x.json").write_text(json.dumps(numbers))
    text, plots, _ = script.build(tmp_path)
    assert "| wall | mean | mean less sift's |" in text
    assert "| 40.0 | 40.0 (30.0 to 50.0) |  |" in text
    assert "| 40.0 | 40.0 (30.0 to 50.0) | +4.0 (+3.0 to +5.0) |" in text
    assert [plot.name for plot in plots] == ["benchmarks-oxford"]
    assert 'srcset="images/benchmarks-oxford-dark.png"><img src="images/benchmarks-oxford.png"' in text


def test_commands_on_the_page_exist(script: ModuleType) -> None:
    from contextdesc.benchmarks.registry import PROTOCOLS

    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    named = set(re.findall(r"contextdesc benchmark (\w+)", page)) - {"list", "gallery"}
    assert named
    assert named <= PROTOCOLS.keys()
