from __future__ import annotations

import numpy as np
import pytest

from contextdesc.benchmarks.statistics import Mean, bootstrap
from contextdesc.errors import InputError


def test_intervals_cover_the_mean_and_shrink_with_more_units() -> None:
    assert bootstrap(np.array([2.0, 2.0, 2.0])) == Mean(2.0, 2.0, 2.0)
    rng = np.random.default_rng(0)
    few, many = (bootstrap(rng.normal(1, 3, n)) for n in (30, 3000))
    assert few.low < few.mean < few.high
    assert many.high - many.low == pytest.approx(2 * 1.96 * 3 / np.sqrt(3000), rel=0.1)
    assert many.low < 1 < many.high
    assert str(Mean(1.25, 1.0, 1.5)) == "1.2 (1.0 to 1.5)"
    with pytest.raises(InputError, match="no values"):
        bootstrap(np.zeros(0))
