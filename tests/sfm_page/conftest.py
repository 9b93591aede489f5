from __future__ import annotations

import pytest

from tests.sfm_page.scene import KnownScene, write_scene


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> KnownScene:
    return write_scene(tmp_path_factory.mktemp("sfm") / "column")
