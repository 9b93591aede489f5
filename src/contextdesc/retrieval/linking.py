"""Linking: an index comes in, pairs of images that are worth matching go out, for `contextdesc sfm`.

Each image is matched with those that the index ranks best for it, not with all; what they verify tells where
to look next, since partners of partners often are partners too (as in NN-descent, Dong et al., 2011).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from contextdesc.errors import InputError
from contextdesc.formats.atomic import replacing
from contextdesc.progress import progress
from contextdesc.retrieval.options import CANDIDATES, EXPANSION, ROUNDS
from contextdesc.retrieval.searching import FLOOR, inliers_of

if TYPE_CHECKING:
    from contextdesc.retrieval.index import Index
    from contextdesc.retrieval.options import Rank

Pair: TypeAlias = tuple[str, str]  # names in order

_IN_MEMORY = 128  # images whose features are


@dataclass(frozen=True)
class Links:
    """Pairs of an index.

    Attributes:
        pairs: names in order, each pair once; the best first by inliers, or by name if not verified.
        inliers: of each pair that was matched; empty if none was.
        images: of the index.
    """

    pairs: list[Pair]
    inliers: dict[Pair, int]
    images: int

    @property
    def possible(self) -> int:
        """Pairs that there are."""
        return self.images * (self.images - 1) // 2

    def write(self, path: Path) -> None:
        """Two names a line, separated by a tab, as `contextdesc sfm --pair-list` reads them."""
        with replacing(path) as temporary:
            temporary.write_text("".join(f"{a}\t{b}\n" for a, b in sorted(self.pairs)), encoding="utf-8")


def link(
    index: Index,
    top: int = 20,
    candidates: int = CANDIDATES,
    expansion: int = EXPANSION,
    by: Rank | None = None,
    verify: bool = True,
    quiet: bool = False,
) -> Links:
    """Each image with its best partners, at most `top`.

    Args:
        candidates: images that each image is matched with, those that rank best for it; at least `top`.
        expansion: partners of its partners that it is matched with in each of at most `ROUNDS` rounds.
        by: what the index ranks by; `Index.best_rank` if not given.
        verify: match the candidates and take those with most inliers, at least `FLOOR`; else the `top`
            that rank best are taken as they are.
    """
    if verify and not index.keeps_features:
        raise InputError(f"{index.folder}: keeps no local features to verify with; give --no-verify")
    ranked = ranked_for_each(index, max(candidates, top) if verify else top, by or index.best_rank)
    if not verify:
        chosen = {ordered(name, other) for name, others in ranked.items() for other in others}
        return Links(sorted(chosen), {}, len(index))
    features = lru_cache(_IN_MEMORY)(index.features)
    inliers = verified(ranked, top, expansion, lambda a, b: inliers_of(features(a), features(b)), quiet)
    return Links(best(inliers, top), inliers, len(index))


def ranked_for_each(index: Index, candidates: int, by: Rank) -> dict[str, list[str]]:
    """Of each image the others that rank best for it."""
    return {
        entry.name: [
            name
            for name, _ in index.rank(entry.words, entry.weights, entry.descriptor, candidates + 1, by)
            if name != entry.name
        ][:candidates]
        for entry in index.entries()
    }


def verified(
    ranked: Mapping[str, list[str]],
    top: int,
    expansion: int,
    count: Callable[[str, str], int],
    quiet: bool,
) -> dict[Pair, int]:
    """Inliers of each image with its candidates, and then, round by round, with partners of its partners."""
    inliers: dict[Pair, int] = {}
    waiting = {ordered(name, other) for name, others in ranked.items() for other in others}
    for number in range(ROUNDS + 1):
        title = f"verify, round {number}" if number else "verify"
        with progress(title, len(waiting), 0, quiet or not waiting) as advance:
            for pair in sorted(waiting):  # in order, so that features of the first image are read once
                inliers[pair] = count(*pair)
                advance()
        waiting = expanded(inliers, top, expansion)
    return inliers


def ordered(first: str, second: str) -> Pair:
    return (first, second) if first < second else (second, first)


def expanded(inliers: Mapping[Pair, int], top: int, expansion: int) -> set[Pair]:
    """Pairs to try next: of each image the `expansion` that most inliers lead to in two steps.

    Steps are the `best` pairs so far; a way counts as many inliers as its weaker step has.
    """
    partners: dict[str, dict[str, int]] = {}
    for first, second in best(inliers, top):
        count = inliers[first, second]
        partners.setdefault(first, {})[second] = partners.setdefault(second, {})[first] = count
    found = set()
    for name, own in partners.items():
        ways: Counter[str] = Counter()
        for partner, count in own.items():
            for other, step in partners[partner].items():
                if other != name and ordered(name, other) not in inliers:
                    ways[other] += min(count, step)
        strongest = sorted(ways.items(), key=lambda item: (-item[1], item[0]))[:expansion]
        found |= {ordered(name, other) for other, _ in strongest}
    return found


def best(inliers: Mapping[Pair, int], top: int) -> list[Pair]:
    """Of each image the pairs with most inliers, at least `FLOOR`; most inliers first."""
    of_image: dict[str, list[tuple[int, Pair]]] = {}
    for pair, count in inliers.items():
        if count >= FLOOR:
            for name in pair:
                of_image.setdefault(name, []).append((-count, pair))
    chosen = {pair for found in of_image.values() for _, pair in sorted(found)[:top]}
    return sorted(chosen, key=lambda pair: (-inliers[pair], pair))
