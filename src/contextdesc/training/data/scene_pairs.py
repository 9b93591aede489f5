"""Training pairs from scenes: two photographs of one place, corresponding where they see one track."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contextdesc.detection import Detector
from contextdesc.errors import InputError
from contextdesc.image import read
from contextdesc.keypoints import Keypoints
from contextdesc.patches import SUPPORT
from contextdesc.training.data.cache import DONE, Cache
from contextdesc.training.data.pairs import (
    VERSION,
    Draw,
    Pair,
    PairSet,
    Progress,
    assemble,
    fill_pair_set,
    no_pair,
    no_progress,
    pair_bytes,
)
from contextdesc.training.data.perturbation import PerturbationConfig
from contextdesc.training.data.scenes import PairRules, Scene, near_pairs

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RAY_ANGLE = 15.0  # degrees between the rays to both cameras at which patches look alike by exp(-1/2)
_SAME = 1.0  # pixels: a detected keypoint this close to an observation of a shared track is no negative


@dataclass(frozen=True)
class ScenePairConfig:
    """What a pair set of scenes holds."""

    keypoints: int = 1024  # per image: corresponding ones first, the rest without a partner
    draw: Draw = "corresponding"
    min_corresponding: int = 64  # shared tracks of a pair
    per_scene: int = 60  # pairs of each scene, drawn at random
    support: float = SUPPORT
    seed: int = 0
    rules: PairRules = field(default_factory=PairRules)
    perturbation: PerturbationConfig = field(default_factory=PerturbationConfig)


def find_scenes(folder: Path) -> list[Path]:
    """Scenes (folders with `tracks.npz`) of a folder, by name."""
    scenes = sorted(path.parent for path in folder.glob("*/tracks.npz"))
    if not scenes:
        raise InputError(f"{folder}: no scenes in it; make them with contextdesc dataset build")
    return scenes


def build_scene_pairs(
    scenes: list[Path],
    cache: Cache,
    config: ScenePairConfig,
    workers: int = 1,
    progress: Progress = no_progress,
) -> PairSet:
    """Make (or reuse) the pair set of scenes."""
    tracks = [(scene.name, (scene / "tracks.npz").stat().st_size) for scene in scenes]
    folder = cache.entry("scenes", [VERSION, asdict(config), tracks, str(scenes[0].parent.resolve())])
    if (folder / DONE).exists():
        return PairSet(folder)
    jobs, views = [], []
    for index, path in enumerate(scenes):
        scene = Scene.load(path)
        for first, second in _drawn_pairs(scene, config, index).tolist():
            jobs.append((path, first, second, config))
            views.append([str(scene.path(image).resolve()) for image in (first, second)])
    if not jobs:
        raise InputError(f"{scenes[0].parent}: no pair of its images passes the rules; loosen them")
    cache.make_room(folder, pair_bytes(len(jobs), config.keypoints))
    return fill_pair_set(folder, jobs, _job_pairs, views, config.keypoints, workers, progress)


def scene_pair(
    scene: Scene, first: int, second: int, rng: np.random.Generator, config: ScenePairConfig
) -> Pair:
    """The pair of two images of a scene; `count` is 0 if they share too few tracks."""
    shared = scene.matches(first, second)
    if len(shared) < config.min_corresponding:
        return no_pair(config.keypoints)
    views, found = [], []
    for side, image in enumerate((first, second)):
        views.append(read(scene.path(image)).gray)
        tracked, _ = scene.keypoints(image)
        detected = _detected(scene.images.parent, image)
        seen = near_pairs(detected.xy, tracked[shared[:, side]].xy, _SAME)[:, 0]
        others = np.setdiff1d(np.arange(len(detected)), seen)
        found.append(Keypoints.concatenate([tracked[shared[:, side]], detected[others]]))
    rows = np.arange(len(shared))
    pair = np.column_stack([rows, rows])
    tracks = scene.keypoints(first)[1][shared[:, 0]]
    return assemble(
        (views[0], views[1]),
        (found[0], found[1]),
        pair,
        rng,
        config,
        likeness(scene, first, second, tracks),
    )


def likeness(scene: Scene, first: int, second: int, tracks: NDArray[np.int32]) -> NDArray[np.float32]:
    """How alike the patches of tracks should look in two images, in [0, 1], by the angle between the rays.

    GeoDesc's patch similarity also has a factor of the surface normal, which a sparse model lacks.
    """
    points = scene.points[tracks].astype(np.float64)
    rays = []
    for image in (first, second):
        centre = -scene.rotation[image].T.astype(np.float64) @ scene.translation[image]
        rays.append((centre - points) / np.linalg.norm(centre - points, axis=1, keepdims=True))
    angle = np.rad2deg(np.arccos(np.clip((rays[0] * rays[1]).sum(1), -1, 1)))
    return np.exp(-(angle**2) / (2 * _RAY_ANGLE**2)).astype(np.float32)


def _drawn_pairs(scene: Scene, config: ScenePairConfig, index: int) -> NDArray[np.int64]:
    pairs = scene.select_pairs(config.rules)
    return np.random.default_rng([config.seed, index]).permutation(pairs)[: config.per_scene]


def _job_pairs(job: tuple[Path, int, int, ScenePairConfig]) -> list[Pair]:
    folder, first, second, config = job
    rng = np.random.default_rng([config.seed, first, second])
    return [scene_pair(_scene(folder), first, second, rng, config)]


@lru_cache(4)
def _scene(folder: Path) -> Scene:
    return Scene.load(folder)


@lru_cache(128)
def _detected(folder: Path, image: int) -> Keypoints:
    """All keypoints of an image, by the detector that the scene was built with."""
    scene = _scene(folder)
    return scene.detect(image, _detector(folder))


@lru_cache(4)
def _detector(folder: Path) -> Detector:
    return _scene(folder).detector()
