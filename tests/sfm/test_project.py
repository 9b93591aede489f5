"""COLMAP's own projects: filled with our features, which its own matcher can use, and never spoilt."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from contextdesc.errors import ContextDescError, InputError
from contextdesc.formats.hloc import FeatureFile
from contextdesc.keypoints import Keypoints
from contextdesc.model import ContextDesc
from contextdesc.sfm.binding import import_pycolmap
from contextdesc.sfm.cameras import CameraConfig, Shared
from contextdesc.sfm.database import add_images, check_version, read_keypoints
from contextdesc.sfm.project import FillConfig, fill_database
from tests.sfm.test_database import old_database

CONFIG = FillConfig(cameras=CameraConfig(mode="shared"))


@pytest.fixture(scope="module")
def three(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three photographs."""
    folder = tmp_path_factory.mktemp("project") / "images"
    folder.mkdir()
    for name in ("001.png", "002.png", "003.png"):
        shutil.copyfile(photos / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def filled(three: Path, model: ContextDesc) -> Path:
    """A database with our features; it was empty."""
    path = three.parent / "filled.db"
    import_pycolmap().Database.open(str(path)).close()
    numbers = fill_database(model, path, three, CONFIG, quiet=True)
    assert (numbers.images, numbers.pairs) == (3, 3)
    assert numbers.inliers > 300
    return path


@pytest.fixture
def copied(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copyfile(filled, tmp_path / "project.db"))


def features_of(database: Path) -> Path:
    """The features of the only run on a database."""
    (path,) = database.with_name(f"{database.name}.contextdesc").glob("*/features.h5")
    return path


def inliers(path: Path) -> int:
    with import_pycolmap().Database.open(str(path)) as database:
        return int(database.num_inlier_matches())


@pytest.mark.parametrize("brute_force", [False, True])
def test_colmaps_own_matcher_finds_what_ours_does(
    filled: Path, copied: Path, model: ContextDesc, brute_force: bool
) -> None:
    """At least 90 % of the inliers, with the same ratio; by brute force COLMAP compares angles."""
    pycolmap = import_pycolmap()
    options = pycolmap.FeatureMatchingOptions()
    options.use_gpu = False
    options.sift.max_ratio = model.spec.ratio
    options.sift.cpu_brute_force_matcher = brute_force
    verification = pycolmap.TwoViewGeometryOptions()
    verification.ransac.random_seed = 0
    with pycolmap.Database.open(str(copied)) as database:
        database.clear_matches()
        database.clear_two_view_geometries()
    pycolmap.match_exhaustive(
        str(copied), matching_options=options, verification_options=verification, device=pycolmap.Device.cpu
    )
    assert inliers(copied) >= 0.9 * inliers(filled)


def test_keypoints_can_be_kept(filled: Path, copied: Path, three: Path, model: ContextDesc) -> None:
    """The ETH protocol: given keypoints, in COLMAP's convention, keep their rows and get descriptors."""
    pycolmap = import_pycolmap()
    with pycolmap.Database.open(str(copied)) as database:
        images = {image.name: image.image_id for image in database.read_all_images()}
        database.clear_matches()
        database.clear_two_view_geometries()
        database.clear_descriptors()
        database.clear_keypoints()
        rng = np.random.default_rng(0)
        for name, rows in read_keypoints(filled).items():
            database.write_keypoints(images[name], rows[rng.permutation(len(rows))[:600]])
    before = read_keypoints(copied)
    with pytest.raises(InputError, match="holds 1800 keypoints; describe them with --keep-keypoints"):
        fill_database(model, copied, three, CONFIG, quiet=True)
    numbers = fill_database(
        model, copied, three, dataclasses.replace(CONFIG, keep_keypoints=True), quiet=True
    )
    assert (numbers.keypoints, numbers.pairs) == (1800, 3)
    for name, rows in read_keypoints(copied).items():
        np.testing.assert_array_equal(rows, before[name])
    with pycolmap.Database.open(str(copied)) as database:
        stored = database.read_descriptors(images["001.png"])
        assert np.asarray(stored.data).shape == (600, 128)
    given = Keypoints.from_colmap(before["001.png"])
    expected = model.describe(three / "001.png", given).descriptors
    with FeatureFile(features_of(copied)) as file:
        np.testing.assert_allclose(file["001.png"].descriptors, expected, atol=1e-4)
    with pytest.raises(InputError, match=r"holds \d+ matches; replace them with --overwrite"):
        fill_database(model, copied, three, dataclasses.replace(CONFIG, keep_keypoints=True), quiet=True)


def test_what_a_project_holds_is_replaced_only_when_asked(
    filled: Path, copied: Path, three: Path, model: ContextDesc, tmp_path: Path
) -> None:
    content = copied.read_bytes()
    with pytest.raises(InputError, match="replace them and their matches with --overwrite"):
        fill_database(model, copied, three, CONFIG, quiet=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(InputError, match=r"001.png: no such file and 2 more, which .*project.db names"):
        fill_database(model, copied, elsewhere, dataclasses.replace(CONFIG, overwrite=True), quiet=True)
    assert copied.read_bytes() == content
    numbers = fill_database(model, copied, three, dataclasses.replace(CONFIG, overwrite=True), quiet=True)
    assert numbers.inliers == inliers(filled)


def test_a_project_is_untouched_until_everything_is_ready(
    copied: Path, three: Path, model: ContextDesc, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = copied.read_bytes()

    def stop(*_: object) -> None:
        raise ContextDescError("stopped")

    config = dataclasses.replace(CONFIG, overwrite=True)
    with monkeypatch.context() as patched:
        patched.setattr("contextdesc.sfm.project.verify_pairs", stop)
        with pytest.raises(ContextDescError, match="stopped"):
            fill_database(model, copied, three, config, quiet=True)
    assert copied.read_bytes() == content
    assert fill_database(model, copied, three, config, quiet=True).pairs == 3


def test_an_old_project_is_upgraded_only_when_asked(three: Path, model: ContextDesc, tmp_path: Path) -> None:
    old = old_database(tmp_path / "old.db", "001.png")
    content = old.read_bytes()
    with pytest.raises(InputError, match=r"was made by COLMAP 3.9, .*--upgrade converts it and keeps a copy"):
        fill_database(model, old, three, CONFIG, quiet=True)
    assert old.read_bytes() == content
    with pytest.raises(InputError, match="1 usable images; at least 2 are needed"):
        fill_database(model, old, three, dataclasses.replace(CONFIG, upgrade=True), quiet=True)
    check_version(old)
    assert (tmp_path / "old.db.before-upgrade").is_file()


def test_an_image_that_is_not_its_cameras_size_is_listed(
    three: Path, model: ContextDesc, tmp_path: Path
) -> None:
    pycolmap = import_pycolmap()
    upright, turned = (
        pycolmap.Camera.create_from_model_name(0, "PINHOLE", 700, *size) for size in ((640, 480), (480, 640))
    )
    path = tmp_path / "turned.db"
    with pycolmap.Database.open(str(path)) as database:
        add_images(
            pycolmap, database, [Shared(upright, ("001.png", "003.png")), Shared(turned, ("002.png",))]
        )
    numbers = fill_database(model, path, three, CONFIG, quiet=True)
    assert list(numbers.failed) == ["002.png"]
    assert (
        "640 x 480 pixels, its camera in the database 480 x 640; EXIF turns it" in numbers.failed["002.png"]
    )
    assert numbers.pairs == 1
