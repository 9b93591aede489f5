"""What tests of benchmarks share: a cache of their own, and a photograph in the published layouts."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from contextdesc.image import Image


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))


@pytest.fixture
def scene(tmp_path: Path, photo: Image) -> Path:
    """A scene `shift` in the Oxford layout: each image is 4 pixels further to the right than the last."""
    folder = tmp_path / "scenes" / "shift"
    folder.mkdir(parents=True)
    for index in range(1, 7):
        crop = photo.rgb[:300, 4 * (index - 1) : 4 * (index - 1) + 300]
        cv2.imwrite(str(folder / f"img{index}.png"), np.ascontiguousarray(crop[..., ::-1]))
        if index > 1:
            np.savetxt(folder / f"H1to{index}p", [[1, 0, -4 * (index - 1)], [0, 1, 0], [0, 0, 1]])
    return folder
