"""Invariance to the number of keypoints (the paper's A.5): from 512 to all that SIFT finds.

Sequences of images of a plane, in the layout of Oxford affine or HPatches. Of each image so many keypoints
are drawn at random, the same for every method, then all are used; a draw of more keypoints holds those of
the draws of fewer. By number: recall within 2.5 pixels (section 5.1) and the share of mutual nearest
neighbours that are right, mean of the pairs of a sequence and of the draws. Intervals are over sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.benchmarks.cache import key_of, keypoints_of, pixels_of
from contextdesc.benchmarks.methods import Described, Method
from contextdesc.benchmarks.protocol import Protocol, Request, Setting
from contextdesc.benchmarks.repeatability import kinds
from contextdesc.benchmarks.report import Cell, Curves, Report, Table
from contextdesc.benchmarks.sequences import (
    DISTANCE,
    EITHER_LAYOUT,
    EITHER_SOURCE,
    Layout,
    find_any_sequences,
    match_errors,
    read_sequence,
    recall,
)
from contextdesc.benchmarks.statistics import Difference, Mean, bootstrap, difference
from contextdesc.detection import Detector, budget_rows
from contextdesc.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.image import Image
    from contextdesc.keypoints import Keypoints

ALL = "all"
MEASURES = {"recall": "recall, %", "precision": "right mutual matches, %"}

PROTOCOL = Protocol(
    layout=EITHER_LAYOUT,
    source=EITHER_SOURCE,
    takes=("methods", "seeds", "limit", "baseline", "workers"),
    settings=(
        Setting("numbers", "512,1024,2048,4096,8192", "of keypoints, from few to many; all come last"),
        Setting("contrast", 0.04, "threshold of SIFT: more keypoints below it"),
    ),
)


@dataclass(frozen=True)
class Scores:
    """Of one sequence and number of keypoints: keypoints an image that there were, recall and precision."""

    keypoints: float
    recall: float
    precision: float


# Number of keypoints, or `ALL` -> method -> scores of a sequence
BySequence = dict[str, dict[str, Scores]]


def run(request: Request) -> Report:
    """Recall and precision by number of keypoints and method."""
    levels(request)  # told at once if they cannot be read
    found, skipped = request.each("sequences", request.limited(find_any_sequences(request.data)), score)
    return report(request, found, skipped)


def score(request: Request, unit: tuple[Path, Layout]) -> BySequence:
    """Scores of a sequence, mean of its pairs and of the draws."""
    sequence = read_sequence(*unit)
    detector = Detector(None, contrast=float(request.setting("contrast", PROTOCOL)), precise_upscale=False)
    detected = [request.detect(image, detector) for image in sequence.images]
    most = max(map(len, detected))
    found: BySequence = {level: {} for level in levels(request)}
    for name, method in request.methods.items():
        images = [
            (keypoints, _describer(request, method, image, keypoints))
            for image, keypoints in zip(sequence.images, detected, strict=True)
        ]
        for level, number in levels(request).items():
            if number is not None and number >= most:
                continue
            draws = []
            for seed in request.seeds if number is not None else request.seeds[:1]:
                budget = Detector(number, "random", seed)
                views = [describe(budget_rows(k.response, budget)) for k, describe in images]
                draws.append(_score(method, views, sequence.homographies))
            found[level][name] = _mean(draws)
    return {level: of or found[ALL] for level, of in found.items()}


def _describer(
    request: Request, method: Method, image: Image, keypoints: Keypoints
) -> Callable[[NDArray[np.int64]], Described]:
    """Describes rows of an image's keypoints as if there were no others."""
    steps = method.steps
    if steps is None:
        return lambda rows: Described(keypoints[rows], method(image, keypoints[rows], False))
    compute = partial(steps.first, image, keypoints, False)
    if request.cache is None or method.identity is None:
        arrays = compute()
    else:
        key = key_of("steps", pixels_of(image), keypoints_of(keypoints), method.identity)
        arrays = request.cache.fetch(key, compute)
    return lambda rows: Described(keypoints[rows], steps.second(image, keypoints, arrays, rows))


def _score(method: Method, views: Sequence[Described], homographies: Sequence[NDArray[np.float64]]) -> Scores:
    """Mean of the pairs of a sequence, by one method."""
    first, *others = views
    recalls, shares = [], []
    for other, homography in zip(others, homographies, strict=True):
        recalls.append(
            recall(first.keypoints, other.keypoints, first.descriptors, other.descriptors, homography)
        )
        rows = method.match(first.descriptors, other.descriptors).indices
        points = np.stack([first.keypoints.xy[rows[:, 0]], other.keypoints.xy[rows[:, 1]]], 1)
        shares.append(precision(points, homography))
    keypoints = float(np.mean([len(view.keypoints) for view in views]))
    return Scores(keypoints, 100 * float(np.mean(recalls)), 100 * float(np.mean(shares)))


