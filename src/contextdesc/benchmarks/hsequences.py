"""HPatches sequences: recall at 2.5 pixels, mean matching accuracy, and accuracy of homographies.

Per sequence the mean of its five pairs; then the mean over sequences, those of illumination (`i_`) and of
viewpoint (`v_`) apart, with a bootstrap interval over sequences. Keypoints are the 2048 strongest of SIFT at
contrast 0.04 without precise upscaling, the same for every method.

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

from contextdesc.benchmarks.report import Cell, Curves, Report, Table
from contextdesc.benchmarks.sequences import (
    HPATCHES,
    Sequence,
    corner_error,
    estimate_homography,
    find_sequences,
    match_errors,
    read_sequence,
    recall,
)
from contextdesc.benchmarks.statistics import Mean, bootstrap
from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.matching import match_descriptors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.benchmarks.methods import Method

KEYPOINTS = 2048
PIXELS = np.arange(1, 11)  # of the MMA curve
CORNERS = (1, 3, 5)  # pixels, of homography accuracy
RANSAC = 3.0  # pixels
# Sequences that D2-Net left out for their size; recall is of all 116, MMA usually of the other 108.
LARGE = (
    "i_contruction", "i_crownnight", "i_dc", "i_pencils", "i_whitebuilding",
    "v_artisans", "v_astronautis", "v_talent",
)  # fmt: skip
KINDS = {"illumination": "i_", "viewpoint": "v_"}
_SHOWN = (1, 3, 5, 10)  # pixels of the MMA curve that the table has


@dataclass(frozen=True)
class Scores:
    """Percent, of one sequence or pair."""

    recall: float
    mma: tuple[float, ...]  # by `PIXELS`
    homography: tuple[float, ...]  # by `CORNERS`


def run(
    data: Path,
    methods: Mapping[str, Method],
    limit: int | None = None,
    progress: Callable[[str], None] = lambda note: None,
) -> Report:
    """Scores by method and sequence, and their summary; sequences that cannot be read are told as skipped."""
    folders = dict(list(find_sequences(data, HPATCHES).items())[:limit])
    scores: dict[str, dict[str, Scores]] = {name: {} for name in methods}
    skipped: dict[str, str] = {}
    for name, folder in folders.items():
        try:
            sequence = read_sequence(folder, HPATCHES)
        except InputError as error:
            skipped[name] = str(error)
            progress(f"skipped: {error}")
            continue
        for method, found in score(sequence, methods).items():
            scores[method][name] = found
        progress("")
    if len(skipped) == len(folders):
        raise InputError(f"{data}: no sequence could be read; the first: {next(iter(skipped.values()))}")
    result = {
        "keypoints": KEYPOINTS,
        "summary": {method: summarise(of) for method, of in scores.items()},
        "sequences": {
            method: {name: asdict(found) for name, found in of.items()} for method, of in scores.items()
        },
    }
    return report(result, skipped)


def score(sequence: Sequence, methods: Mapping[str, Method]) -> dict[str, Scores]:
    """Scores of one sequence, mean of its five pairs, by method."""
    detector = Detector(KEYPOINTS, precise_upscale=False)
    keypoints = [detect(image.gray, detector) for image in sequence.images]
    scores = {}
    for name, method in methods.items():
        described = [method(i, k, False) for i, k in zip(sequence.images, keypoints, strict=True)]
        pairs = []
        for j, homography in enumerate(sequence.homographies, 1):
            rows = match_descriptors(described[0], described[j]).indices
            points = np.stack([keypoints[0].xy[rows[:, 0]], keypoints[j].xy[rows[:, 1]]], 1)
            found = recall(keypoints[0], keypoints[j], described[0], described[j], homography)
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
    for kind, prefix in {**KINDS, "all": ""}.items():
        among = [found for name, found in scores.items() if name.startswith(prefix)]
        if not among or (kind == "all" and len(summary) == 1):  # which is all of them
            continue
        small = [f for name, f in scores.items() if name.startswith(prefix) and name not in LARGE]
        summary[kind] = {
            "sequences": len(among),
            "recall": asdict(bootstrap([f.recall for f in among])),
            "mma": [asdict(bootstrap(column)) for column in zip(*(f.mma for f in among), strict=True)],
            "homography": [
                asdict(bootstrap(column)) for column in zip(*(f.homography for f in among), strict=True)
            ],
        }
        if 0 < len(small) < len(among):
            summary[kind]["mma, without the large sequences"] = [
                asdict(bootstrap(column)) for column in zip(*(f.mma for f in small), strict=True)
            ]
    return summary


def report(result: Mapping[str, Any], skipped: Mapping[str, str]) -> Report:
    """What `run` found, for people."""
    head = ("method", "sequences", "recall", *(f"MMA {t} px" for t in _SHOWN))
    head += tuple(f"homography {c} px" for c in CORNERS)
    rows: list[list[Cell]] = []
    for method, kinds in result["summary"].items():
        for kind, numbers in kinds.items():
            rows.append([method, f"{numbers['sequences']} {kind}", Mean(**numbers["recall"])])
            rows[-1] += [numbers["mma"][t - 1]["mean"] for t in _SHOWN]
            rows[-1] += [value["mean"] for value in numbers["homography"]]
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
    return Report(
        "hsequences",
        "In percent, mean of the five pairs of a sequence, then over sequences, with a 95 % bootstrap "
        f"interval. The {KEYPOINTS} strongest SIFT keypoints at contrast 0.04 without precise upscaling, the "
        "same for every method. Recall: one-way nearest neighbours within 2.5 pixels, of the keypoints that "
        "have a partner. MMA: mutual nearest neighbours within a threshold. Homography: pairs whose corners "
        "move by at most so much.",
        result,
        [Table("HPatches sequences", head, rows)],
        curves,
        skipped,
    )


def _mean(pairs: list[Scores]) -> Scores:
    return Scores(
        float(np.mean([p.recall for p in pairs])),
        tuple(np.mean([p.mma for p in pairs], axis=0).tolist()),
        tuple(np.mean([p.homography for p in pairs], axis=0).tolist()),
    )
