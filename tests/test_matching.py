from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from contextdesc import matching
from contextdesc.errors import InputError
from contextdesc.matching import match, match_descriptors
from tests.test_features import make


def unit(rows: int, seed: int, near: np.ndarray | None = None) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, 16))
    if near is not None:
        values = near[rng.integers(len(near), size=rows)] + 0.2 * values
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def by_loops(first: np.ndarray, second: np.ndarray, ratio: float, mutual: bool) -> list[tuple[int, int]]:
    def nearest(row: np.ndarray, others: np.ndarray) -> int | None:
        distances = np.linalg.norm(others - row, axis=1)
        order = np.argsort(distances)
        return int(order[0]) if distances[order[0]] <= ratio * distances[order[1]] else None

    found = [(i, nearest(row, second)) for i, row in enumerate(first)]
    return [(i, j) for i, j in found if j is not None and (not mutual or nearest(second[j], first) == i)]


@pytest.mark.parametrize("ratio", [1.0, 0.8])
@pytest.mark.parametrize("mutual", [True, False])
def test_agrees_with_plain_loops_across_blocks(
    monkeypatch: pytest.MonkeyPatch, ratio: float, mutual: bool
) -> None:
    monkeypatch.setattr(matching, "_ROWS", 7)
    monkeypatch.setattr(matching, "_COLUMNS", 11)
    second = unit(60, 1)
    first = unit(50, 2, near=second)
    matches = match_descriptors(first, second, ratio, mutual)
    expected = by_loops(first, second, ratio, mutual)
    assert [tuple(row) for row in matches.indices.tolist()] == expected
    assert 5 < len(expected) <= 50
    cosine = (first[matches.indices[:, 0]] * second[matches.indices[:, 1]]).sum(1)
    np.testing.assert_allclose(matches.similarity, cosine, rtol=1e-5)


@pytest.mark.parametrize("ratio", [1.0, 0.9, 0.8])
def test_mutual_matches_do_not_depend_on_which_image_comes_first(ratio: float) -> None:
    second = unit(300, 1)
    first = unit(200, 2, near=second)
    there, back = match_descriptors(first, second, ratio), match_descriptors(second, first, ratio)
    assert 20 < len(there) < 200
    assert sorted(map(tuple, there.indices.tolist())) == sorted((j, i) for i, j in back.indices.tolist())


def test_rows_that_tie_give_one_match() -> None:
    same = np.tile(unit(1, 0), (4, 1))
    assert match_descriptors(same, same[:1]).indices.tolist() == [[0, 0]]


@pytest.mark.parametrize(("rows", "columns"), [(0, 5), (5, 0), (0, 0)])
def test_nothing_matches_nothing(rows: int, columns: int) -> None:
    matches = match_descriptors(unit(5, 0)[:rows], unit(5, 1)[:columns], 0.8)
    assert matches.indices.shape == (0, 2)
    assert matches.similarity.shape == (0,)


def test_a_single_candidate_passes_the_ratio_test() -> None:
    assert len(match_descriptors(unit(1, 0), unit(1, 0), 0.5)) == 1


def test_the_model_s_ratio_is_the_default() -> None:
    second = make(60, 1)
    first = replace(second, descriptors=second.descriptors + 1.2 * make(60, 2).descriptors)
    first, second = (
        replace(f, descriptors=f.descriptors / np.linalg.norm(f.descriptors, axis=1, keepdims=True))
        for f in (first, second)
    )
    own, none = match(first, second), match(first, second, ratio=1)
    assert own.indices.tolist() == match(first, second, ratio=0.8).indices.tolist()
    assert 0 < len(own) < len(none)


def test_features_of_different_models_are_refused_unless_forced() -> None:
    first = make(3)
    for other in (replace(first, checksum="4567"), replace(first, context="none"), replace(first, model="x")):
        with pytest.raises(InputError, match="do not compare"):
            match(first, other)
        assert len(match(first, other, ratio=1, force=True)) == 3


@pytest.mark.parametrize("ratio", [0.0, 1.5, -1.0])
def test_bad_ratio(ratio: float) -> None:
    with pytest.raises(InputError, match=f"ratio is {ratio}"):
        match(make(2), make(2), ratio)


def test_descriptors_of_differing_sizes() -> None:
    with pytest.raises(InputError, match=r"shapes \(2, 16\) and \(2, 8\)"):
        match_descriptors(unit(2, 0), unit(2, 0)[:, :8])


@pytest.mark.slow
def test_memory_does_not_grow_with_the_product() -> None:
    """50,000 x 50,000 similarities would be 10 GB; the matcher may add a twentieth of it."""
    import subprocess
    import sys

    code = (
        "import numpy as np, resource\n"
        "from contextdesc.matching import match_descriptors\n"
        "a = np.random.default_rng(0).normal(size=(50000, 128)).astype(np.float32)\n"
        "a /= np.linalg.norm(a, axis=1, keepdims=True)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "m = match_descriptors(a, a[::-1].copy(), 0.9)\n"
        "assert (m.indices.sum(1) == 49999).all() and len(m) == 50000, len(m)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(out.stdout) < 500
