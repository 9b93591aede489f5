"""Pair sets: image pairs with their keypoints and patches, ready to train on, memory-mapped.

A folder of arrays, written once and read at random. Row i of both images of a pair corresponds for the
first `count` rows; the rows after them are keypoints without a partner. The views themselves lie beside
the arrays or, where they are photographs that exist anyway, are named by their paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import cv2
import numpy as np

from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.image import read
from contextdesc.keypoints import Keypoints
from contextdesc.patches import PATCH, SUPPORT, sample_patches
from contextdesc.processes import processes
from contextdesc.training.data.cache import DONE, FINISHED, Cache, damaged, load_array, load_small, open_array
from contextdesc.training.data.homography import HomographyConfig, corresponding, two_views, warp_points
from contextdesc.training.data.perturbation import PerturbationConfig, perturb

if TYPE_CHECKING:
    from numpy.typing import NDArray

VERSION = 3  # of the folder's layout
_JPEG_QUALITY = 95  # of stored views
_JPEG_BYTES = 2e5  # what one takes, about

Job = TypeVar("Job")
Done = TypeVar("Done")
Progress = Callable[[int, int], None]

# Which keypoints of a pair are kept: corresponding ones first, up to three quarters, or as they come in each
# image, the way a budget of keypoints meets a matcher in use
Draw: TypeAlias = Literal["corresponding", "random"]


def no_progress(done: int, total: int) -> None:
    pass


@dataclass(frozen=True)
class PairConfig:
    """What a pair set of single photographs holds."""

    keypoints: int = 1024  # per image: corresponding ones first, the rest without a partner
    draw: Draw = "corresponding"
    min_corresponding: int = 64  # fewer, and the pair is drawn again
    contrast: float = 0.02  # of detection
    support: float = SUPPORT
    per_photo: int = 6
    seed: int = 0
    homography: HomographyConfig = field(default_factory=HomographyConfig)
    perturbation: PerturbationConfig = field(default_factory=PerturbationConfig)

    def settings(self, photos: Iterable[Path]) -> list[Any]:
        """What the pairs depend on: the key of their folder in the cache."""
        return [VERSION, asdict(self), [f"{p.name}:{p.stat().st_size}" for p in photos]]


@dataclass(frozen=True)
class Pair:
    """One image pair of K keypoints each, the first `count` corresponding.

    Attributes:
        patches: (2, K, 32, 32) uint8.
        keypoints: (2, K, 4) float32, x, y, size, angle.
        size: (2, 2) float32, width and height of the views.
        count: number of corresponding rows; 0 marks a pair that could not be made.
        likeness: (K,) float32, how alike both patches should look by the geometry of the scene
            (`losses.geodesc`); NaN where that is unknown.
        place: (K, 2) float32, where the keypoints of the first image lie in the second, in its pixels; NaN
            where that is unknown. It may be known of keypoints without a partner.
    """

    patches: NDArray[np.uint8]
    keypoints: NDArray[np.float32]
    size: NDArray[np.float32]
    count: int
    likeness: NDArray[np.float32]
    place: NDArray[np.float32]

    @property
    def xy(self) -> NDArray[np.float32]:
        """(2, K, 2) pixels."""
        return self.keypoints[..., :2]

    @property
    def unit_xy(self) -> NDArray[np.float32]:
        """(2, K, 2), the borders of the views at -1 and 1."""
        return (self.xy + np.float32(0.5)) / self.size[:, None] * 2 - 1


_ARRAYS = ("patches", "keypoints", "size", "count", "likeness", "place")


class PairSet:
    """Pairs of a folder, by index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.patches = load_array(folder / "patches.npy", (None, 2, None, PATCH, PATCH), np.uint8)
        pairs, _, keypoints = self.patches.shape[:3]
        self.keypoints = load_array(folder / "keypoints.npy", (pairs, 2, keypoints, 4), np.float32)
        self.likeness = load_array(folder / "likeness.npy", (pairs, keypoints), np.float32)
        self.place = load_array(folder / "place.npy", (pairs, keypoints, 2), np.float32)
        self.size = load_small(folder / "size.npy", (pairs, 2, 2), np.float32)
        self.count = load_small(folder / "count.npy", (pairs,), np.int32)
        self.view = load_small(folder / "view.npy", (pairs, 2), np.int32)  # rows of `views`
        self.usable = np.flatnonzero(self.count > 0)
        try:
            lines = (folder / "views.txt").read_text("utf-8").split("\n")[:-1]
        except (OSError, UnicodeDecodeError) as error:
            raise damaged(folder / "views.txt", str(error)) from None
        self.views = [folder / line for line in lines]
        if self.view.max(initial=-1) >= len(self.views):
            raise damaged(folder / "views.txt", "too few lines")

    def __len__(self) -> int:
        return len(self.usable)

    def __getitem__(self, index: int) -> Pair:
        row = self.usable[index]
        return Pair(
            self.patches[row],
            self.keypoints[row],
            self.size[row],
            int(self.count[row]),
            self.likeness[row],
            self.place[row],
        )

    def views_of(self, index: int) -> tuple[int, int]:
        """Rows of `views` that a pair shows."""
        first, second = self.view[self.usable[index]]
        return int(first), int(second)


