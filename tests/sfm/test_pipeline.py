"""Reconstructions: cameras come out right, files agree by row, a stop loses nothing, bad input is a line."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from contextdesc.errors import ContextDescError, InputError
from contextdesc.formats.hloc import FeatureFile, read_matches
from contextdesc.journal import Journal
from contextdesc.match_set import read_pairs
from contextdesc.model import ContextDesc
from contextdesc.sfm.binding import import_pycolmap
from contextdesc.sfm.database import read_keypoints
from contextdesc.sfm.mapping import MapConfig
from contextdesc.sfm.pairs import PairConfig
from contextdesc.sfm.pipeline import Given, Outcome, reconstruct
from contextdesc.sfm.summary import registered, table
from tests.conftest import CI
from tests.sfm.conftest import CONFIG
from tests.shards import write_shards
from tests.training.test_scenes import View
from tests.training.test_sfm import aligned

FILES = {
    "features.h5", "pairs.txt", "matches.h5", "database.db", "sparse", "points.ply", "summary.json",
    "index.html", "settings.json",
}  # fmt: skip


def position_error(folder: Path, rendered: list[View]) -> float:
    """Largest error of a camera's position over the distance of the outermost cameras."""
    model = import_pycolmap().Reconstruction(str(folder / "sparse"))
    images = sorted(registered(model), key=lambda image: str(image.name))
    centres = np.array([image.projection_center() for image in images])
    views = [rendered[int(image.name[:3])] for image in images]
    truth = np.array([-view.rotation.T @ view.translation for view in views])
    scale, rotation, shift = aligned(centres, truth)
    error = np.linalg.norm(scale * centres @ rotation.T + shift - truth, axis=1)
    return float(error.max() / np.linalg.norm(truth[:, None] - truth, axis=2).max())


def test_the_cameras_are_the_true_ones(finished: tuple[Path, Outcome], rendered: list[View]) -> None:
    output, outcome = finished
    summary = outcome.summary
    assert {path.name for path in output.iterdir()} == FILES
    assert (summary["images"], summary["registered"]) == (5, 5)
    assert position_error(output, rendered) < 0.01
    assert summary["reprojection_error"] < 0.7
    assert summary["points"] > 300
    assert summary["track_length"] == pytest.approx(summary["observations"] / summary["points"], abs=1e-4)
    assert json.loads((output / "summary.json").read_text()) == summary
    assert sum(image["observations"] for image in summary["by_image"].values()) == summary["observations"]
    lines = dict(line.rsplit(maxsplit=1) for line in table(summary).splitlines())
    assert lines["registered"] == "5"
    assert lines["points"] == f"{summary['points']:,}"


def test_every_file_counts_keypoints_in_the_same_order(finished: tuple[Path, Outcome]) -> None:
    output, _ = finished
    pycolmap = import_pycolmap()
    stored = read_keypoints(output / "database.db")
    model = pycolmap.Reconstruction(str(output / "sparse"))
    with FeatureFile(output / "features.h5") as features:
        assert features.names == sorted(stored) == [f"{i:03}.png" for i in range(5)]
        for image in registered(model):
            rows = features[image.name].keypoints.xy + 0.5
            np.testing.assert_allclose(stored[image.name][:, :2], rows)
            np.testing.assert_allclose([point.xy for point in image.points2D], rows, atol=1e-4)
    pairs = read_pairs(output / "pairs.txt")
    assert len(pairs) == 10
    with pycolmap.Database.open(str(output / "database.db")) as database:
        ids = {image.name: image.image_id for image in database.read_all_images()}
        for first, second in pairs:
            matches = read_matches(output / "matches.h5", first, second).indices
            np.testing.assert_array_equal(database.read_matches(ids[first], ids[second]), matches)


def test_points_have_the_colours_of_the_photographs(finished: tuple[Path, Outcome], photos: Path) -> None:
    output, _ = finished
    model = import_pycolmap().Reconstruction(str(output / "sparse"))
    image = registered(model)[0]
    rgb = cv2.cvtColor(cv2.imread(str(photos / image.name)), cv2.COLOR_BGR2RGB).astype(float)
    points = image.get_observation_points2D()
    xy = np.array([point.xy for point in points]).astype(int)
    colours = np.array([model.point3D(point.point3D_id).color for point in points], float)
    assert np.median(np.abs(colours - rgb[xy[:, 1], xy[:, 0]])) < 10
    header = (output / "points.ply").read_bytes()[:200]
    assert f"element vertex {model.num_points3D()}".encode() in header


