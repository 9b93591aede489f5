"""Lists of pairs with known pose: a miniature of every layout, and what is said of broken ones."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

from contextdesc.benchmarks import pose_lists
from contextdesc.benchmarks.cameras import read_strecha
from contextdesc.benchmarks.pose_lists import View, find_pairs, read_pickled_pairs
from contextdesc.errors import InputError
from contextdesc.training.data.scenes import Scene
from tests.benchmarks.strecha import camera_text
from tests.conftest import CI

K = np.array([[100.0, 0, 31.5], [0, 100, 23.5], [0, 0, 1]])  # of images of 64 x 48 pixels
QUARTER = np.array([[0.0, 0, 1], [0, 1, 0], [-1, 0, 0]])  # about y


def write_image(path: Path, size: tuple[int, int] = (64, 48)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(len(path.name))
    cv2.imwrite(str(path), rng.integers(0, 255, (size[1], size[0], 3), np.uint8))
    return path


def test_a_camera_of_strecha_s_by_hand(tmp_path: Path) -> None:
    """x = K R^T (X - C): a camera at (1, 2, 3) turned so that R^T is a quarter turn about y."""
    path = tmp_path / "a.jpg.camera"
    path.write_text("100 0 32\n0 100 24\n0 0 1\n0 0 0\n0 0 -1\n0 1 0\n1 0 0\n1 2 3\n64 48\n")
    camera = read_strecha(path)
    np.testing.assert_allclose(camera.centre, [1, 2, 3])
    np.testing.assert_allclose(camera.rotation, QUARTER)
    np.testing.assert_allclose(camera.translation, [-3, -2, 1])  # -R^T C
    assert camera.size == (64, 48)


def test_strecha_s_scenes_give_all_pairs(tmp_path: Path) -> None:
    for scene, count in (("fountain", 3), ("entry", 2)):
        for number in range(count):
            write_image(tmp_path / scene / "images" / f"{number}.png")
            camera = tmp_path / scene / "gt_dense_cameras" / f"{number}.png.camera"
            camera.parent.mkdir(exist_ok=True)
            camera.write_text(camera_text(K, np.eye(3), np.array([-number, 0.0, 0]), (64, 48)))
    (tmp_path / "fountain" / "gt_dense_cameras" / "9.png.camera").write_text("1 2 3\n")
    found = find_pairs(tmp_path)
    assert [pair.name for pair in found.pairs] == [
        "entry/0.png - entry/1.png",
        "fountain/0.png - fountain/1.png",
        "fountain/0.png - fountain/2.png",
        "fountain/1.png - fountain/2.png",
    ]
    rotation, translation = found.pairs[2].pose
    np.testing.assert_allclose(rotation, np.eye(3))
    np.testing.assert_allclose(translation, [-2, 0, 0])
    assert list(found.skipped) == ["fountain/9.png.camera"]
    assert len(find_pairs(tmp_path / "fountain").pairs) == 3  # a scene alone


def superglue_line(first: str, second: str, turns: tuple[int, int] = (0, 0), shift: float = 1.0) -> str:
    pose = np.eye(4)
    pose[0, 3] = shift
    numbers = [*K.ravel(), *K.ravel(), *pose.ravel()]
    return " ".join([first, second, *map(str, turns), *map(str, numbers)])


def test_superglue_s_pair_file(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        write_image(tmp_path / "scene" / name)
    lines = [
        superglue_line("scene/a.png", "scene/b.png", (0, 3)),
        "",
        "scene/a.png scene/b.png 0 0",
        superglue_line("scene/a.png", "scene/c.png"),
        superglue_line("scene/b.png", "scene/a.png", shift=0),
    ]
    path = tmp_path / "pairs.txt"
    path.write_text("\n".join(lines))
    found = find_pairs(path)
    (pair,) = found.pairs
    assert (pair.scene, pair.name) == ("pairs", "scene/a.png - scene/b.png")
    assert (pair.first.turns, pair.second.turns) == (0, 3)
    np.testing.assert_allclose(pair.first.intrinsics, K)
    np.testing.assert_allclose(pair.pose[1], [1, 0, 0])
    assert found.skipped["line 3"].endswith("4 columns instead of 38; only pairs with ground truth")
    assert found.skipped["scene/a.png - scene/c.png"].endswith("c.png: no such file")
    assert "at one place" in found.skipped["scene/b.png - scene/a.png"]
    path.write_text("a b\n")
    with pytest.raises(InputError, match=r"no pairs with known pose; the first reason: .*2 columns"):
        find_pairs(path)


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_points_of_a_turned_image_go_back_to_the_file(tmp_path: Path, turns: int) -> None:
    """One bright pixel at (50, 7) of the file is found upright, and sent back to (50, 7)."""
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[7, 50] = 255
    cv2.imwrite(str(tmp_path / "a.png"), picture)
    view = View("a", tmp_path / "a.png", K, (64, 48), turns)
    upright = view.read()
    assert upright.size == ((64, 48) if turns % 2 == 0 else (48, 64))
    row, column = np.argwhere(upright.gray > 100)[0]
    back = view.pinhole(np.array([[column, row]], np.float32), upright.size)
    np.testing.assert_allclose(back, [[50, 7]])


def test_an_image_of_another_size_than_its_camera(tmp_path: Path) -> None:
    view = View("a", write_image(tmp_path / "a.png", (32, 24)), K, (64, 48))
    with pytest.raises(InputError, match=r"a\.png: is 32 x 24 pixels, its camera 64 x 48"):
        view.read()


@pytest.fixture
def sequence(tmp_path: Path) -> Path:
    """Four images in the layout of the learned correspondences; image 3 is seen with none of the others."""
    folder = tmp_path / "yfcc" / "reichstag" / "test"
    visibility = np.array([[0, 300, 101, 0], [300, 0, 100, 0], [101, 100, 0, 0], [0, 0, 0, 0]])
    lists: dict[str, list[str]] = {"images": [], "calibration": [], "visibility": []}
    for number in range(4):
        lists["images"].append(f"images/{number}.jpg")
        lists["calibration"].append(f"calibration/{number}.h5")
        lists["visibility"].append(f"visibility/{number}.txt")
        write_image(folder / "images" / f"{number}.jpg")
        (folder / "calibration").mkdir(exist_ok=True)
        with h5py.File(folder / "calibration" / f"{number}.h5", "w") as file:
            file["K"] = np.array([[100.0, 0, 2], [0, 90, -1], [0, 0, 1]])
            file["R"], file["T"] = np.eye(3) if number else QUARTER, np.array([[number, 0, 5.0]])
            file["imsize"] = np.array([[64, 48]])
        (folder / "visibility").mkdir(exist_ok=True)
        np.savetxt(folder / "visibility" / f"{number}.txt", visibility[number])
    for name, lines in lists.items():
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_sequences_of_the_learned_correspondences(sequence: Path) -> None:
    """Pairs above a visibility of 100, in both orders: 0-1 and 0-2, not 1-2, whose visibility is 100."""
    found = find_pairs(sequence.parents[1])
    names = {(pair.first.path.name, pair.second.path.name) for pair in found.pairs}
    assert names == {("0.jpg", "1.jpg"), ("1.jpg", "0.jpg"), ("0.jpg", "2.jpg"), ("2.jpg", "0.jpg")}
    pair = next(p for p in found.pairs if (p.first.path.name, p.second.path.name) == ("0.jpg", "1.jpg"))
    assert pair.scene == "reichstag"
    # K's principal point is relative to the image's centre, (31.5, 23.5)
    np.testing.assert_allclose(pair.first.intrinsics, [[100, 0, 33.5], [0, 90, 22.5], [0, 0, 1]])
    # R = R1 R0^T, t = t1 - R t0 with t0 = (0, 0, 5), which the quarter turn takes to (-5, 0, 0)
    np.testing.assert_allclose(pair.pose[0], QUARTER.T)
    np.testing.assert_allclose(pair.pose[1], [1 + 5, 0, 5])
    assert [p.name for p in find_pairs(sequence).pairs] == [p.name for p in found.pairs]


def test_oanet_s_list_of_pairs(sequence: Path) -> None:
    path = sequence.parents[2] / "pairs" / "reichstag-te-1000-pairs.pkl"
    path.parent.mkdir()
    path.write_bytes(pickle.dumps([(2, 1), (3, 300)]))
    (pair,) = find_pairs(sequence.parents[1]).pairs  # there is no image 300
    assert (pair.first.path.name, pair.second.path.name) == ("2.jpg", "1.jpg")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickled_pairs_are_read_in_every_protocol(tmp_path: Path, protocol: int) -> None:
    pairs = [(0, 1), (255, 256), (70_000, 2), (1, 1)]
    path = tmp_path / "pairs.pkl"
    path.write_bytes(pickle.dumps(pairs, protocol))
    assert read_pickled_pairs(path) == pairs


class Attack:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("made-by-a-pickle",)


def test_a_pickle_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "pairs.pkl"
    for content in (pickle.dumps(Attack()), pickle.dumps([(np.int64(1), 2)]), b"no pickle"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"pairs\.pkl: not a pickled list of pairs of numbers"):
            read_pickled_pairs(path)
    assert not (tmp_path / "made-by-a-pickle").exists()


def test_broken_calibrations_and_lists(sequence: Path) -> None:
    (sequence / "calibration" / "1.h5").write_bytes(b"no HDF5")
    found = find_pairs(sequence)
    assert list(found.skipped) == ["reichstag/1.h5"]
    assert {p.second.path.name for p in found.pairs} == {"0.jpg", "2.jpg"}
    (sequence / "visibility.txt").write_text("visibility/0.txt\n")
    reason = find_pairs(sequence).skipped["test"]
    assert "differing numbers of lines" in reason


def test_a_colmap_model_gives_pairs_that_share_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cameras at x = 0, 1, 2 with distortion; the first two share three points, the last two share one."""
    pycolmap = __import__("pycolmap") if CI else pytest.importorskip("pycolmap")
    monkeypatch.setattr(pose_lists, "SHARED_POINTS", 2)
    camera = pycolmap.Camera(
        camera_id=1, model="SIMPLE_RADIAL", width=64, height=48, params=[100.0, 32, 24, 0.5]
    )
    model = pycolmap.Reconstruction()
    model.add_camera_with_trivial_rig(camera)
    for number in range(3):
        write_image(tmp_path / "scene" / "images" / f"{number}.png")
        rows = [pycolmap.Point2D(np.array([32.0, 24.0])) for _ in range(4)]
        image = pycolmap.Image(name=f"{number}.png", image_id=number + 1, camera_id=1, points2D=rows)
        pose = pycolmap.Rigid3d(pycolmap.Rotation3d(np.eye(3)), np.array([-number, 0, 0]))
        model.add_image_with_trivial_frame(image, pose)
    for row, seen in enumerate([(1, 2), (1, 2), (1, 2), (2, 3)]):
        track = pycolmap.Track()
        for image_id in seen:
            track.add_element(image_id, row)
        model.add_point3D(np.array([0, 0, 5.0]), track)
    (tmp_path / "scene" / "sparse" / "0").mkdir(parents=True)
    model.write(str(tmp_path / "scene" / "sparse" / "0"))
    (pair,) = find_pairs(tmp_path).pairs
    assert pair.name == "scene/0.png - scene/1.png"
    np.testing.assert_allclose(pair.pose[1], [-1, 0, 0])
    # COLMAP's principal point (32, 24) is (31.5, 23.5) here
    np.testing.assert_allclose(pair.first.intrinsics, K)
    # A ray (0.2, 0.1) has radius^2 0.05 and is seen 1 + 0.5 * 0.05 times as far out
    seen_at = np.array([[31.5 + 100 * 0.2 * 1.025, 23.5 + 100 * 0.1 * 1.025]], np.float32)
    np.testing.assert_allclose(pair.first.pinhole(seen_at, (64, 48)), [[51.5, 33.5]], atol=1e-4)


