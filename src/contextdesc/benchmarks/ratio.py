"""The ratio threshold of a descriptor: the one whose precision equals SIFT's at 0.80 (the paper's A.3).

Measured on pairs of views that the descriptor was not trained on and of which every match is known to be
right or wrong: two photographs of a reconstructed scene, a photograph and a warped view of it, or images of
a plane. Matches are mutual nearest neighbours that pass the test in both images, as `contextdesc match`
makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.benchmarks.methods import Method, build_method
from contextdesc.benchmarks.protocol import OWN, Protocol, Request
from contextdesc.benchmarks.ratio_views import (
    KEYPOINTS,
    Pairs,
    TwoViews,
    find_units,
    photo_views,
    scene_views,
)
from contextdesc.benchmarks.report import Cell, Curves, Report, Table
from contextdesc.benchmarks.sequences import DISTANCE
from contextdesc.benchmarks.statistics import RESAMPLES, Mean
from contextdesc.detection import Detector
from contextdesc.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.benchmarks.ratio_views import Errors
    from contextdesc.keypoints import Keypoints

__all__ = [
    "Candidates", "TwoViews", "candidates", "choose_ratio", "equal_precision", "mutual_with_ratio",
    "photo_views", "scene_views",
]  # fmt: skip

SIFT_RATIO = 0.80
_CANDIDATES = np.arange(0.50, 1.0001, 0.01)
_SHOWN = slice(0, None, 5)  # of the candidates, in plots

PROTOCOL = Protocol(
    layout="photos/ and scenes/ that the models were trained on, of which those count that every model.json "
    "says were held out; or sequences in the Oxford affine layout or that of HPatches sequences",
    source="the models' cards list the sources of their data; sequences: see heinly and hsequences",
    takes=("methods", "limit", "keypoints", "workers"),
)


@dataclass(frozen=True, eq=False)
class Candidates:
    """Mutual nearest neighbours: their distance over that of the second nearest, and which are right."""

    ratio: NDArray[np.float32]
    right: NDArray[np.bool_]

    def precision(self, threshold: float) -> float:
        kept = self.right[self.ratio <= threshold]
        return float(kept.mean()) if len(kept) else 1.0

    def right_matches(self, threshold: float) -> int:
        return int(self.right[self.ratio <= threshold].sum())


def choose_ratio(views: Iterable[TwoViews], model: str | Path) -> float:
    """The threshold of a model, on views held out from its training."""
    found = candidates(views, {"sift": build_method("sift"), "model": build_method(str(model))})
    return equal_precision(found["sift"], found["model"])


def equal_precision(sift: Candidates, other: Candidates) -> float:
    """The largest threshold at which `other` is at least as precise as SIFT at 0.80."""
    if not len(sift.ratio) or not len(other.ratio):
        raise InputError("no matches to choose a ratio on: give images with more texture")
    precision = np.array([other.precision(r) for r in _CANDIDATES])
    return float(largest_threshold(precision[None], np.array([sift.precision(SIFT_RATIO)]))[0])


def largest_threshold(precision: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """(R,) largest candidate whose precision (R, T) is at least the target (R,), or else the lowest one."""
    good = precision >= target[:, None]
    last = np.where(good.any(1), good.shape[1] - 1 - good[:, ::-1].argmax(1), 0)
    return np.round(_CANDIDATES[last], 2)


def candidates(views: Iterable[TwoViews], methods: Mapping[str, Method]) -> dict[str, Candidates]:
    """Matches of every method on the same keypoints of the same pairs of views."""
    parts: dict[str, list[Candidates]] = {name: [] for name in methods}
    for pair in views:
        if min(map(len, pair.keypoints)) < 2:
            continue
        for name, method in methods.items():
            one, two = (method(i, k, True) for i, k in zip(pair.images, pair.keypoints, strict=True))
            parts[name].append(_matched(one, two, pair.keypoints, pair.errors))
    return {name: _joined(found) for name, found in parts.items()}


def mutual_with_ratio(
    first: NDArray[np.float32], second: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Rows, their mutual nearest neighbours, and the larger of both sides' nearest over second nearest."""
    similarity = first @ second.T
    nearest = similarity.argmax(1)
    rows = np.flatnonzero(similarity.argmax(0)[nearest] == np.arange(len(first)))
    partners = nearest[rows]
    sides = [_ratio(similarity[rows]), _ratio(similarity[:, partners].T)]
    return rows, partners, np.maximum(*sides)