def build_homography_pairs(
    photos: list[Path], cache: Cache, config: PairConfig, workers: int = 1, progress: Progress = no_progress
) -> PairSet:
    """Make (or reuse) the pair set of a list of photographs.

    Photographs are the unit of work: what an interrupted run finished is kept.
    """
    if not photos:
        raise InputError("no photographs to make training pairs of")
    folder = cache.entry("homography", config.settings(photos))
    if (folder / DONE).exists():
        return PairSet(folder)
    names = [
        [f"views/{index}-{repeat}-{side}.jpg" for side in "ab"]
        for index in range(len(photos))
        for repeat in range(config.per_photo)
    ]
    jobs = []
    for index, path in enumerate(photos):
        own = names[index * config.per_photo : (index + 1) * config.per_photo]
        jobs.append((index, path, [[folder / name for name in pair] for pair in own], config))
    cache.make_room(folder, pair_bytes(len(names), config.keypoints) + 2 * len(names) * _JPEG_BYTES)
    (folder / "views").mkdir(exist_ok=True)
    return fill_pair_set(folder, jobs, _photo_pairs, names, config.keypoints, workers, progress)


def pair_bytes(pairs: int, keypoints: int) -> float:
    """Bytes that the arrays of a pair set take."""
    return pairs * 2.0 * keypoints * (PATCH * PATCH + 22)


def fill_pair_set(
    folder: Path,
    jobs: list[Job],
    work: Callable[[Job], list[Pair]],
    views: list[list[str]],
    keypoints: int,
    workers: int,
    progress: Progress,
) -> PairSet:
    """Write the pairs of each job, equally many; `views` names both views of every pair.

    Names of views are paths, relative to the folder or absolute; one that several pairs show is stored
    once.
    """
    rows = len(views)
    per_job = rows // len(jobs)
    arrays = {
        "patches": open_array(folder / "patches.npy", (rows, 2, keypoints, PATCH, PATCH), np.uint8),
        "keypoints": open_array(folder / "keypoints.npy", (rows, 2, keypoints, 4), np.float32),
        "size": open_array(folder / "size.npy", (rows, 2, 2), np.float32),
        "count": open_array(folder / "count.npy", (rows,), np.int32),
        "likeness": open_array(folder / "likeness.npy", (rows, keypoints), np.float32),
        "place": open_array(folder / "place.npy", (rows, keypoints, 2), np.float32),
        "finished": open_array(folder / FINISHED, (len(jobs),), np.uint8),
    }
    distinct = list(dict.fromkeys(name for pair in views for name in pair))
    position = {name: row for row, name in enumerate(distinct)}
    np.save(folder / "view.npy", np.array([[position[name] for name in pair] for pair in views], np.int32))
    (folder / "views.txt").write_text("".join(f"{name}\n" for name in distinct), encoding="utf-8")
    waiting = np.flatnonzero(arrays["finished"] == 0).tolist()
    results = _map(work, [jobs[index] for index in waiting], workers)
    for done, (index, pairs) in enumerate(zip(waiting, results, strict=True), len(jobs) - len(waiting) + 1):
        for row, pair in enumerate(pairs, index * per_job):
            for name in _ARRAYS:
                arrays[name][row] = getattr(pair, name)
        arrays["finished"][index] = 1
        progress(done, len(jobs))
    for array in arrays.values():
        array.flush()
    (folder / DONE).touch()
    return PairSet(folder)


def _map(work: Callable[[Job], Done], jobs: list[Job], workers: int) -> Iterator[Done]:
    """Results in the order of the jobs, from several processes if asked for."""
    if workers <= 1:
        yield from map(work, jobs)
        return
    with processes(workers) as pool:
        yield from pool.map(work, jobs)


