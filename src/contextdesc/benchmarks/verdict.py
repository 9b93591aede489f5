"""Calibration of the verdict: pairs of images with known answer in, coefficients and error rates out.

Pairs are of scenes and photographs that a model was not trained on. Two images show the same thing if they
share at least 30 tracks. Pairs of different things are of two scenes, at random and those with most matches;
the two halves of one image; and an image and the mirror image of one of the same scene. Many are cut,
shrunk, blurred, turned or have few keypoints, so that pairs with few inliers are well represented.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import cv2
import numpy as np

from contextdesc.errors import InputError
from contextdesc.formats.atomic import replacing
from contextdesc.geometry import Geometry, Verification, intrinsics, verify
from contextdesc.image import Image, find_images, read
from contextdesc.keypoints import Keypoints
from contextdesc.matching import match_descriptors
from contextdesc.model import ContextDesc
from contextdesc.progress import progress
from contextdesc.rotation import TURNS, Base, Matched, Turn, match_rotated, turned_image, turned_keypoints
from contextdesc.training.data.homography import HomographyConfig, photometric
from contextdesc.training.data.scene_pairs import find_scenes
from contextdesc.training.data.scenes import Scene
from contextdesc.verdict import MIN_KEYPOINTS, Answer, Calibration, measure

if TYPE_CHECKING:
    from numpy.typing import NDArray

Kind = Literal["whole", "changed", "mirrored", "left", "right"]

GEOMETRIES: tuple[Geometry, ...] = ("fundamental", "homography", "essential")
MIN_TRACKS = 30  # that two images of the same thing share
SAME_AT_MOST = 0.01  # of the pairs of two scenes, called `same scene`
DIFFERENT_AT_MOST = 0.10  # of the pairs of the same thing, called `different scenes`
SURE = 0.8  # no threshold is less sure of its answer than this
BUDGETS = {"whole": 2048, "changed": 1024, "mirrored": 1024, "left": 512, "right": 512}  # keypoints
FEW = (128, 1024)  # keypoints, log-uniform: of pairs with few
GUESSED_FOCAL = 1.2  # over the longer side, where the camera is not known
RIDGE = 0.1  # penalty of standardised coefficients, in pairs
GROUPS = 4  # of photographs, each held out together in cross-validation

# Share of the pairs of different things; those of the same thing weigh alike by scene. Mirror images are
# reported, but not fitted: that of a symmetric building is the building, as far as matches can tell. Two
# halves of a facade are fitted, but no threshold would keep them to a stated rate.
HALVES = "two halves"
SHARES = {"two scenes": 0.7, "two scenes, most matches": 0.2, HALVES: 0.1, "mirrored": 0.0}


@dataclass(frozen=True)
class Size:
    """How many images and pairs a calibration takes."""

    scene_images: int = 5  # of each scene
    halved: int = 3  # of those, also as halves and mirrored
    photos: int = 16
    random_pairs: int = 160  # of two scenes; half of them of changed images
    hard_pairs: int = 80  # of two scenes: those with most matches


DEFAULT_SIZE = Size()


@dataclass(frozen=True, eq=False)
class View:
    """An image, or what was made of it.

    Attributes:
        group: scene or group of photographs, held out together.
        source: path of the image.
        kind: what was made of it.
        to_view: (2, 3) float64, pixels of the image to pixels of the view.
        image: the view.
        seen: (T,) int32, tracks inside of the view.
    """

    group: str
    source: Path
    kind: Kind
    to_view: NDArray[np.float64]
    image: Image
    seen: NDArray[np.int32]

    @property
    def name(self) -> str:
        return f"{self.group}/{self.source.name}: {self.kind}"


@dataclass(frozen=True)
class PairPlan:
    """Two views to be matched: rows of the views, keypoints of each at most, turn of the second."""

    first: int
    second: int
    kind: str
    same: bool
    budget: int
    turn: Turn = 0


@dataclass(frozen=True, eq=False)
class Prepared:
    """A model's views, what it made of them, and the pairs to match."""

    model: ContextDesc
    views: list[View]
    bases: list[Base]
    plans: list[PairPlan]