def test_what_is_finished_is_kept(finished: tuple[Path, Outcome], photos: Path, model: ContextDesc) -> None:
    output, outcome = finished
    kept = FILES - {"summary.json", "settings.json"}
    times = {name: (output / name).stat().st_mtime_ns for name in kept}
    again = reconstruct(model, photos, output, CONFIG, quiet=True)
    assert again.summary == outcome.summary
    assert {name: (output / name).stat().st_mtime_ns for name in kept} == times


def test_one_run_at_a_time(finished: tuple[Path, Outcome], photos: Path, model: ContextDesc) -> None:
    output, _ = finished
    refused = pytest.raises(InputError, match="another run is writing it; wait for it or stop it")
    with closing(Journal(output / ".running", {})), refused:
        reconstruct(model, photos, output, CONFIG, quiet=True)
    (output / ".running").unlink()


def test_changed_settings_are_noticed_and_updated(
    finished: tuple[Path, Outcome], photos: Path, model: ContextDesc, tmp_path: Path
) -> None:
    output = Path(shutil.copytree(finished[0], tmp_path / "out"))
    changed = dataclasses.replace(CONFIG, ratio=0.6)
    with pytest.raises(InputError, match=r"other settings \(ratio: was None, now 0.6\)"):
        reconstruct(model, photos, output, changed, quiet=True)
    assert {path.name for path in output.iterdir()} == FILES
    features = (output / "features.h5").stat().st_mtime_ns
    outcome = reconstruct(model, photos, output, changed, update=True, quiet=True)
    assert (output / "features.h5").stat().st_mtime_ns == features
    assert outcome.summary["registered"] == 5
    assert outcome.summary["observations"] < finished[1].summary["observations"]


def test_masks_pair_lists_and_given_features(
    finished: tuple[Path, Outcome], photos: Path, model: ContextDesc, tmp_path: Path
) -> None:
    """Without their left half, three photographs still make a model; the others are not in the list."""
    masks = tmp_path / "masks"
    masks.mkdir()
    mask = np.zeros((480, 640), np.uint8)
    mask[:, 320:] = 255
    for name in ("000", "001", "002"):
        cv2.imwrite(str(masks / f"{name}.png.png"), mask)
    (tmp_path / "list.txt").write_text("000.png 001.png\n001.png 002.png\n000.png 002.png\n")
    given = Given(masks=masks, pairs=tmp_path / "list.txt")
    outcome = reconstruct(model, photos, tmp_path / "out", CONFIG, given, quiet=True)
    assert set(outcome.summary["by_image"]) == {"000.png", "001.png", "002.png"}
    with FeatureFile(tmp_path / "out" / "features.h5") as file:
        assert file["000.png"].keypoints.xy[:, 0].min() > 319
        assert file["003.png"].keypoints.xy[:, 0].min() < 100
    with pytest.raises(InputError, match=r"masks are for extraction"):
        Given(masks=masks, features=finished[0] / "features.h5")
    with pytest.raises(InputError, match=r"nothing.txt: no such file"):
        Given(pairs=tmp_path / "nothing.txt")


def test_features_given_in_shards(
    finished: tuple[Path, Outcome], photos: Path, model: ContextDesc, tmp_path: Path
) -> None:
    given = Given(features=write_shards(finished[0] / "features.h5", tmp_path / "shards"))
    outcome = reconstruct(model, photos, tmp_path / "out", CONFIG, given, quiet=True)
    assert outcome.summary["registered"] == 5
    with (
        FeatureFile(tmp_path / "out" / "features.h5") as one,
        FeatureFile(finished[0] / "features.h5") as two,
    ):
        assert one.names == two.names
        for name in one.names:
            np.testing.assert_array_equal(one[name].descriptors, two[name].descriptors)
    with pytest.raises(InputError, match=r"manifest.json: no such file"):
        Given(features=photos)


@pytest.mark.slow
def test_global_mapping_of_given_features_agrees(
    finished: tuple[Path, Outcome], photos: Path, model: ContextDesc, rendered: list[View], tmp_path: Path
) -> None:
    config = dataclasses.replace(CONFIG, mapping=MapConfig("global"), pairs=PairConfig("sequence", window=3))
    given = Given(features=finished[0] / "features.h5")
    outcome = reconstruct(model, photos, tmp_path / "out", config, given, quiet=True)
    assert outcome.summary["registered"] == 5
    assert position_error(tmp_path / "out", rendered) < 0.03
    assert len(read_pairs(tmp_path / "out" / "pairs.txt")) == 9


