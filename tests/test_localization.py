"""Localisation: the true pose of a rendered view that the map lacks, and a reason for what has none."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import cv2
import numpy as np
import PIL.Image
import pytest

from contextdesc.detection import Detector
from contextdesc.errors import InputError
from contextdesc.formats import hloc, poses
from contextdesc.localization import Localization, Map, Settings, localize_images
from contextdesc.model import ContextDesc, load
from contextdesc.sfm.cameras import CameraConfig
from tests.conftest import CI
from tests.mapped import position_error, write_image, write_map
from tests.shards import write_shards
from tests.training.test_scenes import FOCAL, View, views
from tests.training.test_sfm import aligned

if not CI:
    pytest.importorskip("pycolmap")

EXTENT = 4.0  # of the cameras of `views`, from -2 to 2
QUERY = 2  # the view that is left out of the map


@pytest.fixture(scope="module")
def model() -> ContextDesc:
    return load("sift-context", context="none", detector=Detector(700, contrast=0.02))


@pytest.fixture(scope="module")
def scene() -> list[View]:
    return views(5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, scene: list[View], model: ContextDesc) -> Path:
    """A map of all views but one."""
    folder = tmp_path_factory.mktemp("map")
    write_map(folder, {f"db/{i}.png": view for i, view in enumerate(scene) if i != QUERY}, model)
    return folder


@pytest.fixture(scope="module")
def map_(folder: Path) -> Map:
    return Map(folder)


def one(map_: Map, model: ContextDesc, path: Path, **settings: object) -> Localization:
    (answer,) = localize_images(map_, model, {path.name: path}, Settings(**settings), quiet=True)
    return answer


@pytest.mark.parametrize(
    ("settings", "origin", "tolerance"),
    [
        ({}, "map", 0.005),
        ({"candidates": 2}, "map", 0.005),
        ({"focal": FOCAL}, "given", 0.005),
        ({"camera": CameraConfig("PINHOLE", params=(FOCAL, FOCAL, 320, 240))}, "given", 0.005),
    ],
)
def test_a_view_that_the_map_has_not_seen(
    map_: Map, model: ContextDesc, scene: list[View], tmp_path: Path,
    settings: dict[str, object], origin: str, tolerance: float,
) -> None:  # fmt: skip
    answer = one(map_, model, write_image(tmp_path / "q.png", scene[QUERY]), **settings)
    assert answer.pose is not None, answer.reason
    assert answer.pose.origin == origin
    assert position_error(answer.pose.centre, scene[QUERY]) < tolerance * EXTENT
    w, *xyz = answer.pose.quaternion
    turn = cv2.Rodrigues(2 * np.arccos(w) * np.array(xyz) / np.linalg.norm(xyz))[0]
    np.testing.assert_allclose(turn, scene[QUERY].rotation, atol=0.005)
    np.testing.assert_allclose(answer.pose.centre, -turn.T @ answer.pose.translation, atol=1e-6)
    assert answer.pairs >= answer.inliers > 100
    assert answer.nearest in ("db/1.png", "db/3.png")
    assert answer.pose.error < 2
    assert not answer.identical


def test_an_unknown_camera_gets_its_focal_length(
    map_: Map, model: ContextDesc, scene: list[View], tmp_path: Path
) -> None:
    """Of a size that no mapped image has: guessed, or from EXIF, and refined."""
    small = cv2.resize(scene[QUERY].rgb, (480, 360), interpolation=cv2.INTER_AREA)
    picture = PIL.Image.fromarray(small)
    picture.save(tmp_path / "guess.png")
    exif = picture.getexif()
    exif.get_ifd(0x8769)[0xA405] = 32  # mm on full frame: 427 of the true 450 pixels
    picture.save(tmp_path / "exif.jpg", exif=exif, quality=97)
    for name, origin in (("guess.png", "guess"), ("exif.jpg", "exif")):
        answer = one(map_, model, tmp_path / name)
        assert answer.pose is not None, answer.reason
        assert answer.pose.origin == origin
        assert answer.pose.parameters[0] == pytest.approx(450, rel=0.02)
        assert position_error(answer.pose.centre, scene[QUERY]) < 0.02 * EXTENT


def test_the_same_answer_twice(map_: Map, model: ContextDesc, scene: list[View], tmp_path: Path) -> None:
    path = write_image(tmp_path / "q.png", scene[QUERY])
    first, second = (one(map_, model, path).pose for _ in range(2))
    np.testing.assert_array_equal(first.translation, second.translation)


def test_one_camera_per_image(model: ContextDesc, scene: list[View], tmp_path: Path) -> None:
    write_map(tmp_path, {f"{i}.png": scene[i] for i in (1, 3)}, model, cameras=2)
    answer = one(Map(tmp_path), model, write_image(tmp_path / "q" / "q.png", scene[QUERY]))
    assert answer.pose is not None
    assert answer.pose.origin == "similar"
    assert answer.pose.parameters[0] == pytest.approx(FOCAL, rel=0.01)
    assert position_error(answer.pose.centre, scene[QUERY]) < 0.01 * EXTENT


def test_a_mapped_image_is_recognised(
    map_: Map, model: ContextDesc, scene: list[View], tmp_path: Path
) -> None:
    answer = one(map_, model, write_image(tmp_path / "again.png", scene[3]))
    assert (answer.nearest, answer.identical) == ("db/3.png", True)
    assert position_error(answer.pose.centre, scene[3]) < 1e-3 * EXTENT


def test_queries_that_fail_have_a_reason_and_the_rest_goes_on(
    map_: Map, model: ContextDesc, scene: list[View], tmp_path: Path
) -> None:
    from skimage.data import retina

    good = write_image(tmp_path / "good.png", scene[QUERY])
    (tmp_path / "cut.png").write_bytes(good.read_bytes()[:3000])
    cv2.imwrite(str(tmp_path / "black.png"), np.zeros((480, 640, 3), np.uint8))
    cv2.imwrite(str(tmp_path / "other.png"), cv2.resize(retina(), (640, 640)))
    names = ("cut.png", "black.png", "other.png", "good.png")
    cut, black, other, fine = localize_images(
        map_, model, {name: tmp_path / name for name in names}, quiet=True
    )
    assert "cut.png: damaged or truncated" in cut.reason
    assert black.reason == "no keypoints in the image"
    assert other.pose is None
    assert "inliers among" in other.reason or "matches with points" in other.reason
    assert fine.pose is not None
    assert fine.reason is None


def test_another_model_is_refused_naming_both(map_: Map, tmp_path: Path) -> None:
    other = load("sift-context")
    with pytest.raises(InputError, match=r"features of sift-context \(.*context none\), not of sift-context"):
        localize_images(map_, other, {}, quiet=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"camera": CameraConfig("LENS")}, "camera model is 'LENS'"),
        ({"camera": CameraConfig("PINHOLE", params=(600,))}, r"PINHOLE has 4 \(fx, fy, cx, cy\)"),
        ({"camera": CameraConfig(params=(9, 9, 9, 0)), "focal": 3.0}, "both given"),
        ({"focal": -1.0}, "focal is -1.0"),
        ({"candidates": 0}, "candidates is 0"),
        ({"max_error": 0.0}, "max_error is 0.0"),
        ({"min_inliers": 1}, "min_inliers is 1"),
    ],
)
def test_bad_settings(map_: Map, model: ContextDesc, settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        localize_images(map_, model, {}, Settings(**settings), quiet=True)


def test_features_in_shards(
    folder: Path, map_: Map, model: ContextDesc, scene: list[View], tmp_path: Path
) -> None:
    sharded = Path(shutil.copytree(folder, tmp_path / "map"))
    (sharded / "features.h5").unlink()
    write_shards(folder / "features.h5", sharded / "features.h5")
    query = write_image(tmp_path / "q.png", scene[QUERY])
    answers = (one(Map(sharded), model, query).pose, one(map_, model, query).pose)
    np.testing.assert_array_equal(answers[0].translation, answers[1].translation)


def test_folders_without_a_reconstruction(folder: Path, tmp_path: Path, model: ContextDesc) -> None:
    with pytest.raises(InputError, match="no such folder; give the output of contextdesc sfm"):
        Map(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"no features.h5 in it"):
        Map(tmp_path)
    shutil.copyfile(folder / "features.h5", tmp_path / "features.h5")
    with pytest.raises(InputError, match="run contextdesc sfm to the end"):
        Map(tmp_path)
    shutil.copytree(folder / "sparse", tmp_path / "sparse")
    (tmp_path / "sparse" / "images.bin").write_bytes(b"\xff" * 5)
    with pytest.raises(InputError, match="not a COLMAP model"):
        Map(tmp_path)


def test_features_that_are_not_those_of_the_model(
    folder: Path, tmp_path: Path, model: ContextDesc, scene: list[View]
) -> None:
    shutil.copytree(folder / "sparse", tmp_path / "sparse")
    with hloc.FeatureFile(folder / "features.h5") as file:
        stored = {name: file[name] for name in file.names}
    first, *rest = stored
    hloc.write(tmp_path / "features.h5", {name: stored[name] for name in rest})
    with pytest.raises(InputError, match=f"no features of {first}"):
        Map(tmp_path)
    short = load("sift-context", context="none", detector=Detector(10)).extract(scene[0].rgb)
    hloc.write(tmp_path / "features.h5", dict.fromkeys(stored, short))
    answer = one(Map(tmp_path), model, write_image(tmp_path / "q.png", scene[QUERY]))
    assert "features.h5 10; reconstruct it again" in answer.reason


def test_pycolmap_that_is_missing_or_lacks_a_call(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pycolmap

    with monkeypatch.context() as old:
        old.delattr(pycolmap, "estimate_and_refine_absolute_pose")
        with pytest.raises(InputError, match=r"lacks localisation \(estimate_and_refine_absolute_pose\)"):
            Map(folder)
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    with pytest.raises(InputError, match=r"pip install 'contextdesc\[sfm\]'"):
        Map(folder)


def test_tables(map_: Map, model: ContextDesc, scene: list[View], tmp_path: Path) -> None:
    import csv
    import json

    found = one(map_, model, write_image(tmp_path / "q.png", scene[QUERY]))
    answers = [found, Localization("bad.png", reason="no keypoints in the image")]
    for suffix in ("csv", "json", "txt"):
        poses.write(tmp_path / f"poses.{suffix}", answers)
    rows = list(csv.DictReader((tmp_path / "poses.csv").open()))
    assert [row["localised"] for row in rows] == ["True", "False"]
    np.testing.assert_allclose([float(rows[0][c]) for c in ("x", "y", "z")], found.pose.centre)
    assert rows[0]["parameters"] == "600.0 320.0 240.0"
    assert (rows[1]["qw"], rows[1]["reason"]) == ("", "no keypoints in the image")
    good, bad = json.loads((tmp_path / "poses.json").read_text())
    np.testing.assert_allclose([good[c] for c in ("qw", "qx", "qy", "qz")], found.pose.quaternion)
    assert bad["qw"] is None
    (line,) = (tmp_path / "poses.txt").read_text().splitlines()
    name, *numbers = line.split()
    assert name == "q.png"
    expected = [*found.pose.quaternion, *found.pose.translation]
    np.testing.assert_allclose([float(number) for number in numbers], expected, rtol=1e-8)
    with pytest.raises(InputError, match=r"poses.xls: tables are written as .csv, .json, .txt"):
        poses.write(tmp_path / "poses.xls", answers)


@pytest.mark.slow
@pytest.mark.data
def test_photographs_left_out_of_entry_p10(data: Path, tmp_path: Path) -> None:
    """Two of ten photographs in what `contextdesc sfm` makes of the other eight.

    Their positions are within 1 % of the scene's extent, by the published cameras.
    """
    from contextdesc.sfm.pipeline import SfmConfig, reconstruct

    scene = data / "eval" / "strecha" / "entry-P10"
    queries = {name: scene / "images" / name for name in ("0003.jpg", "0006.jpg")}
    (tmp_path / "images").mkdir()
    for path in (scene / "images").iterdir():
        if path.name not in queries:
            (tmp_path / "images" / path.name).symlink_to(path.resolve())
    model = load(detector=Detector(2048), threads=1)
    config = SfmConfig(cameras=CameraConfig(mode="shared"))
    reconstruct(model, tmp_path / "images", tmp_path / "map", config, quiet=True)
    map_ = Map(tmp_path / "map")
    assert len(map_.names) == 8

    def truth(name: str) -> np.ndarray:
        lines = (scene / "gt_dense_cameras" / f"{name}.camera").read_text().splitlines()
        return np.array(lines[7].split(), float)

    placed = {str(i.name): i.projection_center() for i in map_.reconstruction.images.values()}
    known = np.array([truth(name) for name in placed])
    extent = np.linalg.norm(np.ptp(known, axis=0))
    scale, rotation, shift = aligned(np.array(list(placed.values())), known)
    for answer in localize_images(map_, model, queries, quiet=True):
        assert answer.pose is not None, answer.reason
        place = scale * rotation @ answer.pose.centre + shift
        assert np.linalg.norm(place - truth(answer.name)) < 0.01 * extent
