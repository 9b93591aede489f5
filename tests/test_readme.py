"""The figures of the README are those that the benchmarks wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contextdesc.modelfile import packaged_models

ROOT = Path(__file__).parents[1]
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
METHODS = ("sift", "rootsift", "sift-context", "contextdesc")


def numbers(name: str) -> Any:
    return json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("model", packaged_models())
def test_recall_on_oxford(model: str) -> None:
    recall = numbers(f"heinly-{model}")["recall"]
    for method in ("sift", "rootsift", f"{model}:none", model):
        row = [f"{recall[method][scene]:.1f}" for scene in recall[method]]
        assert f"| {method} | {' | '.join(row)} |" in README


def test_hpatches_and_pose() -> None:
    found = numbers("hsequences-two")["summary"]
    recall = [f"{found[method]['viewpoint']['recall']['mean']:.1f}" for method in METHODS]
    told = "recall is {} with SIFT, {} with RootSIFT, {} with sift-context and {} with contextdesc"
    assert told.format(*recall) in README
    accuracy = [f"{found[method]['viewpoint']['mma'][2]['mean']:.1f}" for method in METHODS]
    assert "mean matching accuracy at 3 pixels {}, {}, {} and {}.".format(*accuracy) in README
    summary = numbers("pairs-strecha")["summary"]
    pose = [f"{summary[method]['ratio']['AUC 5°']['mean']:.1f}" for method in METHODS]
    assert "SIFT {}, RootSIFT {}, sift-context {}, contextdesc {}.".format(*pose) in README


def test_time_of_sift_context() -> None:
    (few,) = [of for name, of in numbers("cost")["workloads"].items() if name.startswith("2,048")]
    ratio = few["methods"]["sift-context"]["ratios"]["total over baseline"]["median"]
    assert f"takes {ratio:.1f} times the CPU time of SIFT (2048 keypoints" in README