@dataclass(frozen=True, eq=False)
class Evidence:
    """P pairs as the verdict sees them.

    Attributes:
        features: by geometry, (P, 7) float64; see `contextdesc.verdict.measure`.
        inliers: by geometry, (P,) int64.
        same: (P,) bool, the known answer.
        kind: (P,) what a pair is.
        groups: (P, 2) scenes or groups of photographs of both images.
    """

    features: dict[str, NDArray[np.float64]]
    inliers: dict[str, NDArray[np.int64]]
    same: NDArray[np.bool_]
    kind: NDArray[np.str_]
    groups: NDArray[np.str_]

    def weights(self) -> NDArray[np.float64]:
        """(P,): half for pairs of the same thing, alike by scene, and half for the others, by `SHARES`."""
        weights = np.zeros(len(self.same))
        scenes = np.unique(self.groups[self.same, 0])
        cells = [(self.same & (self.groups[:, 0] == scene), 1 / len(scenes)) for scene in scenes]
        present = {kind: ~self.same & (self.kind == kind) for kind in SHARES}
        total = sum(SHARES[kind] for kind, rows in present.items() if rows.any())
        cells += [(rows, SHARES[kind] / total) for kind, rows in present.items() if rows.any()]
        for rows, share in cells:
            weights[rows] = 0.5 * share / rows.sum()
        return weights

    @classmethod
    def joined(cls, parts: Sequence[Evidence]) -> Evidence:
        """The pairs of several models."""
        return cls(
            {g: np.concatenate([p.features[g] for p in parts]) for g in GEOMETRIES},
            {g: np.concatenate([p.inliers[g] for p in parts]) for g in GEOMETRIES},
            np.concatenate([p.same for p in parts]),
            np.concatenate([p.kind for p in parts]),
            np.concatenate([p.groups for p in parts]),
        )


@dataclass(frozen=True, eq=False)
class Fit:
    """A calibration, and for each pair the probability by one that saw neither of its scenes, (P,)."""

    calibration: Calibration
    held_out: NDArray[np.float64]


def prepare(
    model: ContextDesc, data: Path, cache: Path, size: Size = DEFAULT_SIZE, quiet: bool = True
) -> Prepared:
    """Describe what a model says it never saw, and choose the pairs.

    Args:
        data: with `scenes/` and `photos/`.
        cache: folder for base descriptors, which take most of the time.
    """
    views = list(held_out_views(model, data, size))
    bases = []
    with progress(f"{model.spec.name}: views", len(views), quiet=quiet) as advance:
        for view in views:
            bases.append(described(model, view, cache))
            advance()
    return Prepared(model, views, bases, plan(views, bases, size))


def collect(prepared: Prepared, quiet: bool = True) -> Evidence:
    """Match and verify the pairs."""
    features: dict[str, list[NDArray[np.float64]]] = {geometry: [] for geometry in GEOMETRIES}
    inliers: dict[str, list[int]] = {geometry: [] for geometry in GEOMETRIES}
    plans, views = prepared.plans, prepared.views
    with progress(f"{prepared.model.spec.name}: pairs", len(plans), quiet=quiet) as advance:
        for pair in plans:
            for geometry, result in verified(prepared, pair).items():
                features[geometry].append(_measured(result))
                inliers[geometry].append(result.inlier_count)
            advance()
    return Evidence(
        {geometry: np.array(rows) for geometry, rows in features.items()},
        {geometry: np.array(counts) for geometry, counts in inliers.items()},
        np.array([pair.same for pair in plans]),
        np.array([pair.kind for pair in plans]),
        np.array([[views[pair.first].group, views[pair.second].group] for pair in plans]),
    )


def turning(prepared: Prepared, pairs: int = 24) -> list[dict[str, float]]:
    """What `auto` brings: pairs of whole images of the same thing, the second turned by each quarter.

    By turn: medians of the inliers and shares of `same scene` with rotate `none` and `auto`, and how many
    turns `auto` tried, 0 included.
    """
    whole = [pair for pair in prepared.plans if pair.kind == "whole images"]
    chosen = [whole[i] for i in np.random.default_rng(0).permutation(len(whole))[:pairs]]
    rows = []
    for turn in TURNS:
        both: dict[str, list[Matched]] = {"none": [], "auto": []}
        for pair in chosen:
            first, second = prepared.bases[pair.first], turned(prepared.bases[pair.second], turn)
            both["none"].append(match_rotated(prepared.model, first, second, "none"))
            both["auto"].append(match_rotated(prepared.model, first, second, "auto"))
        row: dict[str, float] = {"turned": turn, "pairs": len(chosen)}
        for name, found in both.items():
            row[f"inliers, {name}"] = float(np.median([f.result.inlier_count for f in found]))
        for name, found in both.items():
            row[f"same scene, {name}"] = float(np.mean([f.result.verdict == "same scene" for f in found]))
        row["turns tried"] = float(np.mean([len(f.tried) for f in both["auto"]]))
        rows.append(row)
    return rows


