"""Reconstructions: errors of cameras by hand, a rendered scene, and the layout of the ETH evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from contextdesc.benchmarks import sfm
from contextdesc.benchmarks.cameras import Camera
from contextdesc.benchmarks.methods import build_methods
from contextdesc.benchmarks.protocol import Request
from contextdesc.benchmarks.sfm import camera_errors, database_keypoints, find_scenes, mean_rotation, table
from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.image import read
from contextdesc.sfm.cameras import CameraConfig, group_cameras
from contextdesc.sfm.database import ImageRows, write_database
from tests.benchmarks.strecha import write_strecha
from tests.conftest import CI
from tests.training.test_scenes import HEIGHT, WIDTH, View, views

if not CI:
    pytest.importorskip("pycolmap")

FEW = {"max-keypoints": 800, "contrast": 0.02}


def turn(degrees: float) -> np.ndarray:
    """About y."""
    return cv2.Rodrigues(np.array([0, np.deg2rad(degrees), 0]))[0]


def camera(centre: tuple[float, float, float], rotation: np.ndarray) -> Camera:
    return Camera(np.eye(3), rotation, -rotation @ np.array(centre, float))


def test_errors_of_positions_by_hand() -> None:
    """Cameras at the corners of a square; two opposite ones are 1.5 times as far out, the others 0.5 times.

    No turn or shift makes that better. The best scale is (2 * 1.5 + 2 * 0.5) / (2 * 1.5^2 + 2 * 0.5^2) = 0.8,
    which leaves them at 1.2 and 0.4 of half the diagonal: errors of 10 and 30 percent of the diagonal.
    The reconstruction's world has another scale, turn and origin, which must not matter.
    """
    corners = [(1, 1, 0), (-1, 1, 0), (-1, -1, 0), (1, -1, 0)]
    true = {str(i): camera(corner, np.eye(3)) for i, corner in enumerate(corners)}
    found = {}
    for i, corner in enumerate(corners):
        off = np.array(corner) * (1.5 if i % 2 == 0 else 0.5)
        found[str(i)] = camera(tuple(3 * turn(40) @ off + [7, 8, 9]), turn(40).T)
    errors = camera_errors(found, true)
    assert errors["position_error_mean"] == pytest.approx(20)
    assert errors["position_error_max"] == pytest.approx(30)
    assert errors["rotation_error_max"] == pytest.approx(0, abs=1e-5)


def test_errors_of_rotations_by_hand() -> None:
    """Of three cameras on a line one is turned 3 degrees too far, so 1 on average: they are 1, 1, 2 off."""
    true = {str(i): camera((i, 0, 0), np.eye(3)) for i in range(3)}
    found = {str(i): camera((i, 0, 0), turn(3 if i == 2 else 0)) for i in range(3)}
    errors = camera_errors(found, true)
    assert errors["rotation_error_mean"] == pytest.approx(4 / 3, abs=1e-3)
    assert errors["rotation_error_max"] == pytest.approx(2, abs=1e-3)
    assert errors["position_error_max"] == pytest.approx(0, abs=1e-9)
    np.testing.assert_allclose(mean_rotation([turn(10), turn(30)]), turn(20), atol=1e-12)
    assert camera_errors({k: found[k] for k in "01"}, true) == {}


def test_the_table_tells_multiples() -> None:
    numbers = {
        "registered": 5, "images": "5/5", "points": 1000, "observations": 3000, "track_length": 3.0,
        "reprojection_error": 0.25, "ratio": 0.8,
    }  # fmt: skip
    more = numbers | {"points": 1500, "observations": 2400}
    rows = table({"scene": {"a": numbers, "b": more}}).rows
    assert rows[1] == ["scene", "b", "0.80", "5/5", "1,500 (1.50x)", "2,400 (0.80x)", "3.00", "0.250"]
    assert table({"scene": {"a": numbers, "b": more}}, "b").rows[0][4] == "1,000 (0.67x)"
    told = numbers | {"intervals": {"track_length": [2.876, 3.125]}}
    assert table({"scene": {"a": told}}).rows[0][6] == "3.00 (2.88 to 3.12)"


def test_the_documentation_has_the_committed_numbers() -> None:
    docs = Path(__file__).parents[2] / "docs"
    scenes = json.loads((docs / "results" / "sfm-strecha.json").read_text(encoding="utf-8"))["scenes"]
    assert table(scenes).markdown in (docs / "sfm.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def rendered() -> list[View]:
    return views(4)


@pytest.fixture(scope="module")
def scene(rendered: list[View], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_strecha(rendered, tmp_path_factory.mktemp("data") / "rendered")


def test_a_rendered_scene(scene: Path, tmp_path: Path) -> None:
    """All cameras are placed where they are, and a second run finds its reconstruction again."""
    settings = FEW | {"folder": str(tmp_path / "kept")}
    request = Request(scene.parent, build_methods("rootsift", threads=1), settings=settings)
    report = sfm.run(request)
    numbers = report.numbers["scenes"]["rendered"]["rootsift"]
    assert numbers["images"] == "4/4"
    assert numbers["points"] > 200
    assert numbers["observations"] == pytest.approx(numbers["points"] * numbers["track_length"], rel=1e-3)
    assert numbers["reprojection_error"] < 1
    assert numbers["position_error_max"] < 1
    assert numbers["rotation_error_max"] < 0.5
    assert len(numbers["intervals"]) == 4
    for name, (low, high) in numbers["intervals"].items():
        assert low - 1e-4 <= numbers[name] <= high + 1e-4  # the summary is rounded to four digits
    assert "| rendered | rootsift |" in report.markdown
    assert json.loads(report.json)["scenes"] == report.numbers["scenes"]
    (kept,) = (tmp_path / "kept" / "rendered").iterdir()
    database = kept / "model" / "database.db"
    before = database.stat().st_mtime_ns
    assert sfm.run(request).numbers == report.numbers
    assert database.stat().st_mtime_ns == before


def test_images_without_overlap_are_named_and_skipped(scene: Path, tmp_path: Path) -> None:
    """One scene cannot be reconstructed, the other's numbers are told all the same."""
    rng = np.random.default_rng(0)
    for number in range(2):
        path = tmp_path / "data" / "noise" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), rng.integers(0, 255, (200, 300, 3), np.uint8))
    (tmp_path / "data" / "rendered").symlink_to(scene)
    request = Request(tmp_path / "data", build_methods("rootsift", threads=1), settings=FEW)
    report = sfm.run(request)
    assert list(report.numbers["scenes"]) == ["rendered"]
    assert list(report.skipped) == ["noise, rootsift"]
    assert "none of the 2 images could be placed" in report.skipped["noise, rootsift"]


