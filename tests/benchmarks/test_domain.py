"""Sizes of regions: names of methods, sums by hand, and recall by size on a photograph that moves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from contextdesc import load
from contextdesc.benchmarks import domain
from contextdesc.benchmarks.methods import Method, build_method, build_methods
from contextdesc.benchmarks.methods.sizes import parsed, summed
from contextdesc.benchmarks.protocol import Request
from contextdesc.benchmarks.sequences import OXFORD, read_sequence, recall
from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.image import Image
from contextdesc.keypoints import Keypoints
from tests.cli.test_cli import run


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rootsift", ("rootsift", ())),
        ("rootsift@2", ("rootsift", (2.0,))),
        ("runs/model:none@1+0.5", ("runs/model:none", (1.0, 0.5))),
        ("kornia:HardNet@12=weights.pth", ("kornia:HardNet@12=weights.pth", ())),
        ("kornia:HardNet@12=weights.pth@.5", ("kornia:HardNet@12=weights.pth", (0.5,))),
        ("model@home", ("model@home", ())),
    ],
)
def test_sizes_stand_after_the_name(name: str, expected: tuple[str, tuple[float, ...]]) -> None:
    assert parsed(name) == expected


def test_sizes_are_summed_and_normalised_by_hand(photo: Image) -> None:
    """(1, 0) of a keypoint up to 4 pixels, (0, 1) of a larger one: their sum points half way."""

    def describe(image: Image, keypoints: Keypoints, precise: bool) -> np.ndarray:
        large = keypoints.size > 4
        return np.stack([~large, large], 1).astype(np.float32)

    method = Method("fake", describe, "fake")
    keypoints = Keypoints.from_array([[10, 10, 4, 0], [10, 10, 8, 0]])
    both = summed(method, "fake@1+2", (1.0, 2.0))
    half = np.sqrt(0.5)
    np.testing.assert_allclose(both(photo, keypoints, True), [[half, half], [0, 1]], rtol=1e-6)
    assert both.name == "fake@1+2"
    assert both.identity != summed(method, "fake@2", (2.0,)).identity
    with pytest.raises(InputError, match="after the @ one or more sizes above 0"):
        build_method("rootsift@1+0")
    with pytest.raises(InputError, match=r"'h5:a\.h5@2': features that were computed before"):
        build_method("h5:a.h5@2")


def test_a_model_sums_raw_descriptors_before_context(photo: Image, small_model: Path) -> None:
    """As the option of `contextdesc.load` does, for any of its contexts, and sizes do not get mixed up."""
    keypoints = detect(photo.gray, Detector(50))
    for terms in ("none", "geometric"):
        for sizes in ((0.5,), (1.0, 2.0), (1.0,)):
            name = f"{small_model}:{terms}@{'+'.join(map(str, sizes))}"
            found = build_method(name)(photo, keypoints, True)
            model = load(small_model, context=terms, domain_sizes=sizes)
            np.testing.assert_allclose(found, model.describe(photo, keypoints).descriptors, atol=1e-6)


def test_other_sizes_are_those_of_the_keypoints(photo: Image) -> None:
    keypoints = detect(photo.gray, Detector(50))
    larger = Keypoints(keypoints.xy, 2 * keypoints.size, keypoints.angle, keypoints.response)
    for name in ("rootsift", "sift-context:geometric"):
        one, two = build_method(f"{name}@2"), build_method(name)
        np.testing.assert_allclose(one(photo, keypoints, True), two(photo, larger, True), atol=1e-6)


def test_means_and_differences_by_hand() -> None:
    """Recall 40 and 60 at 1x, 50 and 90 at 2x: means 50 and 70, gains 10 and 30."""
    found = {"a": {"1": {"m": 40.0}, "2": {"m": 50.0}}, "b": {"1": {"m": 60.0}, "2": {"m": 90.0}}}
    report = domain.report(found, {})
    summary = report.numbers["summary"]["all"]
    assert summary["recall"]["m"]["1"]["mean"] == 50
    assert summary["recall"]["m"]["2"] == {"mean": 70, "low": 50, "high": 90}
    assert summary["difference from 1x"] == {"m": {"2": {"mean": 20, "low": 10, "high": 30}}}
    assert "| 2x | +20.0 (+10.0 to +30.0) |" in report.markdown


def test_recall_at_once_is_that_of_the_method(scene: Path) -> None:
    """Of the strongest keypoints, mean of the five pairs; other sizes differ."""
    sequence = read_sequence(scene, OXFORD)
    method = build_method("rootsift")
    views = [detect(image.gray, Detector(2048, precise_upscale=False)) for image in sequence.images]
    described = [method(image, k, False) for image, k in zip(sequence.images, views, strict=True)]
    pairs = [
        recall(views[0], views[i], described[0], described[i], sequence.homographies[i - 1])
        for i in range(1, 6)
    ]
    report = domain.run(Request(scene.parent, build_methods("rootsift"), settings={"sizes": "0.25,1,1+2"}))
    found = report.numbers["sequences"]["shift"]
    assert found["1"]["rootsift"] == pytest.approx(100 * np.mean(pairs))
    assert found["0.25"]["rootsift"] != found["1"]["rootsift"]
    assert [row[0] for row in report.tables[0].rows] == ["0.25x", "1x", "(1+2)x"]
    assert [row[0] for row in report.tables[1].rows] == ["0.25x", "(1+2)x"]


def test_command(scene: Path, tmp_path: Path) -> None:
    (scene.parent / "broken").mkdir()
    (scene.parent / "broken" / "H1to2p").write_text("1 2 3")
    command: list[str | Path] = [
        "benchmark", "domain", "--data", scene.parent, "--methods", "rootsift", "--workers", "1",
    ]  # fmt: skip
    result = run(*command, "--set", "sizes=1,2", "--report", tmp_path / "report")
    assert result.returncode == 0, result.stderr
    numbers = json.loads((tmp_path / "report" / "numbers.json").read_text())
    assert "not a 3 x 3 homography" in numbers["skipped"]["broken"]
    assert numbers["summary"]["all"]["recall"]["rootsift"]["1"]["mean"] > 90
    assert (tmp_path / "report" / "recall-all.png").stat().st_size > 10_000
    result = run(*command, "--set", "sizes=2,4")
    assert result.returncode == 2
    assert "--set sizes=2,4: with 1, which the others are compared with" in result.stderr
