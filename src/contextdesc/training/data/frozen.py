"""Outputs of frozen networks on a pair set, computed once: raw descriptors, what is hard, regional grids.

They lie in the cache, keyed by the pair set and by what computed them; an interrupted computation goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from contextdesc.image import read
from contextdesc.keypoints import Keypoints
from contextdesc.training.data.cache import DONE, FINISHED, Cache, damaged, load_array, load_small, open_array
from contextdesc.training.data.hard import Hard, find_hard
from contextdesc.training.data.pairs import Pair, PairSet, Progress, no_progress

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.training.bases import Base

HALF = np.float16


class Regional(Protocol):
    """Where regional grids come from."""

    key: str  # changes with what it computes
    channels: int

    def shape(self, path: Path, size: NDArray[Any]) -> tuple[int, int]:
        """Height and width of the grid of a view of `size` (width, height)."""

    def grid(self, path: Path) -> NDArray[np.float32]:
        """(C, h, w)."""


class Grids:
    """Regional grids of the views of a pair set, half precision, one after the other in a file."""

    def __init__(self, folder: Path) -> None:
        self.values = load_array(folder / "grids.npy", (None,), HALF)
        self.shapes = load_small(folder / "shapes.npy", (None, 3), np.int64)  # C, h, w of each view
        self.starts = np.concatenate([[0], np.cumsum(self.shapes.prod(1))])
        if self.starts[-1] != len(self.values):
            raise damaged(folder / "grids.npy", "not as long as its shapes say")

    def __getitem__(self, view: int) -> NDArray[np.float32]:
        values = self.values[self.starts[view] : self.starts[view + 1]]
        return values.reshape(self.shapes[view]).astype(np.float32)


@dataclass(frozen=True)
class Example:
    """A pair and what is frozen of it: raw (2, K, C) half, score (2, K), both grids, hard; None if not."""

    pair: Pair
    views: tuple[Path, Path]
    raw: NDArray[np.float16] | None
    score: NDArray[np.float32] | None
    grids: tuple[NDArray[np.float32], NDArray[np.float32]] | None
    hard: Hard | None = None


class Examples:
    """A pair set with its frozen outputs, by index."""

    def __init__(
        self,
        pairs: PairSet,
        raw: NDArray[np.float16] | None = None,
        score: NDArray[np.float32] | None = None,
        grids: Grids | None = None,
        hard: Hard | None = None,
    ) -> None:
        self.pairs, self._raw, self._score, self._grids, self._hard = pairs, raw, score, grids, hard

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Example:
        first, second = self.pairs.views_of(index)
        return Example(
            self.pairs[index],
            (self.pairs.views[first], self.pairs.views[second]),
            None if self._raw is None else self._raw[index],
            None if self._score is None else self._score[index],
            None if self._grids is None else (self._grids[first], self._grids[second]),
            None if self._hard is None else self._hard_of(index, self._hard),
        )

    @property
    def weights(self) -> NDArray[np.float64]:
        """How often each pair should be drawn: all alike or, where it is known, as it is hard."""
        if self._hard is None:
            return np.ones(len(self))
        return np.array([self._hard_of(index, self._hard).hardness.mean() for index in range(len(self))])

    def _hard_of(self, index: int, hard: Hard) -> Hard:
        matchable = int(self.pairs.count[self.pairs.usable[index]])
        return Hard(hard.margin[index, :matchable], hard.rival[index, :matchable])


class Mixture:
    """Several sets of examples as one."""

    def __init__(self, parts: list[Examples]) -> None:
        self.parts = parts
        self._starts = np.cumsum([0, *map(len, parts)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> Example:
        which = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self.parts[which][index - int(self._starts[which])]

    @cached_property
    def _chances(self) -> NDArray[np.float64]:
        return np.concatenate([part.weights for part in self.parts])

    def draw(
        self, rng: np.random.Generator, count: int, last_share: float | None = None
    ) -> NDArray[np.int64]:
        """Indices of examples by their weights, or the last set's with a given share."""
        if last_share is None or len(self.parts) == 1:
            return self._drawn(rng, 0, len(self), count)
        last = int(self._starts[-2])
        others = self._drawn(rng, 0, last, count)
        return np.where(rng.random(count) < last_share, self._drawn(rng, last, len(self), count), others)

    def _drawn(self, rng: np.random.Generator, start: int, end: int, count: int) -> NDArray[np.int64]:
        chances = self._chances[start:end]
        if (chances == 1).all():  # `choice` would draw others than the runs of before
            return rng.integers(start, end, size=count)
        return start + rng.choice(end - start, count, p=chances / chances.sum())


def freeze(
    pairs: PairSet,
    cache: Cache,
    base: Base | None = None,
    regional: Regional | None = None,
    progress: Callable[[str], Progress] = lambda what: no_progress,
    hard: float | None = None,
) -> Examples:
    """A pair set with what `base` and `regional` make of it, computed or out of the cache.

    With `hard`, in pixels, the base only tells which keypoints are hard: others this close to the partner
    are not what they are taken for.
    """
    raw, score = (None, None) if base is None else _raw(pairs, cache, base, progress("raw descriptors"))
    grids = None if regional is None else _grids(pairs, cache, regional, progress("regional grids"))
    if hard is None or base is None or raw is None:
        return Examples(pairs, raw, score, grids)
    return Examples(pairs, grids=grids, hard=_hard(pairs, raw, cache, base, hard))