def _ratio(similarity: NDArray[np.float32]) -> NDArray[np.float32]:
    """(N,) of similarities (N, M): distance of the nearest over that of the second nearest."""
    two_best = np.partition(similarity, -2, axis=1)[:, -2:]
    distance = np.sqrt(np.maximum(0, 2 - 2 * two_best))
    return np.asarray(distance[:, 1] / np.maximum(distance[:, 0], 1e-12), np.float32)


def _matched(
    one: NDArray[np.float32],
    two: NDArray[np.float32],
    keypoints: tuple[Keypoints, Keypoints],
    errors: Errors,
) -> Candidates:
    """Matches of the descriptors of two views, two or more in each."""
    rows, partners, ratio = mutual_with_ratio(one, two)
    return Candidates(ratio, errors(keypoints[0].xy[rows], keypoints[1].xy[partners]) <= DISTANCE)


def _joined(found: Sequence[Candidates]) -> Candidates:
    empty = Candidates(np.zeros(0, np.float32), np.zeros(0, np.bool_))
    every = [empty, *found]
    return Candidates(np.concatenate([c.ratio for c in every]), np.concatenate([c.right for c in every]))


@dataclass(frozen=True, eq=False)
class Counts:
    """Matches kept and right ones among them at each threshold (P, T), and possible ones (P,), of P pairs."""

    kept: NDArray[np.int64]
    right: NDArray[np.int64]
    possible: NDArray[np.int64]

    @classmethod
    def of(cls, pairs: Sequence[tuple[Candidates, int]]) -> Counts:
        within = [(found.ratio[:, None] <= _CANDIDATES, found.right) for found, _ in pairs]
        return cls(
            np.array([passed.sum(0) for passed, _ in within]),
            np.array([passed[right].sum(0) for passed, right in within]),
            np.array([possible for _, possible in pairs]),
        )

    def precision(self, weights: NDArray[np.int64]) -> NDArray[np.float64]:
        """(R, T) of all pairs together, each counted as often as its weight (R, P) says."""
        kept, right = weights @ self.kept, weights @ self.right
        return np.where(kept > 0, right / np.maximum(kept, 1), 1.0)

    def recall(self) -> NDArray[np.float64]:
        """(T,) of all pairs together."""
        return np.asarray(self.right.sum(0) / max(1, self.possible.sum()), np.float64)


def run(request: Request) -> Report:
    """Precision and recall by threshold, and the threshold at SIFT's precision, of every method."""
    request, reference = _with_sift(request)
    units = find_units(request)
    named = {name: make for of in units.values() for name, make in of.items()}
    found, skipped = request.each("views", named, score)
    counts = {
        kind: {
            method: Counts.of([pair for name in of if name in found for pair in found[name][method]])
            for method in request.methods
        }
        for kind, of in units.items()
        if any(name in found for name in of)
    }
    if len(counts) > 1:
        counts["all"] = {
            method: _together([of[method] for of in counts.values()]) for method in request.methods
        }
    return report(request, counts, reference, skipped)


def _with_sift(request: Request) -> tuple[Request, str]:
    """The request with SIFT among its methods, and the name that it has there."""
    for name, method in request.methods.items():
        if method.name == "sift":
            return request, name
    name = "sift" + (OWN if request.keypoints == "own" else "")
    return replace(request, methods={name: build_method("sift"), **request.methods}), name


def score(request: Request, make: Callable[[], Pairs]) -> dict[str, list[tuple[Candidates, int]]]:
    """Matches of each pair, and how many right ones there could be, by method."""
    found: dict[str, list[tuple[Candidates, int]]] = {name: [] for name in request.methods}
    for images, truth in make():
        first, second = (request.describe(image, Detector(KEYPOINTS)) for image in images)
        for name, method in request.methods.items():
            one, two = first[name], second[name]
            matched = _joined([])
            if min(len(one.keypoints), len(two.keypoints)) >= 2:
                both = (one.keypoints, two.keypoints)
                matched = _matched(one.descriptors, two.descriptors, both, truth.errors)
            if method.metric == "hamming":
                matched = replace(matched, ratio=matched.ratio**2)
            found[name].append((matched, truth.possible(one.keypoints, two.keypoints)))
    return found


def _together(parts: Sequence[Counts]) -> Counts:
    return Counts(*(np.concatenate([getattr(p, n) for p in parts]) for n in ("kept", "right", "possible")))


