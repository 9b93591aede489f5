"""The cache of benchmarks: what it keeps, what it computes again, and what it deletes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contextdesc.benchmarks import cache as cache_module
from contextdesc.benchmarks.cache import Cache, default_folder, key_of, keypoints_of, pixels_of
from contextdesc.errors import InputError
from contextdesc.image import Image
from contextdesc.keypoints import Keypoints


class Counted:
    """Arrays that count how often they are computed."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> dict[str, np.ndarray]:
        self.times += 1
        return {"descriptors": np.arange(6, dtype=np.float32).reshape(2, 3), "none": np.zeros((0, 2))}


def test_arrays_are_computed_once(tmp_path: Path) -> None:
    compute = Counted()
    for _ in range(2):
        found = Cache(tmp_path).fetch("ab12", compute)
        np.testing.assert_array_equal(found["descriptors"], [[0, 1, 2], [3, 4, 5]])
        assert found["descriptors"].dtype == np.float32
        assert found["none"].shape == (0, 2)
    assert compute.times == 1
    Cache(tmp_path).fetch("ab13", compute)
    assert compute.times == 2
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["ab12.npz", "ab13.npz"]


@pytest.mark.parametrize("damage", ["empty", "truncated", "flipped", "other"])
def test_a_damaged_entry_is_computed_again(damage: str, tmp_path: Path) -> None:
    compute = Counted()
    Cache(tmp_path).fetch("ab12", compute)
    path = tmp_path / "ab" / "ab12.npz"
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[content.index(np.float32(3).tobytes())] ^= 255
    path.write_bytes({"empty": b"", "truncated": content[:100], "other": b"no archive"}.get(damage, content))
    for _ in range(2):
        found = Cache(tmp_path).fetch("ab12", compute)
        np.testing.assert_array_equal(found["descriptors"], [[0, 1, 2], [3, 4, 5]])
    assert compute.times == 2


def test_a_key_depends_on_content_settings_and_code(photo: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = replace(photo, name="elsewhere")
    changed = photo.rgb.copy()
    changed[0, 0, 0] ^= 1
    assert pixels_of(photo) == pixels_of(renamed) != pixels_of(replace(photo, rgb=changed))
    wide, tall = (Image(np.zeros(shape, np.uint8), shape[:2]) for shape in ((2, 8, 3), (8, 2, 3)))
    assert pixels_of(wide) != pixels_of(tall)
    keypoints = Keypoints.from_array([[1, 2, 3, 4]])
    assert keypoints_of(keypoints) != keypoints_of(Keypoints.from_array([[1, 2, 3, 5]]))
    key = key_of("described", pixels_of(photo), True, "sift")
    assert key == key_of("described", pixels_of(photo), True, "sift")
    assert key != key_of("described", pixels_of(photo), False, "sift")
    assert key != key_of("described", pixels_of(photo), True, "rootsift")
    monkeypatch.setattr(cache_module, "_code", lambda: "another version")
    assert key != key_of("described", pixels_of(photo), True, "sift")


def test_beyond_the_limit_what_was_not_used_for_longest_goes(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for age, key in enumerate(("aa", "bb", "cc")):
        cache.fetch(key, Counted())
        os.utime(tmp_path / key / f"{key}.npz", (1000 - age, 1000 - age))
    cache.fetch("cc", Counted())  # used again, so it stays
    size = (tmp_path / "aa" / "aa.npz").stat().st_size
    Cache(tmp_path, limit=2 * size).prune()
    assert sorted(path.stem for path in tmp_path.rglob("*.npz")) == ["aa", "cc"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file: cannot be written .*give another --cache, or --no-cache"):
        Cache(tmp_path / "file").fetch("ab12", Counted())


def test_the_default_is_the_user_s_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "contextdesc" / "benchmarks"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "contextdesc" / "benchmarks"
