"""Cameras and databases: what is written is what COLMAP reads, and foreign databases are left alone."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from contextdesc.errors import InputError
from contextdesc.formats.colmap import read_descriptors, to_uint8
from contextdesc.keypoints import Keypoints
from contextdesc.sfm.binding import import_pycolmap
from contextdesc.sfm.cameras import CameraConfig, group_cameras
from contextdesc.sfm.database import ImageRows, check_version, copy_database, read_keypoints, write_database
from contextdesc.sfm.verification import verified, verify_pairs

SIZES = {"a/1.jpg": (640, 480), "a/2.jpg": (640, 480), "b/3.jpg": (640, 480), "b/4.jpg": (480, 640)}
FOCALS = {"a/1.jpg": 700.0, "a/2.jpg": 700.0}


def groups(config: CameraConfig) -> list[list[str]]:
    return [list(shared.names) for shared in group_cameras(SIZES, FOCALS, config)]


def test_who_shares_a_camera() -> None:
    assert groups(CameraConfig()) == [["a/1.jpg", "a/2.jpg"], ["b/3.jpg"], ["b/4.jpg"]]
    assert groups(CameraConfig(mode="shared")) == [["a/1.jpg", "a/2.jpg", "b/3.jpg"], ["b/4.jpg"]]
    assert groups(CameraConfig(mode="folder")) == [["a/1.jpg", "a/2.jpg"], ["b/3.jpg"], ["b/4.jpg"]]
    assert len(groups(CameraConfig(mode="each"))) == 4
    frames = dict.fromkeys(("1.jpg", "2.jpg", "3.jpg"), (640, 480))
    assert len(group_cameras(frames, {}, CameraConfig())) == 1  # of one size, and nothing says otherwise
    assert len(group_cameras(frames, {"1.jpg": 700.0}, CameraConfig())) == 2


def test_focal_lengths_come_from_exif_or_are_guessed() -> None:
    known, _, guessed = (shared.camera for shared in group_cameras(SIZES, FOCALS, CameraConfig()))
    assert known.has_prior_focal_length
    assert list(known.params) == [700, 320, 240, 0]
    assert not guessed.has_prior_focal_length
    assert list(guessed.params) == [768, 240, 320, 0]


def test_given_parameters_are_checked() -> None:
    one = {"a.jpg": (640, 480)}
    params = (650.0, 655.0, 321.0, 239.0)
    (shared,) = group_cameras(one, {}, CameraConfig("PINHOLE", params=params))
    assert tuple(shared.camera.params) == params
    assert shared.camera.has_prior_focal_length
    with pytest.raises(InputError, match=r"2 camera parameters: SIMPLE_RADIAL has 4 \(f, cx, cy, k\)"):
        group_cameras(one, {}, CameraConfig(params=params[:2]))
    with pytest.raises(
        InputError, match=r"one image size, but the images have several \(480 x 640, 640 x 480"
    ):
        group_cameras(SIZES, {}, CameraConfig("PINHOLE", params=params))
    with pytest.raises(InputError, match="camera model is 'PANCAKE': one of SIMPLE_PINHOLE"):
        group_cameras(one, {}, CameraConfig("PANCAKE"))
    with pytest.raises(InputError, match="fixed cameras need their parameters"):
        CameraConfig(fixed=True)
    with pytest.raises(InputError, match="camera mode is 'some': one of auto, shared"):
        CameraConfig(mode="some")  # type: ignore[arg-type]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Two views of a cloud of points, matched row by row; the last ten matches are wrong."""
    rng = np.random.default_rng(0)
    points = np.column_stack([rng.uniform(-2, 2, (60, 2)), rng.uniform(4, 8, 60)])
    names = ("left.jpg", "right.jpg", "empty.jpg")
    shared = group_cameras(dict.fromkeys(names, (640, 480)), {}, CameraConfig(mode="shared"))
    rows = []
    for name, shift in (("left.jpg", 0.0), ("right.jpg", 0.5)):
        local = points - [shift, 0, 0]
        xy = (local[:, :2] / local[:, 2:] * 768 + [320, 240] - 0.5).astype(np.float32)
        keypoints = Keypoints.from_array(np.column_stack([xy, np.full(60, 4), np.full(60, 30)]))
        unit = rng.normal(size=(60, 128)).astype(np.float32)
        rows.append(ImageRows(name, keypoints, unit / np.linalg.norm(unit, axis=1, keepdims=True)))
    rows.append(ImageRows("empty.jpg", Keypoints.empty(), np.zeros((0, 128), np.float32)))
    matches = np.column_stack([np.arange(60)] * 2)
    matches[50:, 1] = matches[50:, 1][::-1]
    nothing = np.zeros((0, 2), np.int64)
    path = tmp_path / "database.db"
    pairs = [(("left.jpg", "right.jpg"), matches), (("left.jpg", "empty.jpg"), nothing)]
    write_database(path, shared, rows, pairs)
    return path