def thresholds(sift: Counts, other: Counts, seed: int = 0) -> Mean:
    """The threshold of `other` at SIFT's precision at 0.80, with a 95 % bootstrap interval over pairs."""
    count = len(sift.possible)
    ones = np.ones((1, count), np.int64)
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), RESAMPLES)
    at = int(np.abs(_CANDIDATES - SIFT_RATIO).argmin())

    def found(weights: NDArray[np.int64]) -> NDArray[np.float64]:
        return largest_threshold(other.precision(weights), sift.precision(weights)[:, at])

    low, high = np.percentile(found(drawn), [2.5, 97.5])
    return Mean(float(found(ones)[0]), float(low), float(high))


def summarise(counts: Counts, sift: Counts, used: float) -> dict[str, Any]:
    """Curves of a method, its threshold at SIFT's precision, and what it gets with the one that it has."""
    precision = counts.precision(np.ones((1, len(counts.possible)), np.int64))[0]
    recall = counts.recall()
    threshold = thresholds(sift, counts)

    def at(value: float) -> dict[str, float]:
        nearest = int(np.abs(_CANDIDATES - value).argmin())
        return {"ratio": value, "precision": 100 * precision[nearest], "recall": 100 * recall[nearest]}

    return {
        "pairs": len(counts.possible),
        "equal_precision": asdict(threshold),
        "at_equal_precision": at(threshold.mean),
        "at_own": at(used),
        "at_1": at(1.0),
        "precision": np.round(100 * precision, 3).tolist(),
        "recall": np.round(100 * recall, 3).tolist(),
    }


def report(
    request: Request,
    counts: Mapping[str, Mapping[str, Counts]],
    reference: str,
    skipped: Mapping[str, str],
) -> Report:
    """What `run` found, for people."""
    numbers = {
        kind: {
            method: summarise(found, of[reference], request.methods[method].ratio)
            for method, found in of.items()
        }
        for kind, of in counts.items()
    }
    if any(not of[reference].kept.any() for of in counts.values()):
        raise InputError("no matches to choose a ratio on: give images with more texture")
    head = (
        "method", "pairs", f"ratio at the precision of SIFT's {SIFT_RATIO:.2f}", "precision there, %",
        "recall there, %", "ratio in use", "its precision, %", "its recall, %",
    )  # fmt: skip
    rows: list[list[Cell]] = []
    for kind, of in numbers.items():
        for method, found in of.items():
            chosen, used = found["at_equal_precision"], found["at_own"]
            interval = "{mean:.2f} ({low:.2f} to {high:.2f})".format(**found["equal_precision"])
            rows.append([method, f"{found['pairs']} of {kind}", interval])
            rows[-1] += [chosen["precision"], chosen["recall"], f"{used['ratio']:.2f}"]
            rows[-1] += [used["precision"], used["recall"]]
    last = list(numbers)[-1]
    pairs = {kind: next(iter(of.values()))["pairs"] for kind, of in numbers.items()}
    return Report(
        "ratio",
        "Mutual nearest neighbours that pass the ratio test in both images, by its threshold. The "
        f"{KEYPOINTS} strongest SIFT keypoints, {request.whose_keypoints}; right are matches within "
        f"{DISTANCE} pixels, in scenes of the epipolar line. Recall is of the keypoints that have a partner; "
        "in scenes, where that is not known, of all keypoints, and so too low. The ratio of a method is the "
        f"largest whose precision is that of SIFT at {SIFT_RATIO:.2f} or more, all matches together; its "
        "95 % interval is a bootstrap over pairs, SIFT's precision drawn with it.",
        {
            "keypoints": KEYPOINTS,
            "pairs": pairs,
            "reference": reference,
            "thresholds": np.round(_CANDIDATES, 2).tolist(),
            "methods": numbers,
        },
        [Table("Ratio thresholds", head, rows)],
        curves(numbers[last], np.round(_CANDIDATES, 2).tolist()),
        skipped,
    )


def curves(methods: Mapping[str, Mapping[str, Any]], thresholds: Sequence[float]) -> list[Curves]:
    """Plots of what `summarise` says of the methods."""

    def points(x: Sequence[float], y: Sequence[float]) -> list[tuple[float, float]]:
        return list(zip(x[_SHOWN], y[_SHOWN], strict=True))

    return [
        Curves(
            f"{title} by ratio threshold", title.lower(), "ratio threshold", f"{title.lower()}, %",
            {method: points(thresholds, of[title.lower()]) for method, of in methods.items()},
        )
        for title in ("Precision", "Recall")
    ] + [
        Curves(
            "Precision by recall, thresholds 0.50 to 1.00", "precision-recall", "recall, %", "precision, %",
            {method: points(of["recall"], of["precision"]) for method, of in methods.items()},
        )
    ]  # fmt: skip
