"""Pairs of views of which every match is known to be right or wrong, for `ratio.py`.

Three kinds: a photograph and a warped view of it, two photographs of a reconstructed scene, and two images
of a sequence of a plane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import numpy as np

from contextdesc.benchmarks.methods import Method
from contextdesc.benchmarks.methods.models import INT8
from contextdesc.benchmarks.methods.sizes import parsed
from contextdesc.benchmarks.sequences import DISTANCE, Layout, find_any_sequences, read_sequence
from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.image import Image, find_images, read
from contextdesc.model import Context
from contextdesc.modelfile import read_spec, resolve
from contextdesc.training.data.homography import HomographyConfig, two_views, warp_points
from contextdesc.training.data.scene_pairs import find_scenes
from contextdesc.training.data.scenes import PairRules, Scene, near_pairs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.benchmarks.protocol import Request
    from contextdesc.keypoints import Keypoints

    # Points (M, 2) of both views -> (M,) pixels by which they miss each other
    Errors: TypeAlias = Callable[[NDArray[np.float32], NDArray[np.float32]], NDArray[np.float64]]

KEYPOINTS = 2048
PER_SCENE = 12  # pairs


@dataclass(frozen=True, eq=False)
class Truth:
    """What is known of two views: a homography (3, 3) of a plane, or a fundamental matrix (3, 3)."""

    matrix: NDArray[np.float64]
    planar: bool

    def errors(self, one: NDArray[np.float32], two: NDArray[np.float32]) -> NDArray[np.float64]:
        """(M,) pixels by which points (M, 2) of both views miss each other.

        In a scene it is the larger distance of a point from its epipolar line: a wrong match rarely falls on
        it by chance.
        """
        if self.planar:
            return np.asarray(np.linalg.norm(two - warp_points(one, self.matrix), axis=1))
        points = [np.column_stack([xy, np.ones(len(xy))]) for xy in (one, two)]
        lines = points[0] @ self.matrix.T, points[1] @ self.matrix
        residual = np.abs((points[1] * lines[0]).sum(1))
        return residual / np.maximum(np.minimum(*(np.hypot(*line.T[:2]) for line in lines)), 1e-12)

    def possible(self, first: Keypoints, second: Keypoints) -> int:
        """Right matches that there could be: keypoints with a partner; all in a scene, where that is open."""
        if not self.planar:
            return len(first)
        warped = warp_points(first.xy, self.matrix)
        return len(np.unique(near_pairs(warped, second.xy, DISTANCE)[:, 0]))


@dataclass(frozen=True, eq=False)
class TwoViews:
    """Two images with their keypoints, and the error of a match between them."""

    images: tuple[Image, Image]
    keypoints: tuple[Keypoints, Keypoints]
    errors: Errors


def photo_views(photos: Sequence[Path], seed: int = 0) -> Iterator[TwoViews]:
    """Each photograph and a warped view of it."""
    for index, path in enumerate(photos):
        for images, truth in _photo_pairs(path, seed, index):
            yield _detected(images, truth)


def scene_views(folders: Sequence[Path], per_scene: int = PER_SCENE, seed: int = 0) -> Iterator[TwoViews]:
    """Pairs of photographs of reconstructed scenes, drawn among those that share tracks."""
    for index, folder in enumerate(folders):
        for images, truth in _scene_pairs(folder, per_scene, seed, index):
            yield _detected(images, truth)


def _detected(images: tuple[Image, Image], truth: Truth) -> TwoViews:
    first, second = (detect(image.gray, Detector(KEYPOINTS)) for image in images)
    return TwoViews(images, (first, second), truth.errors)


Pairs: TypeAlias = Iterator[tuple[tuple[Image, Image], Truth]]


def _photo_pairs(path: Path, seed: int, index: int) -> Pairs:
    rng = np.random.default_rng([seed, index])
    first, second, homography = two_views(read(path).gray, rng, HomographyConfig())
    yield (read(first), read(second)), Truth(homography, planar=True)


def _scene_pairs(folder: Path, per_scene: int, seed: int, index: int) -> Pairs:
    scene = Scene.load(folder)
    drawn = np.random.default_rng([seed, index]).permutation(scene.select_pairs(PairRules()))[:per_scene]
    for first, second in drawn.tolist():
        images = (read(scene.path(first)), read(scene.path(second)))
        yield images, Truth(scene.fundamental(first, second), planar=False)


def _sequence_pairs(folder: Path, layout: Layout) -> Pairs:
    sequence = read_sequence(folder, layout)
    for image, homography in zip(sequence.images[1:], sequence.homographies, strict=True):
        yield (sequence.images[0], image), Truth(homography, planar=True)


def find_units(request: Request) -> dict[str, dict[str, Callable[[], Pairs]]]:
    """What makes the pairs of each photograph, scene or sequence, by kind; up to the limit of each kind."""
    data = request.data
    if not (data / "photos").is_dir() and not (data / "scenes").is_dir():
        sequences = request.limited(find_any_sequences(data))
        return {"sequences": {name: partial(_sequence_pairs, *unit) for name, unit in sequences.items()}}
    photos, scenes = held_out(data, request.methods.values())
    units = {
        "photographs": {p.name: partial(_photo_pairs, p, 0, i) for i, p in enumerate(photos)},
        "scenes": {
            f"scene {f.name}": partial(_scene_pairs, f, PER_SCENE, 0, i) for i, f in enumerate(scenes)
        },
    }
    return {kind: request.limited(of) for kind, of in units.items() if of}


def held_out(data: Path, methods: Iterable[Method]) -> tuple[list[Path], list[Path]]:
    """Photographs and folders of scenes that none of the models among the methods was trained on."""
    trained = [told for method in methods if (told := _training(method)) is not None]
    photos = list(find_images([data / "photos"]).values()) if (data / "photos").is_dir() else []
    scenes = find_scenes(data / "scenes") if (data / "scenes").is_dir() else []
    if trained:
        count = min(int(told.get("held_out", 0)) for told in trained)
        photos = photos[-count:] if count else []
        common = set.intersection(*(set(told.get("held_out_scenes", ())) for told in trained))
        scenes = [folder for folder in scenes if folder.name in common]
    if not photos and not scenes:
        raise InputError(f"{data}: no photos/ or scenes/ that every model was not trained on")
    return photos, scenes


def _training(method: Method) -> Mapping[str, Any] | None:
    """What a model tells of its training; None for methods that are no models of ours."""
    found = model_of(method.name) or model_of(parsed(method.name)[0].removesuffix(INT8))
    return None if found is None else read_spec(found[0])[0].training


def model_of(method: str) -> tuple[Path, Context] | None:
    """Folder and terms of a model of ours by its name as a method; None for all others."""
    folder, _, terms = method.rpartition(":")
    context: Context = "all"
    if terms in get_args(Context):
        context = terms  # type: ignore[assignment]  # it is one
    else:
        folder = method
    try:
        return resolve(folder), context
    except InputError:
        return None
