"""A small scene, photographs on planes seen by known cameras, and its reconstruction."""

from __future__ import annotations

from pathlib import Path

import pytest

from contextdesc.detection import Detector
from contextdesc.model import ContextDesc, load
from contextdesc.sfm.cameras import CameraConfig
from contextdesc.sfm.pipeline import Outcome, SfmConfig, reconstruct
from tests.conftest import CI
from tests.training.test_scenes import View, views, write

if not CI:
    pytest.importorskip("pycolmap")

CONFIG = SfmConfig(cameras=CameraConfig(mode="shared"))


@pytest.fixture(scope="session")
def rendered() -> list[View]:
    return views(5)


@pytest.fixture(scope="session")
def photos(rendered: list[View], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(rendered, tmp_path_factory.mktemp("sfm") / "photos")


@pytest.fixture(scope="session")
def model() -> ContextDesc:
    """RootSIFT, which needs no network."""
    return load("sift-context", context="none", detector=Detector(1000, contrast=0.02), threads=1)


@pytest.fixture(scope="session")
def finished(photos: Path, model: ContextDesc) -> tuple[Path, Outcome]:
    """A reconstruction's folder, and what the run told. Tests copy it before they change it."""
    output = photos.parent / "finished"
    return output, reconstruct(model, photos, output, CONFIG, quiet=True)
