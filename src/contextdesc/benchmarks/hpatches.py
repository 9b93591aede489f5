"""HPatches: mean average precision of patch verification, matching and retrieval, by amount of noise.

Data are the strips of the release (`hpatches_strips.py`), or with `--set cut=true` strips that are cut from
sequences of images. What the tasks are is in `hpatches_tasks.py`. Summaries are the benchmark's: verification
is the mean of both kinds of negatives, matching that of illumination and viewpoint, retrieval that of pools;
then the mean of easy, hard and tough. Intervals are of draws of whole sequences, with replacement.

Patches have no image around them, so models are described by their raw descriptor, `MODEL:none`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.benchmarks import hpatches_tasks as tasks
from contextdesc.benchmarks.cache import key_of
from contextdesc.benchmarks.hpatches_splits import SPLITS
from contextdesc.benchmarks.hpatches_strips import (
    NAMES,
    NOISES,
    REFERENCE,
    REGIONS,
    cut_strips,
    find_strips,
    read_strips,
)
from contextdesc.benchmarks.protocol import Protocol, Request, Setting
from contextdesc.benchmarks.report import Cell, Intervals, Report, Table
from contextdesc.benchmarks.sequences import Layout, find_any_sequences, read_sequence
from contextdesc.benchmarks.statistics import Difference, Mean
from contextdesc.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.benchmarks.methods.method import PatchRoute

TASKS = ("verification", "matching", "retrieval")
ALL = "all"  # noises
DRAWS = 2000  # of sequences, for intervals
CONTRAST = 10  # gray levels, standard deviation of patches that retrieval uses
_BINS = 1000  # of similarities, for the intervals of verification

PROTOCOL = Protocol(
    layout="a folder per sequence (i_* and v_*) with ref, e1 to e5, h1 to h5 and t1 to t5 (png), each a "
    "column of 65 x 65 patches; with --set cut=true sequences of images with homographies, in the layout of "
    "HPatches or Oxford affine",
    source="HPatches, archive hpatches-release on the page of the hpatches-dataset project; lists of tasks "
    "in the hpatches-benchmark project",
    takes=("methods", "limit", "baseline", "workers"),
    settings=(
        Setting("cut", False, "cut the strips from sequences of images"),
        Setting("split", "a", "a, b, c, illum, view, full or, for all sequences that are there, any"),
        Setting("splits", "", "a file of other splits, as the benchmark's splits.json"),
        Setting("tasks", "", "the benchmark's folder of tasks; by default they are drawn"),
        Setting("pairs", 1_000_000, "pairs of each kind to draw for verification"),
    ),
)


@dataclass(frozen=True)
class Unit:
    """A sequence that a method describes."""

    folder: Path
    layout: Layout | None  # of images, to cut patches from; None for strips
    method: str


@dataclass(frozen=True, eq=False)
class Described:
    """Descriptors (16, N, D) of a sequence by strip of `NAMES`, and which of its N places have contrast."""

    descriptors: NDArray[np.float32]
    textured: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Estimate:
    """Percent, and what it would be on other draws of sequences, (DRAWS,)."""

    value: float
    draws: NDArray[np.float64]

    @classmethod
    def mean_of(cls, parts: Sequence[Estimate]) -> Estimate:
        return cls(float(np.mean([p.value for p in parts])), np.mean([p.draws for p in parts], axis=0))

    @property
    def mean(self) -> Mean:
        return Mean(self.value, *_interval(self.draws))

    def less(self, other: Estimate) -> Difference:
        return Difference(self.value - other.value, *_interval(self.draws - other.draws))


# Of one method: task -> noise, or `ALL` -> estimate
Scores = dict[str, dict[str, Estimate]]


def run(request: Request) -> Report:
    """Precision by method, task and noise."""
    routes = {name: _route(request, name) for name in request.methods}
    cut = bool(request.setting("cut", PROTOCOL))
    folders, skipped = _sequences(request, cut)
    scores: dict[str, Scores] = {}
    numbers: dict[str, Any] = {}
    asked: tasks.Tasks | None = None
    for name, route in routes.items():
        if route.name in scores:
            continue
        units = {sequence: Unit(*place, name) for sequence, place in folders.items()}
        found, failed = request.each(f"sequences, {route.name}", units, score)
        if asked is None:
            skipped |= failed
            patches, asked = _asked(request, found, cut)
            folders = {sequence: folders[sequence] for sequence in patches.names}
            numbers = _facts(patches, asked, cut)
        elif failed:
            raise InputError(next(iter(failed.values())))
        scores[route.name] = evaluate(found, patches, asked)
    baseline = routes[request.baseline].name if request.baseline is not None else None
    return report(scores, baseline, numbers, skipped)


def score(request: Request, unit: Unit) -> Described:
    """Descriptors of a sequence by one method."""
    if unit.layout is None:
        strips = read_strips(unit.folder)
    else:
        strips = cut_strips(read_sequence(unit.folder, unit.layout), unit.folder.name)
    reference = strips[REFERENCE]
    if len(reference) < 2:
        raise InputError(f"{unit.folder}: {len(reference)} patches; two are the least to tell apart")
    method, route = request.methods[unit.method], _route(request, unit.method)
    patches = np.concatenate([strips[name] for name in NAMES])
    compute = partial(_describe, route, patches)
    if request.cache is None or method.identity is None:
        found: Mapping[str, NDArray[np.float32]] = compute()
    else:
        content = hashlib.blake2b(patches.tobytes(), digest_size=16).hexdigest()
        found = request.cache.fetch(key_of("patches", content, method.identity), compute)
    return Described(
        found["descriptors"].reshape(len(NAMES), len(reference), -1), reference.std((1, 2)) > CONTRAST
    )


def _describe(route: PatchRoute, patches: NDArray[np.uint8]) -> dict[str, NDArray[np.float32]]:
    return {"descriptors": route.describe(patches)}


def evaluate(found: dict[str, Described], patches: tasks.Patches, asked: tasks.Tasks) -> Scores:
    """Precision of one method in every task."""
    random = np.random.default_rng(tasks.SEED)
    count = len(patches.names)
    weights = random.multinomial(count, np.full(count, 1 / count), DRAWS).astype(np.float64)
    descriptors = np.concatenate([one.descriptors for one in found.values()], 1)
    queries = 100 * tasks.retrieval(descriptors, list(NOISES), patches, asked)
    of_queries = patches.sequence_of(asked.queries)
    scores: Scores = {task: {} for task in TASKS}
    for index, noise in enumerate(NOISES):
        scores["verification"][noise] = _verification(descriptors, noise, patches, asked, weights)
        precision = np.array(
            [100 * np.mean(tasks.matching(one.descriptors, noise)) for one in found.values()]
        )
        scores["matching"][noise] = _matching(precision, patches.names, weights)
        totals, counts = (
            np.bincount(of_queries, part, count).astype(np.float64) for part in (queries[:, index], None)
        )
        scores["retrieval"][noise] = _weighted(totals, counts, weights)
    for by_noise in scores.values():
        by_noise[ALL] = Estimate.mean_of([by_noise[noise] for noise in NOISES])
    return scores


def _verification(
    descriptors: NDArray[np.float32],
    noise: str,
    patches: tasks.Patches,
    asked: tasks.Tasks,
    weights: NDArray[np.float64],
) -> Estimate:
    """Mean of both kinds of negatives; a pair belongs to the sequence of its first patch."""
    positive = asked.pairs["positive"]
    few = tasks.Pairs(
        *(part[: int(tasks.POSITIVES * len(part))] for part in (positive.rows, positive.images))
    )
    parts = []
    for kind in tasks.NEGATIVES:
        pairs = (asked.pairs[kind], few)
        similarity = np.concatenate([tasks.pair_similarities(descriptors, p, noise) for p in pairs])
        right = np.repeat([False, True], [len(p.rows) for p in pairs])
        sequence = patches.sequence_of(np.concatenate([p.rows[:, 0] for p in pairs]))
        value = 100 * tasks.average_precision(similarity, right)
        parts.append(Estimate(value, 100 * _redrawn_precision(similarity, right, sequence, weights)))
    return Estimate.mean_of(parts)


def _redrawn_precision(
    similarity: NDArray[np.float32],
    right: NDArray[np.bool_],
    sequence: NDArray[np.int64],
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Average precision where each sequence counts `weights` (draws, sequences) times; nan of no positives.

    Similarities are rounded to bins of equally many pairs, so that no draw needs a sort.
    """
    edges = np.quantile(similarity, np.linspace(1, 0, _BINS + 1)[1:-1])
    bins = np.searchsorted(-edges, -similarity)  # most similar first
    place = sequence * _BINS + bins
    counts = np.bincount(place, minlength=weights.shape[1] * _BINS).reshape(-1, _BINS)
    hits = np.bincount(place[right], minlength=counts.size).reshape(-1, _BINS)
    seen, found = (np.cumsum(weights @ part, 1) for part in (counts, hits))
    precision = np.divide(found, seen, out=np.ones_like(found), where=seen > 0)
    precision = np.column_stack([np.ones(len(weights)), precision])
    recall = np.column_stack([np.zeros(len(weights)), found / np.maximum(1, found[:, -1:])])
    area = (np.diff(recall, axis=1) * (precision[:, 1:] + precision[:, :-1]) / 2).sum(1)
    return np.where(found[:, -1] > 0, area, np.nan)


