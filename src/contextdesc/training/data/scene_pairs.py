"""Training pairs from scenes: two photographs of one place, corresponding where they see one track."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
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
from contextdesc.training.data.pairs import Pair, PairSet, assemble, fill_pair_set, no_pair
from contextdesc.training.data.scenes import PairRules, Scene, near_pairs

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SAME = 1.0  # pixels: a detected keypoint this close to an observation of a shared track is no negative


@dataclass(frozen=True)
class ScenePairConfig:
    """What a pair set of scenes holds."""

    keypoints: int = 1024  # per image: corresponding ones first, the rest without a partner
    min_corresponding: int = 64  # shared tracks of a pair
    per_scene: int = 60  # pairs of each scene, drawn at random
    support: float = SUPPORT
    seed: int = 0
    rules: PairRules = field(default_factory=PairRules)


def find_scenes(folder: Path) -> list[Path]:
    """Scenes (folders with `tracks.npz`) of a folder, by name."""
    scenes = sorted(path.parent for path in folder.glob("*/tracks.npz"))
    if not scenes:
        raise InputError(f"{folder}: no scenes in it; make them with contextdesc dataset build")
    return scenes


def build_scene_pairs(
    scenes: list[Path],
    cache: Path,
    config: ScenePairConfig,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PairSet:
    """Make (or reuse) the pair set of scenes below the folder `cache`."""
    jobs = [
        (scene, int(first), int(second), config)
        for index, scene in enumerate(scenes)
        for first, second in _drawn_pairs(Scene.load(scene), config, index)
    ]
    if not jobs:
        raise InputError(f"{scenes[0].parent}: no pair of its images passes the rules; loosen them")
    folder = cache / f"scenes-{_key(scenes, config)}"
    if (folder / "done").exists():
        return PairSet(folder)
    return fill_pair_set(folder, jobs, _job_pairs, 1, config.keypoints, workers, progress)


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
    return assemble((views[0], views[1]), (found[0], found[1]), pair, rng, config.keypoints, config.support)


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


def _key(scenes: list[Path], config: ScenePairConfig) -> str:
    """Changes with the settings and with the scenes."""
    tracks = [(scene.name, (scene / "tracks.npz").stat().st_size) for scene in scenes]
    return hashlib.sha256(json.dumps([asdict(config), tracks]).encode()).hexdigest()[:16]
