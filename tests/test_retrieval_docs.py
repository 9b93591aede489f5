"""docs/retrieval.md: its numbers are those of docs/results, its commands exist, and its example runs."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer

from contextdesc.cli import retrieve
from contextdesc.detection import Detector
from contextdesc.image import find_images
from contextdesc.model import load
from contextdesc.modelfile import packaged_models, read_spec, resolve
from contextdesc.retrieval import index, options, searching, vocabulary
from contextdesc.retrieval.building import build_index

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "retrieval.md"


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "docs" / "results" / f"retrieval-{name}.json").read_text())
    return found


def test_the_tables_are_those_of_the_results(page: str) -> None:
    """After new results: python scripts/retrieval_page.py"""
    filled = runpy.run_path(str(ROOT / "scripts" / "retrieval_page.py"))["filled"]
    assert filled(page) == page


def test_only_scenes_that_no_model_was_trained_on_are_asked_about(page: str) -> None:
    scenes = results("scenes")
    for name in packaged_models():
        assert name in scenes["methods"]
        assert set(scenes["scenes"]) == set(read_spec(resolve(name))[0].training["held_out_scenes"])
    assert scenes["vocabulary"]["trained on"].endswith("other scenes")
    unbroken = re.sub(r"\s*\\\n\s*", " ", page)
    assert scenes["origin"]["command"] in unbroken


def test_the_settings_are_those_of_the_code(page: str) -> None:
    text = re.sub(r"\s+", " ", page)
    for phrase in (
        f"at most {vocabulary.SAMPLE_PER_WORD} per word",
        f"({options.WORDS:,})",
        f"Above {vocabulary.EXACT_UP_TO} words",
        f"The {index.FUSED} images that rank best by words",
        f"the sum of their score and {index.GLOBAL_WEIGHT:g} times the cosine of this vector",
        f"The {options.VERIFIED} best (`--verify`)",
        f"Images with {searching.FLOOR} or more matches",
        f"with the {options.CANDIDATES} that rank best",
        f"in {options.ROUNDS} rounds with up to {options.EXPANSION} partners",
    ):
        assert phrase in text


def test_memory_is_bounded_where_the_page_says_so() -> None:
    """Ten times the images take much less than ten times the memory; time and disk grow with the images."""
    steps = {step["images"]: step for step in results("scale")["steps"]["words"]}
    million, tenth = steps[1_000_000], steps[100_000]
    for key in ("build_own_mb", "query_own_mb"):
        assert million[key] < 3 * tenth[key]
    assert million["disk_mb"] < 11 * tenth["disk_mb"]
    assert results("scale")["steps"]["full"][-1]["images"] == 20_000
    every = [step for of in results("scale")["steps"].values() for step in of]
    assert {step["found_first"] for step in every} == {100}


def test_the_commands_exist(page: str) -> None:
    group = typer.main.get_command(retrieve.app)
    named = re.findall(r"contextdesc retrieve (\w+)", page)
    assert {"build", "query", "add", "pairs", "duplicates", "info"} <= set(named)
    commands = group.commands  # type: ignore[attr-defined]  # of click's groups
    assert set(named) <= set(commands)
    known = {option for command in commands.values() for p in command.params for option in p.opts}
    for line in re.findall(r"^contextdesc retrieve .*$", page, re.MULTILINE):
        assert set(re.findall(r"\s(--?[a-z][a-z-]*)", line)) <= known


def test_the_example_runs(
    page: str,
    photo_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    images = dict(list(find_images([photo_folder]).items())[::4])
    build_index(load(detector=Detector(100)), images, tmp_path / "INDEX", words=8, quiet=True)
    shutil.copy(next(iter(images.values())), tmp_path / "photograph.jpg")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), {})
    assert next(iter(images)) in capsys.readouterr().out.splitlines()[0]