def test_bad_files_copies_and_other_sizes_among_good_ones(
    photos: Path, model: ContextDesc, tmp_path: Path
) -> None:
    mixed = Path(shutil.copytree(photos, tmp_path / "in"))
    (mixed / "003.png").unlink()
    (mixed / "004.png").unlink()
    (mixed / "broken.jpg").write_bytes(b"not an image")
    shutil.copyfile(mixed / "000.png", mixed / "copy.png")
    cv2.imwrite(str(mixed / "black.png"), np.zeros((480, 640), np.uint8))
    cropped = cv2.imread(str(mixed / "001.png"))[:, 40:]
    cv2.imwrite(str(mixed / "001.png"), cropped)
    outcome = reconstruct(model, mixed, tmp_path / "out", CONFIG, quiet=True)
    summary = outcome.summary
    assert set(summary["by_image"]) == {"000.png", "001.png", "002.png"}
    assert summary["copies"] == {"copy.png": "000.png"}
    assert list(outcome.failed) == list(summary["failed"]) == ["broken.jpg"]
    cameras = import_pycolmap().Reconstruction(str(tmp_path / "out" / "sparse")).cameras
    assert sorted(camera.width for camera in cameras.values()) == [600, 640]
    (mixed / "broken.jpg").unlink()
    shutil.copyfile(photos / "003.png", mixed / "003.png")
    with pytest.raises(InputError, match=r"other settings \(images: .*003.png"):
        reconstruct(model, mixed, tmp_path / "out", CONFIG, quiet=True)
    outcome = reconstruct(model, mixed, tmp_path / "out", CONFIG, update=True, quiet=True)
    assert set(outcome.summary["by_image"]) == {"000.png", "001.png", "002.png", "003.png"}
    assert not outcome.failed
    (mixed / "broken.jpg").write_bytes(b"not an image")
    with pytest.raises(InputError, match=r"broken.jpg: not an image"):
        reconstruct(model, mixed, tmp_path / "strict", CONFIG, strict=True, quiet=True)


