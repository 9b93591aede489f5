"""Relative pose of image pairs: median inliers after RANSAC, mAP and AUC of the pose error.

The protocol of the paper's wild pairs (sections 5.2 and A.3, after the learned correspondences): one-way
nearest neighbours, with and without the ratio test, then an essential matrix. Layouts: `pose_lists`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.benchmarks.cameras import pose_error
from contextdesc.benchmarks.pose_lists import PosePair, View, find_pairs
from contextdesc.benchmarks.pose_scores import area_under_curve, interval, mean_precision, median
from contextdesc.benchmarks.protocol import Protocol, Request, Setting
from contextdesc.benchmarks.report import Cell, Curves, Report, Table
from contextdesc.benchmarks.statistics import Mean
from contextdesc.detection import Detector
from contextdesc.features import Features
from contextdesc.geometry import THRESHOLD, verify

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.benchmarks.pose_scores import Statistic

    Row = tuple[str, str]  # method and kind of matches
    Columns = Mapping[str, NDArray[np.float64]]  # of a `PairScore`, (P,) each

PROTOCOL = Protocol(
    layout="a pair file of SuperGlue's; or a scene or a folder of scenes, each with images and "
    "gt_dense_cameras (Strecha), images and sparse (COLMAP), images and tracks.npz (contextdesc dataset "
    "build), or test/images.txt, calibration.txt and visibility.txt (learned correspondences, OANet)",
    source="YFCC100M and SUN3D: github.com/zjhthu/OANet; pair files: "
    "github.com/magicleap/SuperGluePretrainedNetwork; Strecha's scenes: Strecha et al., CVPR 2008",
    settings=(
        Setting("max-keypoints", 2000, "strongest keypoints of an image"),
        Setting("contrast", 0.0067, "SIFT's contrast threshold"),
        Setting(
            "mutual", False, "mutual matches, as `contextdesc match` makes them, instead of one-way ones"
        ),
        Setting("scenes", "", "scenes of the folder, separated by commas, instead of all"),
    ),
)
PRECISION = (5, 10, 15, 20)  # degrees, of mAP
AREA = (5, 10, 20)  # degrees, of AUC
MATCHES = {"nearest": "no ratio test", "ratio": "ratio test"}
_COLUMNS = ("matches", "inliers", "error")  # of a score
_CURVE = 2 ** np.arange(-4, 5.01, 0.5)  # degrees


@dataclass(frozen=True)
class PairScore:
    """One pair: matches, those that agree with an essential matrix, and the pose error in degrees."""

    matches: int
    inliers: int
    error: float


def run(request: Request) -> Report:
    """Scores of every pair by method, with and without ratio test."""
    only = [scene for scene in str(request.setting("scenes", PROTOCOL)).split(",") if scene]
    found = find_pairs(request.data, only)
    pairs = _spread({pair.name: pair for pair in found.pairs}, request.limit)
    scores, skipped = request.each("pairs", pairs, score)
    scenes = {name: pairs[name].scene for name in scores}
    return _report(request, scores, scenes, found.skipped | skipped)


def score(request: Request, pair: PosePair) -> dict[str, dict[str, PairScore]]:
    """Scores of a pair by method and kind of matches."""
    first, second = (_features(request, view) for view in (pair.first, pair.second))
    mutual = bool(request.setting("mutual", PROTOCOL))
    scores: dict[str, dict[str, PairScore]] = {}
    for name, method in request.methods.items():
        one, two = first[name], second[name]
        scores[name] = {}
        for kind in MATCHES:
            ratio = method.ratio if kind == "ratio" else 1.0
            matches = method.match(one.descriptors, two.descriptors, ratio, mutual)
            intrinsics = (pair.first.intrinsics, pair.second.intrinsics)
            result = verify(one, two, matches, "essential", THRESHOLD, intrinsics)
            error = pose_error(result.pose, pair.pose)
            scores[name][kind] = PairScore(len(matches), result.inlier_count, error)
    return scores


def _features(request: Request, view: View) -> dict[str, Features]:
    """Features by method, with keypoints where a camera without distortion sees them."""
    image = view.read()
    features = {}
    for name, described in request.describe(image, _detector(request)).items():
        xy = view.pinhole(described.keypoints.xy, image.size).astype(np.float32)
        keypoints = replace(described.keypoints, xy=xy)
        features[name] = Features(keypoints, described.descriptors, image.size, name, "")
    return features


def _detector(request: Request) -> Detector:
    budget, contrast = (request.setting(name, PROTOCOL) for name in ("max-keypoints", "contrast"))
    return Detector(int(budget), contrast=float(contrast), precise_upscale=False)


def _spread(pairs: Mapping[str, PosePair], limit: int | None) -> dict[str, PosePair]:
    """So many pairs at equal distances along the list, so that a few tell of all scenes."""
    names = list(pairs)
    if limit is not None and limit < len(names):
        names = [names[i] for i in np.linspace(0, len(names) - 1, limit).round().astype(int)]
    return {name: pairs[name] for name in names}


def statistics() -> dict[str, tuple[str, Statistic]]:
    """What is told of a method: title, to the column of a `PairScore` and its statistic over pairs."""
    found: dict[str, tuple[str, Statistic]] = {"median inliers": ("inliers", median)}
    found |= {f"mAP {d}°": ("error", partial(mean_precision, degrees=d)) for d in PRECISION}
    return found | {f"AUC {d}°": ("error", partial(area_under_curve, degrees=d)) for d in AREA}


def summarise(columns: Columns, minus: Columns | None = None) -> dict[str, Mean]:
    """Every statistic of the scores of pairs, or its difference from those of another method."""
    return {
        title: interval(statistic, columns[column], None if minus is None else minus[column])
        for title, (column, statistic) in statistics().items()
    }


def _columns(scores: Sequence[Mapping[str, Mapping[str, PairScore]]]) -> dict[Row, Columns]:
    """Columns (P,) of the scores of pairs by method and kind of matches."""
    return {
        (method, kind): {
            column: np.array([getattr(of[method][kind], column) for of in scores], np.float64)
            for column in _COLUMNS
        }
        for kind in MATCHES
        for method in scores[0]
    }


def _report(
    request: Request,
    scores: Mapping[str, Mapping[str, Mapping[str, PairScore]]],
    scenes: Mapping[str, str],
    skipped: Mapping[str, str],
) -> Report:
    detector, every = _detector(request), _columns(list(scores.values()))
    mutual = bool(request.setting("mutual", PROTOCOL))
    summary = {row: summarise(columns) for row, columns in every.items()}
    tables = [_table(f"{len(scores)} pairs", {"": summary})]
    numbers: dict[str, Any] = {
        "pairs": len(scores),
        "detector": asdict(detector),
        "threshold": THRESHOLD,
        "mutual": mutual,
        "ratio": {name: method.ratio for name, method in request.methods.items()},
        "summary": _nested(summary),
    }
    if request.compared and request.baseline is not None:
        gains = {
            (method, kind): summarise(columns, every[request.baseline, kind])
            for (method, kind), columns in every.items()
            if method in request.compared
        }
        title = f"Difference from {request.baseline}, paired, with 95 % intervals"
        tables.append(_table(title, {"": gains}))
        numbers |= {"baseline": request.baseline, "difference": _nested(gains)}
    if len(set(scenes.values())) > 1:
        by_scene = {}
        for scene in sorted(set(scenes.values())):
            some = _columns([of for name, of in scores.items() if scenes[name] == scene])
            by_scene[scene] = {row: summarise(columns) for row, columns in some.items()}
        tables.append(_table("By scene", by_scene))
        numbers["scenes"] = {scene: _nested(found) for scene, found in by_scene.items()}
    listed = {row: {name: _listed(values) for name, values in of.items()} for row, of in every.items()}
    numbers["scores"] = {"pair": list(scores)} | _nested(listed)
    return Report(
        "pairs",
        f"Relative pose of {len(scores)} pairs of images: the {detector.max_keypoints} strongest SIFT "
        f"keypoints at contrast {detector.contrast}, {request.whose_keypoints}; "
        f"{'mutual' if mutual else 'one-way'} nearest neighbours, without and with the ratio test at each "
        f"method's own threshold; an essential matrix by MAGSAC at {THRESHOLD:g} pixels. The pose error is "
        "the larger of the angles of rotation and translation. mAP: mean of the shares of pairs below 5, 10, "
        "... degrees; AUC: area below the curve of recall; both in percent. Intervals are over pairs, which "
        "share images, and so somewhat narrow.",
        numbers,
        tables,
        [_curves(every, kind) for kind in MATCHES],
        skipped,
    )


def _table(title: str, groups: Mapping[str, Mapping[Row, Mapping[str, Mean]]]) -> Table:
    """A line per method and kind of matches; of several groups, with their names before them."""
    lines: list[list[Cell]] = []
    for group, found in groups.items():
        for (method, kind), means in found.items():
            lines.append([*([group] if group else []), method, MATCHES[kind], *means.values()])
    first = () if "" in groups else ("scene",)
    return Table(title, (*first, "method", "matches", *statistics()), lines)


def _nested(found: Mapping[Row, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By method, then by kind of matches, as JSON has it."""
    nested: dict[str, dict[str, Any]] = {}
    for (method, kind), values in found.items():
        plain = {key: asdict(value) if isinstance(value, Mean) else value for key, value in values.items()}
        nested.setdefault(method, {})[kind] = plain
    return nested


def _listed(values: NDArray[np.float64]) -> list[float | None]:
    """Rounded, and None where no pose was found, which JSON has no number for."""
    return [round(float(value), 4) if np.isfinite(value) else None for value in values]


def _curves(every: Mapping[Row, Columns], kind: str) -> Curves:
    lines = {
        method: [(float(d), 100 * float((columns["error"] <= d).mean())) for d in _CURVE]
        for (method, kind_), columns in every.items()
        if kind_ == kind
    }
    title = f"Pairs by pose error, {MATCHES[kind]}"
    return Curves(title, f"pose-{kind}", "pose error, degrees", "pairs, %", lines, log_x=True)
