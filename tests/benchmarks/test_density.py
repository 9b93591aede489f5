"""Numbers of keypoints: means by hand, subsets described as if alone, and a photograph that moves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from contextdesc.benchmarks import density
from contextdesc.benchmarks.cache import Cache
from contextdesc.benchmarks.density import Scores, levels, precision, report
from contextdesc.benchmarks.methods import build_method, build_methods
from contextdesc.benchmarks.protocol import Request
from contextdesc.benchmarks.sequences import OXFORD, read_sequence, recall
from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.image import Image
from tests.cli.test_cli import run


def test_precision_by_hand() -> None:
    """Of three matches under a shift by 10 pixels one is exact, one 2.5 off and one 3."""
    shift = np.array([[1, 0, 10], [0, 1, 0], [0, 0, 1]], float)
    points = np.array([[[0, 0], [10, 0]], [[5, 5], [15, 7.5]], [[9, 9], [19, 12]]], np.float32)
    assert precision(points, shift) == pytest.approx(2 / 3)
    assert precision(points[:0], shift) == 0


def test_means_by_hand() -> None:
    """Two sequences, one with 600 keypoints an image and one with 1000; 1024 are more than there are."""
    methods = build_methods("sift,rootsift")

    def at(keypoints: float, sift: float, rootsift: float) -> dict[str, Scores]:
        return {"sift": Scores(keypoints, sift, 10), "rootsift": Scores(keypoints, rootsift, 20)}

    found = {
        "a": {"512": at(512, 40, 41), "1024": at(600, 50, 52), "all": at(600, 50, 52)},
        "b": {"512": at(512, 60, 63), "1024": at(1000, 70, 74), "all": at(1000, 70, 74)},
    }
    request = Request(Path(), methods, baseline="sift", settings={"numbers": "512,1024"})
    result = report(request, found, {})
    summary = result.numbers["summary"]["all"]
    assert summary["keypoints"] == {"512": 512, "all": 800}
    assert summary["recall"]["sift"]["512"] == {"mean": 50, "low": 40, "high": 60}
    assert summary["recall, difference"]["rootsift"]["all"] == {"mean": 3, "low": 2, "high": 4}
    assert summary["precision"]["rootsift"]["all"]["mean"] == 20
    curves = result.curves[0]
    assert curves.lines == {"sift": [(512, 50), (800, 60)], "rootsift": [(512, 52), (800, 63)]}  # type: ignore[attr-defined]
    assert "| all | 800 | 60.0 (50.0 to 70.0) | 63.0 (52.0 to 74.0) |" in result.markdown


@pytest.mark.parametrize("name", ["sift", "rootsift", "sift-context", "sift-context:geometric"])
def test_subsets_are_described_as_if_there_were_no_others(name: str, photo: Image) -> None:
    method = build_method(name, threads=1)
    assert method.steps is not None
    keypoints = detect(photo.gray, Detector(200))
    rows = np.random.default_rng(0).permutation(200)[:80]
    arrays = method.steps.first(photo, keypoints, True)
    found = method.steps.second(photo, keypoints, arrays, rows)
    np.testing.assert_allclose(found, method(photo, keypoints[rows], True), atol=1e-5)
    if "context" in name:
        assert np.abs(found - method(photo, keypoints, True)[rows]).max() > 1e-4


def test_a_sequence_at_every_number(scene: Path, tmp_path: Path) -> None:
    """All keypoints as the methods themselves find them; a number above all changes nothing."""
    request = Request(
        scene.parent,
        build_methods("rootsift,opencv:SIFT"),
        (0, 1),
        cache=Cache(tmp_path / "cache"),
        settings={"numbers": "50,100000,100"},
    )
    assert list(levels(request)) == ["50", "100", "100000", "all"]
    found = density.score(request, (scene, OXFORD))
    assert found == density.score(request, (scene, OXFORD))  # from the cache
    sequence, method = read_sequence(scene, OXFORD), request.methods["rootsift"]
    views = [detect(image.gray, Detector(None, precise_upscale=False)) for image in sequence.images]
    described = [method(image, k, False) for image, k in zip(sequence.images, views, strict=True)]
    pairs = [
        recall(views[0], views[i], described[0], described[i], sequence.homographies[i - 1])
        for i in range(1, 6)
    ]
    assert found["all"]["rootsift"].recall == pytest.approx(100 * np.mean(pairs))
    assert found["all"]["rootsift"].keypoints == np.mean([len(view) for view in views])
    assert found["100000"] == found["all"]
    assert found["50"]["rootsift"].keypoints == found["50"]["opencv:SIFT"].keypoints == 50
    assert found["50"]["rootsift"].precision < found["100"]["rootsift"].precision < 100


def test_command(scene: Path, tmp_path: Path) -> None:
    command: list[str | Path] = [
        "benchmark", "density", "--data", scene.parent, "--methods", "sift,rootsift", "--workers", "1",
        "--baseline", "sift", "--seeds", "2",
    ]  # fmt: skip
    result = run(*command, "--set", "numbers=64,128", "--report", tmp_path / "report")
    assert result.returncode == 0, result.stderr
    numbers = json.loads((tmp_path / "report" / "numbers.json").read_text())
    assert numbers["seeds"] == 2
    assert list(numbers["summary"]["all"]["recall, difference"]) == ["rootsift"]
    assert (tmp_path / "report" / "recall-all.png").stat().st_size > 10_000
    assert "difference from sift, paired" in result.stdout
    with pytest.raises(InputError, match="numbers=few: numbers of keypoints such as 512,1024"):
        density.run(Request(scene.parent, build_methods("sift"), settings={"numbers": "few"}))
    result = run("benchmark", "density", "--data", tmp_path / "none")
    assert result.returncode == 2
    assert "none: no such folder" in result.stderr
