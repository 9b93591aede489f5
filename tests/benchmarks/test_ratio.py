from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from contextdesc.benchmarks.methods import build_method
from contextdesc.benchmarks.ratio import (
    Candidates,
    candidates,
    equal_precision,
    mutual_with_ratio,
    photo_views,
)
from contextdesc.errors import InputError
from contextdesc.image import find_images


def test_equal_precision_by_hand() -> None:
    """SIFT at 0.80 keeps four matches, three of them right: 75 %. So does the other descriptor up to 0.89; at
    0.90 it keeps a wrong fifth."""
    sift = Candidates(np.float32([0.5, 0.6, 0.7, 0.8, 0.9]), np.array([True, True, False, True, False]))
    other = Candidates(np.float32([0.55, 0.65, 0.75, 0.85, 0.9]), np.array([True, True, False, True, False]))
    assert sift.precision(0.80) == 0.75
    assert equal_precision(sift, other) == 0.89
    with pytest.raises(InputError, match="no matches to choose a ratio on"):
        equal_precision(sift, Candidates(np.zeros(0, np.float32), np.zeros(0, bool)))


def test_ratios_by_hand() -> None:
    """Squared, (0.6, 0.8) is at 0.4 from (0, 1) and at 0.8 from the next, which (0, 1) has at 2. And (1, 0) is
    at 0.4 from (0.8, 0.6) and at 2 from the next, but there it is the other side that has one at 0.8."""
    second = np.float32([[1, 0], [0, 1], [-1, 0]])
    first = np.float32([[1, 0], [0.6, 0.8]])
    rows, partner, ratio = mutual_with_ratio(first, second)
    assert rows.tolist() == [0, 1]
    assert partner.tolist() == [0, 1]
    np.testing.assert_allclose(ratio, [0, np.sqrt(0.4 / 0.8)], rtol=1e-5)
    rows, partner, ratio = mutual_with_ratio(second, np.float32([[0.8, 0.6], [0, -1]]))
    assert (rows.tolist(), partner.tolist()) == ([0], [0])
    np.testing.assert_allclose(ratio, [np.sqrt(0.4 / 0.8)], rtol=1e-5)


def test_precision_falls_with_the_threshold_on_real_views(photo_folder: Path) -> None:
    photos = list(find_images([photo_folder]).values())
    found = candidates(photo_views(photos), {"sift": build_method("sift")})["sift"]
    assert len(found.ratio) > 150
    assert found.precision(0.7) > found.precision(1.0) > 0.1
    assert equal_precision(found, found) >= 0.80
