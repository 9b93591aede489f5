"""Shared by trainings: four photographs, regional grids as files, and one cache, so pairs are made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.training.tiny import CHANNELS


@pytest.fixture(scope="session")
def few_photos(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("few")
    for number in (0, 1, 2, 4):
        shutil.copy(photo_folder / "a" / f"{number:02}.png", folder)
    return folder


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def grids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random grids of different sizes for the views of `few_photos`, one pair each, and of a scene."""
    folder = tmp_path_factory.mktemp("grids")
    rng = np.random.default_rng(0)
    views = [f"{photo}-0-{side}" for photo in range(3) for side in "ab"] + [f"{i:03}" for i in range(4)]
    for number, view in enumerate(views):
        shape = (CHANNELS, 2 + number % 3, 3 + number % 2)
        np.save(folder / f"{view}.npy", rng.normal(size=shape).astype(np.float32))
    return folder
