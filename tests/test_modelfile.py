from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from contextdesc import modelfile
from contextdesc.errors import InputError
from contextdesc.model import load


@pytest.fixture
def model(rootsift_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(rootsift_model, tmp_path / "model"))


def edit(model: Path, change: Callable[[dict], object]) -> None:
    path = model / "model.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def test_the_checksum_names_the_model(model: Path) -> None:
    _, before = modelfile.read_spec(model)
    edit(model, lambda values: values.update(ratio=0.7))
    _, after = modelfile.read_spec(model)
    assert before != after


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda m: (m / "geometric.onnx").write_bytes(b"x"), "geometric.onnx: checksum differs"),
        (lambda m: (m / "geometric.onnx").unlink(), "geometric.onnx: missing"),
        (lambda m: (m / "model.json").write_text("{"), "not valid JSON"),
        (lambda m: (m / "model.json").unlink(), "no model.json"),
        (
            lambda m: edit(m, lambda v: v.update(format=9)),
            "model format 9, this version of contextdesc reads 1",
        ),
        (lambda m: edit(m, lambda v: v.update(suport=3)), "unknown key 'suport'; did you mean 'support'?"),
        (lambda m: edit(m, lambda v: v["files"].update({"../x": "0"})), "points outside"),
        (lambda m: edit(m, lambda v: v.update(base="surf")), "base is 'surf': one of local, rootsift, given"),
    ],
)
def test_damage_is_named(model: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(model)
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        load(model)


def test_unknown_names_list_what_is_packaged() -> None:
    with pytest.raises(InputError, match=f"neither a packaged model .*{modelfile.DEFAULT}"):
        load("no-such-model")


def test_every_packaged_model_loads_and_says_how_it_was_trained() -> None:
    assert modelfile.DEFAULT in modelfile.packaged_models()
    for name in modelfile.packaged_models():
        spec, _ = modelfile.read_spec(modelfile.PACKAGED / name)
        assert spec.name == name
        assert {"data", "commands", "seed", "commit", "summary"} <= spec.training.keys()


def test_the_recall_that_models_say_is_the_one_that_was_measured() -> None:
    """`contextdesc models` prints it; the benchmark's own output is committed."""
    results = Path(__file__).parents[1] / "docs" / "results"
    told = json.loads(modelfile.RECALLS.read_text())
    assert told.keys() == {"rootsift", *modelfile.packaged_models()}
    for name in modelfile.packaged_models():
        recall = json.loads((results / f"heinly-{name}.json").read_text())["recall"]
        for method in (name, "rootsift"):
            assert told[method] == round(recall[method]["mean"], 1)


@pytest.mark.parametrize(("name", "raw", "whole"), [("contextdesc", 50, 53), ("sift-context", 45, 48.5)])
def test_recall_of_packaged_models_on_oxford(name: str, raw: float, whole: float) -> None:
    """The least that weights are packaged with: no scene loses what RootSIFT finds, context adds 2 points."""
    record = Path(__file__).parents[1] / "docs" / "results" / f"heinly-{name}.json"
    found = json.loads(record.read_text(encoding="utf-8"))
    checksum = modelfile.read_spec(modelfile.resolve(name))[1]
    assert checksum[:16] in found["origin"]["methods"][name]  # these weights were measured
    recall = found["recall"]
    assert recall[f"{name}:none"]["mean"] >= raw
    assert recall[name]["mean"] >= max(whole, recall[f"{name}:none"]["mean"] + 2)
    for scene, value in recall["rootsift"].items():
        for method in (f"{name}:none", name):
            assert recall[method][scene] >= value - 1, (method, scene)
