"""The paper's tables 1 and 2, trained: every variant with the same budget, its recall beside the paper's.

Context terms are trained on a frozen base, losses (and central-surround, which wants patches) on a local
network from nothing. A variant has a folder of its own, which keeps its checkpoint and result: what was
interrupted is continued, what is finished is not repeated. `ablation_variants.py` has the variants.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contextdesc import modelfile
from contextdesc.benchmarks.protocol import Protocol, Request, Setting
from contextdesc.benchmarks.report import Cell, Intervals, Report, Table
from contextdesc.benchmarks.sequences import OXFORD, find_any_sequences
from contextdesc.benchmarks.statistics import Difference, Mean, bootstrap, difference
from contextdesc.errors import ContextDescError, InputError
from contextdesc.formats.atomic import replacing
from contextdesc.image import find_images, read
from contextdesc.progress import progress

if TYPE_CHECKING:
    from contextdesc.benchmarks.ablation_variants import Variant
    from contextdesc.training.config import StageConfig
    from contextdesc.training.data.cache import Cache

PROTOCOL = Protocol(
    layout="photos/ (photographs) and scenes/ (as contextdesc dataset build makes them), or one of both",
    source="photographs of your own; the models' cards list the sources of theirs",
    takes=("limit", "seeds", "workers"),
    settings=(
        Setting("minutes", 10.0, "time that each variant is trained, without the preparation of data"),
        Setting("work", "", "folder that keeps the runs; needed"),
        Setting("base", "rootsift", "what context terms are trained on: rootsift, or a model"),
        Setting("variants", "", "only these: names, comma-separated"),
        Setting("evaluate", "", "folder of Oxford or HPatches sequences, for a column of recall on them"),
        Setting("held-out", 30, "photographs at the end of the list that only validate"),
        Setting("held-out-scenes", "", "scenes that only validate; by default those of the packaged models"),
        Setting("keypoints", 384, "of an image in a batch"),
    ),
)
SETTINGS, RESULT, RUN, MODEL = "settings.json", "result.json", "run", "model"
SETS = {"": "photographs", "_scenes": "scenes"}  # held-out sets, by the suffix in the log of a training

Say = Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """Recall in percent of each held-out pair, by set, with and without what was trained; and the steps."""

    recalls: Mapping[str, list[float]]
    base: Mapping[str, list[float]]
    steps: int


def run(request: Request) -> Report:
    """Train what is not trained yet, and compare."""
    try:
        from contextdesc.benchmarks.ablation_variants import VARIANTS, config_of
        from contextdesc.training.data.cache import Cache
    except ImportError as error:
        raise InputError(f"training needs an extra ({error}): pip install 'contextdesc[train]'") from None

    kept = str(request.setting("work", PROTOCOL))
    if not kept:
        raise InputError("give --set work=DIR, a folder that keeps the runs and their checkpoints")
    work, common = Path(kept), common_config(request)
    variants = request.limited(_chosen(str(request.setting("variants", PROTOCOL)), VARIANTS))
    cache, workers = Cache(work / "cache"), request.workers or os.cpu_count() or 1
    results: dict[str, Result] = {}
    skipped: dict[str, str] = {}
    with progress("variants", len(variants), quiet=request.quiet) as advance:
        for name, variant in variants.items():
            config = config_of(variant, common, int(request.setting("keypoints", PROTOCOL)))
            try:
                results[name] = trained(config, work / name, cache, workers, _say(name, request.quiet))
                advance(f"{name}: {results[name].steps} steps")
            except InputError:
                raise
            except ContextDescError as error:  # such as a loss that is not finite
                skipped[name] = f"{name}: {error}"
                advance(skipped[name], failed=True)
    if not results:
        raise ContextDescError(f"no variant could be trained; the first: {next(iter(skipped.values()))}")
    evaluated: dict[str, Mean] = {}
    if folder := str(request.setting("evaluate", PROTOCOL)):
        evaluated = evaluate(request, Path(folder), {name: work / name for name in results})
    return report(request, {name: variants[name] for name in results}, results, evaluated, skipped)


def common_config(request: Request) -> StageConfig:
    """What all variants have in common: data, budget and base."""
    from contextdesc.benchmarks.ablation_variants import STEPS
    from contextdesc.training.config import StageConfig

    minutes = float(request.setting("minutes", PROTOCOL))
    if minutes <= 0:
        raise InputError(f"--set minutes={minutes:g}: more than 0")
    photos, scenes = request.data / "photos", request.data / "scenes"
    if not photos.is_dir() and not scenes.is_dir():
        raise InputError(f"{request.data}: neither photos/ nor scenes/ in it")
    base, names = str(request.setting("base", PROTOCOL)), str(request.setting("held-out-scenes", PROTOCOL))
    held_out = tuple(names.split(",")) if names else tuple(_packaged_held_out())
    config = StageConfig("context", STEPS, minutes, base=base)
    if photos.is_dir():
        config = replace(config, photos=str(photos), held_out=int(request.setting("held-out", PROTOCOL)))
    if scenes.is_dir():
        config = replace(config, scenes=str(scenes), held_out_scenes=held_out)
    return config


def _packaged_held_out() -> list[str]:
    told = modelfile.read_spec(modelfile.resolve(modelfile.DEFAULT))[0].training
    return list(told.get("held_out_scenes", ()))


def _chosen(names: str, variants: Mapping[str, Variant]) -> dict[str, Variant]:
    wanted = [name.strip() for name in names.split(",") if name.strip()] or list(variants)
    for name in wanted:
        if name not in variants:
            raise InputError(f"--set variants={names}: {name} is none of {', '.join(variants)}")
    return {name: variants[name] for name in wanted}


def _say(name: str, quiet: bool) -> Say:
    return lambda text: None if quiet else print(f"{name}: {text}", file=sys.stderr)


def trained(config: StageConfig, folder: Path, cache: Cache, workers: int, say: Say) -> Result:
    """Result of a variant: read, or after training to the end of its budget."""
    from contextdesc.training.loop import train
    from contextdesc.training.parts import load_parts, read_metadata
    from contextdesc.training.setup import build_stage
    from contextdesc.training.stages import PairStage

    _settle(config, folder)
    if (folder / RESULT).exists():
        return Result(**json.loads((folder / RESULT).read_text(encoding="utf-8")))
    checkpoint = train(config, folder / RUN, cache, workers, say)
    stage = build_stage(config, cache, workers, say)
    assert isinstance(stage, PairStage)  # context and local are
    load_parts(checkpoint, stage.parts)
    found = stage.eval().recalls()
    terms = stage.parts.terms
    full = "both" if len(terms) == 2 else terms[0] if terms else "raw"
    recalls, base = (
        {SETS[s]: [100 * r for r in found[n + s]] for s in stage.held_out} for n in (full, "raw")
    )
    result = Result(recalls, base, int(read_metadata(checkpoint)["step"]))
    _write(folder / RESULT, asdict(result))
    return result


def _settle(config: StageConfig, folder: Path) -> None:
    """Write down with what settings a run begins; refuse to go on with others."""
    settings = json.loads(json.dumps(asdict(config)))
    path = folder / SETTINGS
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        for name, value in settings.items():
            if before.get(name) != value:
                raise InputError(
                    f"{folder}: of a run with other settings ({name}): give those, another --set work=, or "
                    "delete it"
                )
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror})") from None
    _write(path, settings)


def _write(path: Path, values: Mapping[str, Any]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def evaluate(request: Request, data: Path, folders: Mapping[str, Path]) -> dict[str, Mean]:
    """Recall of the variants on sequences, by name; `rootsift` as a method of its own."""
    from contextdesc.benchmarks import heinly, hsequences
    from contextdesc.benchmarks.methods import build_method

    models = {name: build_method(str(exported(folder)), 1) for name, folder in folders.items()}
    asked = replace(request, data=data, methods={"rootsift": build_method("rootsift"), **models}, limit=None)
    asked = replace(asked, settings={})
    if any(layout is OXFORD for _, layout in find_any_sequences(data).values()):
        intervals = heinly.run(asked).numbers["intervals"]
        return {name: Mean(**intervals[name][heinly.MEAN]) for name in asked.methods}
    numbers = hsequences.run(asked).numbers["sequences"]
    return {name: bootstrap([one["recall"] for one in numbers[name].values()]) for name in asked.methods}


def exported(folder: Path) -> Path:
    """The model of a variant that was trained, written once."""
    from contextdesc.training.assembly import assemble
    from contextdesc.training.export import export_model
    from contextdesc.training.loop import CHECKPOINT

    if not (folder / MODEL / "model.json").exists():
        model = assemble([folder / RUN / CHECKPOINT], folder.name)
        config = model.config
        picture = read(next(iter(find_images([Path(config.photos or config.scenes or "")]).values())))
        export_model(model.parts, model.spec, folder / MODEL, picture, model.carried)
    return folder / MODEL


def report(
    request: Request,
    variants: Mapping[str, Variant],
    results: Mapping[str, Result],
    evaluated: Mapping[str, Mean],
    skipped: Mapping[str, str],
) -> Report:
    """What `run` found, for people."""
    from contextdesc.benchmarks.ablation_variants import PAPER_BASE

    base = str(request.setting("base", PROTOCOL))
    numbers: dict[str, Any] = {
        "minutes": float(request.setting("minutes", PROTOCOL)),
        "base": base,
        "paper_base": list(PAPER_BASE),
        "variants": {
            name: summarise(name, variants, results)
            | ({"evaluated": asdict(evaluated[name])} if name in evaluated else {})
            for name in variants
        },
    }
    context = next((r for name, r in results.items() if variants[name].part == "context"), None)
    if context is not None:
        numbers["base_recall"] = {kind: asdict(bootstrap(values)) for kind, values in context.base.items()}
        if base in evaluated:
            numbers["base_evaluated"] = asdict(evaluated[base])
    if evaluated:
        numbers["evaluated_on"] = Path(str(request.setting("evaluate", PROTOCOL))).name
    counts = {kind: len(values) for kind, values in next(iter(results.values())).recalls.items()}
    numbers["pairs"] = counts
    return Report(
        "ablation",
        f"Recall in percent on {' and '.join(f'{n} pairs of {kind}' for kind, n in counts.items())} held out "
        f"from training, after {numbers['minutes']:g} minutes of training a variant, with 95 % bootstrap "
        "intervals over pairs; differences are paired. The share of keypoints with any of the other image "
        "within 2.5 pixels of their place there whose nearest neighbour is such a one. Context terms are "
        f"trained on frozen {base}, losses and central-surround on a local network from nothing. The "
        "paper's numbers are recall on HPatches sequences with GeoDesc as its base, and trained far longer: "
        "compare differences, not values.",
        numbers,
        tables(numbers),
        plots(numbers),
        skipped,
    )


def summarise(name: str, variants: Mapping[str, Variant], results: Mapping[str, Result]) -> dict[str, Any]:
    """Recall of a variant by held-out set, its difference from what it is compared with, and the paper's."""
    from contextdesc.benchmarks.ablation_variants import BASE

    variant, result = variants[name], results[name]
    found: dict[str, Any] = {
        "title": variant.title,
        "part": variant.part,
        "steps": result.steps,
        "recall": {kind: asdict(bootstrap(values)) for kind, values in result.recalls.items()},
        "paper": list(variant.paper),
        "paper_difference": [a - b for a, b in zip(variant.paper, variant.paper_against, strict=True)],
    }
    others = result.base if variant.against == BASE else None
    if variant.against in results and variant.against != name:
        others = results[variant.against].recalls
    if others is not None:
        found["difference"] = {
            kind: asdict(difference(values, others[kind])) for kind, values in result.recalls.items()
        }
    return found


