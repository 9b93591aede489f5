"""Retrieval (the paper's A.7): mean average precision of a visual vocabulary, before and after re-ranking.

Each method has a vocabulary and an inverted index of its own, as `contextdesc retrieve` builds them; all are
trained on the same images and share the number of words. The first answers are then verified, and ordered by
the number of matches that agree with one fundamental matrix.

Average precision is that of Oxford Buildings: the area under precision by recall, by trapezoids, answers that
are neither right nor wrong left out. Recall@k is the share of queries with a right answer among the first k.
Queries of one scene are not independent, so means and intervals are over scenes.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.benchmarks.methods import Described
from contextdesc.benchmarks.protocol import Protocol, Request, Setting
from contextdesc.benchmarks.report import Cell, Curves, Report, Table
from contextdesc.benchmarks.retrieval_tasks import Box, Query, Task, cropped, find_task
from contextdesc.benchmarks.statistics import Difference, Mean, bootstrap, difference
from contextdesc.detection import Detector
from contextdesc.errors import InputError
from contextdesc.features import Features
from contextdesc.geometry import verify
from contextdesc.image import read

if TYPE_CHECKING:
    from contextdesc.benchmarks.methods import Method

PROTOCOL = Protocol(
    layout="Images and ground truth of Oxford Buildings or Paris (NAME_N_query.txt, _good, _ok, _junk), or a "
    "folder of images per scene",
    source="https://www.robots.ox.ac.uk/~vgg/data/oxbuildings/",
    takes=("methods", "baseline", "keypoints", "workers"),
    settings=(
        Setting("scenes", "", "scenes to ask about, separated by commas; of the others every second trains "
                "the vocabulary, and the rest are searched too; all if empty"),
        Setting("per_scene", 0, "at most so many images of each scene; 0 for all"),
        Setting("per_other", 0, "at most so many of each scene that is not asked about; 0 for all"),
        Setting("vocabulary", "", "folder of images to train the vocabulary on, instead of other scenes or "
                "the searched images"),
        Setting("words", 4096, "of each vocabulary"),
        Setting("verify", 100, "answers to verify and rank again"),
        Setting("budget", 2048, "keypoints of an image"),
    ),
)  # fmt: skip
STAGES = {"before": "vocabulary", "after": "re-ranked"}
RANKS = (1, 5, 10)
_CURVE = (1, 2, 3, 5, 10, 20, 50)
_PER_WORD = 32  # descriptors that a vocabulary is trained on
_SEED = 0  # of their choice


@dataclass(frozen=True)
class Score:
    """Of one query: average precision in percent, and the rank of the first right answer, from 1."""

    precision: float
    first: int | None

    def found(self, rank: int) -> float:
        """100 if a right answer is among the first `rank`, else 0."""
        return 100.0 * (self.first is not None and self.first <= rank)


# Scores of queries by scene: {scene: [{"before": Score, "after": Score}, ...]}
Answers = dict[str, list[dict[str, Score]]]


def score(ranked: Sequence[str], right: Set[str], ignored: Set[str]) -> Score:
    """Of answers, best first; right answers that are not among them count."""
    area, hits, seen, first = 0.0, 0, 0, None
    recall, precision = 0.0, 1.0
    for name in ranked:
        if name in ignored:
            continue
        seen += 1
        if name in right:
            hits += 1
            first = first or seen
        before = recall, precision
        recall, precision = hits / len(right), hits / seen
        area += (recall - before[0]) * (precision + before[1]) / 2
    return Score(100 * area, first)


def run(request: Request) -> Report:
    """Ask every query with every method."""
    settings = {setting.name: request.setting(setting.name, PROTOCOL) for setting in PROTOCOL.settings}
    scenes = [scene for scene in str(settings["scenes"]).split(",") if scene]
    vocabulary = Path(str(settings["vocabulary"])) if settings["vocabulary"] else None
    per_scene, per_other = (int(settings[name]) for name in ("per_scene", "per_other"))
    task = find_task(request.data, scenes, per_scene, per_other, vocabulary)
    with tempfile.TemporaryDirectory(prefix="contextdesc-retrieval-") as folder:
        bench = _Bench(Path(folder), *(int(settings[name]) for name in ("words", "verify", "budget")))
        pictures = {picture.name: (bench, picture) for picture in _pictures(task)}
        _, unread = request.each("images", pictures, _describe)
        methods = {name: (bench, task, name) for name in request.methods}
        _, failed = request.each("vocabularies", methods, _build)
        if failed:
            raise InputError(f"{request.data}: {next(iter(failed.values()))}")
        asked = {f"{name}, {scene}": (*methods[name], scene) for name in methods for scene in task.scenes}
        answered, unasked = request.each("scenes", asked, _ask)
    answers: dict[str, Answers] = {name: {} for name in methods}
    for key, (_, _, name, scene) in asked.items():
        if answered.get(key):
            answers[name][scene] = answered[key]
    return report(request, task, answers, settings, {**task.skipped, **unread, **unasked})


@dataclass(frozen=True)
class _Picture:
    """What is described: an image, or a part of it."""

    path: Path
    box: Box | None = None

    @property
    def name(self) -> str:
        return f"{self.path} {self.box}" if self.box else str(self.path)


def _pictures(task: Task) -> list[_Picture]:
    """Everything that is described, once each."""
    whole = [*task.images.values(), *task.vocabulary_images.values()]
    parts = [_asked(task, query) for query in task.queries]
    return list(dict.fromkeys([*map(_Picture, whole), *parts]))


def _asked(task: Task, query: Query) -> _Picture:
    return _Picture(task.images[query.image], query.box)


@dataclass(frozen=True)
class _Bench:
    """Numbers that the methods share, and where features and indexes are meanwhile.

    Attributes:
        folder: of features, a file per picture and method, and indexes, a folder per method.
        words: of a vocabulary.
        verify: answers to verify.
        budget: keypoints of an image.
    """

    folder: Path
    words: int
    verify: int
    budget: int

    def index(self, method: str) -> Path:
        return self.folder / _digest(method)

    def has(self, picture: _Picture, method: str) -> bool:
        return self._file(picture, method).exists()

    def save(self, picture: _Picture, method: str, found: Described) -> None:
        """Keep features, at half precision; keypoints without a descriptor are dropped."""
        rows = np.flatnonzero(found.descriptors.any(1))
        kept = Described(found.keypoints[rows], found.descriptors[rows].astype(np.float16))
        with self._file(picture, method).open("wb") as file:
            np.savez(file, **kept.arrays)  # type: ignore[arg-type]  # as in cache.py

    def load(self, picture: _Picture, method: str) -> Described:
        with np.load(self._file(picture, method), allow_pickle=False) as arrays:
            found = Described.from_arrays(arrays)
        return Described(found.keypoints, found.descriptors.astype(np.float32))

    def _file(self, picture: _Picture, method: str) -> Path:
        return self.folder / f"{_digest(picture.name, method)}.npz"


def _digest(*names: str) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:32]


def _describe(request: Request, unit: tuple[_Bench, _Picture]) -> None:
    """Features of a picture by every method, to files."""
    bench, picture = unit
    image = cropped(read(picture.path), picture.box)
    for method, found in request.describe(image, Detector(bench.budget)).items():
        bench.save(picture, method, found)


def _build(request: Request, unit: tuple[_Bench, Task, str]) -> None:
    """The vocabulary and the index of a method, to a folder."""
    from contextdesc.retrieval.index import Index
    from contextdesc.retrieval.options import Options
    from contextdesc.retrieval.vocabulary import Vocabulary
    from contextdesc.retrieval.words import words_of

    bench, task, method = unit
    trained_on = _readable(bench, task.vocabulary_images, method)
    if not trained_on:
        raise InputError(f"{task.vocabulary}: none could be read to train a vocabulary on")
    quota = -(-_PER_WORD * bench.words // len(trained_on))
    rng = np.random.default_rng(_SEED)
    sample = []
    for picture in trained_on.values():
        descriptors = bench.load(picture, method).descriptors
        sample.append(descriptors[rng.permutation(len(descriptors))[:quota]])
    vocabulary = Vocabulary.train(np.concatenate(sample), bench.words, seed=_SEED, model=method)
    options = Options(pooling="none", features="none")
    index = Index.create(bench.index(method), vocabulary, options)
    index.add(
        (name, *words_of(vocabulary, bench.load(picture, method).descriptors, options), None)
        for name, picture in _readable(bench, task.images, method).items()
    )


def _ask(request: Request, unit: tuple[_Bench, Task, str, str]) -> list[dict[str, Score]]:
    """Scores of the queries of a scene whose picture could be read."""
    from contextdesc.retrieval.index import Index
    from contextdesc.retrieval.searching import FLOOR
    from contextdesc.retrieval.words import words_of

    bench, task, method, scene = unit
    index = Index.open(bench.index(method))
    images = _readable(bench, task.images, method)
    scores = []
    for query in task.queries:
        picture = _asked(task, query)
        if query.scene != scene or not bench.has(picture, method):
            continue
        found = bench.load(picture, method)
        words, weights = words_of(index.vocabulary, found.descriptors, index.options)
        ranked = [name for name, _ in index.search(words, weights, len(images))]
        inliers = {
            name: _inliers(request.methods[method], found, bench.load(images[name], method))
            for name in ranked[: bench.verify]
        }
        verified = sorted(ranked, key=lambda name: -count if (count := inliers.get(name, 0)) >= FLOOR else 0)
        before, after = (score(names, query.right, query.ignored) for names in (ranked, verified))
        scores.append({"before": before, "after": after})
    return scores


def _readable(bench: _Bench, images: Mapping[str, Path], method: str) -> dict[str, _Picture]:
    pictures = {name: _Picture(path) for name, path in images.items()}
    return {name: picture for name, picture in pictures.items() if bench.has(picture, method)}


def _inliers(method: Method, first: Described, second: Described) -> int:
    """Matches of the method's ratio that agree with one fundamental matrix."""
    matches = method.match(first.descriptors, second.descriptors, method.ratio)
    sides = [Features(d.keypoints, d.descriptors, (0, 0), method.name, "") for d in (first, second)]
    return verify(sides[0], sides[1], matches).inlier_count


