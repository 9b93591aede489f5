"""`contextdesc sfm` and `contextdesc colmap` as users meet them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contextdesc.cli import app
from contextdesc.errors import InputError
from contextdesc.sfm.binding import import_pycolmap
from tests.sfm.conftest import photos, rendered  # noqa: F401  # fixtures

SMALL = ["--model", "sift-context", "--context", "none", "--max-keypoints", "800", "--quiet"]


@pytest.fixture
def three(photos: Path, tmp_path: Path) -> Path:  # noqa: F811
    folder = tmp_path / "images"
    folder.mkdir()
    for name in ("001.png", "002.png", "003.png"):
        shutil.copyfile(photos / name, folder / name)
    return folder


def test_photographs_become_a_model_and_a_page(three: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    arguments = ["sfm", str(three), "-o", str(output), "--camera", "shared", *SMALL]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "registered" in result.stdout
    assert f"page: {output / 'index.html'}" in result.stdout
    assert (output / "index.html").read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html>")
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert json.loads(result.stdout)["registered"] == 3
    result = CliRunner().invoke(app, [*arguments, "--ratio", "0.7"])
    assert isinstance(result.exception, InputError)
    assert "ratio: was None, now 0.7" in str(result.exception)
    result = CliRunner().invoke(app, [*arguments, "--camera-params", "600,some"])
    assert "give numbers such as 1150,640,426,0" in str(result.exception)


def test_a_bad_file_is_listed_and_the_run_exits_with_1(three: Path, tmp_path: Path) -> None:
    (three / "broken.jpg").write_bytes(b"not an image")
    shutil.copyfile(three / "001.png", three / "copy.png")
    result = CliRunner().invoke(
        app, ["sfm", str(three), "-o", str(tmp_path / "out"), "--camera", "shared", *SMALL]
    )
    assert result.exit_code == 1
    assert "left out: copy.png: the same picture as 001.png" in result.stdout
    assert "failed: broken.jpg:" in result.output


def test_a_project_is_filled(three: Path, tmp_path: Path) -> None:
    database = tmp_path / "project.db"
    import_pycolmap().Database.open(str(database)).close()
    arguments = ["colmap", "--database", str(database), "--images", str(three), *SMALL]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "3 images, 2400 keypoints" in result.stdout
    result = CliRunner().invoke(app, arguments)
    assert "holds 2400 keypoints" in str(result.exception)
    result = CliRunner().invoke(app, [*arguments, "--overwrite", "--json"])
    assert json.loads(result.stdout)["pairs"] == 3
