"""`contextdesc localize` as a user meets it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from contextdesc.detection import Detector
from contextdesc.model import load
from tests.cli.test_cli import run
from tests.conftest import CI
from tests.mapped import position_error, write_image, write_map
from tests.training.test_scenes import View, views

if not CI:
    pytest.importorskip("pycolmap")


@pytest.fixture(scope="module")
def scene() -> list[View]:
    return views(3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, scene: list[View]) -> Path:
    """A map of the first and last view; model, context and detector are not the default ones."""
    folder = tmp_path_factory.mktemp("map")
    model = load("sift-context", context="geometric", detector=Detector(500))
    write_map(folder, {"0.png": scene[0], "2.png": scene[2]}, model)
    return folder


def test_pose_and_tables_with_the_recorded_model(folder: Path, scene: list[View], tmp_path: Path) -> None:
    """No option says which model, context or detector: they are the reconstruction's."""
    query = write_image(tmp_path / "new.png", scene[1])
    out = run("localize", folder, query, "-q", cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    first, last = out.stdout.splitlines()
    assert first.startswith("new.png: at ")
    assert "inliers" in first
    assert last == "1 of 1 localised; poses.csv, poses.json"
    (row,) = csv.DictReader((tmp_path / "poses.csv").open())
    centre = np.array([float(row[c]) for c in ("x", "y", "z")])
    assert position_error(centre, scene[1]) < 0.04
    (same,) = json.loads((tmp_path / "poses.json").read_text())
    assert same["x"] == pytest.approx(centre[0])


def test_those_not_localised_are_listed_and_the_exit_code_is_1(
    folder: Path, scene: list[View], tmp_path: Path
) -> None:
    queries = tmp_path / "queries"
    write_image(queries / "good.png", scene[1])
    write_image(queries / "mapped.png", scene[0])
    cv2.imwrite(str(queries / "black.png"), np.zeros((99, 99), np.uint8))
    (queries / "text.jpg").write_text("no image")
    table = tmp_path / "poses.txt"
    out = run("localize", folder, queries, "-q", "-o", table, cwd=tmp_path)
    assert out.returncode == 1
    assert "the same picture as 0.png" in out.stdout
    assert f"2 of 4 localised; {table}" in out.stdout
    assert "not localised: black.png: no keypoints in the image" in out.stderr
    assert "not localised: text.jpg: " in out.stderr
    assert [line.split()[0] for line in table.read_text().splitlines()] == ["good.png", "mapped.png"]
    out = run("localize", folder, queries / "black.png", "-q", "--json", cwd=tmp_path)
    assert out.returncode == 1
    assert json.loads(out.stdout)[0]["reason"] == "no keypoints in the image"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "contextdesc"], "context geometric), not of contextdesc ("),
        (["--context", "none"], "context geometric), not of sift-context ("),
        (["-o", "poses.xml"], "poses.xml: tables are written as .csv, .json, .txt"),
        (["--camera-params", "1,two"], "--camera-params '1,two': give numbers"),
        (["--min-inliers", "1"], "min_inliers is 1"),
    ],
)
def test_bad_input(
    folder: Path, scene: list[View], tmp_path: Path, arguments: list[str], message: str
) -> None:
    query = write_image(tmp_path / "new.png", scene[1])
    out = run("localize", folder, query, "-q", *arguments, cwd=tmp_path)
    assert out.returncode == 2, out.stdout
    assert message in out.stderr
    assert out.stderr.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["new.png"]


def test_a_folder_without_a_reconstruction(tmp_path: Path, scene: list[View]) -> None:
    query = write_image(tmp_path / "new.png", scene[1])
    out = run("localize", tmp_path, query, cwd=tmp_path)
    assert out.returncode == 2
    assert out.stderr == f"error: {tmp_path}: no features.h5 in it; give the output of contextdesc sfm\n"
