"""pycolmap is imported in one place, after OpenCV, and what it lacks is told in one line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import contextdesc
from contextdesc.errors import InputError
from contextdesc.sfm.binding import has, import_pycolmap


def test_opencv_comes_first_in_a_fresh_process() -> None:
    """The other order aborts the process when OpenCV estimates a geometry (pycolmap 4.2.1)."""
    code = (
        "from contextdesc.sfm.binding import import_pycolmap\n"
        "pycolmap = import_pycolmap()\n"
        "import sys, cv2, numpy as np\n"
        "order = list(sys.modules)\n"
        "assert order.index('cv2') < order.index('pycolmap')\n"
        "points = np.random.default_rng(0).uniform(0, 100, (50, 2)).astype(np.float32)\n"
        "matrix, mask = cv2.findFundamentalMat(points, points + 1, cv2.USAC_MAGSAC, 2.0)\n"
        "assert pycolmap.Camera.create_from_model_name(1, 'PINHOLE', 9, 8, 6).width == 8\n"
        "print('both work')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout.strip()) == (0, "both work"), run.stderr


def test_there_is_one_place_that_imports_it() -> None:
    root = Path(contextdesc.__file__).parent
    found = [
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if re.search(r"^\s*(import|from) pycolmap", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert found == ["sfm/binding.py"]


def test_without_pycolmap_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    with pytest.raises(InputError, match=r"pip install 'contextdesc\[sfm\]'"):
        import_pycolmap()


def test_an_old_pycolmap_is_told_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycolmap", SimpleNamespace(__version__="3.11.1"))
    with pytest.raises(InputError, match=r"pycolmap 3.11.1 lacks rigs and frames \(Rig\): .*pycolmap>=3.13"):
        import_pycolmap()


def test_what_only_newer_versions_have_is_asked_for_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    pycolmap = import_pycolmap("global_mapping", "FeatureDescriptors")
    assert has(pycolmap, "Database.open")
    assert not has(pycolmap, "Database.no_such_thing")
    monkeypatch.delattr(pycolmap, "global_mapping")
    assert import_pycolmap() is pycolmap
    with pytest.raises(InputError, match=r"lacks global mapping \(global_mapping\): .*pycolmap>=4.0"):
        import_pycolmap("global_mapping")
