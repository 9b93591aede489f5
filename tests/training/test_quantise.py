"""8-bit variants: what is measured is what is written, and what costs recall is not written at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from contextdesc import modelfile
from contextdesc.benchmarks import terms
from contextdesc.cli import app
from contextdesc.errors import InputError
from contextdesc.image import Image, read
from contextdesc.keypoints import Keypoints
from contextdesc.model import load
from contextdesc.training import quantise as q
from contextdesc.training.data.cache import Cache
from contextdesc.training.export import export_model
from contextdesc.training.networks import LocalNetwork
from contextdesc.training.parts import Parts
from tests.training.tiny import PAIRS

HELD_OUT = 2


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    """Timing of a moment, and pairs of few keypoints; time decides nothing."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"ROUNDS": 1, "TIMED_PATCHES": 16, "TIMED_KEYPOINTS": 16, "WORTH": -99.0}.items():
            patch.setattr(q, name, value)
        patch.setattr(terms, "PHOTO_PAIRS", PAIRS)
        yield


def told_held_out(model: Path, folder: Path) -> Path:
    """A copy of a model that says how many photographs it did not see."""
    shutil.copytree(model, folder)
    spec, _ = modelfile.read_spec(folder)
    modelfile.write_spec(folder, replace(spec, training={"held_out": HELD_OUT}))
    return folder