def test_hopeless_input_is_one_line(photos: Path, model: ContextDesc, tmp_path: Path) -> None:
    one = tmp_path / "one"
    one.mkdir()
    shutil.copyfile(photos / "000.png", one / "000.png")
    with pytest.raises(InputError, match="1 usable picture; give at least 2 different photographs"):
        reconstruct(model, one, tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()
    shutil.copyfile(photos / "000.png", one / "same.png")
    with pytest.raises(InputError, match="1 usable picture among 2 files"):
        reconstruct(model, one, tmp_path / "out", quiet=True)
    with pytest.raises(InputError, match="nowhere: no such folder of photographs"):
        reconstruct(model, tmp_path / "nowhere", tmp_path / "out", quiet=True)
    with pytest.raises(InputError, match="is among the photographs; choose a folder outside"):
        reconstruct(model, photos, photos / "out", quiet=True)
    with pytest.raises(InputError, match="mapper is 'magic': one of incremental, global"):
        MapConfig("magic")  # type: ignore[arg-type]


def test_pictures_without_overlap_leave_their_matches(model: ContextDesc, tmp_path: Path) -> None:
    from skimage import data

    (tmp_path / "in").mkdir()
    for name in ("coffee", "chelsea", "rocket"):
        cv2.imwrite(str(tmp_path / "in" / f"{name}.jpg"), getattr(data, name)())
    with pytest.raises(
        InputError, match="none of the 3 images could be placed; the photographs must overlap"
    ):
        reconstruct(model, tmp_path / "in", tmp_path / "out", quiet=True)
    assert {"features.h5", "matches.h5", "database.db"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }
    assert not (tmp_path / "out" / "sparse").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own; its size is changed with `mount -o remount`."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = sys.platform == "linux" and os.geteuid() == 0 and _mount("-t", "tmpfs", "tmpfs", folder, "1m")
    if not mounted:
        if CI:
            pytest.fail("a small file system needs root")
        pytest.skip("a small file system needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mount(*arguments: Any) -> bool:
    *what, size = map(str, arguments)
    return not subprocess.run(["mount", "-o", f"size={size}", *what], capture_output=True).returncode


@pytest.mark.slow
def test_a_full_disk_is_told_and_loses_nothing(
    small_disk: Path, finished: tuple[Path, Outcome], photos: Path, model: ContextDesc
) -> None:
    """The disk fills up while features, matches or the database, and the result are written."""
    output, told = small_disk / "out", list[str]()
    for megabytes in (1, 5, 6, 7, 8, 9, 100):
        assert _mount("-o", "remount", small_disk, f"{megabytes}m")
        try:
            outcome = reconstruct(model, photos, output, CONFIG, quiet=True)
            break
        except ContextDescError as error:
            told.append(str(error))
    assert len(told) >= 2
    assert all("the disk is full; free some space and run the same command again" in line for line in told)
    assert same_result(output, finished[0])
    assert outcome.summary["registered"] == 5


def content(folder: Path) -> dict[str, Any]:
    """What must be the same however often a run was stopped."""
    found: dict[str, Any] = {}
    with FeatureFile(folder / "features.h5") as file:
        found |= {name: file[name].descriptors.tobytes() for name in file.names}
    with import_pycolmap().Database.open(str(folder / "database.db")) as database:
        ids = {image.name: image.image_id for image in database.read_all_images()}
        for first, second in read_pairs(folder / "pairs.txt"):
            pair = ids[first], ids[second]
            found[f"{first} {second}"] = (
                database.read_matches(*pair).tobytes(),
                np.asarray(database.read_two_view_geometry(*pair).inlier_matches).tobytes(),
            )
    return found


def same_result(one: Path, other: Path) -> bool:
    """The same features and database; the same images registered, points within 1 %."""
    first, second = (json.loads((folder / "summary.json").read_text()) for folder in (one, other))
    same = content(one) == content(other) and set(first["by_image"]) == set(second["by_image"])
    return same and abs(first["points"] / second["points"] - 1) <= 0.01


@pytest.mark.slow
def test_a_run_that_is_killed_in_every_stage_ends_the_same(
    finished: tuple[Path, Outcome], photos: Path, model: ContextDesc, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    code = (
        "from pathlib import Path\n"
        "from contextdesc.detection import Detector\n"
        "from contextdesc.model import load\n"
        "from contextdesc.sfm.cameras import CameraConfig\n"
        "from contextdesc.sfm.pipeline import SfmConfig, reconstruct\n"
        "model = load('sift-context', context='none', detector=Detector(1000, contrast=0.02), threads=1)\n"
        "config = SfmConfig(cameras=CameraConfig(mode='shared'))\n"
        f"reconstruct(model, Path({str(photos)!r}), Path({str(output)!r}), config, quiet=True)"
    )
    signs = {
        "features": lambda: _size(output / "features.h5.journal") > 300_000,
        "matches": lambda: _size(output / "matches.h5.journal") > 1000,
        "mapping": lambda: _size(output / ".mapping" / "colmap.log") > 0,
    }
    for stage, reached in signs.items():
        run = subprocess.Popen([sys.executable, "-c", code])
        while not reached():
            assert run.poll() is None, f"ended before {stage}"
            time.sleep(0.001)
        run.send_signal(signal.SIGKILL)
        assert run.wait(timeout=60) == -signal.SIGKILL
        assert not (output / "sparse").exists()
    for _ in range(400):  # COLMAP's process ends with its parent
        if not (left := [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(output) in _text(p)]):
            break
        time.sleep(0.05)
    assert not left
    reconstruct(model, photos, output, CONFIG, quiet=True)
    assert {path.name for path in output.iterdir()} == FILES
    assert same_result(output, finished[0])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # the process has ended
        return ""


@pytest.mark.data
@pytest.mark.slow
def test_the_fountain_is_reconstructed(data: Path, model: ContextDesc, tmp_path: Path) -> None:
    """Five photographs of Strecha's fountain, half as large: positions within 2 % of the cameras' extent."""
    scene = data / "eval" / "strecha" / "fountain-P11"
    (tmp_path / "in").mkdir()
    for number in range(3, 8):
        picture = cv2.imread(str(scene / "images" / f"{number:04}.jpg"))
        half = cv2.resize(picture, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
        cv2.imwrite(str(tmp_path / "in" / f"{number:04}.jpg"), half, [cv2.IMWRITE_JPEG_QUALITY, 95])
    outcome = reconstruct(model, tmp_path / "in", tmp_path / "out", CONFIG, quiet=True)
    assert outcome.summary["registered"] == 5
    found = import_pycolmap().Reconstruction(str(tmp_path / "out" / "sparse"))
    images = sorted(registered(found), key=lambda image: str(image.name))
    centres = np.array([image.projection_center() for image in images])
    files = [scene / "gt_dense_cameras" / f"{image.name}.camera" for image in images]
    truth = np.array([np.array(file.read_text().splitlines()[7].split(), float) for file in files])
    scale, rotation, shift = aligned(centres, truth)
    error = np.linalg.norm(scale * centres @ rotation.T + shift - truth, axis=1)
    assert error.max() < 0.02 * np.linalg.norm(truth[:, None] - truth, axis=2).max()
