"""Matching: descriptors of two images in, pairs of rows out.

Nearest neighbour by cosine, mutual check and ratio test, computed in blocks, so that memory does not grow
with the product of the two numbers of keypoints. Mutual matches do not depend on which image comes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from contextdesc.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.features import Features

_ROWS, _COLUMNS = 2048, 8192  # block of the similarity matrix: 64 MB


@dataclass(frozen=True, eq=False)
class Matches:
    """M matches.

    Attributes:
        indices: (M, 2) int64, rows of the first and second image's features; sorted by the first.
        similarity: (M,) float32, cosine of the two descriptors.
    """

    indices: NDArray[np.int64]
    similarity: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.indices)

    def _repr_html_(self) -> str:
        from contextdesc.notebook import html_table

        rows: dict[str, object] = {"matches": len(self)}
        if len(self):
            low, middle, high = np.percentile(self.similarity, (0, 50, 100))
            rows["similarity"] = f"{low:.2f} to {high:.2f}, median {middle:.2f}"
        return html_table("Matches", rows)


def match(
    first: Features,
    second: Features,
    ratio: float | None = None,
    mutual: bool = True,
    force: bool = False,
) -> Matches:
    """Match the features of two images.

    Args:
        ratio: keep a match if its distance is at most `ratio` times that of the second nearest; None
            for the model's own threshold, 1 for no ratio test.
        mutual: keep a match only if both are each other's nearest and both pass the ratio test.
        force: match features of different models all the same.
    """
    if first.source != second.source and not force:
        raise InputError(
            f"features of {first.source} and of {second.source} do not compare; "
            "extract both with one model, or force it"
        )
    if ratio is None:
        ratio = first.ratio
    return match_descriptors(first.descriptors, second.descriptors, ratio, mutual)


def match_descriptors(
    first: NDArray[np.float32],
    second: NDArray[np.float32],
    ratio: float = 1.0,
    mutual: bool = True,
) -> Matches:
    """Match unit-length descriptors (N, D) and (M, D); see `match`."""
    if not 0 < ratio <= 1:
        raise InputError(f"ratio is {ratio}: give a number above 0 and at most 1 (1: no ratio test)")
    if first.ndim != 2 or second.ndim != 2 or first.shape[1] != second.shape[1]:
        raise InputError(f"descriptors of shapes {first.shape} and {second.shape} do not compare")
    if not len(first) or not len(second):
        return Matches(np.zeros((0, 2), np.int64), np.zeros(0, np.float32))
    nearest, best, runner_up, best_of_second = _two_nearest(first, second)
    keep = _distinct(best, runner_up, ratio)
    if mutual:
        keep &= best >= best_of_second[nearest]
    rows = np.flatnonzero(keep)
    if mutual:  # of rows that tie for one partner, the first
        _, chosen = np.unique(nearest[rows], return_index=True)
        rows = np.sort(rows[chosen])
    if mutual and ratio < 1 and len(rows):
        _, best_back, runner_up_back, _ = _two_nearest(second[nearest[rows]], first)
        rows = rows[_distinct(best_back, runner_up_back, ratio)]
    return Matches(np.column_stack([rows, nearest[rows]]), best[rows])


def _distinct(best: NDArray[np.float32], runner_up: NDArray[np.float32], ratio: float) -> NDArray[np.bool_]:
    """(N,) whether the nearest is at most `ratio` times as far as the second nearest, by their cosines."""
    if ratio == 1:
        return np.ones(len(best), np.bool_)
    distance, next_distance = (np.sqrt(np.maximum(0, 2 - 2 * s)) for s in (best, runner_up))
    return np.asarray(distance <= ratio * next_distance)


def _two_nearest(
    first: NDArray[np.float32], second: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """For each row of `first` its nearest row, that similarity and the second best; for each row of
    `second` its best similarity."""
    nearest = np.zeros(len(first), np.int64)
    best = np.full(len(first), -np.inf, np.float32)
    runner_up = np.full(len(first), -np.inf, np.float32)
    best_of_second = np.full(len(second), -np.inf, np.float32)
    for top in range(0, len(first), _ROWS):
        rows = slice(top, top + _ROWS)
        for left in range(0, len(second), _COLUMNS):
            columns = slice(left, left + _COLUMNS)
            similarity = first[rows] @ second[columns].T
            np.maximum(best_of_second[columns], similarity.max(0), out=best_of_second[columns])
            block = similarity.argmax(1)
            each = np.arange(len(block))
            block_best = similarity[each, block]
            similarity[each, block] = -np.inf
            block_next = similarity.max(1)
            better = block_best > best[rows]
            runner_up[rows] = np.maximum(
                np.where(better, best[rows], runner_up[rows]), np.where(better, block_next, block_best)
            )
            nearest[rows] = np.where(better, block + left, nearest[rows])
            best[rows] = np.maximum(best[rows], block_best)
    return nearest, best, runner_up, best_of_second
