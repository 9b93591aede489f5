"""HPatches sequences: recall at 2.5 pixels, mean matching accuracy, and accuracy of homographies.

Per sequence the mean of its five pairs; then the mean over sequences, those of illumination (`i_`) and of
viewpoint (`v_`) apart, with a bootstrap interval over sequences. Keypoints are the 2048 strongest of SIFT at
contrast 0.04 without precise upscaling.

- Recall (section 5.1): one-way nearest neighbours; see `sequences.recall`.
- MMA (D2-Net's protocol): mutual nearest neighbours; share of matches within 1 to 10 pixels.
- Homography accuracy: share of pairs whose homography, estimated from the same matches, moves the corners by
  at most 1, 3, 5 pixels on average.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.benchmarks.hpatches_splits import SPLITS
from contextdesc.benchmarks.protocol import Protocol, Request
from contextdesc.benchmarks.report import Cell, Curves, Report, Table
from contextdesc.benchmarks.sequences import (
    HPATCHES,
    corner_error,
    estimate_homography,
    find_sequences,
    match_errors,
    read_sequence,
    recall,
)
from contextdesc.benchmarks.statistics import Difference, Mean, bootstrap, difference
from contextdesc.detection import Detector

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEYPOINTS = 2048
PIXELS = np.arange(1, 11)  # of the MMA curve
CORNERS = (1, 3, 5)  # pixels, of homography accuracy
RANSAC = 3.0  # pixels
# Sequences that D2-Net left out for their size; recall is of all 116, MMA usually of the other 108.
LARGE = (
    "i_contruction", "i_crownnight", "i_dc", "i_pencils", "i_whitebuilding",
    "v_artisans", "v_astronautis", "v_talent",
)  # fmt: skip
WITHOUT_LARGE = "without the large sequences"
KINDS = {"illumination": "i_", "viewpoint": "v_"}
ALL = len(SPLITS["full"])  # sequences of the release
_SHOWN = (1, 3, 5, 10)  # pixels of the MMA curve that the table has

PROTOCOL = Protocol(
    layout="a folder per sequence (i_* and v_*) with 1 to 6 (ppm, png, jpg, ...) and H_1_2 to H_1_6",
    source="HPatches, archive hpatches-sequences-release on the page of the hpatches-dataset project",
)


@dataclass(frozen=True)
class Scores:
    """Percent, of one sequence or pair."""

    recall: float
    mma: tuple[float, ...]  # by `PIXELS`
    homography: tuple[float, ...]  # by `CORNERS`


def run(request: Request) -> Report:
    """Scores by method and sequence, and their summary."""
    folders = find_sequences(request.data, HPATCHES)
    found, skipped = request.each("sequences", request.limited(folders), score)
    missing = [name for name in SPLITS["full"] if name not in folders]
    if request.limit is None and len(missing) < ALL / 2:  # of a part that somebody chose they are no news
        skipped |= {name: f"{request.data / name}: missing" for name in missing}
    scores = {method: {name: of[method] for name, of in found.items()} for method in request.methods}
    result: dict[str, Any] = {
        "keypoints": KEYPOINTS,
        "summary": {method: summarise(of) for method, of in scores.items()},
        "sequences": {
            method: {name: asdict(one) for name, one in of.items()} for method, of in scores.items()
        },
    }
    if request.baseline is not None:
        result["baseline"] = request.baseline
        result["difference"] = {
            method: compare(scores[method], scores[request.baseline]) for method in request.compared
        }
    return report(request, result, skipped)


def score(request: Request, folder: Path) -> dict[str, Scores]:
    """Scores of one sequence, mean of its pairs, by method."""
    sequence = read_sequence(folder, HPATCHES)
    detector = Detector(KEYPOINTS, precise_upscale=False)
    views = [request.describe(image, detector) for image in sequence.images]
    scores = {}
    for name, method in request.methods.items():
        first, *others = (view[name] for view in views)
        pairs = []
        for other, homography in zip(others, sequence.homographies, strict=True):
            rows = method.match(first.descriptors, other.descriptors).indices
            points = np.stack([first.keypoints.xy[rows[:, 0]], other.keypoints.xy[rows[:, 1]]], 1)
            found = recall(first.keypoints, other.keypoints, first.descriptors, other.descriptors, homography)
            pairs.append(score_pair(found, points, homography, sequence.images[0].size))
        scores[name] = _mean(pairs)
    return scores


def score_pair(
    recall: float, points: NDArray[np.float32], homography: NDArray[np.float64], size: tuple[int, int]
) -> Scores:
    """Scores of one pair, from its recall and mutual matches (M, 2, 2); `size` is that of the first image."""
    errors = match_errors(points, homography)
    within = [float((errors <= t).mean()) if len(errors) else 0.0 for t in PIXELS]
    corners = corner_error(estimate_homography(points, RANSAC), homography, size)
    return Scores(
        100 * recall,
        tuple(100 * share for share in within),
        tuple(100.0 * (corners <= limit) for limit in CORNERS),
    )


def summarise(scores: Mapping[str, Scores]) -> dict[str, Any]:
    """Means over sequences with intervals, by kind and of all; MMA also without `LARGE`."""
    summary: dict[str, Any] = {}
    for kind, names in _kinds(scores).items():
        among = [scores[name] for name in names]
        small = [scores[name] for name in names if name not in LARGE]
        summary[kind] = {
            "sequences": len(among),
            "recall": asdict(bootstrap([f.recall for f in among])),
            "mma": [asdict(bootstrap(column)) for column in zip(*(f.mma for f in among), strict=True)],
            "homography": [
                asdict(bootstrap(column)) for column in zip(*(f.homography for f in among), strict=True)
            ],
        }
        if 0 < len(small) < len(among):
            summary[kind][WITHOUT_LARGE] = {
                "sequences": len(small),
                "mma": [asdict(bootstrap(column)) for column in zip(*(f.mma for f in small), strict=True)],
            }
    return summary


def compare(scores: Mapping[str, Scores], baseline: Mapping[str, Scores]) -> dict[str, Any]:
    """Differences from the baseline over sequences, with intervals, by kind and of all."""
    found: dict[str, Any] = {}
    for kind, names in _kinds(scores).items():
        ours, theirs = ([of[name] for name in names] for of in (scores, baseline))
        found[kind] = {"sequences": len(names)} | {
            measure: asdict(difference([value(f) for f in ours], [value(f) for f in theirs]))
            for measure, value in _COMPARED.items()
        }
    return found


# Measures that a method is compared with the baseline in
_COMPARED: dict[str, Callable[[Scores], float]] = {
    "recall": lambda found: found.recall,
    "MMA 3 px": lambda found: found.mma[2],
    "homography 3 px": lambda found: found.homography[1],
}


def _kinds(scores: Mapping[str, Scores]) -> dict[str, list[str]]:
    """Names of sequences by kind; `all` of them where there are two kinds."""
    kinds = {
        kind: among
        for kind, prefix in KINDS.items()
        if (among := [name for name in scores if name.startswith(prefix)])
    }
    return kinds if len(kinds) == 1 and len(scores) == len(*kinds.values()) else {**kinds, "all": [*scores]}


def report(request: Request, result: Mapping[str, Any], skipped: Mapping[str, str]) -> Report:
    """What `run` found, for people."""
    head = ("method", "sequences", "recall", *(f"MMA {t} px" for t in _SHOWN))
    head += tuple(f"homography {c} px" for c in CORNERS)
    rows: list[list[Cell]] = []
    for method, kinds in result["summary"].items():
        for kind, numbers in kinds.items():
            rows.append([method, f"{numbers['sequences']} {kind}", Mean(**numbers["recall"])])
            rows[-1] += [Mean(**numbers["mma"][t - 1]) for t in _SHOWN]
            rows[-1] += [Mean(**value) for value in numbers["homography"]]
            if WITHOUT_LARGE in numbers:
                small = numbers[WITHOUT_LARGE]
                rows.append([method, f"{small['sequences']} {kind}, {WITHOUT_LARGE}", None])
                rows[-1] += [Mean(**small["mma"][t - 1]) for t in _SHOWN] + [None] * len(CORNERS)
    tables = [Table("HPatches sequences", head, rows)]
    if result.get("difference"):
        compared: list[list[Cell]] = [
            [method, f"{numbers['sequences']} {kind}", *(Difference(**numbers[m]) for m in _COMPARED)]
            for method, kinds in result["difference"].items()
            for kind, numbers in kinds.items()
        ]
        title = f"Difference from {request.baseline}, paired, with 95 % intervals"
        tables.append(Table(title, ("method", "sequences", *_COMPARED), compared))
    curves = []
    for kind in (*KINDS, "all"):
        lines = {
            method: [(float(t), m["mean"]) for t, m in zip(PIXELS, kinds[kind]["mma"], strict=True)]
            for method, kinds in result["summary"].items()
            if kind in kinds
        }
        if lines:
            title = f"Mean matching accuracy, {kind}"
            curves.append(Curves(title, f"mma-{kind}", "threshold, pixels", "right matches, %", lines))
    count = len(next(iter(result["sequences"].values())))
    return Report(
        "hsequences",
        f"{count} of the {ALL} sequences of HPatches. In percent, mean of the pairs of a sequence, then over "
        f"sequences, with a 95 % bootstrap interval over sequences. The {KEYPOINTS} strongest keypoints "
        f"({request.which_keypoints('SIFT at contrast 0.04 without precise upscaling')}). Recall: one-way "
        "nearest neighbours within 2.5 pixels, of the keypoints that have a partner. MMA: mutual nearest "
        f"neighbours within a threshold, also {WITHOUT_LARGE} that D2-Net left out. Homography: pairs whose "
        "corners move by at most so much.",
        result,
        tables,
        curves,
        skipped,
    )


def _mean(pairs: list[Scores]) -> Scores:
    return Scores(
        float(np.mean([p.recall for p in pairs])),
        tuple(np.mean([p.mma for p in pairs], axis=0).tolist()),
        tuple(np.mean([p.homography for p in pairs], axis=0).tolist()),
    )
