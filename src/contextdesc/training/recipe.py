"""`contextdesc train --photos DIR -o MODEL`: from a folder of photographs to a model, in one go.

Pairs come from random homographies of each photograph, so any folder will do. The stages `local` and
`context` share the time that is left after the pairs are made; a model to start from is fine-tuned.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from contextdesc import modelfile
from contextdesc.benchmarks.ratio import choose_ratio, photo_views
from contextdesc.config import from_dict
from contextdesc.errors import InputError
from contextdesc.formats.atomic import replacing
from contextdesc.image import find_images, read
from contextdesc.modelfile import ModelSpec
from contextdesc.training.assembly import assemble
from contextdesc.training.config import StageConfig
from contextdesc.training.data.cache import Cache
from contextdesc.training.data.pairs import PairConfig
from contextdesc.training.export import check_output, export_model
from contextdesc.training.logs import read_log
from contextdesc.training.loop import LOG, train
from contextdesc.training.networks import LocalConfig
from contextdesc.training.regional import RegionalConfig
from contextdesc.training.setup import build_pair_sets, photographs
from contextdesc.training.variants import AggregationVariant, GeometricVariant, VisualVariant

NOTHING = "nothing"  # to start from
MIN_PHOTOS = 8
PLAN = "plan.json"  # in the folder of work: settings and the minutes of each stage
PAIRS_PER_MINUTE = 10  # of the time budget: pairs that are prepared, at least one of each photograph
LOCAL_SHARE = 0.6  # of the training time, for the local network
Say = Callable[[str], None]


@dataclass(frozen=True)
class Recipe:
    """What the stages of a run have in common."""

    photos: Path
    held_out: int
    pairs: PairConfig
    start: Path | None  # folder of the model to start from
    spec: ModelSpec | None  # of that model


def train_on_photos(
    photos: Path,
    output: Path,
    work: Path,
    cache: Cache,
    minutes: float,
    init: str | None = None,
    workers: int = 1,
    say: Say = print,
) -> ModelSpec:
    """Train on a folder of photographs and export a model to `output`.

    Args:
        photos: folder; a tenth of its photographs, at least 2, only validate.
        output: folder of the model.
        work: folder of checkpoints and logs; an interrupted run goes on from there.
        cache: for the pairs.
        minutes: for everything but the export.
        init: model to start from, by name or folder; None for the default one, `nothing` for none.
        workers: processes that prepare pairs.
        say: takes lines of progress.
    """
    check_output(output)
    for inside in (output, work):
        if inside.resolve().is_relative_to(photos.resolve()):
            raise InputError(f"{inside}: lies among the photographs; write outside of {photos}")
    recipe = _recipe(photos, minutes, init)
    begun = time.monotonic()
    shared = StageConfig(
        stage="local", steps=1_000_000, photos=str(photos), held_out=recipe.held_out, pairs=recipe.pairs
    )
    has_local = recipe.spec is None or recipe.spec.base == "local"
    base = str(work / "local-model") if has_local else "rootsift"
    local, context = _local(recipe, shared), _context(recipe, shared, base)
    budget = _planned(work, recipe, minutes)
    build_pair_sets(shared, cache, workers, say)
    if budget is None:
        left = max(minutes / 4, minutes - (time.monotonic() - begun) / 60)
        budget = _plan(work, recipe, minutes, left, has_local)
    checkpoints: list[Path] = []
    if has_local:
        config = replace(local, minutes=budget["local"])
        checkpoints.append(train(config, work / "local", cache, workers, say))
        _export(checkpoints, Path(base), photos, {})
    config = replace(context, minutes=budget["context"])
    checkpoints.append(train(config, work / "context", cache, workers, say))
    written = _export(checkpoints[-1:], output, photos, _training(recipe, minutes))
    try:
        ratio = choose_ratio(photo_views(photographs(photos, recipe.held_out)[1]), output)
        written = replace(written, ratio=ratio)
        modelfile.write_spec(output, written)
    except InputError as error:
        say(f"the ratio threshold stays at {written.ratio}: {error}")
    _conclude(work, output, written, say)
    return written


def _settings(recipe: Recipe, minutes: float) -> dict[str, object]:
    """What a run depends on that goes on from an earlier one."""
    return {
        "photos": sorted(find_images([recipe.photos])),
        "init": NOTHING if recipe.start is None else str(recipe.start.resolve()),
        "minutes": minutes,
    }


def _planned(work: Path, recipe: Recipe, minutes: float) -> dict[str, float] | None:
    """The minutes of each stage that an interrupted run settled, so that what it finished is finished."""
    path = work / PLAN
    if not path.exists():
        return None
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        settings, budget = plan["settings"], {name: float(m) for name, m in plan["budget"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path}: damaged; delete the folder {work} and start again") from None
    for name, value in _settings(recipe, minutes).items():
        if settings.get(name) != value:
            what = name if name == "photos" else f"{name} {settings.get(name)}"
            raise InputError(f"{work}: of a run with other settings ({what}): give those, or delete it")
    return budget


def _plan(work: Path, recipe: Recipe, minutes: float, left: float, has_local: bool) -> dict[str, float]:
    local = LOCAL_SHARE * left if has_local else 0.0
    budget = {"local": local, "context": left - local}
    work.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"settings": _settings(recipe, minutes), "budget": budget}, indent=2)
    with replacing(work / PLAN) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return budget


def _recipe(photos: Path, minutes: float, init: str | None) -> Recipe:
    paths = list(find_images([photos]).values())
    if len(paths) < MIN_PHOTOS:
        raise InputError(f"{photos}: {len(paths)} photographs; training wants {MIN_PHOTOS} or more")
    distinct = len({hashlib.sha256(path.read_bytes()).digest() for path in paths})
    if distinct < MIN_PHOTOS:
        raise InputError(
            f"{photos}: {distinct} different images among {len(paths)}; training wants {MIN_PHOTOS} or more"
        )
    start = None if init == NOTHING else modelfile.resolve(init or modelfile.DEFAULT)
    spec = None if start is None else modelfile.read_spec(start)[0]
    if spec is not None and spec.base == "given":
        raise InputError(f"{init}: a model for descriptors of your own; train it with a config")
    per_photo = round(minutes * PAIRS_PER_MINUTE / len(paths))
    pairs = PairConfig(keypoints=512, per_photo=min(8, max(1, per_photo)))
    if spec is not None:
        pairs = replace(pairs, support=spec.support)
    return Recipe(photos, max(2, len(paths) // 10), pairs, start, spec)


def _local(recipe: Recipe, shared: StageConfig) -> StageConfig:
    fresh = recipe.spec is None
    return replace(
        shared,
        init=() if recipe.start is None else (str(recipe.start),),
        learning_rate=0.1 if fresh else 0.02,
        local=LocalConfig() if recipe.spec is None else LocalConfig(recipe.spec.matchability),
        keypoints=320,
        checkpoint_every=20,
    )


def _context(recipe: Recipe, shared: StageConfig, base: str) -> StageConfig:
    spec = recipe.spec
    config = replace(
        shared,
        stage="context",
        base=base,
        optimiser="adamw",
        learning_rate=1e-3 if spec is None else 3e-4,
        pairs_per_step=4,
        keypoints=384,
        sampling="random",
        checkpoint_every=50,
    )
    if spec is None:
        return config
    if not spec.terms:
        raise InputError(f"{spec.name}: a model without context; start from another one, or from 'nothing'")
    where = f"{spec.name}: networks"
    return replace(
        config,
        init=(str(recipe.start),),
        visual=from_dict(VisualVariant, spec.networks.get("visual", {"strategy": "none"}), where),
        geometric=from_dict(GeometricVariant, spec.networks.get("geometric", {}), where),
        aggregation=from_dict(AggregationVariant, spec.networks.get("aggregation", {}), where),
        regional=_regional(recipe, config),
    )


def _regional(recipe: Recipe, config: StageConfig) -> RegionalConfig:
    spec = recipe.spec
    if spec is None or spec.regional is None:
        return config.regional
    if modelfile.REGIONAL not in spec.files:
        raise InputError(f"{spec.name}: made for regional grids of your own; train it with a config")
    shape = {"head": spec.regional_channels != 320, **spec.networks.get("regional", {})}
    return replace(
        from_dict(RegionalConfig, shape, f"{spec.name}: networks"),
        network=spec.regional,  # type: ignore[arg-type]  # build_regional checks it
        weights=str(recipe.start),
        max_side=spec.regional_max_side,
    )


def _training(recipe: Recipe, minutes: float) -> dict[str, object]:
    """What model.json says of the training."""
    count = len(find_images([recipe.photos]))
    start = "from nothing" if recipe.spec is None else f"fine-tuned from {recipe.spec.name}"
    return {
        "summary": f"{start} on homographies of {count - recipe.held_out} photographs in {minutes:g} minutes",
        "data": [{"source": f"{count} photographs of the user's, {recipe.held_out} of them held out"}],
        "start": recipe.spec.training if recipe.spec is not None else {},
    }


def _export(checkpoints: list[Path], output: Path, photos: Path, training: dict[str, object]) -> ModelSpec:
    model = assemble(checkpoints, output.resolve().name, training=training)
    picture = read(next(iter(find_images([photos]).values())))
    return export_model(model.parts, model.spec, output, picture, model.carried)


def _conclude(work: Path, output: Path, spec: ModelSpec, say: Say) -> None:
    """Recall on the held-out photographs before and after, and what to do next."""
    for stage in ("local", "context"):
        if (work / stage / LOG).exists():
            recalls = [
                line["held_out_recall"] for line in read_log(work / stage / LOG) if "held_out_recall" in line
            ]
            name = next((n for n in ("both", "geometric", "visual", "raw") if n in recalls[0]), None)
            if name is None:
                say(f"{stage}: recall is unknown: the held-out photographs have too few keypoints")
                continue
            before, after = recalls[0][name], recalls[-1][name]
            say(f"{stage}: recall on held-out photographs {before} % before, {after} % after")
            if after < before:
                say(f"{stage}: training made it worse: give it more photographs or more minutes")
    say(f"model: {output} (ratio {spec.ratio}); try: contextdesc match --model {json.dumps(str(output))} A B")