def test_a_database_holds_what_was_given_in_colmaps_convention(database: Path) -> None:
    pycolmap = import_pycolmap()
    assert [path.name for path in database.parent.iterdir()] == ["database.db"]
    with pycolmap.Database.open(str(database)) as opened:
        images = {image.name: image for image in opened.read_all_images()}
        assert len(opened.read_all_cameras()) == len(opened.read_all_rigs()) == 1
        frames = opened.read_all_frames()
        assert len(frames) == 3
        assert all(image.has_frame_id() for image in images.values())
        stored = opened.read_keypoints(images["left.jpg"].image_id)
        assert stored.shape == (60, 4)
        assert tuple(stored[0, 2:]) == (2, pytest.approx(np.deg2rad(30)))  # sigma and radians
        descriptors = read_descriptors(opened, images["left.jpg"].image_id)
        assert descriptors.shape == to_uint8(np.zeros((60, 128), np.float32)).shape
        assert len(opened.read_matches(images["left.jpg"].image_id, images["right.jpg"].image_id)) == 60
    rows = read_keypoints(database)
    assert rows["empty.jpg"].shape[0] == 0
    keypoints = Keypoints.from_colmap(rows["left.jpg"])
    np.testing.assert_allclose(keypoints.xy + 0.5, rows["left.jpg"][:, :2])


def test_verification_finds_the_right_matches_and_is_repeatable(database: Path, tmp_path: Path) -> None:
    pycolmap = import_pycolmap()
    pairs = [("left.jpg", "right.jpg"), ("left.jpg", "empty.jpg")]
    copy_database(database, tmp_path / "copy.db")
    found = []
    for path in (database, tmp_path / "copy.db"):
        verify_pairs(path, pairs, quiet=True)
        verify_pairs(path, pairs, quiet=True)  # nothing is left to do
        with pycolmap.Database.open(str(path)) as opened:
            ids = {image.name: image.image_id for image in opened.read_all_images()}
            assert verified(pycolmap, opened) == {frozenset((ids["left.jpg"], ids["right.jpg"]))}
            geometry = opened.read_two_view_geometry(ids["left.jpg"], ids["right.jpg"])
            found.append(geometry.inlier_matches)
    np.testing.assert_array_equal(found[0], found[1])
    assert set(range(50)) <= set(found[0][:, 0].tolist())
    assert len(found[0]) < 56


def test_foreign_databases_are_refused_unchanged(database: Path, tmp_path: Path) -> None:
    check_version(database)
    with pytest.raises(InputError, match=r"none.db: no such database; contextdesc sfm makes one"):
        check_version(tmp_path / "none.db")
    (tmp_path / "text.db").write_text("this is no database, but a text of more than a few words " * 9)
    with pytest.raises(InputError, match=r"text.db: not a COLMAP database \(file is not a database\)"):
        check_version(tmp_path / "text.db")
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE cakes (name TEXT)")
    with pytest.raises(InputError, match=r"other.db: a database, but not one of COLMAP's"):
        check_version(tmp_path / "other.db")
    old = old_database(tmp_path / "old.db")
    content = old.read_bytes()
    with pytest.raises(InputError, match=r"made by COLMAP 3.9, whose tables differ .*rigs.*--upgrade"):
        check_version(old)
    assert old.read_bytes() == content
    with sqlite3.connect(database) as newer:
        newer.execute("PRAGMA user_version = 5010000")
    with pytest.raises(InputError, match=r"COLMAP 5.1.0, which is newer than the installed pycolmap"):
        check_version(database)


def old_database(path: Path, name: str = "000.png") -> Path:
    """The tables of COLMAP 3.9, with one camera and one image."""
    with sqlite3.connect(path) as old:
        old.executescript(f"""
            CREATE TABLE cameras (camera_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
                model INTEGER NOT NULL, width INTEGER NOT NULL, height INTEGER NOT NULL, params BLOB,
                prior_focal_length INTEGER NOT NULL);
            CREATE TABLE images (image_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
                name TEXT NOT NULL UNIQUE, camera_id INTEGER NOT NULL, prior_qw REAL, prior_qx REAL,
                prior_qy REAL, prior_qz REAL, prior_tx REAL, prior_ty REAL, prior_tz REAL);
            CREATE TABLE keypoints (image_id INTEGER PRIMARY KEY NOT NULL, rows INTEGER NOT NULL,
                cols INTEGER NOT NULL, data BLOB);
            CREATE TABLE descriptors (image_id INTEGER PRIMARY KEY NOT NULL, rows INTEGER NOT NULL,
                cols INTEGER NOT NULL, data BLOB);
            CREATE TABLE matches (pair_id INTEGER PRIMARY KEY NOT NULL, rows INTEGER NOT NULL,
                cols INTEGER NOT NULL, data BLOB);
            CREATE TABLE two_view_geometries (pair_id INTEGER PRIMARY KEY NOT NULL, rows INTEGER NOT NULL,
                cols INTEGER NOT NULL, data BLOB, config INTEGER NOT NULL, F BLOB, E BLOB, H BLOB,
                qvec BLOB, tvec BLOB);
            INSERT INTO images (name, camera_id) VALUES ('{name}', 1);
            PRAGMA user_version = 3900;
        """)
        params = np.array([600.0, 320, 240]).tobytes()
        old.execute("INSERT INTO cameras VALUES (1, 0, 640, 480, ?, 0)", (params,))
    return path
