"""What each context term of a model is worth: recall with and without it on held-out pairs of images.

Pairs are those of the training protocol: homographies of photographs, and photographs of scenes that share
tracks, both held out from training. Every difference comes with a paired bootstrap interval over pairs.
Models that hold out the same data are compared as well, with the first of them, on the same pairs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from contextdesc.benchmarks.methods.models import SIFT
from contextdesc.benchmarks.protocol import Protocol, Request, Setting
from contextdesc.benchmarks.report import Cell, Report, Table
from contextdesc.benchmarks.statistics import RESAMPLES, Difference, Mean, bootstrap, difference
from contextdesc.errors import InputError
from contextdesc.image import Image, find_images, read
from contextdesc.keypoints import Keypoints
from contextdesc.model import Context, ContextDesc, load
from contextdesc.modelfile import ModelSpec, read_spec, resolve
from contextdesc.progress import progress
from contextdesc.training.data.cache import Cache
from contextdesc.training.data.homography import HomographyConfig
from contextdesc.training.data.pairs import Pair, PairConfig, PairSet, build_homography_pairs
from contextdesc.training.data.places import place_recall
from contextdesc.training.data.scene_pairs import ScenePairConfig, build_scene_pairs, find_scenes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.model import Precision

    # In percent, of each pair (P,): by model, kind of pair, and terms that are on
    Recalls = Mapping[str, Mapping[str, Mapping[str, NDArray[np.float64]]]]

SEED = 100  # other draws than those that training validates on
# Keypoints as they come, as they do in use
PHOTO_PAIRS = PairConfig(
    keypoints=2048, draw="random", per_photo=3, seed=SEED, homography=HomographyConfig(still=0.25)
)
SCENE_PAIRS = ScenePairConfig(keypoints=2048, draw="random", per_scene=30, seed=SEED)
CONTEXTS: tuple[Context, ...] = ("none", "visual", "geometric", "both")
# What a term adds: on, against off
COMPARISONS = (
    ("visual", "none"),
    ("geometric", "none"),
    ("both", "geometric"),
    ("both", "visual"),
    ("both", "none"),
)


PROTOCOL = Protocol(
    layout="photos/ and scenes/ that a model was trained on; those that model.json says were held out count",
    source="the model's card lists the sources of its data",
    takes=("methods",),
    settings=(
        Setting("seed", SEED, "of the draw of pairs: report on one, choose among models on another"),
        Setting("precision", "fp32", "fp32, or int8: two to three times as fast, for models that have it"),
    ),
)


def run(request: Request) -> Report:
    """Recalls with and without each term of every model among the methods."""
    found: dict[str, dict[str, dict[str, NDArray[np.float64]]]] = {}
    drawn: dict[str, dict[str, Path]] = {}
    seed = int(request.setting("seed", PROTOCOL))
    precision = cast("Precision", request.setting("precision", PROTOCOL))
    with tempfile.TemporaryDirectory() as folder:
        for name, method in request.methods.items():
            model = method.name  # with the way to its folder, which the name in tables lacks
            if model in SIFT:
                continue  # no context in them
            found[name] = {}
            sets = held_out_pairs(model, request.data, Cache(Path(folder)), seed=seed)
            drawn[name] = {kind: pairs.folder for kind, pairs in sets.items()}
            for kind, pairs in sets.items():
                with progress(f"{name} {kind}", len(pairs), quiet=request.quiet) as advance:
                    found[name][kind] = measure(model, pairs, advance, precision)
    return report(found, compare(found, drawn))


def measure(
    model: str | Path,
    pairs: PairSet,
    advance: Callable[[], None] = lambda: None,
    precision: Precision = "fp32",
) -> dict[str, NDArray[np.float64]]:
    """Recall in percent of each pair (P,), by the terms that are on."""
    contexts = _contexts(load(model))
    models = {context: load(model, context=context, precision=precision) for context in contexts}
    found: dict[str, list[float]] = {context: [] for context in models}
    for index in range(len(pairs)):
        pair = pairs[index]
        sides: list[dict[str, NDArray[np.float32]]] = []
        for side, view in enumerate(pairs.views_of(index)):
            image, keypoints = read(pairs.views[view]), Keypoints.from_array(pair.keypoints[side])
            sides.append(_described(models, image, keypoints))
        for context in models:
            found[context].append(pair_recall(pair, sides[0][context], sides[1][context]))
        advance()
    return {context: np.array(values) for context, values in found.items()}


def pair_recall(pair: Pair, first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """Recall in percent of a pair whose keypoints have these descriptors."""
    return 100 * place_recall(first, second, pair.place, pair.xy[1])


def held_out_pairs(
    model: str | Path, data: Path, cache: Cache, workers: int = 1, seed: int = SEED
) -> dict[str, PairSet]:
    """Pairs of the photographs (`data/photos`) and scenes (`data/scenes`) that a model says it never saw."""
    spec, _ = read_spec(resolve(model))
    sets = held_out_sets(spec, data / "photos", data / "scenes", cache, workers, seed)
    if not sets:
        raise InputError(
            f"{data}: no photos/ or scenes/ with data that {spec.name} was not trained on, by its model.json"
        )
    for kind, pairs in sets.items():
        if not len(pairs):
            raise InputError(
                f"{data / kind}: no pair of what {spec.name} was not trained on has enough corresponding "
                "keypoints: hold out more"
            )
    return sets


def held_out_sets(
    spec: ModelSpec, photos: Path, scenes: Path | None, cache: Cache, workers: int = 1, seed: int = SEED
) -> dict[str, PairSet]:
    """Pairs of those photographs and scenes that a model says it never saw, as far as the folders exist."""
    count, names = spec.training.get("held_out"), spec.training.get("held_out_scenes", [])
    sets: dict[str, PairSet] = {}
    if count and photos.is_dir():
        paths = list(find_images([photos]).values())[-count:]
        sets["photos"] = build_homography_pairs(paths, cache, replace(PHOTO_PAIRS, seed=seed), workers)
    if names and scenes is not None and scenes.is_dir():
        folders = [folder for folder in find_scenes(scenes) if folder.name in names]
        if len(folders) < len(names):
            raise InputError(f"{scenes}: lacks held-out scenes of {spec.name} ({', '.join(names)})")
        sets["scenes"] = build_scene_pairs(folders, cache, replace(SCENE_PAIRS, seed=seed), workers)
    return sets


def compare(
    models: Recalls, drawn: Mapping[str, Mapping[str, Path]]
) -> dict[str, dict[str, dict[str, Difference]]]:
    """What each model has more than the first, by kind of pair and terms, if pairs are of the same folder."""
    found: dict[str, dict[str, dict[str, Difference]]] = {}
    first = next(iter(models), "")
    for model in list(models)[1:]:
        kinds = [kind for kind, folder in drawn[model].items() if folder == drawn[first].get(kind)]
        found[f"{model} - {first}"] = {
            kind: {
                context: difference(recalls, models[first][kind][context])
                for context, recalls in models[model][kind].items()
                if context in models[first][kind]
            }
            for kind in kinds
        }
    return found


def report(models: Recalls, compared: Mapping[str, Mapping[str, Mapping[str, Difference]]]) -> Report:
    """Recalls of models and what they differ by (see `compare`), for people."""
    numbers: dict[str, Any] = {}
    rows: list[tuple[Cell, ...]] = []
    for model, kinds in models.items():
        numbers[model] = {}
        for kind, recalls in kinds.items():
            found, count = gains(recalls), len(next(iter(recalls.values())))
            means = {context: bootstrap(values) for context, values in recalls.items()}
            numbers[model][kind] = {
                "pairs": count,
                "recall": {context: mean.mean for context, mean in means.items()},
                "intervals": {context: asdict(mean) for context, mean in means.items()},
                "gain": {what: asdict(gain) for what, gain in found.items()},
            }
            where = f"{count} {kind}"
            rows += [
                (model, where, f"recall, {c}", f"{m.mean:.2f}", f"{m.low:.2f} to {m.high:.2f}")
                for c, m in means.items()
            ]
            rows += [(model, where, what, *_signed(gain)) for what, gain in found.items()]
    differences: list[tuple[Cell, ...]] = [
        (which, kind, context, *_signed(gain))
        for which, kinds in compared.items()
        for kind, contexts in kinds.items()
        for context, gain in contexts.items()
    ]
    tables = [Table("Context terms", ("model", "pairs", "what", "mean", "95 % interval"), rows)]
    if differences:
        tables.append(
            Table(
                "Models on the same pairs", ("models", "pairs", "terms", "mean", "95 % interval"), differences
            )
        )
    return Report(
        "terms",
        "Recall in percent on image pairs held out from training, and what each context term adds to it, "
        "with the 95 % interval of a paired bootstrap over pairs.",
        {
            "resamples": RESAMPLES,
            "models": numbers,
            "compared": {
                which: {kind: {c: asdict(gain) for c, gain in found.items()} for kind, found in kinds.items()}
                for which, kinds in compared.items()
            },
        },
        tables,
    )


def gains(recalls: Mapping[str, NDArray[np.float64]], seed: int = 0) -> dict[str, Mean]:
    """What each term adds, as `visual - none`."""
    return {
        f"{on} - {off}": bootstrap(recalls[on] - recalls[off], seed)
        for on, off in COMPARISONS
        if on in recalls and off in recalls
    }


def _signed(gain: Mean) -> tuple[str, str]:
    return f"{gain.mean:+.2f}", f"{gain.low:+.2f} to {gain.high:+.2f}"


def _contexts(model: ContextDesc) -> list[Context]:
    has = model.spec.terms
    return [c for c in CONTEXTS if c == "none" or c in has or (c == "both" and len(has) == 2)]


def _described(
    models: Mapping[Context, ContextDesc], image: Image, keypoints: Keypoints
) -> dict[str, NDArray[np.float32]]:
    """Descriptors by context; base and regional network run once."""
    plain = models["none"]
    raw, score = plain.raw(image, keypoints)
    grid = plain.regional(image) if "visual" in models else None
    size = image.size
    return {
        context: model.augment(raw, keypoints, size, matchability=score, regional=grid)
        for context, model in models.items()
    }
