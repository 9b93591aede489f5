"""Pair sets: image pairs with their patches, ready to train on, memory-mapped.

A folder of arrays, written once and read at random. Row i of both images of a pair corresponds for the
first `count` rows; the rows after them are keypoints without a partner. The folder's name carries a key of
all settings, so a change of settings never reads stale data.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import cv2
import numpy as np

from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.image import read
from contextdesc.keypoints import Keypoints
from contextdesc.patches import PATCH, SUPPORT, sample_patches
from contextdesc.training.data.homography import HomographyConfig, corresponding, two_views

if TYPE_CHECKING:
    from numpy.typing import NDArray


Job = TypeVar("Job")
Done = TypeVar("Done")


@dataclass(frozen=True)
class PairConfig:
    """What a pair set holds."""

    keypoints: int = 1024  # per image: corresponding ones first, the rest without a partner
    min_corresponding: int = 64  # fewer, and the pair is drawn again
    contrast: float = 0.02  # of detection
    support: float = SUPPORT
    per_photo: int = 6
    seed: int = 0
    homography: HomographyConfig = field(default_factory=HomographyConfig)

    def key(self, photos: Iterable[Path]) -> str:
        names = [f"{p.name}:{p.stat().st_size}" for p in photos]
        text = json.dumps([asdict(self), names], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Pair:
    """One image pair: patches (2, K, 32, 32) uint8, xy (2, K, 2) pixels, size (2, 2) width and height."""

    patches: NDArray[np.uint8]
    xy: NDArray[np.float32]
    size: NDArray[np.float32]
    count: int


class PairSet:
    """Pairs of a folder, by index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.patches = np.load(folder / "patches.npy", mmap_mode="r")  # (P, 2, K, 32, 32)
        self.xy = np.load(folder / "xy.npy", mmap_mode="r")  # (P, 2, K, 2)
        self.size = np.load(folder / "size.npy")  # (P, 2, 2)
        self.count = np.load(folder / "count.npy")  # (P,)
        self.usable = np.flatnonzero(self.count > 0)

    def __len__(self) -> int:
        return len(self.usable)

    def __getitem__(self, index: int) -> Pair:
        row = self.usable[index]
        return Pair(self.patches[row], self.xy[row], self.size[row], int(self.count[row]))