def tables(numbers: Mapping[str, Any]) -> list[Table]:
    """The tables of the paper with ours beside them, from the numbers of a report."""
    kinds = list(numbers["pairs"])
    where = numbers.get("evaluated_on")
    head = ("variant", "steps", *kinds, *(f"difference, {kind}" for kind in kinds))
    head += (f"recall, {where}",) * (where is not None) + ("paper: i / v", "paper: difference, i / v")
    parts: dict[str, list[list[Cell]]] = {"context": [], "local": []}
    if "base_recall" in numbers:
        parts["context"].append([f"base: {numbers['base']}", ""])
        parts["context"][0] += [Mean(**numbers["base_recall"][kind]) for kind in kinds] + [""] * len(kinds)
        if where is not None:
            found = numbers.get("base_evaluated")
            parts["context"][0].append(None if found is None else Mean(**found))
        parts["context"][0] += ["{} / {} (GeoDesc)".format(*numbers["paper_base"]), ""]
    for of in numbers["variants"].values():
        row: list[Cell] = [of["title"], of["steps"], *(Mean(**of["recall"][kind]) for kind in kinds)]
        gains = of.get("difference")
        row += [None if gains is None else Difference(**gains[kind]) for kind in kinds]
        if where is not None:
            row.append(Mean(**of["evaluated"]) if "evaluated" in of else None)
        more = of["paper_difference"]
        gain = "{:+.2f} / {:+.2f}".format(*more) if any(more) else ""
        parts[of["part"]].append([*row, "{} / {}".format(*of["paper"]), gain])
    titles = {
        "context": f"Table 1: context terms on {numbers['base']}",
        "local": "Table 2 and central-surround: a local network from nothing",
    }
    return [Table(titles[part], head, rows) for part, rows in parts.items() if rows]


def plots(numbers: Mapping[str, Any]) -> list[Intervals]:
    """What each context variant adds to the base, by held-out set."""
    gains = {
        name.replace("matchability", "score").replace("-", "\n"): of["difference"]
        for name, of in numbers["variants"].items()
        if of["part"] == "context" and "difference" in of
    }
    if not gains:
        return []
    groups = {
        label: {kind: Difference(**of[kind]) for kind in numbers["pairs"]} for label, of in gains.items()
    }
    title = f"What context adds to {numbers['base']}, by variant"
    return [Intervals(title, "ablation", "", "difference in recall, points", groups)]
