"""Pairs: the best partners of each image, found without matching all pairs."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path

import pytest

from contextdesc.errors import InputError
from contextdesc.match_set import read_pairs
from contextdesc.retrieval.index import Index
from contextdesc.retrieval.linking import best, expanded, link, ordered, verified
from contextdesc.retrieval.searching import FLOOR, inliers_of
from contextdesc.sfm.pairs import listed
from tests.retrieval.conftest import same_picture


def test_partners_of_partners_are_tried() -> None:
    inliers = {("a", "b"): 100, ("b", "c"): 60, ("b", "d"): 40, ("c", "d"): FLOOR - 1, ("a", "e"): 5}
    assert expanded(inliers, 9, 9) == {("a", "c"), ("a", "d")}  # c-d was tried, e has no partner
    assert expanded(inliers, 9, 0) == set()


def test_stronger_ways_are_tried_first() -> None:
    """From a to c over b 60 and over e another 20; to d over b 70."""
    inliers = {("a", "b"): 100, ("b", "c"): 60, ("b", "d"): 70, ("a", "e"): 20, ("c", "e"): 90}
    assert ("a", "c") in expanded(inliers, 9, 1)
    del inliers["a", "e"]
    assert ("a", "d") in expanded(inliers, 9, 1)


def test_rounds_follow_a_chain() -> None:
    """Images along a line, each a partner of those at most three away; the index only knows the next one."""
    names = [f"{number:02}" for number in range(12)]
    tried = []

    def count(first: str, second: str) -> int:
        tried.append((first, second))
        return max(0, 200 - 50 * abs(int(first) - int(second)))

    ranked = {name: [other] for name, other in pairwise(names)}
    inliers = verified(ranked, 6, 2, count, quiet=True)
    assert len(tried) == len(set(tried)) == len(inliers) < 66
    near = {(a, b) for a, b in combinations(names, 2) if int(b) - int(a) <= 3}
    assert near <= set(inliers)
    assert set(best(inliers, 6)) == near


def test_the_best_of_each_image_are_kept_once() -> None:
    inliers = {("a", "b"): 90, ("a", "c"): 50, ("b", "c"): 70, ("c", "d"): 20, ("a", "d"): FLOOR - 1}
    assert best(inliers, 1) == [("a", "b"), ("b", "c"), ("c", "d")]
    assert best(inliers, 2) == [("a", "b"), ("b", "c"), ("a", "c"), ("c", "d")]
    assert best(inliers, 9) == best(inliers, 2)


def test_images_of_one_picture_are_linked(built: Index) -> None:
    links = link(built, top=2, candidates=3, expansion=1, quiet=True)
    wanted = {pair for pair in combinations(built.names, 2) if same_picture(*pair)}
    assert set(links.pairs) == wanted
    assert wanted <= set(links.inliers)
    assert len(links.inliers) < links.possible == 66
    first, second = links.pairs[0]
    assert links.inliers[first, second] == inliers_of(built.features(first), built.features(second))
    assert links.inliers[first, second] == max(links.inliers.values())


def test_without_verification_the_best_ranked_are_taken(built: Index) -> None:
    links = link(built, top=2, by="global", verify=False, quiet=True)
    assert all(first < second for first, second in links.pairs)
    assert len(links.pairs) <= 24
    assert links.inliers == {}
    hits = sum(same_picture(*pair) for pair in links.pairs)
    assert hits >= 10


def test_the_list_is_one_that_sfm_reads(built: Index, tmp_path: Path) -> None:
    links = link(built, top=2, candidates=3, quiet=True)
    path = tmp_path / "pairs.txt"
    links.write(path)
    assert read_pairs(path) == sorted(links.pairs)
    assert listed(path, built.names, set()) == sorted(links.pairs)


def test_verification_needs_features(built: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Index, "keeps_features", False)
    with pytest.raises(InputError, match="keeps no local features to verify with; give --no-verify"):
        link(built, quiet=True)


def test_names_are_ordered() -> None:
    assert ordered("b", "a") == ordered("a", "b") == ("a", "b")