def test_keypoints_of_a_database_are_kept(scene: Path, tmp_path: Path) -> None:
    """The layout of the ETH evaluation: features are of its keypoints, in their order, in our coordinates."""
    eth = tmp_path / "eth"
    eth.mkdir()
    (eth / "images").symlink_to(scene / "images")
    names = sorted(path.name for path in (scene / "images").iterdir())
    given = {
        name: detect(read(scene / "images" / name).gray, Detector(30 + i)) for i, name in enumerate(names)
    }
    sizes = dict.fromkeys(names, (WIDTH, HEIGHT))
    cameras = group_cameras(sizes, dict.fromkeys(names), CameraConfig())
    write_database(eth / "database.db", cameras, [ImageRows(n, k) for n, k in given.items()], [])
    stored = database_keypoints(eth / "database.db")
    assert stored is not None
    request = Request(eth, build_methods("rootsift"))
    features = dict(sfm._features(request, eth, eth / "images", "rootsift"))
    for name in names:
        np.testing.assert_allclose(features[name].keypoints.xy, given[name].xy, atol=1e-3)
        assert features[name].descriptors.shape == (len(given[name]), 128)
        np.testing.assert_allclose(stored[name].size, given[name].size, rtol=1e-4)
    assert database_keypoints(eth / "nothing.db") is None
    (eth / "database.db").write_bytes(b"no database" * 100)
    with pytest.raises(InputError, match=r"database\.db: not a COLMAP database"):
        database_keypoints(eth / "database.db")


def test_where_scenes_are(scene: Path, tmp_path: Path) -> None:
    assert find_scenes(scene) == {"rendered": scene}
    assert find_scenes(scene.parent) == {"rendered": scene}
    assert find_scenes(scene / "images") == {"images": scene / "images"}  # photographs alone
    with pytest.raises(InputError, match="no photographs in it"):
        find_scenes(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        find_scenes(tmp_path / "nothing")
