"""`contextdesc stitch`: exit codes and messages."""

from __future__ import annotations

import json
from pathlib import Path

import PIL.Image
import pytest

from contextdesc.samples import sample_pair
from tests.cli.test_cli import run

OPTIONS = ("--model", "sift-context", "--context", "none", "--max-keypoints", "500", "--threads", "1", "-q")


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two crops of one photograph that overlap, and in `other` a photograph of something else."""
    from skimage.data import coffee

    folder = tmp_path_factory.mktemp("views")
    photo = sample_pair()[0].rgb
    PIL.Image.fromarray(photo[:400, :450]).save(folder / "left.png")
    PIL.Image.fromarray(photo[50:, 200:]).save(folder / "right.png")
    (folder / "other").mkdir()
    PIL.Image.fromarray(coffee()).save(folder / "other" / "left.png")
    return folder


def test_a_panorama(views: Path, tmp_path: Path) -> None:
    out = run("stitch", views / "right.png", views / "left.png", *OPTIONS, "-o", tmp_path / "p.jpg")
    assert out.returncode == 0, out.stderr
    width, height = PIL.Image.open(tmp_path / "p.jpg").size
    assert abs(width - 741) <= 2
    assert abs(height - 500) <= 2
    assert out.stdout == f"{tmp_path / 'p.jpg'}: {width} x {height} pixels, 2 of 2 images\n"


def test_an_image_that_does_not_connect_is_named_and_exits_with_1(views: Path, tmp_path: Path) -> None:
    other = views / "other" / "left.png"
    out = run("stitch", views / "left.png", views / "right.png", other, *OPTIONS, cwd=tmp_path)
    assert out.returncode == 1
    assert "panorama.jpg: " in out.stdout
    assert "2 of 3 images" in out.stdout
    assert out.stderr == f"left out: {other}: connects with no image of the panorama\n"
    assert (tmp_path / "panorama.jpg").exists()
    out = run("stitch", views, *OPTIONS, "--json", cwd=tmp_path)
    assert out.returncode == 1
    numbers = json.loads(out.stdout)
    assert list(numbers["left_out"]) == [str(other)]
    assert list(numbers["homographies"]) == [str(views / "left.png"), str(views / "right.png")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["other/left.png", "left.png"], "no two of the 2 images overlap"),
        (["left.png"], "a panorama needs two images or more"),
        (["left.png", "nowhere.png"], "nowhere.png: no such file or folder"),
        (["left.png", "right.png", "-o", "p.gif"], "p.gif: pictures are written as"),
    ],
)
def test_bad_input_exits_with_2(arguments: list[str], message: str, views: Path) -> None:
    before = sorted(views.rglob("*"))
    out = run("stitch", *arguments, *OPTIONS, cwd=views)
    assert out.returncode == 2
    assert message in out.stderr
    assert out.stderr.count("\n") == 1
    assert sorted(views.rglob("*")) == before
