"""Hard keypoints: margins by hand, and rows that hold what is hard beside its rivals."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from contextdesc.training.data.hard import find_hard, hard_rows
from contextdesc.training.data.pairs import Pair, no_pair

K = 400  # keypoints of an image, of which the first COUNT have partners
COUNT = 120


@pytest.fixture(scope="module")
def pair() -> Pair:
    """Keypoints far from each other, partners at one place."""
    grid = np.stack(np.meshgrid(np.arange(20), np.arange(20)), -1).reshape(-1, 2) * 10.0
    keypoints = np.zeros((2, K, 4), np.float32)
    keypoints[..., :2] = grid
    place = grid.astype(np.float32)
    place[COUNT:] = np.nan
    empty = no_pair(K)
    return Pair(empty.patches, keypoints, np.full((2, 2), 200, np.float32), COUNT, empty.likeness, place)


@pytest.fixture
def raw() -> NDArray[np.float16]:
    """Descriptors with which every partner is found at once."""
    random = np.random.default_rng(0).normal(size=(K, 128))
    return np.stack([random, random]).astype(np.float16)


def test_margins_by_hand(pair: Pair) -> None:
    """Row 0 of the first image is like row 7 of the second; row 1 of the second like row 300 of the first."""
    raw = np.zeros((2, K, 128), np.float16)
    raw[:, :K, 100] = 1  # all others alike: partners found as well as anything else
    raw[:, 0] = raw[:, 1] = raw[:, 2] = 0
    raw[0, 0, 0] = raw[1, 0, 0] = 3  # lengths do not count
    raw[1, 7] = 0
    raw[1, 7, :2] = (0.8, 0.6)
    raw[0, 1, 2] = raw[1, 1, 2] = 1
    raw[0, 300] = 0
    raw[0, 300, 2:4] = (0.6, 0.8)
    raw[0, 2, 5] = raw[1, 2, 6] = 1
    found = find_hard(pair, raw, near=4)
    margin, rival = found.margin, found.rival
    assert margin[:3] == pytest.approx([0.2, 0.4, 0], abs=1e-3)
    assert rival[:2].tolist() == [7, 300]
    assert margin[3] == pytest.approx(0, abs=1e-3)


def test_keypoints_at_the_partners_place_are_no_rivals(pair: Pair, raw: NDArray[np.float16]) -> None:
    keypoints = pair.keypoints.copy()
    keypoints[1, 200, :2] = keypoints[1, 0, :2] + 3  # 4.2 pixels from the partner of row 0
    raw[1, 200] = raw[1, 0]
    moved = Pair(pair.patches, keypoints, pair.size, pair.count, pair.likeness, pair.place)
    found = find_hard(moved, raw, near=4)
    assert (found.margin[0], found.rival[0]) == (pytest.approx(0, abs=1e-3), 200)
    found = find_hard(moved, raw, near=5)
    assert found.margin[0] > 0.3
    assert found.rival[0] != 200


def test_rows_hold_hard_keypoints_and_their_rivals(pair: Pair, raw: NDArray[np.float16]) -> None:
    """Ten keypoints are taken for others; they are in nearly every draw, and so are those others."""
    hard, rivals = np.arange(10), np.arange(200, 210)
    raw[1, rivals] = raw[0, hard] + 0.1 * raw[1, rivals]
    found = find_hard(pair, raw, 4)
    assert found.hardness[hard].min() > 0.9
    assert found.hardness[10:].max() < 0.1
    draws = [hard_rows(found, K, 64, np.random.default_rng(seed)) for seed in range(50)]
    assert all(len(rows) == len(np.unique(rows)) == 64 for rows in draws)
    assert np.mean([np.isin(hard, rows).mean() for rows in draws]) > 0.95
    assert np.mean([np.isin(rivals, rows).mean() for rows in draws]) > 0.95
    easy = [np.isin(np.arange(10, COUNT), rows).mean() for rows in draws]
    assert 0.2 < np.mean(easy) < 0.5  # the rest: matchable, at random
    assert hard_rows(found, K, 64, np.random.default_rng(3)).tolist() == draws[3].tolist()


def test_rows_fill_up_with_keypoints_without_a_partner(pair: Pair, raw: NDArray[np.float16]) -> None:
    rows = hard_rows(find_hard(pair, raw, 4), K, K - 5, np.random.default_rng(0))
    assert len(np.unique(rows)) == K - 5
    assert set(range(COUNT)) <= set(rows.tolist())
