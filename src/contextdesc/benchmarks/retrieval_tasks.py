"""What a retrieval benchmark asks: a folder in; the images to search, queries and their right answers out.

Two layouts: Oxford Buildings and Paris, with their ground-truth files, and a folder per scene, where each
image is a query and the other images of its scene are the answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from contextdesc.errors import InputError
from contextdesc.image import Image, find_images

Box: TypeAlias = tuple[float, float, float, float]  # left, top, right, bottom, in pixels

_QUERY = "_query.txt"
_OXFORD_PREFIX = "oxc1_"  # of image names in Oxford's query files alone


@dataclass(frozen=True)
class Query:
    """One question.

    Attributes:
        name: of the query, unique.
        scene: of the query, or its landmark.
        image: name among the task's images.
        right: names of the right answers.
        ignored: names that are neither right nor wrong.
        box: the part of the image that is asked for; None for all of it.
    """

    name: str
    scene: str
    image: str
    right: frozenset[str]
    ignored: frozenset[str]
    box: Box | None = None


@dataclass(frozen=True)
class Task:
    """A set of images and what to ask of it.

    Attributes:
        layout: for people.
        images: searched, name to path.
        queries: in order.
        vocabulary_images: that the vocabulary is trained on, name to path.
        vocabulary: what these are, for people.
        skipped: queries that cannot be used, by name, with the reason.
    """

    layout: str
    images: Mapping[str, Path]
    queries: Sequence[Query]
    vocabulary_images: Mapping[str, Path]
    vocabulary: str
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def scenes(self) -> list[str]:
        """Of the queries, in order."""
        return list(dict.fromkeys(query.scene for query in self.queries))


def find_task(
    data: Path,
    scenes: Sequence[str] = (),
    per_scene: int = 0,
    per_other: int = 0,
    vocabulary: Path | None = None,
) -> Task:
    """The task of a folder, in whichever layout it has.

    Args:
        data: with `*_query.txt` files somewhere below, or with a folder per scene.
        scenes: those to ask about; of the others, every second trains the vocabulary and the rest are
            searched as well. None of them given: all.
        per_scene: at most so many images of a scene, evenly spaced in order of their names; 0 for all.
        per_other: the same of scenes that are not asked about.
        vocabulary: folder of images to train the vocabulary on, instead of those.
    """
    queries = sorted(data.rglob(f"*{_QUERY}"))
    if not queries:
        return _scenes_task(data, scenes, per_scene, per_other, vocabulary)
    if scenes or per_scene or per_other:
        raise InputError(f"{data}: has ground-truth files (*{_QUERY}); scenes are chosen of scene folders")
    return _oxford_task(data, queries, vocabulary)


def cropped(image: Image, box: Box | None) -> Image:
    """The part of an image in a box, at the nearest whole pixels."""
    if box is None:
        return image
    width, height = image.size
    left, right = (round(min(max(x, 0), width)) for x in box[::2])
    top, bottom = (round(min(max(y, 0), height)) for y in box[1::2])
    if right <= left or bottom <= top:
        raise InputError(f"{image.name}: the box {box} lies outside of its {width} x {height} pixels")
    rgb = image.rgb[top:bottom, left:right]
    return Image(rgb, (rgb.shape[1], rgb.shape[0]), image.name)


def _oxford_task(data: Path, query_files: Sequence[Path], vocabulary: Path | None) -> Task:
    images: dict[str, Path] = {}
    for path in find_images([data]).values():
        if images.setdefault(path.stem, path) != path:
            raise InputError(
                f"{images[path.stem]} and {path}: ground-truth files could mean either; remove one"
            )
    queries, skipped = [], {}
    for file in query_files:
        name = file.name.removesuffix(_QUERY)
        try:
            queries.append(_oxford_query(name, file, images))
        except InputError as error:
            skipped[name] = str(error)
    if not queries:
        raise InputError(f"{data}: no query can be used; the first: {next(iter(skipped.values()))}")
    trained = find_images([vocabulary]) if vocabulary else images
    return Task("Oxford/Paris", images, queries, trained, _described(vocabulary), skipped)


def _oxford_query(name: str, file: Path, images: Mapping[str, Path]) -> Query:
    words = _read(file).split()
    try:
        left, top, right, bottom = map(float, words[1:])
    except ValueError:
        raise InputError(f"{file}: expected an image's name and the four numbers of a box") from None
    image = words[0].removeprefix(_OXFORD_PREFIX)
    if image not in images:
        raise InputError(f"{file}: its image {image} is not among the images")
    good, ok, junk = (
        frozenset(_read(file.with_name(f"{name}_{kind}.txt")).split()) for kind in ("good", "ok", "junk")
    )
    if not good | ok:
        raise InputError(f"{file}: has no right answers in its _good and _ok files")
    landmark = name.rpartition("_")[0] or name
    return Query(name, landmark, image, good | ok, junk, (left, top, right, bottom))


def _scenes_task(
    data: Path, asked: Sequence[str], per_scene: int, per_other: int, vocabulary: Path | None
) -> Task:
    scenes: dict[str, dict[str, Path]] = {}
    for name, path in find_images([data]).items():
        scene, slash, _ = name.partition("/")
        if slash:
            scenes.setdefault(scene, {})[name] = path
    if unknown := set(asked) - set(scenes):
        raise InputError(f"{data}: has no scenes {', '.join(sorted(unknown))} (it has {', '.join(scenes)})")
    if not scenes:
        raise InputError(f"{data}: neither ground-truth files (*{_QUERY}) nor a folder of images per scene")
    asked = asked or list(scenes)
    scenes = {n: _spaced(of, per_scene if n in asked else per_other) for n, of in scenes.items()}
    others = [scene for scene in scenes if scene not in asked]
    training = others[::2] if vocabulary is None else []
    images = {n: path for scene, of in scenes.items() if scene not in training for n, path in of.items()}
    queries, skipped = [], {}
    for scene in asked:
        if len(scenes[scene]) < 2:
            skipped[scene] = f"{data / scene}: one image alone has no right answers"
        queries += [
            Query(name, scene, name, frozenset(scenes[scene]) - {name}, frozenset({name}))
            for name in scenes[scene]
            if len(scenes[scene]) > 1
        ]
    if not queries:
        raise InputError(f"{data}: no scene has two images")
    if training:
        trained = {name: path for scene in training for name, path in scenes[scene].items()}
        return Task("scenes", images, queries, trained, f"{len(training)} other scenes", skipped)
    trained = find_images([vocabulary]) if vocabulary else images
    return Task("scenes", images, queries, trained, _described(vocabulary), skipped)


def _described(vocabulary: Path | None) -> str:
    return f"images of {vocabulary.name}" if vocabulary else "the searched images themselves"


def _spaced(images: Mapping[str, Path], count: int) -> dict[str, Path]:
    """At most `count` of the images, evenly spaced."""
    names = list(images)
    if not 0 < count < len(names):
        return dict(images)
    return {names[i * len(names) // count]: images[names[i * len(names) // count]] for i in range(count)}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: is missing; restore it from the ground truth") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