def _photo_pairs(job: tuple[int, Path, list[list[Path]], PairConfig]) -> list[Pair]:
    index, path, views, config = job
    image = read(path).rgb
    return [
        photo_pair(image, np.random.default_rng([config.seed, index, repeat]), config, pair)
        for repeat, pair in enumerate(views)
    ]


def photo_pair(
    image: NDArray[np.uint8], rng: np.random.Generator, config: PairConfig, views: list[Path]
) -> Pair:
    """One pair of an RGB photograph, whose two views are written to the paths `views`.

    `count` is 0 if ten draws did not give enough correspondences.
    """
    detector = Detector(max_keypoints=None, contrast=config.contrast)
    for _ in range(10):
        *pictures, homography = two_views(image, rng, config.homography)
        # Everything is made from the views as stored, so that it can be made again from them.
        grays = [_store(view, path) for view, path in zip(pictures, views, strict=True)]
        found = detect(grays[0], detector), detect(grays[1], detector)
        shared = corresponding(*found, homography, config.homography)
        if len(shared) >= config.min_corresponding and min(map(len, found)) >= config.keypoints // 2:
            pair = assemble((grays[0], grays[1]), found, shared, rng, config)
            if pair.count:
                return replace(pair, place=warp_points(pair.xy[0], homography).astype(np.float32))
    return no_pair(config.keypoints)


def _store(view: NDArray[Any], path: Path) -> NDArray[np.uint8]:
    """Write a view and return its gray values as they are read again."""
    encoded = cv2.imencode(".jpg", view[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])[1]
    path.write_bytes(encoded.tobytes())
    return read(path).gray


def assemble(
    views: tuple[NDArray[np.uint8], NDArray[np.uint8]],
    found: tuple[Keypoints, Keypoints],
    shared: NDArray[np.int64],
    rng: np.random.Generator,
    config: Any,
    likeness: NDArray[np.float32] | None = None,
) -> Pair:
    """A pair of keypoints, of which a draw of the rows `shared` (M, 2) corresponds.

    `config` is the pair set's: its number of keypoints, draw, support and perturbation. `likeness` (M,) goes
    with `shared`. `count` is 0 if the draw leaves too few correspondences. Places are those of the partners.
    """
    size = config.keypoints
    kept = [np.arange(len(keypoints)) for keypoints in found]
    drawn = rng.permutation(len(shared))
    if config.draw == "random":
        kept = [rng.permutation(rows)[:size] for rows in kept]
        both = np.isin(shared[drawn, 0], kept[0]) & np.isin(shared[drawn, 1], kept[1])
        drawn = drawn[both]
    else:
        drawn = drawn[: size * 3 // 4]
    if len(drawn) < config.min_corresponding:
        return no_pair(size)
    shared = shared[drawn]
    sides = []
    for side, keypoints in enumerate(found):
        others = rng.permutation(np.setdiff1d(kept[side], shared[:, side]))
        if not len(others):  # every keypoint has a partner: they stand in for those without
            others = rng.permutation(shared[:, side])
        others = np.resize(others, size - len(shared))  # repeated if too few
        sides.append(keypoints[np.concatenate([shared[:, side], others])])
    seen, stretch = perturb((sides[0], sides[1]), rng, config.perturbation)
    patches = [sample_patches(v, k, config.support, s) for v, k, s in zip(views, seen, stretch, strict=True)]
    alike = np.full(size, np.nan, np.float32)
    if likeness is not None:
        alike[: len(shared)] = likeness[drawn]
    place = np.full((size, 2), np.nan, np.float32)
    place[: len(shared)] = sides[1].xy[: len(shared)]
    return Pair(
        np.stack(patches),
        np.stack([np.column_stack([k.xy, k.size, k.angle]) for k in sides]),
        np.array([view.shape[::-1] for view in views], np.float32),
        len(shared),
        alike,
        place,
    )


def no_pair(size: int) -> Pair:
    """The place of a pair that could not be made; pair sets pass over it."""
    return Pair(
        np.zeros((2, size, PATCH, PATCH), np.uint8),
        np.zeros((2, size, 4), np.float32),
        np.ones((2, 2), np.float32),
        0,
        np.full(size, np.nan, np.float32),
        np.full((size, 2), np.nan, np.float32),
    )
