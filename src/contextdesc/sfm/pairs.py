"""Pairs to match: names of images come in, pairs go out.

All of them for small sets; for large ones those that look alike (by a global descriptor), or neighbours in a
sequence; or a list that somebody has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from contextdesc.errors import InputError
from contextdesc.match_set import all_pairs, read_pairs
from contextdesc.sfm.database import Pair
from contextdesc.sfm.retrieval import image_descriptors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.model import ContextDesc

PairMethod = Literal["auto", "exhaustive", "retrieval", "sequence"]


@dataclass(frozen=True)
class PairConfig:
    """Which pairs are matched.

    Attributes:
        method: `exhaustive`, `retrieval`, `sequence` (by name), or `auto`: the first for at most
            `exhaustive_up_to` images, else the second.
        exhaustive_up_to: images.
        neighbours: of `retrieval`: how many similar images each image is paired with.
        window: of `sequence`: how many following images each image is paired with.
    """

    method: PairMethod = "auto"
    exhaustive_up_to: int = 100
    neighbours: int = 20
    window: int = 10

    def __post_init__(self) -> None:
        if self.method not in get_args(PairMethod):
            raise InputError(f"pairs are {self.method!r}: one of {', '.join(get_args(PairMethod))}")
        for name in ("neighbours", "window"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}: give 1 or more")

    def method_for(self, images: int) -> PairMethod:
        if self.method != "auto":
            return self.method
        return "exhaustive" if images <= self.exhaustive_up_to else "retrieval"


def choose_pairs(
    model: ContextDesc, images: Mapping[str, Path], everything: set[str], config: PairConfig,
    pair_list: Path | None, journal: Path, quiet: bool = False,
) -> list[Pair]:  # fmt: skip
    """The pairs to match.

    Args:
        model: whose regional network tells which images are similar.
        images: the usable ones, by name.
        everything: names of all images, which a list may name.
        pair_list: two names a line; takes the place of a method.
        journal: file that keeps what retrieval has done.
    """
    names = list(images)
    if pair_list is not None:
        return listed(pair_list, names, everything - set(names))
    method = config.method_for(len(names))
    if method == "retrieval":
        return similar(names, image_descriptors(model, images, journal, quiet), config.neighbours)
    return sequence(names, config.window) if method == "sequence" else all_pairs(names)


def sequence(names: Sequence[str], window: int) -> list[Pair]:
    """Each image with the `window` images after it."""
    return [(first, other) for i, first in enumerate(names) for other in names[i + 1 : i + 1 + window]]


def similar(names: Sequence[str], descriptors: NDArray[np.float32], neighbours: int) -> list[Pair]:
    """Each image with those most similar to it, each pair once.

    Args:
        descriptors: (N, D) unit vectors, one per image.
    """
    similarity = descriptors @ descriptors.T
    np.fill_diagonal(similarity, -np.inf)
    best = np.argsort(-similarity, axis=1, kind="stable")[:, : min(neighbours, len(names) - 1)]
    chosen = {(min(i, int(j)), max(i, int(j))) for i, row in enumerate(best) for j in row}
    return [(names[i], names[j]) for i, j in sorted(chosen)]


def listed(path: Path, names: Sequence[str], left_out: set[str]) -> list[Pair]:
    """The pairs of a list, each once whatever the order of its names; images left out are skipped."""
    known, pairs = set(names), dict[Pair, None]()
    for first, second in read_pairs(path):
        for name in (first, second):
            if name not in known and name not in left_out:
                raise InputError(f"{path}: names {name}, which is not among the images")
        if first == second:
            raise InputError(f"{path}: pairs {first} with itself")
        if {first, second} <= known and (second, first) not in pairs:
            pairs[first, second] = None
    return list(pairs)