def _hard(pairs: PairSet, raw: NDArray[np.float16], cache: Cache, base: Base, near: float) -> Hard:
    folder = cache.entry("hard", [pairs.folder.name, base.key, near])
    shape = raw.shape[0], raw.shape[2]
    if not (folder / DONE).exists():
        cache.make_room(folder, 8.0 * float(np.prod(shape)))
        margin, rival = np.zeros(shape, np.float32), np.zeros(shape, np.int32)
        for index in range(len(pairs)):
            pair = pairs[index]
            found = find_hard(pair, raw[index], near)
            margin[index, : pair.count], rival[index, : pair.count] = found.margin, found.rival
        np.save(folder / "margin.npy", margin)
        np.save(folder / "rival.npy", rival)
        (folder / DONE).touch()
    return Hard(
        load_small(folder / "margin.npy", shape, np.float32),
        load_small(folder / "rival.npy", shape, np.int32),
    )


def _raw(
    pairs: PairSet, cache: Cache, base: Base, progress: Progress
) -> tuple[NDArray[np.float16], NDArray[np.float32] | None]:
    folder = cache.entry("raw", [pairs.folder.name, base.key])
    if not (folder / DONE).exists():
        _compute_raw(folder, pairs, cache, base, progress)
    shape = (len(pairs), *pairs.keypoints.shape[1:3])
    raw = load_array(folder / "raw.npy", (*shape, None), HALF)
    return raw, load_array(folder / "score.npy", shape, np.float32) if base.has_score else None


def _compute_raw(folder: Path, pairs: PairSet, cache: Cache, base: Base, progress: Progress) -> None:
    keypoints = pairs.keypoints.shape[2]
    width = _described(pairs, 0, 0, base, slice(0, 2))[0].shape[1]
    shape = (len(pairs), 2, keypoints)
    cache.make_room(folder, float(np.prod(shape)) * (2 * width + 4))
    raw = open_array(folder / "raw.npy", (*shape, width), HALF)
    score = open_array(folder / "score.npy", shape, np.float32)
    finished = open_array(folder / FINISHED, shape[:1], np.uint8)
    for index in np.flatnonzero(finished == 0).tolist():
        for side in (0, 1):
            described, scores = _described(pairs, index, side, base)
            raw[index, side] = described
            if scores is not None:
                score[index, side] = scores
        finished[index] = 1
        progress(index + 1, len(pairs))
    for array in (raw, score, finished):
        array.flush()
    (folder / DONE).touch()


def _described(
    pairs: PairSet, index: int, side: int, base: Base, rows: slice = slice(None)
) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    pair = pairs[index]
    keypoints = Keypoints.from_array(pair.keypoints[side, rows])
    view = partial(read, pairs.views[pairs.views_of(index)[side]])
    return base.describe(view, keypoints, pair.patches[side, rows])


def _grids(pairs: PairSet, cache: Cache, regional: Regional, progress: Progress) -> Grids:
    folder = cache.entry("grids", [pairs.folder.name, regional.key])
    if not (folder / DONE).exists():
        _compute_grids(folder, pairs, cache, regional, progress)
    return Grids(folder)


def _compute_grids(
    folder: Path, pairs: PairSet, cache: Cache, regional: Regional, progress: Progress
) -> None:
    sizes = np.zeros((len(pairs.views), 2))
    # A pair that could not be made has no sizes, and may show views of others that could.
    sizes[pairs.view[pairs.usable]] = pairs.size[pairs.usable]
    used = np.zeros(len(pairs.views), np.bool_)
    used[pairs.view[pairs.usable]] = True
    shapes = np.zeros((len(pairs.views), 3), np.int64)
    for view in np.flatnonzero(used).tolist():
        shapes[view] = (regional.channels, *regional.shape(pairs.views[view], sizes[view]))
    starts = np.concatenate([[0], np.cumsum(shapes.prod(1))])
    cache.make_room(folder, 2.0 * starts[-1])
    np.save(folder / "shapes.npy", shapes)
    values = open_array(folder / "grids.npy", (int(starts[-1]),), HALF)
    finished = open_array(folder / FINISHED, (len(pairs.views),), np.uint8)
    waiting = np.flatnonzero(used & (finished == 0)).tolist()
    for done, view in enumerate(waiting, int(used.sum()) - len(waiting) + 1):
        grid = regional.grid(pairs.views[view])
        limit = np.finfo(HALF).max
        values[starts[view] : starts[view + 1]] = np.clip(grid, -limit, limit).ravel()
        finished[view] = 1
        progress(done, int(used.sum()))
    for array in (values, finished):
        array.flush()
    (folder / DONE).touch()