def held_out_views(model: ContextDesc, data: Path, size: Size) -> Iterator[View]:
    """Views of the images that a model was not trained on, by its `model.json`."""
    spec = model.spec
    names, count = spec.training.get("held_out_scenes", []), spec.training.get("held_out", 0)
    folders = {folder.name: folder for folder in find_scenes(data / "scenes")}
    missing = [name for name in names if name not in folders]
    if not names or not count or missing:
        lacks = ", ".join(missing) or "anything"
        raise InputError(f"{data}: lacks {lacks} that {spec.name} was not trained on, by its model.json")
    for name in names:
        scene = Scene.load(folders[name])
        rng = np.random.default_rng(_seed(name))
        chosen = np.sort(rng.permutation(len(scene))[: size.scene_images]).tolist()
        for rank, index in enumerate(chosen):
            kinds: list[Kind] = ["whole", "changed"]
            kinds += ["mirrored", "left", "right"] if rank < size.halved else []
            focal = float(scene.intrinsics[index, 0, 0])
            keypoints, tracks = scene.keypoints(index)
            for kind in kinds:
                yield make_view(name, scene.path(index), kind, focal, keypoints.xy, tracks)
    photos = list(find_images([data / "photos"]).values())[-count:][: size.photos]
    nothing = np.zeros((0, 2), np.float32), np.zeros(0, np.int32)
    for number, path in enumerate(photos):
        for kind in ("whole", "left", "right"):
            yield make_view(f"photos {number % GROUPS}", path, kind, None, *nothing)


def make_view(
    group: str,
    source: Path,
    kind: Kind,
    focal: float | None,
    xy: NDArray[np.float32],
    tracks: NDArray[np.int32],
) -> View:
    """One view of an image file, with the tracks (T,) whose observations (T, 2) lie inside of it."""
    image = read(source)
    rng = np.random.default_rng(_seed(f"{group}/{source.name}"))
    rgb, to_view = _CHANGES[kind](image.rgb, rng)
    zoom = np.sqrt(abs(np.linalg.det(to_view[:, :2])))
    focal = (focal or GUESSED_FOCAL * max(image.size)) * float(zoom)
    size = (rgb.shape[1], rgb.shape[0])
    placed = xy @ to_view[:, :2].T + to_view[:, 2]
    inside = ((placed >= 0) & (placed <= np.array(size) - 1)).all(1)
    return View(group, source, kind, to_view, Image(rgb, size, source.name, focal), np.unique(tracks[inside]))


def described(model: ContextDesc, view: View, cache: Path) -> Base:
    """Keypoints and base descriptors of a view, out of the cache if they are in it."""
    key = hashlib.sha256(f"{model.checksum}/{BUDGETS[view.kind]}/{view.image.rgb.shape}".encode())
    key.update(view.image.rgb.tobytes())
    path = cache / f"{key.hexdigest()[:24]}.npz"
    if not path.is_file():
        budget = replace(model.detector, max_keypoints=BUDGETS[view.kind])
        base = Base.of(model, view.image, budget)
        arrays: dict[str, Any] = {**vars(base.keypoints), "raw": base.raw}
        if base.score is not None:
            arrays["score"] = base.score
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)
    with np.load(path) as stored:
        found = Keypoints(*(stored[name] for name in ("xy", "size", "angle", "response")))
        score = stored.get("score")
        return Base(model, view.image, found, stored["raw"], score)


