"""A model without a patch network, an index of twelve photographs, and vocabularies that need no training."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from contextdesc.detection import Detector
from contextdesc.image import find_images
from contextdesc.model import ContextDesc, load
from contextdesc.retrieval.building import build_index
from contextdesc.retrieval.index import Index
from contextdesc.retrieval.vocabulary import Vocabulary


@pytest.fixture(scope="session")
def model() -> ContextDesc:
    """RootSIFT, and a regional network for the global descriptor."""
    return load("sift-context", context="none", detector=Detector(300), threads=1)


@pytest.fixture(scope="session")
def finished(model: ContextDesc, photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of three crops of each of four pictures: image n shows picture n modulo 4. Tests copy it."""
    folder = tmp_path_factory.mktemp("retrieval") / "index"
    build_index(model, find_images([photo_folder]), folder, words=400, quiet=True)
    return folder


@pytest.fixture
def built(finished: Path, tmp_path: Path) -> Index:
    return Index.open(shutil.copytree(finished, tmp_path / "index"))


def plain_vocabulary(words: int) -> Vocabulary:
    """Words on a line, for tests that number them by hand."""
    centres = np.arange(words, dtype=np.float32)[:, None]
    return Vocabulary(centres, np.zeros((0, 1), np.float32), "by hand")


def same_picture(first: str, second: str) -> bool:
    """Whether two of the twelve photographs show one picture."""
    return int(Path(first).stem) % 4 == int(Path(second).stem) % 4