def report(
    request: Request,
    task: Task,
    answers: Mapping[str, Answers],
    settings: Mapping[str, Any],
    skipped: Mapping[str, str],
) -> Report:
    """What the methods answered, for people."""
    baseline = answers.get(request.baseline or "")
    queries = sum(map(len, next(iter(answers.values())).values()))
    numbers = {
        "layout": task.layout, "scenes": task.scenes, "queries": queries, "images": len(task.images),
        "vocabulary": {"trained on": task.vocabulary, "images": len(task.vocabulary_images)},
        **{name: settings[name] for name in ("words", "verify", "budget")},
        "keypoints": request.keypoints,
        "ratio": {name: method.ratio for name, method in request.methods.items()},
        "baseline": request.baseline,
        "methods": {name: summarise(of, baseline) for name, of in answers.items()},
    }  # fmt: skip
    return Report(
        "retrieval",
        f"{queries} queries of {len(task.scenes)} scenes among {len(task.images)} images ({task.layout}). "
        f"Keypoints: at most {settings['budget']}, {request.whose_keypoints}. Each method has a vocabulary "
        f"of its own, {settings['words']} words trained on {task.vocabulary} ({len(task.vocabulary_images)} "
        f"images). Re-ranking orders the first {settings['verify']} answers by the number of matches that "
        "agree with one fundamental matrix. mAP is the mean of Oxford's average precision, recall@k the "
        "share of queries with a right answer among the first k, in percent; means over scenes, with 95 % "
        "intervals by bootstrap over scenes. Right answers that are missing or cannot be read count as not "
        "found.",
        numbers,
        tables(numbers),
        [curves(numbers, stage) for stage in STAGES],
        skipped,
    )


