"""From a config to a stage: its data, what is frozen of it, and networks with their start values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import nn

from contextdesc.errors import InputError
from contextdesc.image import find_images
from contextdesc.training.bases import Base, LocalBase, build_base
from contextdesc.training.config import StageConfig
from contextdesc.training.data.cache import Cache
from contextdesc.training.data.frozen import Examples, Mixture, freeze
from contextdesc.training.data.pairs import PairSet, Progress, build_homography_pairs
from contextdesc.training.data.scene_pairs import build_scene_pairs, find_scenes
from contextdesc.training.grids import build_grids, load_regional
from contextdesc.training.landmarks import LandmarkData, LandmarkTask
from contextdesc.training.networks import DESCRIPTOR
from contextdesc.training.parts import Parts, build_parts, load_parts
from contextdesc.training.stages import PairStage, RegionalStage
from contextdesc.training.start import fit_matchability, fit_terms
from contextdesc.training.variants import ContextNormContext

Say = Callable[[str], None]


def build_stage(config: StageConfig, cache: Cache, workers: int, say: Say) -> nn.Module:
    """The stage of a config, ready to train; everything frozen is computed or read from the cache."""
    config.check()
    return _regional_stage(config) if config.stage == "regional" else _pair_stage(config, cache, workers, say)


def photographs(folder: Path, held_out: int) -> tuple[list[Path], list[Path]]:
    """The photographs of a folder in name order: those that train, and the last ones, that validate."""
    paths = list(find_images([folder]).values())
    if len(paths) <= held_out:
        raise InputError(
            f"{folder}: {len(paths)} photographs, and {held_out} of them are held out: add more photographs, "
            "or lower held_out"
        )
    training = len(paths) - held_out
    return paths[:training], paths[training:]


def _regional_stage(config: StageConfig) -> RegionalStage:
    parts = build_parts(config)
    if config.init:
        for source in config.init:
            load_parts(Path(source), parts)
    else:
        parts.regional = load_regional(config.regional)
    return RegionalStage(parts, _landmarks(config, parts))


def _landmarks(config: StageConfig, parts: Parts) -> LandmarkTask:
    assert parts.regional is not None  # of the stages regional and joint
    photos = photographs(Path(config.photos), config.held_out)[0] if config.photos is not None else []
    scenes = None if config.scenes is None else Path(config.scenes)
    data = LandmarkData(scenes, photos, config.landmarks, config.held_out_scenes)
    return LandmarkTask(parts.regional.channels, data, config.landmarks, config.seed)


def _pair_stage(config: StageConfig, cache: Cache, workers: int, say: Say) -> PairStage:
    train, held_out = build_pair_sets(config, cache, workers, say)
    fewest = min(pairs.keypoints.shape[2] for pairs in train)
    if config.keypoints > fewest:
        raise InputError(f"keypoints is {config.keypoints}, and there are pairs of {fewest}: lower it")
    base = _base(config)
    if config.stage == "context" and isinstance(base, LocalBase) and base.spec.raw_size != DESCRIPTOR:
        raise InputError(f"{config.base}: raw descriptors of {base.spec.raw_size} values, not {DESCRIPTOR}")
    cached = config.has_visual and config.stage != "joint"
    regional = build_grids(config.regional) if cached else None

    def frozen(pairs: PairSet, base: Base | None) -> Examples:
        hard = None if config.stage == "context" else config.near
        return freeze(pairs, cache, base, regional, lambda what: _told(what, say), hard)

    described = base if config.stage == "context" else None  # otherwise it tells hard keypoints alone
    parts = build_parts(
        config,
        described is not None and described.has_score,
        None if regional is None else regional.channels,
    )
    if config.stage == "joint":
        parts.regional = load_regional(config.regional)
    loaded: set[str] = set()
    for source in config.init:
        loaded |= load_parts(Path(source), parts)
    landmarks = _landmarks(config, parts) if config.stage == "joint" else None
    examples = Mixture([frozen(pairs, base) for pairs in train])
    if parts.visual is not None and parts.visual.config.start > 0 and "visual" not in loaded:
        starts = config.geometric.start.weights if "geometric" not in loaded else {}
        if "matchability" in starts and parts.matchability is not None and "matchability" not in loaded:
            fit_matchability(parts.matchability, examples, config)
            say("matchability: fitted to training pairs")
        geometric = parts.geometric if starts else None
        assert geometric is None or isinstance(geometric, ContextNormContext)  # checked with the config
        fit_terms(parts.visual, examples, config, geometric, parts.matchability)
        say(f"{' and '.join(['visual term', *starts])}: fitted to training pairs")
    return PairStage(
        config,
        parts,
        examples,
        {suffix: frozen(pairs, described) for suffix, pairs in held_out.items()},
        landmarks,
    )


def _base(config: StageConfig) -> Base | None:
    """Frozen descriptors: those that context is put on, or those that say which keypoints are hard."""
    if config.base is None or not (config.stage == "context" or config.sampling == "hard"):
        return None
    return build_base(config.base, config.base_precision)


def build_pair_sets(
    config: StageConfig, cache: Cache, workers: int, say: Say
) -> tuple[list[PairSet], dict[str, PairSet]]:
    """Pairs to train on, and held-out ones by the suffix of their name in the log."""
    train: list[PairSet] = []
    held_out: dict[str, PairSet] = {}
    if config.photos is not None:
        training, validating = photographs(Path(config.photos), config.held_out)
        train.append(
            build_homography_pairs(training, cache, config.pairs, workers, _told("photographs", say))
        )
        if validating:
            once = replace(config.pairs, per_photo=1)
            tell = _told("held-out photographs", say)
            held_out[""] = build_homography_pairs(validating, cache, once, workers, tell)
    if config.scenes is not None:
        scenes = find_scenes(Path(config.scenes))
        for name in config.held_out_scenes:
            if name not in {scene.name for scene in scenes}:
                raise InputError(f"{config.scenes}: no scene called {name}, which is to be held out")
        training = [scene for scene in scenes if scene.name not in config.held_out_scenes]
        validating = [scene for scene in scenes if scene.name in config.held_out_scenes]
        if not training:
            raise InputError(f"{config.scenes}: all of its scenes are held out")
        pairs = config.scene_pairs
        train.append(build_scene_pairs(training, cache, pairs, workers, _told("pairs of scenes", say)))
        if validating:
            few, tell = (
                replace(pairs, per_scene=config.held_out_pairs),
                _told("pairs of held-out scenes", say),
            )
            held_out["_scenes"] = build_scene_pairs(validating, cache, few, workers, tell)
    if not train:
        raise InputError("nothing to train on: give 'photos', 'scenes' or both")
    if not sum(map(len, train)):
        raise InputError(
            "no training pair has enough corresponding keypoints: lower min_corresponding, or add photographs"
        )
    filled = [pairs for pairs in train if len(pairs)]
    return filled, {suffix: pairs for suffix, pairs in held_out.items() if len(pairs)}


def _told(what: str, say: Say) -> Progress:
    def tell(done: int, total: int) -> None:
        if done % 100 == 0 or done == total:
            say(f"{what}: {done} of {total}")

    return tell
