"""`contextdesc retrieve` as users meet it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from contextdesc.cli import app
from contextdesc.errors import InputError
from contextdesc.match_set import read_pairs
from contextdesc.retrieval.index import GLOBAL_WEIGHT
from tests.retrieval.conftest import same_picture
from tests.sfm.conftest import photos, rendered  # noqa: F401  # fixtures

SMALL = ["--model", "sift-context", "--context", "none", "--max-keypoints", "300"]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["retrieve", *map(str, arguments)])


@pytest.fixture(scope="module")
def made(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the first nine photographs, made by the command. Tests copy it before they change it."""
    folder = tmp_path_factory.mktemp("cli") / "index"
    nine = [photo_folder / "a", *(photo_folder / "b" / f"{number:02}.png" for number in (6, 7, 8))]
    result = run("build", *nine, "-o", folder, "--words", 300, "-q", *SMALL)
    assert (result.exit_code, result.stdout) == (0, f"{folder}: 9 images\n"), result.output
    return folder


@pytest.fixture
def index(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "index"))


def test_the_whole_road(index: Path, photo_folder: Path, tmp_path: Path) -> None:
    """Add, query with a contact sheet, remove; the model and its settings come from the index."""
    result = run("add", index, photo_folder / "b" / "09.png", photo_folder / "b" / "10.png", "-q")
    assert result.stdout == f"{index}: 2 images\n"
    sheets = [tmp_path / "sheet.png", tmp_path / "sheet.html"]
    result = run(
        "query", index, photo_folder / "b" / "11.png", photo_folder / "a" / "01.png", "--top", 4,
        "--sheet", sheets[0], "--sheet", sheets[1], "-q",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "11.png: 61 keypoints" in result.stdout
    assert f"contact sheet: {sheets[1]}" in result.stdout
    assert all(path.stat().st_size > 10_000 for path in sheets)
    result = run("query", index, photo_folder / "b" / "11.png", "--top", 4, "--json")
    (answers,) = json.loads(result.stdout)["queries"]
    names = [answer["name"] for answer in answers["answers"]]
    assert [same_picture(name, "11.png") for name in names] == [True, True, False, False]
    assert answers["answers"][0]["inliers"] >= 30
    result = run("remove", index, *names[:2])
    assert result.stdout == f"{index}: 2 removed, 9 images\n"
    result = run("query", index, photo_folder / "b" / "11.png", "--top", 4, "--json")
    (answers,) = json.loads(result.stdout)["queries"]
    assert not any(same_picture(answer["name"], "11.png") for answer in answers["answers"])
    result = run("info", index, "--check", "--names")
    assert "images: 9" in result.stdout
    assert "model: sift-context (" in result.stdout
    assert "every file is whole" in result.stdout
    assert "10.png" in result.stdout.splitlines()
    assert json.loads(run("info", index, "--json").stdout)["pooling"] == "mean"


def test_a_vocabulary_is_reused(index: Path, photo_folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    images = photo_folder / "b"
    result = run("build", images, "-o", other, "--vocabulary", index, "--global", "none", "-q", *SMALL)
    assert result.exit_code == 0, result.output
    mine, theirs = (json.loads(run("info", path, "--json").stdout) for path in (index, other))
    assert mine["vocabulary"] == theirs["vocabulary"]
    assert (mine["pooling"], theirs["pooling"]) == ("mean", "none")
    result = run("query", other, images / "08.png", "--rank", "global", "-q")
    assert "has no global descriptors; rank by words" in result.output


def test_soft_assignment_is_an_option(photo_folder: Path, tmp_path: Path) -> None:
    result = run(
        "build", photo_folder / "a", "-o", tmp_path / "i", "--words", 100, "--neighbours", 3,
        "--burstiness", "none", "--features", "none", "-q", *SMALL,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    result = run("query", tmp_path / "i", photo_folder / "a" / "00.png", "--top", 2, "-q")
    assert "not verified: the index keeps no local features" in result.stdout
    assert result.stdout.splitlines()[2].split() == ["1", "-", f"{1 + GLOBAL_WEIGHT:.3f}", "00.png"]


def test_duplicates_are_printed_a_group_a_line(index: Path, photo_folder: Path, tmp_path: Path) -> None:
    small = cv2.resize(cv2.imread(str(photo_folder / "a" / "00.png")), None, fx=0.7, fy=0.7)
    cv2.imwrite(str(tmp_path / "small.jpg"), small)
    assert run("add", index, tmp_path / "small.jpg", "-q").exit_code == 0
    lines = run("duplicates", index, "-q").stdout.splitlines()
    assert "00.png\tsmall.jpg" in lines
    assert ["00.png", "small.jpg"] in json.loads(run("duplicates", index, "--json").stdout)["groups"]


def test_bad_images_are_listed_and_the_run_exits_with_1(
    index: Path, photo_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"not an image")
    cv2.imwrite(str(tmp_path / "gray.png"), np.full((60, 60), 90, np.uint8))
    result = run("add", index, tmp_path / "broken.jpg", photo_folder / "b" / "10.png", "-q")
    assert result.exit_code == 1
    assert "failed: broken.jpg:" in result.output
    result = run(
        "query", index, tmp_path / "broken.jpg", tmp_path / "gray.png", photo_folder / "b" / "10.png", "-q"
    )
    assert result.exit_code == 1
    assert "gray.png: 0 keypoints; no keypoints in the query" in result.stdout
    assert "failed: broken.jpg:" in result.output
    assert "10.png: " in result.stdout
    result = run("query", index, tmp_path / "broken.jpg", "--json")
    assert (result.exit_code, list(json.loads(result.stdout)["failed"])) == (1, ["broken.jpg"])


def test_what_is_refused(index: Path, rootsift_model: Path, photo_folder: Path, tmp_path: Path) -> None:
    def message(*arguments: str | Path) -> str:
        result = run(*arguments)
        assert isinstance(result.exception, InputError), result.output
        return str(result.exception)

    picture = photo_folder / "a" / "00.png"
    assert "no index, it has no index.json" in message("query", photo_folder, picture)
    other = message("query", index, picture, "--model", rootsift_model, "-q")
    assert "an index of sift-context (" in other
    assert "not of rootsift (" in other
    assert "no image called x.png" in message("remove", index, "x.png")
    assert "contact sheets are written as" in message("query", index, picture, "--sheet", "sheet.txt")
    broken = index / "segments" / "000001" / "weights.bin"
    broken.write_bytes(broken.read_bytes()[:-2])
    assert f"`contextdesc retrieve rebuild {index}` mends it" in message("query", index, picture)
    result = run("rebuild", index, "-q")
    assert result.exit_code == 0, result.output
    assert f"{index}: mended; 0 images were described anew" in result.stdout
    names = json.loads(run("info", index, "--names", "--json").stdout)["names"]
    run("remove", index, *names)
    for command in (["query", index, picture], ["pairs", index, "-o", tmp_path / "p"], ["duplicates", index]):
        assert "the index is empty" in message(*command)


def test_errors_are_one_line_and_exit_with_2(index: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "contextdesc", "retrieve", "info", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: {tmp_path}: no index")
    assert result.stderr.count("\n") == 1


def test_pairs_go_into_a_reconstruction(photos: Path, tmp_path: Path) -> None:  # noqa: F811
    """Five rendered views: index, pairs, `sfm` with them."""
    index, pairs = tmp_path / "index", tmp_path / "pairs.txt"
    small = [*SMALL[:-1], "800", "--contrast", "0.02", "-q"]
    result = run("build", photos, "-o", index, "--words", 300, *small)
    assert result.exit_code == 0, result.output
    result = run("pairs", index, "--top", 3, "--candidates", 3, "--expansion", 0, "-o", pairs, "--json")
    numbers = json.loads(result.stdout)
    assert numbers["images"] == 5
    assert len(read_pairs(pairs)) == numbers["pairs"] <= numbers["matched"] <= numbers["possible"] == 10
    reconstruct = [
        "sfm",
        str(photos),
        "-o",
        str(tmp_path / "sfm"),
        "--pair-list",
        str(pairs),
        "--camera",
        "shared",
    ]
    result = CliRunner().invoke(app, [*reconstruct, *small, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["registered"] == 5
    assert read_pairs(tmp_path / "sfm" / "pairs.txt") == read_pairs(pairs)