def summarise(answers: Answers, baseline: Answers | None = None) -> dict[str, dict[str, Any]]:
    """Before and after re-ranking: means over scenes, and differences from another method on them."""
    summary: dict[str, dict[str, Any]] = {}
    for stage in STAGES:
        precision = _by_scene(answers, stage, attrgetter("precision"))
        recall = {str(k): _by_scene(answers, stage, partial(Score.found, rank=k)) for k in _CURVE}
        summary[stage] = {
            "map": asdict(bootstrap(list(precision.values()))),
            "scenes": precision,
            "recall": {k: float(np.mean(list(of.values()))) for k, of in recall.items()},
        }
        if baseline is not None and baseline is not answers:
            other = _by_scene(baseline, stage, attrgetter("precision"))
            both = [scene for scene in precision if scene in other]
            less = difference([precision[scene] for scene in both], [other[scene] for scene in both])
            summary[stage]["difference"] = asdict(less)
    return summary


def _by_scene(answers: Answers, stage: str, value: Callable[[Score], float]) -> dict[str, float]:
    return {scene: float(np.mean([value(scores[stage]) for scores in of])) for scene, of in answers.items()}


def tables(numbers: Mapping[str, Any]) -> list[Table]:
    """The tables of a report, from its numbers."""
    rows: list[list[Cell]] = []
    by_scene: list[list[Cell]] = []
    for name, stages in numbers["methods"].items():
        for stage, ranking in STAGES.items():
            found = stages[stage]
            rows.append([name, ranking, Mean(**found["map"])])
            if numbers["baseline"]:
                rows[-1].append(Difference(**found["difference"]) if "difference" in found else None)
            rows[-1] += [found["recall"][str(k)] for k in RANKS]
            by_scene.append([name, ranking, *(found["scenes"].get(scene) for scene in numbers["scenes"])])
    compared = (f"mAP less {numbers['baseline']}'s",) if numbers["baseline"] else ()
    head = ("method", "ranking", "mAP", *compared, *(f"recall@{k}" for k in RANKS))
    return [
        Table("Retrieval", head, rows),
        Table("mAP by scene", ("method", "ranking", *numbers["scenes"]), by_scene),
    ]


def curves(numbers: Mapping[str, Any], stage: str) -> Curves:
    """Recall by rank, a line per method."""
    return Curves(
        f"Recall by rank, {stage} re-ranking",
        f"recall-{stage}",
        "k",
        "recall@k, %",
        {
            name: [(float(k), share) for k, share in stages[stage]["recall"].items()]
            for name, stages in numbers["methods"].items()
        },
        log_x=True,
    )
