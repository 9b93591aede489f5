"""HPatches sequences: scores worked out by hand, a real photograph in the layout, and broken sequences."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from contextdesc.benchmarks import hsequences
from contextdesc.benchmarks.hpatches_splits import SPLITS
from contextdesc.benchmarks.hsequences import WITHOUT_LARGE, Scores, score_pair, summarise
from contextdesc.benchmarks.methods import build_method, build_methods
from contextdesc.benchmarks.protocol import Request
from contextdesc.benchmarks.sequences import corner_error, warp
from contextdesc.errors import InputError
from contextdesc.image import Image
from tests.cli.test_cli import run

SHIFT = np.array([[1, 0, 10], [0, 1, 0], [0, 0, 1]], float)


def matches_with_errors(errors: list[float]) -> np.ndarray:
    """Matches under `SHIFT` on a grid, whose second points are so many pixels too low."""
    first = np.array([[x, y] for x in range(0, 100, 20) for y in range(0, 100, 20)], np.float32)[
        : len(errors)
    ]
    second = first + np.column_stack([np.full(len(errors), 10), errors])
    return np.stack([first, second.astype(np.float32)], 1)


def test_matching_accuracy_by_hand() -> None:
    """Of four matches one is exact, one 1 pixel off (which counts at 1), one 2.5 and one 11."""
    found = score_pair(0.5, matches_with_errors([0, 1, 2.5, 11]), SHIFT, (100, 100))
    assert found.recall == 50
    assert found.mma == (50, 50, 75, 75, 75, 75, 75, 75, 75, 75)


def test_homography_accuracy_by_hand() -> None:
    """All matches are 2 pixels low, and so is the homography that they give: wrong at 1, right at 3 and 5."""
    found = score_pair(0, matches_with_errors([2.0] * 25), SHIFT, (100, 100))
    assert found.homography == (0, 100, 100)
    assert score_pair(0, matches_with_errors([0.0] * 25), SHIFT, (100, 100)).homography == (100, 100, 100)
    assert score_pair(0, matches_with_errors([0.0] * 3), SHIFT, (100, 100)).homography == (0, 0, 0)
    nothing = score_pair(0, np.zeros((0, 2, 2), np.float32), SHIFT, (100, 100))
    assert nothing == Scores(0, (0,) * 10, (0, 0, 0))


def test_corner_error_by_hand() -> None:
    """Twice the size moves the corners of an 11 x 21 image by 0, 10, sqrt(500) and 20 pixels."""
    expected = (0 + 10 + np.sqrt(500) + 20) / 4
    assert corner_error(np.diag([2.0, 2.0, 1.0]), np.eye(3), (11, 21)) == pytest.approx(expected)
    assert corner_error(None, np.eye(3), (11, 21)) == np.inf
    np.testing.assert_allclose(warp(np.array([[1.0, 2.0]]), SHIFT), [[11, 2]])


def test_means_are_over_sequences_by_kind() -> None:
    """Recall 40 and 60 of illumination, 90 of viewpoint, where a large sequence counts for recall alone."""

    def scores(recall: float, share: float) -> Scores:
        return Scores(recall, (share,) * 10, (100, 100, 100))

    of = {"i_one": scores(40, 50), "i_dc": scores(60, 100), "v_two": scores(90, 80)}
    summary = summarise(of)
    assert summary["illumination"]["recall"]["mean"] == 50
    assert summary["illumination"]["recall"]["low"] == 40
    assert summary["illumination"]["mma"][0]["mean"] == 75
    assert summary["illumination"][WITHOUT_LARGE]["mma"][0]["mean"] == 50
    assert WITHOUT_LARGE not in summary["viewpoint"]
    assert summary["all"]["recall"]["mean"] == pytest.approx(190 / 3)
    assert [summary[kind]["sequences"] for kind in ("illumination", "viewpoint", "all")] == [2, 1, 3]
    result = {"summary": {"sift": summary}, "sequences": {"sift": of}}
    shown = hsequences.report(Request(Path(), {}), result, {}).markdown
    assert "| sift | 1 illumination, without the large sequences |  | 50.0 |" in shown
    assert "| sift | 2 all, without the large sequences |  | 65.0 (50.0 to 80.0) |" in shown


def test_a_sequence_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of two that somebody has, but where one of nearly all is missing."""
    monkeypatch.setattr(
        hsequences, "score", lambda request, folder: {"sift": Scores(1, (1,) * 10, (1, 1, 1))}
    )
    for name in SPLITS["full"]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "H_1_2").touch()
    request = Request(tmp_path, {"sift": build_method("sift")})
    assert hsequences.run(request).skipped == {}
    for name in ("i_ski", "v_wall"):
        shutil.rmtree(tmp_path / name)
    report = hsequences.run(request)
    assert list(report.skipped) == ["i_ski", "v_wall"]
    assert "114 of the 116 sequences" in report.about
    assert "v_wall: missing" in report.markdown
    assert hsequences.run(replace(request, limit=3)).skipped == {}