def precision(points: NDArray[np.float32], homography: NDArray[np.float64]) -> float:
    """Share of matches (M, 2, 2) within `DISTANCE`; 0 of none."""
    return float((match_errors(points, homography) <= DISTANCE).mean()) if len(points) else 0.0


def _mean(draws: Sequence[Scores]) -> Scores:
    return Scores(*np.mean([astuple(draw) for draw in draws], axis=0).tolist())


def levels(request: Request) -> dict[str, int | None]:
    """Numbers of keypoints by their name in tables, from few to all."""
    text = str(request.setting("numbers", PROTOCOL))
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise InputError(f"--set numbers={text}: numbers of keypoints such as 512,1024")
    return {**{str(number): number for number in found}, ALL: None}


@dataclass(frozen=True)
class Part:
    """One measure of the sequences of one kind.

    Attributes:
        used: mean number of keypoints by level.
        values: of the sequences, by method and level.
    """

    request: Request
    kind: str
    measure: str
    used: Mapping[str, float]
    values: Mapping[str, Mapping[str, Sequence[float]]]

    @cached_property
    def means(self) -> dict[str, dict[str, Mean]]:
        return {m: {level: bootstrap(v) for level, v in of.items()} for m, of in self.values.items()}

    @cached_property
    def gains(self) -> dict[str, dict[str, Difference]]:
        """Differences from the baseline by method and level."""
        return {
            m: {
                n: difference(v, self.values[str(self.request.baseline)][n])
                for n, v in self.values[m].items()
            }
            for m in self.request.compared
        }

    @property
    def numbers(self) -> dict[str, Any]:
        found: dict[str, Mapping[str, Mapping[str, Mean]]] = {
            self.measure: self.means, f"{self.measure}, difference": self.gains,
        }  # fmt: skip
        return {
            name: {m: {n: asdict(mean) for n, mean in by_level.items()} for m, by_level in of.items()}
            for name, of in found.items()
            if of
        }

    @property
    def tables(self) -> list[Table]:
        count = len(next(iter(next(iter(self.values.values())).values())))
        title = f"{self.measure.capitalize()}, {count} sequences ({self.kind})"
        used: dict[str, list[Cell]] = {level: [level, round(number)] for level, number in self.used.items()}
        found = [
            Table(
                title,
                ("keypoints", "used, mean", *self.means),
                [used[level] + [of[level] for of in self.means.values()] for level in used],
            )
        ]
        if self.gains:
            found.append(
                Table(
                    f"{title}, difference from {self.request.baseline}, paired, with 95 % intervals",
                    ("keypoints", "used, mean", *self.gains),
                    [used[level] + [of[level] for of in self.gains.values()] for level in used],
                )
            )
        return found

    @property
    def curves(self) -> Curves:
        return Curves(
            f"{self.measure.capitalize()} by number of keypoints ({self.kind})",
            f"{self.measure}-{self.kind}",
            "keypoints of an image, mean",
            MEASURES[self.measure],
            {m: [(self.used[n], mean.mean) for n, mean in of.items()] for m, of in self.means.items()},
            log_x=True,
        )


def report(request: Request, found: Mapping[str, BySequence], skipped: Mapping[str, str]) -> Report:
    """What `run` found, for people; numbers of keypoints that no image has are left out."""
    result: dict[str, Any] = {
        "contrast": request.setting("contrast", PROTOCOL),
        "seeds": len(request.seeds),
        "baseline": request.baseline,
        "summary": {},
        "sequences": {
            name: {level: {m: asdict(one) for m, one in of.items()} for level, of in by_level.items()}
            for name, by_level in found.items()
        },
    }
    tables: list[Table] = []
    curves: list[Curves] = []
    for kind, names in kinds(list(found)).items():
        among = [found[name] for name in names]
        used = {
            level: float(np.mean([one.keypoints for of in among for one in of[level].values()]))
            for level in levels(request)
        }
        used = {level: number for level, number in used.items() if level == ALL or number < used[ALL]}
        result["summary"][kind] = {"sequences": len(names), "keypoints": used}
        for measure in MEASURES:
            values = {
                method: {level: [getattr(of[level][method], measure) for of in among] for level in used}
                for method in request.methods
            }
            part = Part(request, kind, measure, used, values)
            result["summary"][kind] |= part.numbers
            tables += part.tables
            curves.append(part.curves)
    return Report(
        "density",
        f"{len(found)} sequences. Keypoints drawn at random ({request.whose_keypoints}; SIFT at contrast "
        f"{result['contrast']} without precise upscaling), mean of {len(request.seeds)} draws; all at last. "
        "An image with fewer keypoints than asked for gives all of them: the mean that were used stands "
        "beside. Recall: one-way nearest neighbours within 2.5 pixels, of the keypoints that have a partner. "
        "Precision: mutual nearest neighbours within 2.5 pixels. In percent, with 95 % intervals over "
        "sequences.",
        result,
        tables,
        curves,
        skipped,
    )
