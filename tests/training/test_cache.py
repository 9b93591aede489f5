"""The cache: keys of all settings, a size limit that spares what is in use, damage that is named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from contextdesc.errors import InputError
from contextdesc.image import find_images
from contextdesc.training.data.cache import DONE, FINISHED, Cache, load_array, open_array
from contextdesc.training.data.pairs import PairConfig, PairSet, build_homography_pairs

PAIRS = PairConfig(keypoints=64, min_corresponding=16, per_photo=1)
MEGABYTE = 1_000_000


def filled(cache: Cache, settings: object, used: float | None) -> Path:
    """An entry of one megabyte, last used at the time `used`; None if it was never finished."""
    entry = cache.entry("raw", settings)
    cache.make_room(entry, MEGABYTE)
    (entry / "raw.npy").write_bytes(os.urandom(MEGABYTE))
    if used is not None:
        (entry / DONE).touch()
        os.utime(entry / DONE, (used, used))
    return entry


def test_the_key_is_of_the_settings_not_of_their_order(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    entry = cache.entry("raw", {"seed": 1, "support": [10.6, {"a": 1, "b": 2}]})
    assert entry == Cache(tmp_path).entry("raw", {"support": [10.6, {"b": 2, "a": 1}], "seed": 1})
    others = [
        cache.entry("raw", {"seed": 2, "support": [10.6, {"a": 1, "b": 2}]}),
        cache.entry("raw", {"seed": 1, "support": [10.7, {"a": 1, "b": 2}]}),
        cache.entry("grids", {"seed": 1, "support": [10.6, {"a": 1, "b": 2}]}),
    ]
    assert len({entry, *others}) == 4
    assert not entry.exists()  # asking makes nothing


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    earlier = Cache(tmp_path)
    entries = {age: filled(earlier, age, used=age) for age in (300, 100, 200)}
    stranger = tmp_path / "my-photos"
    stranger.mkdir()
    (stranger / "photo.jpg").write_bytes(os.urandom(MEGABYTE))
    cache = Cache(tmp_path, 3.5 * MEGABYTE)
    fresh = cache.entry("raw", "fresh")
    cache.make_room(fresh, MEGABYTE)
    assert fresh.is_dir()
    assert [age for age, entry in entries.items() if entry.exists()] == [300, 200]
    cache.make_room(fresh, 3.2 * MEGABYTE)
    assert [age for age, entry in entries.items() if entry.exists()] == []
    assert stranger.is_dir()  # not an entry, so not ours


def test_what_this_run_uses_stays(tmp_path: Path) -> None:
    earlier = Cache(tmp_path)
    old, newer = filled(earlier, "old", used=100), filled(earlier, "newer", used=200)
    cache = Cache(tmp_path, 2.5 * MEGABYTE)
    assert cache.entry("raw", "old") == old
    assert (old / DONE).stat().st_mtime > 200  # used now
    os.utime(old / DONE, (100, 100))  # kept for its use, not for its time
    cache.make_room(cache.entry("raw", "fresh"), MEGABYTE)
    assert old.exists()
    assert not newer.exists()


def test_an_entry_under_way_counts_by_its_own_time(tmp_path: Path) -> None:
    earlier = Cache(tmp_path)
    unfinished, finished = filled(earlier, "unfinished", used=None), filled(earlier, "finished", used=100)
    cache = Cache(tmp_path, 2.5 * MEGABYTE)
    cache.make_room(cache.entry("raw", "fresh"), MEGABYTE)
    assert unfinished.exists()
    assert not finished.exists()


def test_too_small_a_limit_is_named_and_nothing_is_deleted(tmp_path: Path) -> None:
    earlier = Cache(tmp_path)
    used, other = filled(earlier, "used", used=100), filled(earlier, "other", used=200)
    cache = Cache(tmp_path, 2.5e9)
    cache.entry("raw", "used")
    fresh = cache.entry("raw", "fresh")
    with pytest.raises(InputError) as raised:
        cache.make_room(fresh, 4e9)
    message = str(raised.value)
    assert message.startswith(f"{tmp_path}: this training prepares 4 GB, and the cache may hold 2.5: raise")
    assert "\n" not in message
    assert (used / "raw.npy").stat().st_size == MEGABYTE
    assert other.exists()  # deleting it would not have helped
    assert not fresh.exists()
    Cache(tmp_path, None).make_room(fresh, 4e15)
    assert fresh.is_dir()


@pytest.fixture(scope="module")
def photos(photo_folder: Path) -> list[Path]:
    return list(find_images([photo_folder]).values())[:2]


@pytest.fixture(scope="module")
def built(photos: list[Path], tmp_path_factory: pytest.TempPathFactory) -> PairSet:
    pairs = build_homography_pairs(photos, Cache(tmp_path_factory.mktemp("cache")), PAIRS)
    assert len(pairs) == 2
    return pairs


def truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: 128 + (len(content) - 128) // 2])


def other_shape(path: Path) -> None:
    np.save(path, np.load(path)[..., None])


def other_dtype(path: Path) -> None:
    np.save(path, np.load(path).astype(np.float64))


def no_array(path: Path) -> None:
    path.write_text("not an array")


def garbled_header(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:10] + b"{'descr': ((((" + content[24:])


@pytest.mark.parametrize("state", ["finished", "unfinished"])
@pytest.mark.parametrize(
    "damage", [truncate, other_shape, other_dtype, no_array, garbled_header, Path.unlink]
)
@pytest.mark.parametrize("name", ["patches", "keypoints", "size", "count", "likeness"])
def test_a_damaged_array_is_named(
    built: PairSet, photos: list[Path], tmp_path: Path, name: str, damage: Callable[[Path], None], state: str
) -> None:
    folder = tmp_path / built.folder.name
    shutil.copytree(built.folder, folder)
    if state == "unfinished":
        (folder / DONE).unlink()
    damage(folder / f"{name}.npy")
    with pytest.raises(InputError) as raised:
        build_homography_pairs(photos, Cache(tmp_path), PAIRS)
    message = str(raised.value)
    assert message.startswith(f"{folder / name}.npy: damaged cache (")
    assert message.endswith(f"); delete the folder {folder} and start again")
    assert "\n" not in message


@pytest.mark.parametrize("damage", [truncate, other_shape, no_array])
def test_damaged_flags_of_an_unfinished_set_are_named(
    built: PairSet, photos: list[Path], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = tmp_path / built.folder.name
    shutil.copytree(built.folder, folder)
    (folder / DONE).unlink()
    damage(folder / FINISHED)
    with pytest.raises(InputError, match=r"finished.npy: damaged cache \(.*delete the folder"):
        build_homography_pairs(photos, Cache(tmp_path), PAIRS)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (Path.unlink, "No such file"),
        (lambda path: path.write_text("views/0-0-a.jpg\n"), "too few lines"),
        (lambda path: path.write_bytes(b"views/\xff.jpg\n"), "can't decode"),
    ],
    ids=["missing", "short", "not text"],
)
def test_damaged_names_of_views(
    built: PairSet, photos: list[Path], tmp_path: Path, damage: Callable[[Path], object], reason: str
) -> None:
    folder = tmp_path / built.folder.name
    shutil.copytree(built.folder, folder)
    damage(folder / "views.txt")
    with pytest.raises(
        InputError, match=rf"views.txt: damaged cache \(.*{reason}.*\); delete the folder"
    ) as e:
        build_homography_pairs(photos, Cache(tmp_path), PAIRS)
    assert str(folder) in str(e.value)
    (folder / DONE).unlink()  # an unfinished set writes them anew
    again = build_homography_pairs(photos, Cache(tmp_path), PAIRS)
    assert [view.relative_to(folder) for view in again.views] == [
        view.relative_to(built.folder) for view in built.views
    ]
    np.testing.assert_array_equal(again.view, built.view)


def test_an_array_is_continued_as_it_was_left(tmp_path: Path) -> None:
    array = open_array(tmp_path / "raw.npy", (3, 2), np.float16)
    assert not array.any()
    array[1] = 5
    array.flush()
    again = open_array(tmp_path / "raw.npy", (3, 2), np.float16)
    np.testing.assert_array_equal(again, [[0, 0], [5, 5], [0, 0]])
    again[2] = 7
    again.flush()
    np.testing.assert_array_equal(load_array(tmp_path / "raw.npy", (None, 2), np.float16)[2], [7, 7])
    with pytest.raises(
        InputError, match=r"float16 \(3, 2\) where float16 \(any, 3\) belongs\); delete the folder"
    ):
        load_array(tmp_path / "raw.npy", (None, 3), np.float16)