def plan(views: Sequence[View], bases: Sequence[Base], size: Size) -> list[PairPlan]:
    """Which pairs are matched, and how."""
    rng = np.random.default_rng(0)
    few = partial(_few, rng)
    pairs = []
    for i, j in _same_things(views):
        kinds = {views[i].kind, views[j].kind}
        if kinds == {"whole"}:
            pairs.append(PairPlan(i, j, "whole images", True, BUDGETS["whole"]))
            pairs.append(PairPlan(i, j, "few keypoints", True, few()))
            if rng.random() < 0.5:
                pairs.append(PairPlan(i, j, "turned", True, BUDGETS["whole"], TURNS[rng.integers(1, 4)]))
        elif kinds == {"changed"}:
            pairs.append(PairPlan(i, j, "both changed", True, BUDGETS["changed"]))
        elif kinds == {"whole", "changed"} and rng.random() < 0.5:
            pairs.append(PairPlan(i, j, "one changed", True, BUDGETS["whole"]))
    different = [(i, j, "two scenes") for i, j in _random_different(views, rng, size.random_pairs)]
    different += [(i, j, "two scenes, most matches") for i, j in _hardest(views, bases, size.hard_pairs)]
    for i, one in enumerate(views):
        for j, two in enumerate(views):
            if (one.kind, two.kind) == ("left", "right") and one.source == two.source:
                different.append((i, j, HALVES))
            if (
                (one.kind, two.kind) == ("whole", "mirrored")
                and one.group == two.group
                and rng.random() < 0.4
            ):
                different.append((i, j, "mirrored"))
    for i, j, kind in different:
        budget = few() if rng.random() < 0.3 else BUDGETS["whole"]
        turn = TURNS[rng.integers(4)] if rng.random() < 0.2 else 0
        pairs.append(PairPlan(i, j, kind, False, budget, turn))
    enough = [len(base.keypoints) >= MIN_KEYPOINTS for base in bases]  # the others have no verdict
    return [pair for pair in pairs if enough[pair.first] and enough[pair.second]]


def verified(prepared: Prepared, pair: PairPlan) -> dict[Geometry, Verification]:
    """The pair matched as `contextdesc match` would, and verified with each geometry.

    The turn is the one that the fundamental matrix chose.
    """
    first = within(prepared.bases[pair.first], pair.budget)
    second = turned(within(prepared.bases[pair.second], pair.budget), pair.turn)
    found = match_rotated(prepared.model, first, second)
    cameras = [intrinsics(side.image.size, side.image.focal or 1.0) for side in (first, second)]
    results: dict[Geometry, Verification] = {"fundamental": found.result}
    for geometry in GEOMETRIES[1:]:
        results[geometry] = verify(
            *found.features, found.matches, geometry, intrinsics=(cameras[0], cameras[1])
        )
    return results


def within(base: Base, budget: int) -> Base:
    """The strongest keypoints alone."""
    rows = np.arange(min(budget, len(base.keypoints)))
    score = None if base.score is None else base.score[rows]
    return replace(base, keypoints=base.keypoints[rows], raw=base.raw[rows], score=score)


def turned(base: Base, turn: Turn) -> Base:
    """What `Base.of` would make of the turned image, up to the rounding of its keypoints."""
    keypoints = turned_keypoints(base.keypoints, base.image.size, turn)
    grids = {(made - turn) % 360: grid for made, grid in base.grids.items()}
    return replace(base, image=turned_image(base.image, turn), keypoints=keypoints, grids=grids)


def cross_validated(evidence: Evidence, geometry: Geometry) -> Fit:
    """Fit on all pairs; and for the error rates, each pair by a fit without the scenes of its two images."""
    features, weights = evidence.features[geometry], evidence.weights()
    held_out = np.zeros(len(features))
    codes = np.array(["\n".join(sorted(set(pair))) for pair in evidence.groups.tolist()])
    for code in np.unique(codes):
        rows = codes == code
        others = ~np.isin(evidence.groups, code.split("\n")).any(1)
        fitted = fit(features[others], evidence.same[others], weights[others])
        held_out[rows] = fitted.probability(features[rows])
    same_from, different_below = thresholds(held_out, evidence.same, weights * (evidence.kind != HALVES))
    final = fit(features, evidence.same, weights)
    return Fit(replace(final, same_from=same_from, different_below=different_below), held_out)


def fit(features: NDArray[np.float64], same: NDArray[np.bool_], weights: NDArray[np.float64]) -> Calibration:
    """Logistic regression, both answers equally likely before; no coefficient is negative.

    So more evidence never lowers the probability. Features that would have a negative coefficient are left
    out, the most negative first.

    Args:
        features: (P, F).
        same: (P,) bool.
        weights: (P,), scaled so that both answers weigh half.
    """
    if same.all() or not same.any():
        raise InputError("a verdict is fitted on pairs of the same thing and on pairs of different things")
    weights = np.where(same, weights / weights[same].sum(), weights / weights[~same].sum()) * len(same) / 2
    mean, scale = features.mean(0), np.maximum(features.std(0), 1e-9)
    inputs = np.column_stack([np.ones(len(features)), (features - mean) / scale])
    kept = np.arange(inputs.shape[1])
    beta = _newton(inputs, same, weights)
    while len(kept) > 1 and beta[1:].min() < 0:
        kept = np.delete(kept, 1 + beta[1:].argmin())
        beta = _newton(inputs[:, kept], same, weights)
    standardised = np.zeros(inputs.shape[1])
    standardised[kept] = beta
    coefficients = standardised[1:] / scale
    return Calibration(float(beta[0] - coefficients @ mean), tuple(map(float, coefficients)), 1.0, 0.0)