class PairSets:
    """Several pair sets as one."""

    def __init__(self, sets: list[PairSet]) -> None:
        self.sets = sets
        self._starts = np.cumsum([0, *map(len, sets)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> Pair:
        which = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self.sets[which][index - int(self._starts[which])]


def build_homography_pairs(
    photos: list[Path],
    cache: Path,
    config: PairConfig,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PairSet:
    """Make (or reuse) the pair set of a list of photographs below the folder `cache`.

    Photographs are the unit of work: what an interrupted run finished is kept.
    """
    if not photos:
        raise InputError("no photographs to make training pairs of")
    folder = cache / f"homography-{config.key(photos)}"
    if (folder / "done").exists():
        return PairSet(folder)
    jobs = [(index, path, config) for index, path in enumerate(photos)]
    return fill_pair_set(folder, jobs, _photo_pairs, config.per_photo, config.keypoints, workers, progress)


def fill_pair_set(
    folder: Path,
    jobs: list[Job],
    work: Callable[[Job], list[Pair]],
    per_job: int,
    keypoints: int,
    workers: int,
    progress: Callable[[int, int], None],
) -> PairSet:
    """Write `per_job` pairs for each job; what an interrupted run finished is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = len(jobs) * per_job
    arrays = {
        "patches": _open(folder, "patches", (rows, 2, keypoints, PATCH, PATCH), np.uint8),
        "xy": _open(folder, "xy", (rows, 2, keypoints, 2), np.float32),
        "size": _open(folder, "size", (rows, 2, 2), np.float32),
        "count": _open(folder, "count", (rows,), np.int32),
        "finished": _open(folder, "finished", (len(jobs),), np.uint8),
    }
    waiting = np.flatnonzero(arrays["finished"] == 0).tolist()
    results = _map(work, [jobs[index] for index in waiting], workers)
    for done, (index, pairs) in enumerate(zip(waiting, results, strict=True), len(jobs) - len(waiting) + 1):
        for row, pair in enumerate(pairs, index * per_job):
            for name in ("patches", "xy", "size", "count"):
                arrays[name][row] = getattr(pair, name)
        arrays["finished"][index] = 1
        progress(done, len(jobs))
    for array in arrays.values():
        array.flush()
    (folder / "done").touch()
    return PairSet(folder)


def _map(work: Callable[[Job], Done], jobs: list[Job], workers: int) -> Iterator[Done]:
    """Results in the order of the jobs, from several processes if asked for."""
    if workers <= 1:
        yield from map(work, jobs)
        return
    # A forked child of a process with running OpenCV or PyTorch threads hangs: start fresh ones.
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, fresh, cv2.setNumThreads, (1,)) as pool:
        yield from pool.map(work, jobs)


def _open(folder: Path, name: str, shape: tuple[int, ...], dtype: Any) -> np.memmap[Any, Any]:
    path = folder / f"{name}.npy"
    mode = "r+" if path.exists() else "w+"
    array = np.lib.format.open_memmap(path, mode, dtype, shape if mode == "w+" else None)
    if array.shape != shape:
        raise InputError(f"{path}: damaged cache; delete its folder {folder}")
    return array


def _photo_pairs(job: tuple[int, Path, PairConfig]) -> list[Pair]:
    index, path, config = job
    gray = read(path).gray
    seeds = ([config.seed, index, repeat] for repeat in range(config.per_photo))
    return [photo_pair(gray, np.random.default_rng(seed), config) for seed in seeds]


def photo_pair(gray: NDArray[np.uint8], rng: np.random.Generator, config: PairConfig) -> Pair:
    """One pair of a photograph; `count` is 0 if ten draws did not give enough correspondences."""
    detector = Detector(max_keypoints=None, contrast=config.contrast)
    for _ in range(10):
        first, second, homography = two_views(gray, rng, config.homography)
        found = detect(first, detector), detect(second, detector)
        shared = corresponding(*found, homography, config.homography)
        if len(shared) >= config.min_corresponding and min(map(len, found)) >= config.keypoints // 2:
            return assemble((first, second), found, shared, rng, config.keypoints, config.support)
    return no_pair(config.keypoints)


def assemble(
    views: tuple[NDArray[np.uint8], NDArray[np.uint8]],
    found: tuple[Keypoints, Keypoints],
    shared: NDArray[np.int64],
    rng: np.random.Generator,
    size: int,
    support: float,
) -> Pair:
    """A pair of `size` keypoints; a draw of the rows `shared` (M, 2) corresponds, at most three quarters."""
    shared = rng.permutation(shared)[: size * 3 // 4]
    patches = np.empty((2, size, PATCH, PATCH), np.uint8)
    xy = np.empty((2, size, 2), np.float32)
    for side, (view, keypoints) in enumerate(zip(views, found, strict=True)):
        others = rng.permutation(np.setdiff1d(np.arange(len(keypoints)), shared[:, side]))
        others = np.resize(others, size - len(shared))  # repeated if too few
        chosen = keypoints[np.concatenate([shared[:, side], others])]
        patches[side], xy[side] = sample_patches(view, chosen, support), chosen.xy
    sides = np.array([view.shape[::-1] for view in views], np.float32)
    return Pair(patches, xy, sides, len(shared))


def no_pair(size: int) -> Pair:
    """The place of a pair that could not be made; pair sets pass over it."""
    empty = np.zeros((2, size, PATCH, PATCH), np.uint8)
    return Pair(empty, np.zeros((2, size, 2), np.float32), np.ones((2, 2), np.float32), 0)
