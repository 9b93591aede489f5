"""Repeatability of detectors on planes: which keypoints are found again in another image (the paper's A.6).

A keypoint of the area that both images show is repeated if it has a partner in the other image within 3
pixels of its warped place, measured in both images, each keypoint being the partner of one other at most.
Repeatability is the share of repeated keypoints among those of both images. Methods stand for their
detectors: a model for its matchability, run densely; SIFT and RootSIFT for SIFT; others for their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.benchmarks.cache import key_of, pixels_of
from contextdesc.benchmarks.methods import Method, build_method
from contextdesc.benchmarks.protocol import Protocol, Request, Setting
from contextdesc.benchmarks.ratio_views import model_of
from contextdesc.benchmarks.report import Cell, Curves, Report, Table
from contextdesc.benchmarks.sequences import (
    EITHER_LAYOUT,
    EITHER_SOURCE,
    Layout,
    find_any_sequences,
    read_sequence,
    warp,
)
from contextdesc.benchmarks.statistics import Difference, Mean, bootstrap, difference
from contextdesc.dense import RADIUS, STRIDE, MatchabilityDetector
from contextdesc.detection import Detector
from contextdesc.keypoints import DEFAULT_SIZE, Keypoints
from contextdesc.model import load

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.image import Image

PROTOCOL = Protocol(
    layout=EITHER_LAYOUT,
    source=EITHER_SOURCE,
    takes=("methods", "limit", "baseline", "workers"),
    settings=(
        Setting("contrast", 0.0067, "SIFT's contrast threshold, so that it finds enough keypoints"),
        Setting("descriptor", "rootsift", "method that describes the keypoints of all detectors"),
    ),
)
COUNTS = (512, 1024, 2048)  # strongest keypoints of an image
PIXELS = (1, 2, 3, 4, 5)  # largest distances of partners
EPSILON = 3  # the one in the tables
RANDOM = "random places"  # what chance gives
_MOST_COLUMNS = 12  # sequences that a table has room for


@dataclass(frozen=True)
class Scores:
    """Percent, of one pair or mean of the pairs of a sequence.

    Attributes:
        repeatability: by number of keypoints asked for (`COUNTS`) and by distance of partners (`PIXELS`).
        matching: right mutual nearest neighbours among the keypoints of both images, by `COUNTS`.
        keypoints: found in an image, by `COUNTS`.
    """

    repeatability: list[list[float]]
    matching: list[float]
    keypoints: list[float]


def run(request: Request) -> Report:
    """Repeatability and matching of every detector by sequence."""
    units = request.limited(find_any_sequences(request.data))
    detectors(request)  # so that a model without a detector is told at once
    scores, skipped = request.each("sequences", units, score)
    return _report(request, scores, skipped)


def score(request: Request, unit: tuple[Path, Layout]) -> dict[str, Scores]:
    """Scores of a sequence by detector."""
    sequence = read_sequence(*unit)
    images, descriptor = sequence.images, _built(str(request.setting("descriptor", PROTOCOL)))
    scores = {}
    for name, detect in detectors(request).items():
        keypoints = [detect(image) for image in images]
        described = [descriptor(image, k, True) for image, k in zip(images, keypoints, strict=True)]
        pairs = []
        for j, homography in enumerate(sequence.homographies, 1):
            sides = [(images[i].size, keypoints[i].xy, described[i]) for i in (0, j)]
            pairs.append(score_pair(sides, homography, descriptor))
        scores[name] = Scores(
            np.mean([pair.repeatability for pair in pairs], axis=0).tolist(),
            np.mean([pair.matching for pair in pairs], axis=0).tolist(),
            [float(np.mean([len(k[:count]) for k in keypoints])) for count in COUNTS],
        )
    return scores


def score_pair(
    sides: Sequence[tuple[tuple[int, int], NDArray[np.float32], NDArray[np.float32]]],
    homography: NDArray[np.float64],
    descriptor: Method,
) -> Scores:
    """Scores of two images, of each its size, keypoints (N, 2), strongest first, and their descriptors."""
    (first_size, first, first_descriptors), (second_size, second, second_descriptors) = sides
    seen = shared_area(first, second, homography, (first_size, second_size))
    repeatability, matching = [], []
    for count in COUNTS:
        one, two = np.flatnonzero(seen[0][:count]), np.flatnonzero(seen[1][:count])
        total = max(1, len(one) + len(two))
        partners = partner_distances(first[one], second[two], homography, max(PIXELS))
        repeatability.append([200.0 * int((partners <= pixels).sum()) / total for pixels in PIXELS])
        rows = descriptor.match(first_descriptors[one], second_descriptors[two]).indices
        apart = transfer_distances(first[one[rows[:, 0]]], second[two[rows[:, 1]]], homography)
        matching.append(200.0 * int((apart <= EPSILON).sum()) / total)
    return Scores(repeatability, matching, [])


def shared_area(
    first: NDArray[np.float32],
    second: NDArray[np.float32],
    homography: NDArray[np.float64],
    sizes: tuple[tuple[int, int], tuple[int, int]],
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which keypoints (N, 2) and (M, 2) of two images of some sizes (width, height) the other image shows."""

    def inside(xy: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.bool_]:
        return np.asarray(((xy >= 0) & (xy <= np.array(size) - 1)).all(1))

    return inside(warp(first, homography), sizes[1]), inside(warp(second, _inverse(homography)), sizes[0])


