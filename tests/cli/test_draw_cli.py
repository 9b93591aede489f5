"""`contextdesc match --draw KIND`."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import PIL.Image
import pytest

from contextdesc.cli.picture import Kind
from tests.cli.test_cli import run

OPTIONS = ("--model", "sift-context", "--context", "none", "--max-keypoints", "300", "--threads", "1")


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_of_the_sample_pair(kind: Kind, tmp_path: Path) -> None:
    """The default name is the kind's; a geometry that the picture needs is fitted for it."""
    out = run("match", *OPTIONS, "--draw", kind, cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    assert f"picture: {kind}.png" in out.stdout
    assert "geometry: fundamental" in out.stdout
    width, height = PIL.Image.open(tmp_path / f"{kind}.png").size
    alone = kind in (Kind.overlay, Kind.warp)
    assert (width == 741) if alone else (width > 2 * 741)
    assert (height > 3 * 500) if kind is Kind.comparison else (height == 500)


def test_svg_and_other_geometry(photo_folder: Path, tmp_path: Path) -> None:
    images = (photo_folder / "a" / "00.png", photo_folder / "a" / "04.png")
    target = tmp_path / "new" / "lines.svg"
    out = run("match", *images, *OPTIONS, "--geometry", "homography", "--draw", "epipolar", "-o", target)
    assert out.returncode == 0, out.stderr
    assert "geometry: homography" in out.stdout
    root = ElementTree.parse(target).getroot()
    assert len(root.findall(".//{http://www.w3.org/2000/svg}line")) == 32


def test_no_homography_to_warp_by_is_work_that_failed(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        PIL.Image.new("L", (60, 40), 90).save(tmp_path / name)
    out = run("match", "a.png", "b.png", *OPTIONS, "--draw", "warp", cwd=tmp_path)
    assert out.returncode == 1
    assert out.stderr == "error: no homography was found in 0 matches: nothing to warp\n"
    assert not (tmp_path / "warp.png").exists()


def test_unknown_kind(tmp_path: Path) -> None:
    out = run("match", "--draw", "lines", cwd=tmp_path)
    assert out.returncode == 2
    assert "'lines' is not one of 'matches', 'overlay'" in out.stderr
