"""From photographs to scenes: the cameras come out right, a stop loses nothing, bad input is one line."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import PIL.Image
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from contextdesc.cli import dataset
from contextdesc.detection import Detector
from contextdesc.errors import InputError
from contextdesc.training.data import sfm
from contextdesc.training.data.labels import load_labels
from contextdesc.training.data.scenes import MATCHABLE, PairRules, Scene
from contextdesc.training.data.sfm import BuildConfig, build_scenes, from_colmap, from_gl3d
from tests.conftest import CI
from tests.training.test_gl3d import miniature  # noqa: F401  # a fixture
from tests.training.test_scenes import View, views, write

if not CI:
    pytest.importorskip("pycolmap")

CONFIG = BuildConfig(
    detector=Detector(1500, contrast=0.02), shared_camera=True, pairs=PairRules(keypoints=512)
)


@pytest.fixture(scope="module")
def rendered() -> list[View]:
    return views(8)


@pytest.fixture(scope="module")
def built(rendered: list[View], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, sfm.Report]:
    """Photographs, output and report of one build."""
    folder = tmp_path_factory.mktemp("sfm")
    photos = write(rendered, folder / "in" / "planes")
    (photos / "broken.jpg").write_bytes(b"not an image")
    shutil.copyfile(photos / "003.png", photos / "copy of 003.png")
    cv2.imwrite(str(photos / "black hole.jpg"), np.zeros((480, 640), np.uint8))
    return photos, folder / "out", build_scenes(photos, folder / "out", CONFIG, quiet=True)


def aligned(source: NDArray, target: NDArray) -> tuple[float, NDArray, NDArray]:
    """Scale, rotation and shift that bring points (N, 3) closest to others (Umeyama, 1991)."""
    a, b = source - source.mean(0), target - target.mean(0)
    u, d, v = np.linalg.svd(b.T @ a)
    sign = np.diag([1, 1, np.linalg.det(u @ v)])
    rotation = u @ sign @ v
    scale = (d * np.diag(sign)).sum() / (a**2).sum()
    return scale, rotation, target.mean(0) - scale * rotation @ source.mean(0)


@pytest.mark.slow
def test_the_cameras_are_the_true_ones(built: tuple[Path, Path, sfm.Report], rendered: list[View]) -> None:
    _, output, report = built
    scene = Scene.load(output / "planes")
    assert len(scene) == 8
    true = [rendered[int(name[:3])] for name in scene.names]
    centres = np.array([-r.T @ t for r, t in zip(scene.rotation, scene.translation, strict=True)], float)
    truth = np.array([-v.rotation.T @ v.translation for v in true])
    scale, rotation, shift = aligned(centres, truth)
    error = np.linalg.norm(scale * centres @ rotation.T + shift - truth, axis=1)
    assert error.max() < 0.02 * np.ptp(truth[:, 0])
    for found, view in zip(scene.rotation, true, strict=True):
        turn = cv2.Rodrigues(found @ rotation.T @ view.rotation.T)[0]
        assert np.rad2deg(np.linalg.norm(turn)) < 0.5
    assert scene.intrinsics[0, 0, 0] == pytest.approx(600, rel=0.03)
    numbers = report.scenes["planes"]
    assert (numbers["images"], numbers["registered"]) == (11, 8)  # one broken, one a copy, one black
    assert numbers["error"] < 1
    assert numbers["tracks"] > 500


@pytest.mark.slow
def test_a_scene_holds_all_that_training_needs(built: tuple[Path, Path, sfm.Report]) -> None:
    _, output, report = built
    folder = output / "planes"
    assert [p.name for p in output.iterdir()] == ["planes"]
    names = {"images", "tracks.npz", "labels.npz", "pairs.txt", "scene.json", "scene.png"}
    assert {p.name for p in folder.iterdir()} == names
    scene = Scene.load(folder)
    assert sorted(p.name for p in (folder / "images").iterdir()) == sorted(scene.names)
    labels = load_labels(folder / "labels.npz")
    numbers = report.scenes["planes"]
    for image, found in enumerate(labels):
        assert set(found.track[found.kind == MATCHABLE]) == set(scene.keypoints(image)[1])
    assert sum(map(len, labels)) == numbers["matchable"] + numbers["undiscovered"] + numbers["unrepeatable"]
    assert min(numbers["undiscovered"], numbers["unrepeatable"]) > 200
    pairs = [line.split() for line in (folder / "pairs.txt").read_text().splitlines()]
    chosen = scene.select_pairs(CONFIG.pairs, np.array([len(found) for found in labels]))
    assert pairs == [[scene.names[a], scene.names[b]] for a, b in chosen]
    assert len(pairs) == numbers["pairs"] > 10
    assert cv2.imread(str(folder / "scene.png")).shape[0] > 700
    header, row = report.table().splitlines()
    assert dict(zip(header.split(), row.split(), strict=True))["registered"] == "8"
    (folder / "labels.npz").rename(folder / "l")
    with pytest.raises(InputError, match=r"labels.npz: no such file"):
        load_labels(folder / "labels.npz")
    (folder / "labels.npz").write_bytes((folder / "l").read_bytes()[:700])
    with pytest.raises(InputError, match=r"labels.npz: damaged"):
        load_labels(folder / "labels.npz")
    (folder / "l").rename(folder / "labels.npz")


@pytest.mark.slow
def test_a_finished_scene_is_kept(built: tuple[Path, Path, sfm.Report]) -> None:
    photos, output, report = built
    written = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    again = build_scenes(photos, output, CONFIG, quiet=True)
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == written
    assert again.before == ["planes"]
    assert again.scenes == report.scenes
    with pytest.raises(InputError, match=r"other settings \(ratio\)"):
        build_scenes(photos, output, dataclasses.replace(CONFIG, ratio=0.7), quiet=True)
    more = Path(shutil.copytree(photos, output.parent / "more" / "planes"))
    shutil.copyfile(more / "000.png", more / "new.png")
    with pytest.raises(InputError, match=r"other settings \(photographs\)"):
        build_scenes(more, output, CONFIG, quiet=True)
    assert Scene.load(output / "planes")


@pytest.mark.slow
def test_a_colmap_model_becomes_the_same_scene(
    built: tuple[Path, Path, sfm.Report], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the database, the observations are the model's own; without, nearest keypoints that we detect."""
    photos, _, _ = built
    kept = tmp_path / "model"
    finish = sfm._finish

    def keep(scene: Scene, work: Path, *rest: object) -> None:
        shutil.copytree(work, kept)
        finish(scene, work, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(sfm, "_finish", keep)
        build_scenes(photos, tmp_path / "again", CONFIG, quiet=True)
    original = Scene.load(tmp_path / "again" / "planes")
    report = from_colmap(kept / "sparse", kept / "images", tmp_path / "with", CONFIG, quiet=True)
    scene = Scene.load(tmp_path / "with" / "model")
    assert report.scenes["model"]["from_database"] == 1
    np.testing.assert_allclose(scene.xy, original.xy, atol=0.02)
    np.testing.assert_allclose(scene.angle, original.angle, atol=0.02)
    np.testing.assert_array_equal(scene.image, original.image)

    for path in kept.glob("database*"):
        path.unlink()
    report = from_colmap(kept / "sparse", photos, tmp_path / "without", CONFIG, quiet=True)
    found = Scene.load(tmp_path / "without" / "planes")
    assert report.scenes["planes"]["from_database"] == 0
    assert 0.8 * len(original.track) < len(found.track) <= len(original.track)
    half = dataclasses.replace(CONFIG, max_side=320)
    from_colmap(kept / "sparse", photos, tmp_path / "half", half, quiet=True)
    small = Scene.load(tmp_path / "half" / "planes")
    assert small.size.tolist() == [[320, 240]] * 8
    keypoints, track = small.keypoints(2)
    errors = np.linalg.norm(small.project(2, small.points[track])[0] - keypoints.xy, axis=1)
    assert np.median(errors) < 1
    with pytest.raises(InputError, match="not a COLMAP model"):
        from_colmap(photos, photos, tmp_path / "bad", CONFIG, quiet=True)
    assert not (tmp_path / "bad").exists()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # the process has ended
        return ""


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_build_goes_on(rendered: list[View], tmp_path: Path, stop: signal.Signals) -> None:
    photos = write(rendered[2:6], tmp_path / "in")
    code = (
        "from pathlib import Path; from contextdesc.training.data.sfm import *\n"
        f"build_scenes(Path({str(photos)!r}), Path({str(tmp_path / 'out')!r}))"
    )
    work = tmp_path / "out" / ".in.unfinished"
    run = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    while not (work / "colmap.log").exists():
        assert run.poll() is None
        time.sleep(0.02)
    time.sleep(0.3)
    run.send_signal(stop)
    assert run.wait(timeout=60) != 0
    assert not (tmp_path / "out" / "in").exists()
    for _ in range(100):  # COLMAP's process ends with its parent
        if not (left := [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(work) in _text(p)]):
            break
        time.sleep(0.05)
    assert not left
    report = build_scenes(photos, tmp_path / "out", quiet=True)
    assert report.scenes["in"]["registered"] == 4
    assert not work.exists()


@pytest.mark.slow
def test_exif_tells_the_camera_and_which_way_is_up(rendered: list[View], tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number, view in enumerate(rendered[2:6]):
        turned = number == 1  # stored as a camera held upright would
        picture = PIL.Image.fromarray(np.ascontiguousarray(np.rot90(view.rgb) if turned else view.rgb))
        exif = PIL.Image.Exif()
        exif[0x0112] = 6 if turned else 1  # orientation
        exif.get_ifd(0x8769)[0xA405] = 34  # mm, for a frame of 36: 604 pixels of 640
        picture.save(tmp_path / "in" / f"{number}.jpg", quality=95, exif=exif)
    build_scenes(tmp_path / "in", tmp_path / "out", quiet=True)
    scene = Scene.load(tmp_path / "out" / "in")
    assert scene.size.tolist() == [[640, 480]] * 4
    np.testing.assert_array_equal(scene.intrinsics, scene.intrinsics[:1].repeat(4, 0))  # one camera
    assert scene.intrinsics[0, 0, 0] == pytest.approx(600, rel=0.05)


@pytest.mark.slow
def test_of_several_scenes_the_bad_one_is_listed(rendered: list[View], tmp_path: Path) -> None:
    write(rendered[3:6], tmp_path / "in" / "good")
    bad = tmp_path / "in" / "unrelated"
    bad.mkdir()
    from skimage import data

    for name in ("coffee", "chelsea", "rocket"):
        cv2.imwrite(str(bad / f"{name}.jpg"), getattr(data, name)())
    report = build_scenes(tmp_path / "in", tmp_path / "out", quiet=True)
    assert list(report.scenes) == ["good"]
    assert "only 0 of 3 images could be placed" in report.failed["unrelated"]
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["good"]


def test_pictures_without_overlap_are_refused(tmp_path: Path) -> None:
    from skimage import data

    (tmp_path / "in").mkdir()
    for name in ("coffee", "chelsea", "rocket"):
        cv2.imwrite(str(tmp_path / "in" / f"{name}.jpg"), getattr(data, name)())
    with pytest.raises(InputError, match="only 0 of 3 images could be placed; the photographs must overlap"):
        build_scenes(tmp_path / "in", tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_bad_folders_are_refused_in_one_line(rendered: list[View], tmp_path: Path) -> None:
    photos = write(rendered[:2], tmp_path / "two")
    with pytest.raises(InputError, match="scene two has 2 images; give at least 3"):
        build_scenes(photos, tmp_path / "out", quiet=True)
    same = write([rendered[0]] * 5, tmp_path / "same")
    with pytest.raises(InputError, match="1 different pictures among 5 files"):
        build_scenes(same, tmp_path / "out", quiet=True)
    with pytest.raises(InputError, match="nowhere: no such folder of photographs"):
        build_scenes(tmp_path / "nowhere", tmp_path / "out", quiet=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty: no images here"):
        build_scenes(tmp_path / "empty", tmp_path / "out", quiet=True)
    with pytest.raises(InputError, match="ratio is 85"):
        BuildConfig(ratio=85)
    with pytest.raises(InputError, match="max_side is 4000"):
        BuildConfig(max_side=4000)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("restart", [False, True])
def test_photographs_are_never_overwritten(rendered: list[View], tmp_path: Path, restart: bool) -> None:
    photos = write(rendered[:3], tmp_path / "holiday")
    with pytest.raises(InputError, match="would be overwritten"):
        build_scenes(photos, tmp_path, restart=restart, quiet=True)
    (tmp_path / "out" / "holiday").mkdir(parents=True)
    (tmp_path / "out" / "holiday" / "diary.txt").touch()
    with pytest.raises(InputError, match="is in the way and no finished scene"):
        build_scenes(photos, tmp_path / "out", restart=restart, quiet=True)
    assert (tmp_path / "out" / "holiday" / "diary.txt").exists()
    assert len(list(photos.iterdir())) == 3


def test_without_pycolmap_the_extra_is_named(
    rendered: list[View], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    with pytest.raises(InputError, match=r"pip install 'contextdesc\[sfm\]'"):
        build_scenes(write(rendered[:3], tmp_path / "in"), tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_gl3d_becomes_scenes(miniature: Path, tmp_path: Path) -> None:  # noqa: F811
    report = from_gl3d(miniature.parent, tmp_path / "out", quiet=True)
    scene = Scene.load(tmp_path / "out" / miniature.name)
    assert report.scenes[miniature.name]["registered"] == len(scene) == 4


def test_the_command_builds_and_prints(miniature: Path, photo_folder: Path, tmp_path: Path) -> None:  # noqa: F811
    run = CliRunner().invoke
    output = str(tmp_path / "out")
    result = run(dataset.app, ["build", str(miniature), "-o", output, "--gl3d", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["scenes"][miniature.name]["images"] == 4
    result = run(dataset.app, ["build", str(miniature), "-o", output, "--gl3d", "--quiet"])
    assert "was finished before" in result.stdout
    arguments = ["build", str(photo_folder / "a"), "-o", output, "--homographies", "--per-photo", "1"]
    result = run(dataset.app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["photographs"] == 6
    result = run(dataset.app, [*arguments, "--gl3d"])
    assert isinstance(result.exception, InputError)
    assert "exclude each other" in str(result.exception)