def _matching(precision: NDArray[np.float64], names: Sequence[str], weights: NDArray[np.float64]) -> Estimate:
    """Mean of the means of illumination and viewpoint; of all sequences where there is but one kind."""
    kinds = [np.array([name.startswith(prefix) for name in names]) for prefix in ("i_", "v_")]
    if not all(kind.any() for kind in kinds) or not (kinds[0] | kinds[1]).all():
        return _weighted(precision, np.ones(len(names)), weights)
    parts = [_weighted(precision * kind, kind.astype(np.float64), weights) for kind in kinds]
    # A draw may hold sequences of one kind only
    draws = np.nanmean([part.draws for part in parts], axis=0)
    return Estimate(float(np.mean([part.value for part in parts])), draws)


def _weighted(
    totals: NDArray[np.float64], counts: NDArray[np.float64], weights: NDArray[np.float64]
) -> Estimate:
    """Totals (S,) over counts (S,) of sequences, of all and of draws; nan where a draw has none."""
    with np.errstate(invalid="ignore"):
        return Estimate(float(totals.sum() / counts.sum()), (weights @ totals) / (weights @ counts))


def _interval(draws: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.nanpercentile(draws, [2.5, 97.5])
    return float(low), float(high)


def _route(request: Request, name: str) -> PatchRoute:
    """How a method describes patches, under the name that it has here, or its raw descriptor's."""
    method = request.methods[name]
    route = method.patches
    if route is None:
        raise InputError(
            f"method {name}: describes keypoints of images, not patches; hpatches takes sift, rootsift, "
            "models and kornia's networks"
        )
    return replace(route, name=name) if route.name == method.name else route


def _sequences(request: Request, cut: bool) -> tuple[dict[str, tuple[Path, Layout | None]], dict[str, str]]:
    """Folders of the sequences to use, and of those that the split names but the data lacks the reasons."""
    split = str(request.setting("split", PROTOCOL))
    found: dict[str, tuple[Path, Layout | None]] = (
        {**find_any_sequences(request.data)}
        if cut
        else {name: (folder, None) for name, folder in find_strips(request.data).items()}
    )
    if not found:
        raise InputError(
            f"{request.data}: no strips of patches (a folder per sequence with ref.png, ...); "
            "of sequences of images they are cut with --set cut=true"
        )
    skipped: dict[str, str] = {}
    if not cut and split != "any":
        wanted = _split(split, str(request.setting("splits", PROTOCOL)))
        skipped = {name: f"{request.data / name}: missing" for name in wanted if name not in found}
        found = {name: found[name] for name in wanted if name in found}
    folders = request.limited(found)
    if len(folders) < 2:
        hint = "" if cut else f" in split {split}; --set split=any takes all that are there"
        raise InputError(
            f"{request.data}: two sequences are the least to tell apart, {len(folders)} found{hint}"
        )
    return folders, skipped if request.limit is None else {}


def _split(name: str, file: str) -> Sequence[str]:
    """Test sequences of a split."""
    splits: dict[str, Sequence[str]] = dict(SPLITS)
    if file:
        try:
            content = json.loads(Path(file).read_text(encoding="utf-8"))
            splits = {key: list(map(str, value["test"])) for key, value in content.items()}
        except OSError as error:
            raise InputError(f"{file}: cannot be read ({error.strerror})") from None
        except (ValueError, AttributeError, TypeError, KeyError):
            raise InputError(f"{file}: not splits, such as {{'a': {{'test': ['v_wall', ...]}}}}") from None
    if name not in splits:
        raise InputError(f"--set split={name}: one of {', '.join(splits)}, any")
    return splits[name]


def _asked(request: Request, found: dict[str, Described], cut: bool) -> tuple[tasks.Patches, tasks.Tasks]:
    """Tasks on the patches that there are."""
    if len(found) < 2:
        raise InputError(f"{request.data}: one sequence could be used, two are the least to tell apart")
    counts = np.array([one.descriptors.shape[1] for one in found.values()], np.int64)
    patches = tasks.Patches(tuple(found), counts, np.concatenate([one.textured for one in found.values()]))
    folder, split = (str(request.setting(name, PROTOCOL)) for name in ("tasks", "split"))
    if not folder:
        return patches, tasks.draw_tasks(patches, int(request.setting("pairs", PROTOCOL)))
    if cut:
        raise InputError("--set tasks: the published lists are of the release's strips, not of cut ones")
    return patches, tasks.read_tasks(Path(folder), split, patches)


def _facts(patches: tasks.Patches, asked: tasks.Tasks, cut: bool) -> dict[str, Any]:
    """What the numbers are of."""
    return {
        "strips": "cut from sequences of images (SIFT's DoG regions)" if cut else "as found in the data",
        "tasks": asked.origin,
        "sequences": dict(zip(patches.names, patches.counts.tolist(), strict=True)),
        "pairs": len(asked.pairs["positive"].rows),
        "queries": len(asked.queries),
        "distractors": len(asked.distractors),
        "pools": list(tasks.pools(patches, asked)),
    }


def report(
    scores: dict[str, Scores], baseline: str | None, facts: dict[str, Any], skipped: dict[str, str]
) -> Report:
    """What `run` found, for people."""
    noises = (*NOISES, ALL)
    numbers = facts | {
        "mAP": {
            method: {task: {n: asdict(by_noise[n].mean) for n in noises} for task, by_noise in of.items()}
            for method, of in scores.items()
        }
    }
    rows: list[list[Cell]] = [[name, *(of[task][ALL].mean for task in TASKS)] for name, of in scores.items()]
    by_noise: list[list[Cell]] = [
        [name, task, *(of[task][noise].mean for noise in NOISES)]
        for task in TASKS
        for name, of in scores.items()
    ]
    tables = [
        Table("HPatches, mAP in percent", ("method", *TASKS), rows),
        Table("By noise", ("method", "task", *NOISES), by_noise),
    ]
    compared = [name for name in scores if baseline not in (None, name)]
    if baseline is not None and compared:
        gains = {
            name: {task: scores[name][task][ALL].less(scores[baseline][task][ALL]) for task in TASKS}
            for name in compared
        }
        numbers |= {
            "baseline": baseline,
            "difference": {n: {task: asdict(gain) for task, gain in of.items()} for n, of in gains.items()},
        }
        title = f"Difference from {baseline}, paired, with 95 % intervals"
        tables.append(Table(title, ("method", *TASKS), [[n, *of.values()] for n, of in gains.items()]))
    plots = [
        Intervals(
            f"Mean average precision, {task}", f"map-{task}", "noise", "mAP, %",
            {
                "mean" if noise == ALL else noise: {name: of[task][noise].mean for name, of in scores.items()}
                for noise in noises
            },
        )
        for task in TASKS
    ]  # fmt: skip
    return Report("hpatches", _about(facts), numbers, tables, plots, skipped)


def _about(facts: dict[str, Any]) -> str:
    strips = "Strips as they were found in the data. "
    if facts["strips"].startswith("cut"):
        strips = (
            "Not the published strips: these are cut from sequences of images by the recipe of the HPatches "
            f"paper, from SIFT's DoG regions alone, at most {REGIONS} a sequence; numbers do not compare "
            "with published ones. "
        )
    pools = ", ".join(map(str, facts["pools"]))
    return (
        f"{strips}{sum(facts['sequences'].values())} places in {len(facts['sequences'])} sequences, each "
        f"seen in six images. Tasks: {facts['tasks']}; {facts['pairs']} pairs of each kind, "
        f"{facts['queries']} queries, {facts['distractors']} distractors, pools of {pools}. Mean average "
        "precision in percent, mean of easy, hard and tough, with 95 % intervals over sequences. Models by "
        "their raw descriptor (:none), since patches have no context; SIFT of an upright keypoint in the "
        "centre, of size 65 / 5.303."
    )