@pytest.fixture
def release(tmp_path: Path, photo: Image) -> Path:
    """Two sequences in the release's layout: a photograph that moves, and one that darkens."""
    for name, suffix in (("v_shift", ".ppm"), ("i_dark", ".png")):
        folder = tmp_path / "release" / name
        folder.mkdir(parents=True)
        for index in range(1, 7):
            left = 4 * (index - 1) if name == "v_shift" else 0
            crop = photo.rgb[:-20, left : left + 400, ::-1] * (1.0 if name == "v_shift" else 1 - index / 12)
            cv2.imwrite(str(folder / f"{index}{suffix}"), np.ascontiguousarray(crop.astype(np.uint8)))
            if index > 1:
                np.savetxt(folder / f"H_1_{index}", [[1, 0, -left], [0, 1, 0], [0, 0, 1]])
    return tmp_path / "release"


def test_a_photograph_in_the_release_s_layout(release: Path) -> None:
    report = hsequences.run(Request(release, build_methods("sift,rootsift"), baseline="sift"))
    result = report.numbers
    assert report.skipped == {}
    for method in ("sift", "rootsift"):
        moved = result["summary"][method]["viewpoint"]
        assert moved["recall"]["mean"] > 75
        assert moved["mma"][2]["mean"] > 80
        assert moved["homography"][1]["mean"] == 100
        curve = [value["mean"] for value in moved["mma"]]
        assert curve == sorted(curve)
    assert result["sequences"]["sift"]["i_dark"]["recall"] == pytest.approx(
        result["summary"]["sift"]["illumination"]["recall"]["mean"]
    )
    assert "| rootsift | 1 viewpoint |" in report.markdown
    gain = result["difference"]["rootsift"]["viewpoint"]["recall"]["mean"]
    recalls = [result["summary"][m]["viewpoint"]["recall"]["mean"] for m in ("rootsift", "sift")]
    assert gain == pytest.approx(recalls[0] - recalls[1])
    assert [curves.name for curves in report.curves] == ["mma-illumination", "mma-viewpoint", "mma-all"]
    assert report.curves[1].lines["sift"][2] == (3, result["summary"]["sift"]["viewpoint"]["mma"][2]["mean"])


def test_a_broken_sequence_is_named_and_skipped(release: Path, tmp_path: Path) -> None:
    (release / "i_dark" / "H_1_4").write_text("1 0 0\n0 0 0\n0 0 1\n")
    output = tmp_path / "numbers.json"
    folder = tmp_path / "report"
    out = run(
        "benchmark", "hsequences", "--data", release, "--methods", "sift", "-o", output, "--report", folder,
        "--workers", "1",
    )  # fmt: skip
    assert out.returncode == 0, out.stderr
    assert "a homography that is not invertible" in (folder / "report.html").read_text()
    assert json.loads((folder / "numbers.json").read_text()) == json.loads(output.read_text())
    assert "H_1_4: a homography that is not invertible" in out.stdout
    numbers = json.loads(output.read_text())
    assert list(numbers["skipped"]) == ["i_dark"]
    assert list(numbers["sequences"]["sift"]) == ["v_shift"]
    (release / "v_shift" / "3.ppm").unlink()
    out = run("benchmark", "hsequences", "--data", release, "--methods", "sift", "-q")
    assert out.returncode == 2
    assert "no sequences could be used; the first: " in out.stderr
    with pytest.raises(InputError, match="no sequences in the layout of HPatches sequences"):
        hsequences.run(Request(tmp_path, {}))