def _newton(
    inputs: NDArray[np.float64], same: NDArray[np.bool_], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Coefficients (F,) of inputs (P, F), the first of which are ones; the others are penalised."""
    penalty = np.diag([0.0] + [RIDGE] * (inputs.shape[1] - 1))
    beta = np.zeros(inputs.shape[1])
    for _ in range(100):
        probability = 1 / (1 + np.exp(-np.clip(inputs @ beta, -30, 30)))
        gradient = inputs.T @ (weights * (same - probability)) - penalty @ beta
        curvature = (inputs * (weights * probability * (1 - probability))[:, None]).T @ inputs + penalty
        step = np.linalg.solve(curvature + 1e-9 * np.eye(len(beta)), gradient)
        beta += step * min(1.0, 5 / max(np.abs(step).max(), 1e-9))
        if np.abs(step).max() < 1e-8:
            break
    return beta


def thresholds(
    probability: NDArray[np.float64], same: NDArray[np.bool_], weights: NDArray[np.float64]
) -> tuple[float, float]:
    """The lowest `same_from` and the highest `different_below` that keep to the stated error rates."""
    steps = np.arange(1, 100) / 100
    wrong_same = [_share(probability >= p, ~same, weights) for p in steps]
    wrong_different = [_share(probability < p, same, weights) for p in steps]
    same_from = min((p for p, w in zip(steps, wrong_same, strict=True) if w <= SAME_AT_MOST), default=0.99)
    below = max(
        (p for p, w in zip(steps, wrong_different, strict=True) if w <= DIFFERENT_AT_MOST), default=0.01
    )
    return round(float(max(same_from, SURE)), 2), round(float(min(below, 1 - SURE)), 2)


def answers(
    values: NDArray[np.float64] | NDArray[np.int64], same_from: float, different_below: float
) -> NDArray[np.str_]:
    """(P,) of the three answers, by probability or by inliers."""
    return np.select(
        [values >= same_from, values < different_below], ["same scene", "different scenes"], "unsure"
    )


def rates(evidence: Evidence, answers: NDArray[np.str_]) -> dict[str, dict[str, float | int]]:
    """By kind of pair: how many, and the shares of the three answers; over all kinds by their weights."""
    same, kind, alike = evidence.same, evidence.kind, np.ones(len(evidence.same))
    table: dict[str, dict[str, float | int]] = {}
    for of, side in (("same", same), ("different", ~same)):
        rows = {
            f"{of}: {name}": (side & (kind == name), alike) for name in dict.fromkeys(kind[side].tolist())
        }
        rows[f"{of}: all, weighted"] = (side, evidence.weights())
        for name, (among, by) in rows.items():
            table[name] = {"pairs": int(among.sum())}
            for answer in get_args(Answer):
                table[name][answer] = _share(answers == answer, among, by)
    return table


def reliability(
    probability: NDArray[np.float64], same: NDArray[np.bool_], weights: NDArray[np.float64], bins: int = 10
) -> list[dict[str, float | int]]:
    """By bin of probability: its mean, the weighted share that is the same thing, and the number of pairs."""
    which = np.minimum((probability * bins).astype(int), bins - 1)
    table = []
    for b in range(bins):
        rows = (which == b) & (weights > 0)
        if rows.any():
            by = weights[rows]
            table.append({
                "from": b / bins, "to": (b + 1) / bins, "pairs": int(rows.sum()),
                "probability": float(np.average(probability[rows], weights=by)),
                "same": float(np.average(same[rows], weights=by)), "weight": float(by.sum()),
            })  # fmt: skip
    return table


def calibration_error(table: Sequence[Mapping[str, float]]) -> float:
    """Mean distance of a bin's probability and its share of pairs of the same thing, by weight."""
    total = sum(row["weight"] for row in table)
    return sum(row["weight"] * abs(row["probability"] - row["same"]) for row in table) / total


def _measured(result: Verification) -> NDArray[np.float64]:
    assert result.facts is not None  # of verify
    assert result.errors is not None
    return measure(result.points, result.inliers, result.errors, result.facts)


def _share(chosen: NDArray[np.bool_], among: NDArray[np.bool_], weights: NDArray[np.float64]) -> float:
    return float(weights[chosen & among].sum() / weights[among].sum())


def _same_things(views: Sequence[View]) -> list[tuple[int, int]]:
    return [
        (i, j)
        for i, one in enumerate(views)
        for j, two in enumerate(views)
        if one.group == two.group and one.source < two.source
        and len(np.intersect1d(one.seen, two.seen, assume_unique=True)) >= MIN_TRACKS
    ]  # fmt: skip


def _random_different(views: Sequence[View], rng: np.random.Generator, count: int) -> list[tuple[int, int]]:
    """Pairs of two scenes, half of them of whole images and half of changed ones or halves."""
    found: dict[tuple[int, int], None] = {}
    pools = [[i for i, v in enumerate(views) if (v.kind == "whole") == whole] for whole in (True, False)]
    while len(found) < count:
        pool = pools[len(found) % 2]
        i, j = sorted(rng.choice(pool, 2, replace=False).tolist())
        if _different(views[i], views[j]):
            found[i, j] = None
    return list(found)


def _hardest(views: Sequence[View], bases: Sequence[Base], count: int) -> list[tuple[int, int]]:
    """Pairs of whole images of two scenes whose 256 strongest keypoints have most matches."""
    whole = [i for i, view in enumerate(views) if view.kind == "whole"]
    strongest = {i: within(bases[i], 256).features() for i in whole}
    scored = []
    for i in whole:
        for j in whole:
            if i < j and _different(views[i], views[j]):
                one, two = strongest[i], strongest[j]
                scored.append((len(match_descriptors(one.descriptors, two.descriptors, one.ratio)), i, j))
    scored.sort(key=lambda row: -row[0])
    return [(i, j) for _, i, j in scored[:count]]


def _different(one: View, two: View) -> bool:
    """Two scenes, or two photographs; photographs of one group are of different things, too."""
    return one.group != two.group or (one.group.startswith("photos") and one.source != two.source)


def _few(rng: np.random.Generator) -> int:
    return round(float(np.exp(rng.uniform(*np.log(FEW)))))


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def _whole(rgb: NDArray[np.uint8], rng: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    return rgb, np.eye(2, 3)


def _mirrored(
    rgb: NDArray[np.uint8], rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    to_view = np.array([[-1.0, 0, rgb.shape[1] - 1], [0, 1, 0]])
    return np.ascontiguousarray(rgb[:, ::-1]), to_view


def _half(
    last: bool, rgb: NDArray[np.uint8], rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """The first or last 45 % of the columns; the gap keeps the patches apart."""
    width = rgb.shape[1] * 45 // 100
    left = rgb.shape[1] - width if last else 0
    return np.ascontiguousarray(rgb[:, left : left + width]), np.array([[1.0, 0, -left], [0, 1, 0]])


def _changed(
    rgb: NDArray[np.uint8], rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """A window of the image, turned a little, shrunk, and in another light."""
    height, width = rgb.shape[:2]
    share, zoom, turn = rng.uniform(0.6, 0.95), rng.uniform(0.5, 1.0), rng.uniform(-20, 20)
    centre = [side * (0.5 + (1 - share) / 2 * rng.uniform(-1, 1)) for side in (width, height)]
    to_view = np.asarray(cv2.getRotationMatrix2D(centre, turn, zoom), np.float64)
    size = (round(width * share * zoom), round(height * share * zoom))
    to_view[:, 2] += np.array(size) / 2 - centre
    smooth = cv2.GaussianBlur(rgb, (0, 0), 0.5 * np.sqrt(1 / zoom**2 - 1) + 1e-3)  # against aliasing
    view = cv2.warpAffine(smooth, to_view, size, borderMode=cv2.BORDER_REFLECT_101)
    return photometric(np.asarray(view, np.uint8), rng, HomographyConfig(max_blur=2.0)), to_view


_CHANGES: dict[
    Kind,
    Callable[[NDArray[np.uint8], np.random.Generator], tuple[NDArray[np.uint8], NDArray[np.float64]]],
] = {
    "whole": _whole, "changed": _changed, "mirrored": _mirrored,
    "left": partial(_half, False), "right": partial(_half, True),
}  # fmt: skip
