"""An index whose images were described and quantised by many processes is the one that a single one makes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from contextdesc.detection import Detector
from contextdesc.errors import InputError
from contextdesc.image import find_images
from contextdesc.model import ContextDesc, load
from contextdesc.retrieval.building import build_index
from contextdesc.scale.run import Workers
from tests.conftest import CI
from tests.retrieval.test_building import contents

if not CI:
    pytest.importorskip("faiss")


@pytest.fixture(scope="module")
def model() -> ContextDesc:
    return load("sift-context", detector=Detector(150), threads=1)


def test_the_same_index_byte_for_byte(model: ContextDesc, photo_folder: Path, tmp_path: Path) -> None:
    photos = Path(shutil.copytree(photo_folder, tmp_path / "photos"))
    (photos / "b" / "broken.png").write_bytes(b"no image")
    images = find_images([photos])
    for name, workers in (("one", None), ("many", Workers(2))):
        report = build_index(model, images, tmp_path / name, words=64, quiet=True, workers=workers)
        assert (len(report.done), list(report.failed)) == (12, ["b/broken.png"])
    assert contents(tmp_path / "one") == contents(tmp_path / "many")


def test_a_build_that_was_stopped_goes_on(model: ContextDesc, photo_folder: Path, tmp_path: Path) -> None:
    photos = Path(shutil.copytree(photo_folder / "a", tmp_path / "photos"))
    (photos / "99.png").write_bytes(b"no image")
    folder, images = tmp_path / "index", find_images([photos])
    with pytest.raises(InputError, match=r"99.png: not an image"):
        build_index(model, images, folder, words=64, strict=True, quiet=True, workers=Workers(1))
    assert sorted(path.name for path in folder.iterdir()) == ["described"]
    shutil.copy(photos / "00.png", photos / "99.png")
    command = [
        sys.executable, "-m", "contextdesc", "retrieve", "build", str(photos), "-o", str(folder), "--json",
        "--model", "sift-context", "--max-keypoints", "150", "--words", "64", "--workers", "1",
        "--max-side", "0",
    ]  # fmt: skip
    out = subprocess.run(command, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert json.loads(out.stdout)["done"] == 7
    build_index(model, images, tmp_path / "direct", words=64, quiet=True)
    assert contents(folder) == contents(tmp_path / "direct")
