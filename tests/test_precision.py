"""`precision="int8"`: nearly the features of fp32, never mixed with them unnoticed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from contextdesc import engine
from contextdesc.adapters.hloc import Extractor
from contextdesc.benchmarks.methods import build_method
from contextdesc.cli import options as o
from contextdesc.cli.recorded import recorded_options
from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.features import Features
from contextdesc.geometry import verify
from contextdesc.image import Image
from contextdesc.matching import match
from contextdesc.model import ContextDesc, load
from contextdesc.modelfile import LOCAL
from contextdesc.samples import sample_pair
from contextdesc.scale.loading import Loading
from contextdesc.verdict import calibration_of

DETECTOR = Detector(300)


@pytest.fixture(scope="module")
def models() -> dict[str, ContextDesc]:
    return {"fp32": load(detector=DETECTOR), "int8": load(detector=DETECTOR, precision="int8")}


@pytest.fixture(scope="module")
def features(models: dict[str, ContextDesc], photo: Image) -> dict[str, Features]:
    return {precision: model.extract(photo) for precision, model in models.items()}


def test_descriptors_of_a_photograph_are_nearly_those_of_fp32(features: dict[str, Features]) -> None:
    exact, quick = features["fp32"], features["int8"]
    assert np.array_equal(exact.keypoints.xy, quick.keypoints.xy)
    cosine = (exact.descriptors * quick.descriptors).sum(1)
    assert cosine.min() > 0.99
    assert cosine.mean() > 0.999
    assert not np.array_equal(exact.descriptors, quick.descriptors)  # it is another network
    np.testing.assert_allclose(exact.matchability, quick.matchability, atol=0.1)
    assert np.allclose(np.linalg.norm(quick.descriptors, axis=1), 1, atol=1e-5)


def test_the_same_bits_each_time_and_in_another_process(
    models: dict[str, ContextDesc], features: dict[str, Features], photo: Image
) -> None:
    again = Loading.of(models["int8"], 0).load()  # as workers load it
    assert again.precision == "int8"
    assert np.array_equal(again.extract(photo).descriptors, features["int8"].descriptors)


def test_precisions_are_not_mixed_unless_forced(features: dict[str, Features]) -> None:
    exact, quick = features["fp32"], features["int8"]
    assert quick.context == f"{exact.context}:int8"
    assert (quick.model, quick.checksum) == (exact.model, exact.checksum)
    with pytest.raises(InputError, match=r"visual\+geometric:int8.* do not compare"):
        match(exact, quick)
    forced = match(exact, quick, ratio=1, force=True)
    assert (forced.indices[:, 0] == forced.indices[:, 1]).mean() > 0.99


def test_the_verdict_is_calibrated_as_for_fp32(models: dict[str, ContextDesc]) -> None:
    left, right = sample_pair()[:2]
    model = load(precision="int8")
    a, b = model.extract(left), model.extract(right)
    result = verify(a, b, match(a, b))
    assert result.verdict == "same scene"
    own = calibration_of(models["fp32"].spec.name, models["fp32"].checksum, "fundamental")
    assert result.judgement is not None
    assert result.judgement.same_from == own.same_from


def test_no_keypoints(models: dict[str, ContextDesc]) -> None:
    empty = models["int8"].extract(np.full((64, 64), 128, np.uint8))
    assert empty.descriptors.shape == (0, 128)
    assert empty.context.endswith(":int8")


def test_cpus_without_vnni_get_the_same_answer(
    features: dict[str, Features], photo: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "eight_bit_products_saturate", lambda: True)
    slow = load(detector=DETECTOR, precision="int8").extract(photo)
    assert (slow.descriptors * features["int8"].descriptors).sum(1).min() > 1 - 1e-4


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", "flags: avx2 avx512_vnni", False),
        ("AMD64", "flags: avx2 avx_vnni", False),
        ("x86_64", "flags: avx2", True),
        ("x86_64", None, True),
        ("aarch64", None, False),
    ],
)
def test_which_cpus_saturate(
    machine: str, flags: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_text(path: Path, **_: object) -> str:
        if flags is None:
            raise FileNotFoundError(path)
        return flags

    monkeypatch.setattr(engine.platform, "machine", lambda: machine)
    monkeypatch.setattr(Path, "read_text", read_text)
    assert engine.eight_bit_products_saturate.__wrapped__() is expected


def test_bad_choices_are_named(small_model: Path) -> None:
    with pytest.raises(InputError, match="precision is 'int4': one of fp32, int8"):
        load(precision="int4")  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match=r"small has no int8\.json; use fp32, or make it with contextdesc quantise"
    ):
        load(small_model, precision="int8")


def test_benchmarks_take_it_as_a_method(models: dict[str, ContextDesc], photo: Image) -> None:
    keypoints = detect(photo.gray, Detector(40))
    plain, quick = (build_method(f"contextdesc{suffix}") for suffix in ("", ":int8"))
    expected = models["int8"].describe(photo, keypoints).descriptors
    exact = plain(photo, keypoints, True)  # first, so that what methods share would be found out
    assert not np.allclose(exact, expected, atol=1e-5)
    np.testing.assert_allclose(quick(photo, keypoints, True), expected, atol=1e-6)
    assert plain.identity != quick.identity
    summed = build_method("contextdesc:none:int8@1+0.5")
    sizes = load(context="none", precision="int8", domain_sizes=(1.0, 0.5))
    assert sizes.context == "none:int8@1+0.5"
    np.testing.assert_allclose(
        summed(photo, keypoints, True), sizes.describe(photo, keypoints).descriptors, atol=1e-6
    )
    assert quick.patches is not None
    assert quick.patches.name == "contextdesc:none:int8"
    patches = photo.gray[:64, :64].reshape(2, 32, 2, 32).transpose(0, 2, 1, 3).reshape(4, 32, 32)
    (raw, _) = engine.Engine(models["int8"].network(LOCAL)).run(patches=patches)
    np.testing.assert_allclose(
        quick.patches.describe(patches), raw / np.linalg.norm(raw, axis=1, keepdims=True), atol=1e-6
    )


def test_what_an_index_or_a_reconstruction_recorded_is_loaded_again() -> None:
    class Untouched:
        @staticmethod
        def get_parameter_source(_: str) -> object:
            return type("Source", (), {"name": "DEFAULT"})

    for context, precision, sizes in (
        ("visual+geometric", o.PrecisionChoice.fp32, "1"),
        ("visual+geometric:int8", o.PrecisionChoice.int8, "1"),
        ("none:int8@1+2", o.PrecisionChoice.int8, "1,2"),
    ):
        options = recorded_options("it", "contextdesc", "0", context, {}, Untouched())  # type: ignore[arg-type]
        assert (options["precision"], options["domain_sizes"]) == (precision, sizes)
        assert options["context"] in (o.ContextChoice.both, o.ContextChoice.none)


def test_hloc_s_extractor_takes_it() -> None:
    extractor = Extractor()
    extractor._init({**Extractor.default_conf, "precision": "int8"})
    assert extractor.contextdesc.precision == "int8"


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "contextdesc", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)


def test_on_the_command_line(photo: Image, small_model: Path, tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), photo.gray)
    common = ("extract", "a.png", "--max-keypoints", "100", "-q", "-o")
    assert run(*common, "int8.h5", "--precision", "int8", cwd=tmp_path).returncode == 0
    made = Features.load(tmp_path / "int8.h5")
    assert made.context == "visual+geometric:int8"
    mixed = run(*common, "int8.h5", cwd=tmp_path)
    assert mixed.returncode == 2
    assert "context visual+geometric:int8), not of contextdesc" in mixed.stderr
    lacks = run("match", "--model", small_model, "--precision", "int8", "--no-picture", cwd=tmp_path)
    assert lacks.returncode == 2
    assert lacks.stderr == (
        "error: precision int8: small has no int8.json; use fp32, or make it with contextdesc quantise\n"
    )
    listed = json.loads(run("models", "--no-speed", "--json", cwd=tmp_path).stdout)
    assert {m["name"]: m["precisions"] for m in listed}["contextdesc"] == ["fp32", "int8"]
