from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from contextdesc.errors import InputError
from contextdesc.journal import Journal

SETTINGS = {"model": "m", "ratio": 0.8}


def fill(path: Path, keys: list[str]) -> None:
    journal = Journal(path, SETTINGS)
    for key in keys:
        journal.append(key, {"values": np.arange(len(key)), "name": np.array([key])})
    journal.close()


def test_what_was_appended_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "j"
    fill(path, ["one", "three"])
    fill(path, ["seventeen"])
    journal = Journal(path, SETTINGS)
    assert len(journal) == 3
    assert "one" in journal
    assert "two" not in journal
    np.testing.assert_array_equal(journal["seventeen"]["values"], np.arange(9))
    journal.delete()
    assert not path.exists()


def test_a_cut_at_any_byte_loses_at_most_the_last_record(tmp_path: Path) -> None:
    path = tmp_path / "j"
    fill(path, ["first"])
    whole = path.stat().st_size
    fill(path, ["second"])
    content = path.read_bytes()
    for length in [*range(0, 60), *range(whole - 20, len(content), 97), len(content) - 1]:
        path.write_bytes(content[:length])
        journal = Journal(path, SETTINGS)
        assert ("first" in journal) == (length >= whole)
        assert "second" not in journal
        journal.append("third", {"values": np.zeros(2)})
        journal.close()
        again = Journal(path, SETTINGS)
        assert len(again) == 1 + (length >= whole)
        assert again["third"]["values"].shape == (2,)
        again.close()


def test_a_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "j"
    fill(path, ["first", "second"])
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    journal = Journal(path, SETTINGS)
    assert "first" in journal
    assert "second" not in journal
    journal.close()


def test_other_settings_are_refused_and_named(tmp_path: Path) -> None:
    path = tmp_path / "j"
    fill(path, ["first"])
    with pytest.raises(InputError, match=r"unfinished work with other settings \(ratio\)"):
        Journal(path, {**SETTINGS, "ratio": 0.7})
    fill(path, ["second"])  # nothing was lost
    journal = Journal(path, SETTINGS)
    assert len(journal) == 2
    with pytest.raises(InputError, match="another run is writing it"):
        Journal(path, SETTINGS)
    journal.close()


def test_files_that_are_no_journals_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text("my notes")
    with pytest.raises(InputError, match="is in the way and no journal"):
        Journal(path, SETTINGS)
    assert path.read_text() == "my notes"


class _Pressed:
    """An array during whose conversion somebody presses Ctrl-C."""

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        signal.raise_signal(signal.SIGINT)
        return np.arange(3)


def test_ctrl_c_waits_until_a_piece_is_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", {})
    with pytest.raises(KeyboardInterrupt):
        journal.append("one", {"a": _Pressed()})  # type: ignore[dict-item]
    journal.close()
    np.testing.assert_array_equal(Journal(tmp_path / "j", {})["one"]["a"], np.arange(3))
