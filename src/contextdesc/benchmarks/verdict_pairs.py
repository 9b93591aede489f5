"""Pairs of images whose answer is known, for the calibration of the verdict.

Pairs are of scenes and photographs that a model was not trained on. Two images show the same thing if they
share at least 30 tracks. Pairs of different things are of two scenes, at random and those with most matches;
the two halves of one image; and an image and the mirror image of one of the same scene. Many are cut,
shrunk, blurred, turned or have few keypoints, so that pairs with few inliers are well represented.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import cv2
import numpy as np

from contextdesc.benchmarks.verdict import CHANCE, GEOMETRIES, HALVES, Evidence
from contextdesc.errors import InputError
from contextdesc.features import Features
from contextdesc.formats.atomic import replacing
from contextdesc.geometry import Geometry, Verification, intrinsics, verify
from contextdesc.image import Image, find_images, read
from contextdesc.keypoints import Keypoints
from contextdesc.matching import Matches, match_descriptors
from contextdesc.model import ContextDesc
from contextdesc.progress import progress
from contextdesc.rotation import TURNS, Base, Matched, Turn, match_rotated, turned_image, turned_keypoints
from contextdesc.training.data.homography import HomographyConfig, photometric
from contextdesc.training.data.scene_pairs import find_scenes
from contextdesc.training.data.scenes import Scene
from contextdesc.verdict import MIN_KEYPOINTS, measure

if TYPE_CHECKING:
    from numpy.typing import NDArray

Kind = Literal["whole", "changed", "mirrored", "left", "right"]

MIN_TRACKS = 30  # that two images of the same thing share
BUDGETS = {"whole": 2048, "changed": 1024, "mirrored": 1024, "left": 512, "right": 512}  # keypoints
FEW = (128, 1024)  # keypoints, log-uniform: of pairs with few
GUESSED_FOCAL = 1.2  # over the longer side, where the camera is not known
GROUPS = 4  # of photographs, each held out together in cross-validation
_CHANCE_SIZE, _CHANCE_KEYPOINTS = (640, 480), (50, 2048)  # of images with random keypoints


@dataclass(frozen=True)
class Size:
    """How many images and pairs a calibration takes."""

    scene_images: int = 5  # of each scene
    halved: int = 3  # of those, also as halves and mirrored
    photos: int = 14
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


def by_chance(pairs: int = 120, seed: int = 0) -> Evidence:
    """Pairs of no images at all: keypoints and matches at random, which no fit may take for a scene."""
    rng = np.random.default_rng(seed)
    features: dict[str, list[NDArray[np.float64]]] = {geometry: [] for geometry in GEOMETRIES}
    inliers: dict[str, list[int]] = {geometry: [] for geometry in GEOMETRIES}
    camera = intrinsics(_CHANCE_SIZE, GUESSED_FOCAL * max(_CHANCE_SIZE))
    for _ in range(pairs):
        count = int(np.exp(rng.uniform(*np.log(_CHANCE_KEYPOINTS))))
        rows = np.arange(int(np.exp(rng.uniform(np.log(MIN_KEYPOINTS), np.log(count)))))
        first, second = (_random_features(rng, count) for _ in range(2))
        matches = Matches(np.column_stack([rows, rows]), np.ones(len(rows), np.float32))
        for geometry in GEOMETRIES:
            result = verify(first, second, matches, geometry, intrinsics=(camera, camera))
            features[geometry].append(_measured(result))
            inliers[geometry].append(result.inlier_count)
    groups = [[f"{CHANCE} {number % GROUPS}"] * 2 for number in range(pairs)]
    return Evidence(
        {geometry: np.array(found) for geometry, found in features.items()},
        {geometry: np.array(counts) for geometry, counts in inliers.items()},
        np.zeros(pairs, np.bool_),
        np.full(pairs, CHANCE),
        np.array(groups),
    )


def _random_features(rng: np.random.Generator, count: int) -> Features:
    keypoints = Keypoints(
        rng.uniform((0, 0), _CHANCE_SIZE, (count, 2)).astype(np.float32),
        (2 ** rng.uniform(1, 4, count)).astype(np.float32),
        rng.uniform(0, 360, count).astype(np.float32),
        np.ones(count, np.float32),
    )
    return Features(keypoints, np.zeros((count, 128), np.float32), _CHANCE_SIZE, CHANCE, "")


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
        chosen = np.sort(rng.permutation(len(scene))[-size.scene_images :]).tolist()
        for rank, index in enumerate(chosen):
            kinds: list[Kind] = ["whole", "changed"]
            kinds += ["mirrored", "left", "right"] if rank < size.halved else []
            focal = float(scene.intrinsics[index, 0, 0])
            keypoints, tracks = scene.keypoints(index)
            for kind in kinds:
                yield make_view(name, scene.path(index), kind, focal, keypoints.xy, tracks)
    photos = list(find_images([data / "photos"]).values())[-count:][-size.photos :]
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


def _measured(result: Verification) -> NDArray[np.float64]:
    assert result.facts is not None  # of verify
    assert result.errors is not None
    return measure(result.geometry, result.points, result.inliers, result.errors, result.facts)


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
