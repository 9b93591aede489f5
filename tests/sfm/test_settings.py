"""A folder's settings: what changed is named, and only what it touches is forgotten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contextdesc.errors import InputError
from contextdesc.sfm.settings import FILE, fingerprint, prepare


def settings(**changes: Any) -> dict[str, dict[str, Any]]:
    stages: dict[str, dict[str, Any]] = {
        "features": {"images": {"a.jpg": "1", "b.jpg": "2"}, "max_side": 1600},
        "pairs": {"method": "auto"}, "matches": {"ratio": 0.8}, "database": {"mode": "auto"},
        "mapping": {"mapper": "incremental"},
    }  # fmt: skip
    for name, value in changes.items():
        stage, _, key = name.partition("_")
        stages[stage][key] = value
    return stages


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    prepare(tmp_path, settings())
    for name in ("features.h5", "pairs.txt", "matches.h5", "database.db", "summary.json"):
        (tmp_path / name).touch()
    (tmp_path / "sparse").mkdir()
    (tmp_path / "notes.txt").touch()
    return tmp_path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {FILE, "notes.txt"}


def test_the_same_settings_change_nothing(folder: Path) -> None:
    before = names(folder)
    prepare(folder, settings())
    assert names(folder) == before


def test_other_settings_are_refused_with_what_changed(folder: Path) -> None:
    before = names(folder)
    with pytest.raises(InputError, match=r"other settings \(ratio: was 0.8, now 0.9\).*--update"):
        prepare(folder, settings(matches_ratio=0.9))
    with pytest.raises(InputError, match=r"\(images: b.jpg, c.jpg\)"):
        prepare(folder, settings(features_images={"a.jpg": "1", "b.jpg": "3", "c.jpg": "4"}))
    assert names(folder) == before


def test_an_update_forgets_what_the_change_touches(folder: Path) -> None:
    prepare(folder, settings(database_mode="shared"), update=True)
    assert names(folder) == {"features.h5", "pairs.txt", "matches.h5"}
    prepare(folder, settings(database_mode="shared"))
    more = {"a.jpg": "1", "b.jpg": "2", "c.jpg": "3"}
    prepare(folder, settings(database_mode="shared", features_images=more), update=True)
    assert names(folder) == {"features.h5"}  # which takes the new photograph in
    prepare(folder, settings(database_mode="shared", features_images={"a.jpg": "9"}), update=True)
    assert names(folder) == set()
    assert (folder / "notes.txt").exists()


def test_a_restart_forgets_everything_of_ours(folder: Path) -> None:
    (folder / FILE).write_text("{")
    with pytest.raises(InputError, match=r"settings.json: damaged; start again with --restart"):
        prepare(folder, settings())
    (folder / FILE).unlink()
    with pytest.raises(InputError, match="holds files that were not made by contextdesc sfm"):
        prepare(folder, settings())
    prepare(folder, settings(), restart=True)
    assert names(folder) == set()
    assert (folder / "notes.txt").exists()


def test_settings_that_were_edited_are_noticed(folder: Path) -> None:
    stored = json.loads((folder / FILE).read_text())
    stored["stages"]["matches"]["settings"]["ratio"] = 0.9
    (folder / FILE).write_text(json.dumps(stored))
    with pytest.raises(InputError, match="damaged"):
        prepare(folder, settings(matches_ratio=0.9))


def test_a_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"x" * 200_000)
    two.write_bytes(b"x" * 200_000)
    assert fingerprint(one) == fingerprint(two)
    two.write_bytes(b"x" * 199_999 + b"y")
    assert fingerprint(one) != fingerprint(two)
    with pytest.raises(InputError, match="three: cannot be read"):
        fingerprint(tmp_path / "three")
