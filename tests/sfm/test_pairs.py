"""Pairs: each once, by the method that was asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from contextdesc.errors import InputError
from contextdesc.image import find_images
from contextdesc.model import load
from contextdesc.sfm.pairs import PairConfig, choose_pairs, listed, sequence, similar


def test_a_sequence_pairs_each_image_with_those_after_it() -> None:
    assert sequence(list("abcd"), 2) == [("a", "b"), ("a", "c"), ("b", "c"), ("b", "d"), ("c", "d")]
    assert sequence(["a"], 5) == []


def test_similar_images_are_paired_once() -> None:
    angle = np.deg2rad([0, 1, 90, 92, 200])
    vectors = np.column_stack([np.cos(angle), np.sin(angle)]).astype(np.float32)
    assert similar(list("abcde"), vectors, 1) == [("a", "b"), ("c", "d"), ("d", "e")]
    assert len(similar(list("abcde"), vectors, 99)) == 10


def test_auto_is_exhaustive_up_to_a_size() -> None:
    config = PairConfig(exhaustive_up_to=10)
    assert (config.method_for(10), config.method_for(11)) == ("exhaustive", "retrieval")
    assert PairConfig("sequence").method_for(5) == "sequence"
    with pytest.raises(InputError, match="pairs are 'random': one of auto, exhaustive"):
        PairConfig("random")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="window is 0: give 1 or more"):
        PairConfig(window=0)


def test_a_list_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text("a b\nb a\na broken\nb c\n")
    assert listed(path, list("abc"), {"broken"}) == [("a", "b"), ("b", "c")]
    path.write_text("a zebra\n")
    with pytest.raises(InputError, match="names zebra, which is not among the images"):
        listed(path, list("abc"), set())
    path.write_text("a a\n")
    with pytest.raises(InputError, match="pairs a with itself"):
        listed(path, list("abc"), set())


def test_retrieval_pairs_views_of_the_same_picture(photo_folder: Path, tmp_path: Path) -> None:
    """Twelve crops of four pictures: the two nearest of each are crops of its own picture."""
    images = find_images([photo_folder])
    config = PairConfig("retrieval", neighbours=2)
    journal = tmp_path / "retrieval.journal"
    pairs = choose_pairs(load("sift-context", threads=1), images, set(images), config, None, journal, True)
    same = [int(Path(a).stem) % 4 == int(Path(b).stem) % 4 for a, b in pairs]
    assert np.mean(same) > 0.9
    assert journal.stat().st_size > 0