def training_scene(folder: Path) -> None:
    """Cameras at x = 0, 1, 2; the first two share 21 tracks, the last two share 20."""
    names = tuple(f"{number}.png" for number in range(3))
    for name in names:
        write_image(folder / "images" / name)
    intrinsics = K + np.array([[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])  # COLMAP's convention
    image = np.repeat([0, 1, 2], [21, 41, 20])
    track = np.concatenate([np.arange(21), np.arange(41), np.arange(21, 41)])
    Scene(
        folder / "images", names, np.stack([intrinsics] * 3), np.stack([np.eye(3)] * 3),
        np.array([[0, 0, 0], [-1, 0, 0], [-2, 0, 0]]), np.array([[64, 48]] * 3), image,
        np.full((82, 2), 10.0), np.ones(82), np.zeros(82), track, np.ones((41, 3)),
    ).save(folder)  # fmt: skip


def test_a_training_scene_gives_pairs_that_share_tracks(tmp_path: Path) -> None:
    training_scene(tmp_path / "scene")
    (pair,) = find_pairs(tmp_path).pairs
    assert pair.name == "scene/0.png - scene/1.png"
    np.testing.assert_allclose(pair.pose[0], np.eye(3))
    np.testing.assert_allclose(pair.pose[1], [-1, 0, 0])
    np.testing.assert_allclose(pair.second.intrinsics, K)
    assert pair.second.read().size == pair.second.size == (64, 48)
    (tmp_path / "scene" / "tracks.npz").write_bytes(b"PK")
    assert "build the scene again" in find_pairs(tmp_path).skipped["scene"]


def test_only_the_named_scenes(tmp_path: Path) -> None:
    for name in ("barn", "church"):
        training_scene(tmp_path / name)
    assert [p.scene for p in find_pairs(tmp_path).pairs] == ["barn", "church"]
    assert [p.scene for p in find_pairs(tmp_path, ["church"]).pairs] == ["church"]
    with pytest.raises(InputError, match="no scene chapel in it; it has barn, church"):
        find_pairs(tmp_path, ["church", "chapel"])
    (tmp_path / "pairs.txt").write_text("")
    with pytest.raises(InputError, match=r"pairs.txt: a file has no scenes to choose from"):
        find_pairs(tmp_path / "pairs.txt", ["church"])


def test_folders_without_pairs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        find_pairs(tmp_path / "nothing")
    with pytest.raises(InputError, match="no pairs with known pose; give a pair file"):
        find_pairs(tmp_path)
    (tmp_path / "scene" / "images").mkdir(parents=True)
    (tmp_path / "scene" / "sparse").mkdir()
    found = find_pairs(tmp_path)
    assert found.pairs == []
    assert "no COLMAP model" in found.skipped["scene"]