@pytest.fixture(scope="module")
def quantised(
    small_model: Path, few_photos: Path, cache_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """A model with an 8-bit variant of both networks, and what the command printed."""
    folder = told_held_out(small_model, tmp_path_factory.mktemp("int8") / "model")
    options = ["--patches", 64, "--tolerance", 100, "--cache", cache_folder, "--workers", 1, "--quiet"]
    arguments = ["quantise", folder, "--photos", few_photos, *options]
    out = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert out.exit_code == 0
    return folder, out.stdout


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_variant_lies_beside_a_model_that_stays_the_same(
    quantised: tuple[Path, str], small_model: Path, tmp_path: Path
) -> None:
    folder, printed = quantised
    before = contents(told_held_out(small_model, tmp_path / "model"))
    after = contents(folder)
    added = {"local.int8.onnx", "regional.int8.onnx", "int8.json"}
    assert after.keys() - before.keys() == added
    assert {name: after[name] for name in before} == before
    for name in added - {"int8.json"}:
        assert len(after[name]) < 0.6 * len(before[name.replace(".int8", "")])  # from two bytes a weight
        assert b"site-packages" not in after[name]
    values = json.loads(after["int8.json"])
    assert values["calibration"]["patches"] == 64
    assert values["calibration"]["command"].startswith("contextdesc quantise model --photos PHOTOS")
    assert "local.int8.onnx, regional.int8.onnx" in printed
    assert f"recall on {values['recall']['photos']['pairs']} held-out pairs of photos" in printed


def test_weights_are_bytes_and_the_first_layer_is_not(quantised: tuple[Path, str]) -> None:
    for name in (modelfile.LOCAL, modelfile.REGIONAL):
        graph = onnx.load(str(quantised[0] / modelfile.int8_file(name))).graph
        scaled = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
        first, *others = [node for node in graph.node if node.op_type in ("Conv", "Gemm")]
        assert first.input[1] not in scaled
        assert len(others) > 5
        assert all(node.input[1] in scaled for node in others)
        types = [t.data_type for t in graph.initializer if np.prod(t.dims) > 5000]
        assert types
        assert set(types) == {onnx.TensorProto.INT8}


def test_recall_in_int8_json_is_that_of_the_descriptors(
    quantised: tuple[Path, str], few_photos: Path, cache_folder: Path
) -> None:
    folder, _ = quantised
    spec, checksum = modelfile.read_spec(folder)
    pairs = terms.held_out_sets(spec, few_photos, None, Cache(cache_folder))["photos"]
    measured = modelfile.read_int8(folder, spec, checksum).recall["photos"]
    assert measured["pairs"] == len(pairs) == HELD_OUT
    for precision in ("fp32", "int8"):
        model = load(folder, precision=precision)
        recalls = []
        for index in range(len(pairs)):
            pair = pairs[index]
            sides = [
                model.describe(read(pairs.views[view]), Keypoints.from_array(rows)).descriptors
                for view, rows in zip(pairs.views_of(index), pair.keypoints, strict=True)
            ]
            recalls.append(terms.pair_recall(pair, *sides))
        assert measured[precision] == pytest.approx(np.mean(recalls), abs=0.1)
    assert measured["difference"]["mean"] == pytest.approx(measured["int8"] - measured["fp32"])


def test_the_same_calibration_gives_the_same_file(small_model: Path, photo: Image, tmp_path: Path) -> None:
    patches = np.stack([photo.gray[y : y + 32, y : y + 32] for y in range(0, 320, 10)])
    for name in "ab":
        q.quantise_network(small_model / modelfile.LOCAL, tmp_path / name, [{"patches": patches}])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_lost_recall_is_refused_and_the_folder_stays(
    small_model: Path, few_photos: Path, cache_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges that were calibrated on black patches hold nothing."""
    folder = told_held_out(small_model, tmp_path / "model")
    spec, _ = modelfile.read_spec(folder)
    modelfile.write_spec(folder, replace(spec, files={modelfile.LOCAL: spec.files[modelfile.LOCAL]}))
    before = contents(folder)
    honest = q.calibration

    def black(*arguments: object) -> object:
        feeds = honest(*arguments)  # type: ignore[arg-type]
        return {name: [{k: v * 0 for k, v in feed.items()} for feed in of] for name, of in feeds.items()}

    monkeypatch.setattr(q, "calibration", black)
    with pytest.raises(
        InputError, match=r"nothing was written \(local.onnx: recall on held-out photos changes"
    ):
        q.quantise(folder, few_photos, None, Cache(cache_folder), patches=64, quiet=True)
    assert contents(folder) == before


def test_a_network_that_saves_little_stays_in_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(q, "WORTH", 0.05)
    chosen = ("local.onnx",)
    recalls = {"scenes": {(): np.array([90.0, 92]), chosen: np.array([90.0, 91.2])}}

    def speed(ratio: float) -> dict:
        return {"threads": {"1": {"ratio_of_cpu_time": {"median": ratio}}}}

    assert q._reason(recalls, chosen, speed(2.0), 0.5) is None
    assert q._reason(recalls, chosen, speed(1.02), 0.5) == (
        "saves 2.0% of an image's description, less than 5%"
    )
    assert q._reason(recalls, chosen, speed(2.0), 0.3) == (
        "recall on held-out scenes changes by -0.40 points (-0.80 to 0.00), allowed are -0.3"
    )


def test_a_model_must_say_what_it_did_not_see(small_model: Path, few_photos: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="names no photographs held out from training"):
        q.quantise(small_model, few_photos, None, Cache(tmp_path))


def test_a_model_without_networks_on_images(given_model: Path, few_photos: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="given: no network that runs on images"):
        q.quantise(given_model, few_photos, None, Cache(tmp_path))


def edit(path: Path, change: Callable[[dict], object]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda m: (m / "local.int8.onnx").write_bytes(b"x"),
            "local.int8.onnx: checksum differs from int8.json",
        ),
        (lambda m: (m / "local.int8.onnx").unlink(), "local.int8.onnx: missing; make it again"),
        (lambda m: (m / "int8.json").write_text("{"), "int8.json: not valid JSON"),
        (lambda m: (m / "int8.json").unlink(), "small has no int8.json; use fp32, or make it with"),
        (lambda m: edit(m / "model.json", lambda v: v.update(ratio=0.5)), "int8.json: made of another model"),
        (
            lambda m: edit(m / "int8.json", lambda v: v.update(sped=1)),
            "unknown key 'sped'; did you mean 'speed'",
        ),
        (lambda m: edit(m / "int8.json", lambda v: v["files"].update({"../x": "0"})), "points outside"),
    ],
)
def test_damage_is_named_and_fp32_goes_on(
    quantised: tuple[Path, str], tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    folder = Path(shutil.copytree(quantised[0], tmp_path / "model"))
    damage(folder)
    with pytest.raises(InputError, match=message):
        load(folder, precision="int8")
    assert load(folder).precision == "fp32"


def test_exporting_over_a_model_leaves_no_stale_variant(
    quantised: tuple[Path, str], tmp_path: Path, photo: Image
) -> None:
    folder = Path(shutil.copytree(quantised[0], tmp_path / "model"))
    export_model(Parts(local=LocalNetwork().eval()), modelfile.ModelSpec("m", "local", {}), folder, photo)
    assert set(contents(folder)) == {"model.json", "local.onnx"}


def test_what_the_command_refuses(small_model: Path, tmp_path: Path) -> None:
    out = CliRunner().invoke(app, ["quantise", str(small_model), "--photos", str(tmp_path / "none")])
    assert isinstance(out.exception, InputError)
    assert "none: no such folder" in str(out.exception)