def transfer_distances(
    first: NDArray[np.float32], second: NDArray[np.float32], homography: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(N,) pixels: the larger of the distances of points (N, 2) in the second and in the first image."""
    forward = np.linalg.norm(warp(first, homography) - second, axis=1)
    back = np.linalg.norm(warp(second, _inverse(homography)) - first, axis=1)
    return np.asarray(np.maximum(forward, back))


def partner_distances(
    first: NDArray[np.float32], second: NDArray[np.float32], homography: NDArray[np.float64], limit: float
) -> NDArray[np.float64]:
    """Distances of partners, one-to-one: the closest two are the first, then the closest of the others, ...

    So the partners within a smaller limit are among those within a larger one.
    """
    i, j = _near(warp(first, homography), second, limit)
    apart = transfer_distances(first[i], second[j], homography)
    free = np.ones(len(first), np.bool_), np.ones(len(second), np.bool_)
    partners = []
    for index in np.argsort(apart, kind="stable"):
        if apart[index] > limit:
            break
        if free[0][i[index]] and free[1][j[index]]:
            free[0][i[index]] = free[1][j[index]] = False
            partners.append(apart[index])
    return np.array(partners, np.float64)


def _near(
    first: NDArray[np.float64], second: NDArray[np.float32], limit: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of points (N, 2) and (M, 2) whose x differ by at most `limit`."""
    order = np.argsort(first[:, 0], kind="stable")
    low = np.searchsorted(first[order, 0], second[:, 0] - limit)
    high = np.searchsorted(first[order, 0], second[:, 0] + limit, "right")
    places = [np.arange(a, b) for a, b in zip(low, high, strict=True)]
    return order[np.concatenate([np.zeros(0, np.int64), *places])], np.repeat(
        np.arange(len(second)), high - low
    )


def _inverse(homography: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.linalg.inv(homography), np.float64)


def detectors(request: Request) -> dict[str, Callable[[Image], Keypoints]]:
    """Detectors of the methods by name, one that several methods share once; and random places."""
    found = {label(method): _detector(request, method) for method in request.methods.values()}
    return found | {RANDOM: _random}


def label(method: Method) -> str:
    """The name of a method's detector in tables."""
    if model_of(method.name) is not None:
        return f"{method.name}, matchability"
    return "sift" if method.extract is None else method.name


def _detector(request: Request, method: Method) -> Callable[[Image], Keypoints]:
    model = model_of(method.name)
    if model is not None:
        return partial(_matchability, request, method, _dense(model[0], method.threads))
    settings = Detector(None, contrast=float(request.setting("contrast", PROTOCOL)))
    if method.extract is None:
        return lambda image: distinct(request.detect(image, settings))
    return lambda image: distinct(method.own(image, settings).keypoints)


def distinct(keypoints: Keypoints) -> Keypoints:
    """The strongest keypoints, strongest first, each place once: several orientations are one detection."""
    ranked = keypoints[np.argsort(-keypoints.response, kind="stable")]
    return ranked[np.sort(np.unique(ranked.xy, axis=0, return_index=True)[1])][: max(COUNTS)]


def _matchability(
    request: Request, method: Method, detector: MatchabilityDetector, image: Image
) -> Keypoints:
    def compute() -> Mapping[str, NDArray[Any]]:
        return vars(detector.detect(image, max(COUNTS)))

    if request.cache is None or method.identity is None:
        return Keypoints(**compute())
    key = key_of("matchability", pixels_of(image), method.identity, max(COUNTS))
    return Keypoints(**request.cache.fetch(key, compute))


def _random(image: Image) -> Keypoints:
    rng = np.random.default_rng([*image.size, int(image.gray.sum())])  # other places in every image
    xy = rng.uniform(0, np.array(image.size) - 1, (max(COUNTS), 2))
    return Keypoints.from_array(np.column_stack([xy, np.full(len(xy), DEFAULT_SIZE), np.zeros(len(xy))]))


@cache
def _dense(model: Path, threads: int) -> MatchabilityDetector:
    return MatchabilityDetector(load(model), threads)


@cache
def _built(name: str) -> Method:
    return build_method(name)


def kinds(names: Sequence[str]) -> dict[str, list[str]]:
    """Sequences by kind: those of HPatches by illumination and viewpoint, others all together."""
    if not all(name.startswith(("i_", "v_")) for name in names):
        return {"all": list(names)}
    found = {"illumination": "i_", "viewpoint": "v_"}
    of = {kind: [name for name in names if name.startswith(prefix)] for kind, prefix in found.items()}
    return {kind: members for kind, members in of.items() if members}


def _columns(scores: Sequence[Scores]) -> dict[str, list[float]]:
    """What stands in the table: title, to a value per sequence."""
    found = {
        f"repeatability, {count}": [s.repeatability[i][PIXELS.index(EPSILON)] for s in scores]
        for i, count in enumerate(COUNTS)
    }
    return found | {f"matching, {max(COUNTS)}": [s.matching[-1] for s in scores]}


def _report(
    request: Request, scores: Mapping[str, Mapping[str, Scores]], skipped: Mapping[str, str]
) -> Report:
    names, groups = list(detectors(request)), kinds(list(scores))
    by_kind = {
        kind: {name: [scores[sequence][name] for sequence in members] for name in names}
        for kind, members in groups.items()
    }
    summary = {
        kind: {name: {t: bootstrap(v) for t, v in _columns(of).items()} for name, of in found.items()}
        for kind, found in by_kind.items()
    }
    numbers: dict[str, Any] = {
        "counts": list(COUNTS),
        "pixels": list(PIXELS),
        "epsilon": EPSILON,
        "summary": _plain(summary),
        "sequences": {
            sequence: {name: _plain(asdict(found)) for name, found in of.items()}
            for sequence, of in scores.items()
        },
    }
    cells: dict[str, dict[str, dict[str, Cell]]] = {
        kind: {
            name: {**summary[kind][name], "keypoints found": round(np.mean([s.keypoints[-1] for s in of]))}
            for name, of in found.items()
        }
        for kind, found in by_kind.items()
    }
    tables = [_table("Repeatability and matching, %", cells, groups)]
    if request.baseline is not None:
        base = label(request.methods[request.baseline])
        gains = {kind: _gains(of, base) for kind, of in by_kind.items()}
        title = f"Difference from {base}, paired, with 95 % intervals"
        tables.append(_table(title, gains, groups))
        numbers |= {"baseline": base, "difference": _plain(gains)}
    if len(scores) <= _MOST_COLUMNS:
        rows: list[list[Cell]] = [
            [name, *(of[name].repeatability[-1][PIXELS.index(EPSILON)] for of in scores.values())]
            for name in names
        ]
        tables.append(Table(f"Repeatability by sequence, {max(COUNTS)}", ("detector", *scores), rows))
    return Report(
        "repeatability",
        f"Keypoints of the area that both images show which have a partner within {EPSILON} pixels in both "
        "images, one-to-one, among those of both, in percent. Matching: those whose mutual nearest neighbour "
        f"by {request.setting('descriptor', PROTOCOL)} is right. Of the {', '.join(map(str, COUNTS))} "
        "strongest keypoints of an image; mean of the pairs of a sequence, then over sequences with a 95 % "
        f"bootstrap interval. SIFT at contrast {request.setting('contrast', PROTOCOL)}, orientations at one "
        f"place being one keypoint; matchability at one scale, a score every {STRIDE} pixels, at least "
        f"{RADIUS} pixels apart, without orientation. Random places show what chance gives.",
        numbers,
        tables,
        [_curves(kind, of) for kind, of in by_kind.items()],
        skipped,
    )


def _gains(scores: Mapping[str, Sequence[Scores]], base: str) -> dict[str, dict[str, Difference]]:
    """Differences of the other detectors from one of them."""
    before = _columns(scores[base])
    return {
        name: {title: difference(values, before[title]) for title, values in _columns(of).items()}
        for name, of in scores.items()
        if name != base
    }


def _table(
    title: str, found: Mapping[str, Mapping[str, Mapping[str, Cell]]], groups: Mapping[str, Sequence[str]]
) -> Table:
    """A row per kind of sequences and detector."""
    rows: list[list[Cell]] = [
        [name, f"{len(groups[kind])} {kind}", *cells.values()]
        for kind, of in found.items()
        for name, cells in of.items()
    ]
    first = next(iter(next(iter(found.values())).values()))
    return Table(title, ("detector", "sequences", *first), rows)


def _curves(kind: str, scores: Mapping[str, Sequence[Scores]]) -> Curves:
    lines = {
        name: [
            (float(pixels), float(np.mean([s.repeatability[-1][i] for s in of])))
            for i, pixels in enumerate(PIXELS)
        ]
        for name, of in scores.items()
    }
    return Curves(
        f"Repeatability by distance, {kind}, {max(COUNTS)} keypoints", f"repeatability-{kind}",
        "largest distance of partners, pixels", "repeated keypoints, %", lines,
    )  # fmt: skip


def _plain(values: Any) -> Any:
    """The same for JSON, numbers with three decimals."""
    if isinstance(values, Mean):
        return _plain(asdict(values))
    if isinstance(values, dict):
        return {key: _plain(value) for key, value in values.items()}
    return [_plain(value) for value in values] if isinstance(values, list) else round(values, 3)
