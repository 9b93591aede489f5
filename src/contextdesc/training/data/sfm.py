"""From a folder of photographs to training scenes: our keypoints and matches, COLMAP's structure from motion.

Photographs come in; a folder per scene goes out: `images/`, `tracks.npz` (see `scenes`), `labels.npz` with
the three kinds of keypoints, `pairs.txt`, `scene.png` to look at and `scene.json` with settings and numbers.
COLMAP runs in a child process, so that it can be stopped at any time.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.image import Image, find_images, read
from contextdesc.journal import Journal
from contextdesc.keypoints import Keypoints
from contextdesc.match_set import all_pairs
from contextdesc.matching import match_descriptors
from contextdesc.progress import progress
from contextdesc.rootsift import rootsift
from contextdesc.sfm.binding import import_pycolmap
from contextdesc.sfm.cameras import CameraConfig, group_cameras
from contextdesc.sfm.database import ImageRows, read_keypoints, write_database
from contextdesc.sfm.mapping import MapConfig, run_mapping
from contextdesc.sfm.verification import verify_pairs
from contextdesc.training.data.colmap import scene_of
from contextdesc.training.data.gl3d import find_gl3d, read_gl3d
from contextdesc.training.data.labels import save_labels
from contextdesc.training.data.scene_picture import draw_scene
from contextdesc.training.data.scenes import (
    DETECTOR,
    KINDS,
    LabelRules,
    PairRules,
    Scene,
    label_keypoints,
    near_pairs,
)  # fmt: skip

_QUALITY = 95  # of the JPEG files of a scene
_COLUMNS = ("images", "registered", "tracks", "observations", "error", "pairs", *KINDS[::-1], "seconds")


@dataclass(frozen=True)
class BuildConfig:
    """How scenes are built."""

    detector: Detector = DETECTOR
    ratio: float = 0.85  # of the ratio test; matches are mutual
    max_side: int = 800  # pixels; photographs are downscaled to it, at most 1024
    camera_model: str = "SIMPLE_RADIAL"  # COLMAP's name; its distortion is estimated but not kept
    shared_camera: bool = False  # images of one size have one camera; else those of one EXIF focal length
    min_images: int = 3  # registered ones that make a scene
    pairs: PairRules = field(default_factory=PairRules)
    labels: LabelRules = field(default_factory=LabelRules)

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise InputError(f"ratio is {self.ratio}: give a number above 0 and at most 1")
        if not 64 <= self.max_side <= 1024:
            raise InputError(f"max_side is {self.max_side}: scenes hold images of 64 to 1024 pixels")


@dataclass
class Report:
    """What building did: a row of numbers per scene, scenes finished before, failures with their reason."""

    scenes: dict[str, dict[str, float]] = field(default_factory=dict)
    before: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def table(self) -> str:
        """The numbers as text, a line per scene; `error` is the mean reprojection error in pixels."""
        rows = [["scene", *_COLUMNS]]
        for name, numbers in self.scenes.items():
            rows.append(
                [name, *(f"{numbers[c]:.2f}" if c == "error" else f"{numbers[c]:.0f}" for c in _COLUMNS)]
            )
        widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *(map(str.rjust, row[1:], widths[1:]))]) for row in rows
        )


def build_scenes(
    images: Path, output: Path, config: BuildConfig | None = None, *,
    restart: bool = False, quiet: bool = False,
) -> Report:  # fmt: skip
    """Turn photographs into scenes below `output`.

    A folder that holds images is one scene (with everything below it); otherwise each of its subfolders is
    one. Finished scenes are skipped; an unfinished one goes on where it was stopped. A scene that cannot be
    reconstructed is listed in the report, and raised if it is the only one.

    Args:
        restart: forget finished and unfinished scenes of the same names.
    """
    config = config or BuildConfig()
    found = scene_images(images, config.min_images)
    import_pycolmap()
    settings = {name: {**asdict(config), "photographs": _digest(found[name])} for name in found}

    def build(name: str, work: Path) -> tuple[Scene, dict[str, float]]:
        return _reconstruct(found[name], work, config, settings[name], quiet)

    return _each_scene(images, output, config, settings, build, restart, quiet)


def from_colmap(
    model: Path, images: Path, output: Path, config: BuildConfig | None = None, *,
    database: Path | None = None, restart: bool = False, quiet: bool = False,
) -> Report:  # fmt: skip
    """Turn an existing COLMAP model into a scene of the images' folder name below `output`.

    Sizes and orientations of keypoints are no part of a model. They are read from its database (given, or
    `database.db` beside the model or up to two folders above) if that holds them; otherwise each observation
    is replaced by the nearest keypoint within 2 pixels that our detector finds, and dropped if there is none.
    The row of the report says which: `from_database` is 1 or 0.
    """
    config = config or BuildConfig()
    pycolmap = import_pycolmap()
    if not images.is_dir():
        raise InputError(f"{images}: no such folder of images")
    try:
        reconstruction = pycolmap.Reconstruction(str(model))
    except (ValueError, RuntimeError) as error:
        raise InputError(f"{model}: not a COLMAP model ({str(error).splitlines()[-1]})") from None
    if database is None:
        beside = [folder / "database.db" for folder in (model, *list(model.resolve().parents)[:2])]
        database = next((path for path in beside if path.is_file()), None)
    elif not database.is_file():
        raise InputError(f"{database}: no such database")
    name = _scene_name(images)
    settings = {name: {**asdict(config), "model": str(model), "database": str(database)}}

    def build(_: str, work: Path) -> tuple[Scene, dict[str, float]]:
        registered = [image for image in reconstruction.images.values() if image.has_pose]
        if len(registered) < config.min_images:
            raise InputError(f"{model}: {len(registered)} registered images; {config.min_images} are needed")
        stored = {} if database is None else read_keypoints(database)
        known = all(
            image.name in stored and stored[image.name].shape[1] >= 4
            and len(stored[image.name]) == image.num_points2D()
            for image in registered
        )  # fmt: skip
        placed, keypoints, rows = {}, {}, {}
        with progress("read", len(registered), quiet=quiet) as advance:
            for image in sorted(registered, key=lambda image: str(image.name)):
                flat = _flat_name(image.name)
                small = _write_image(read(images / image.name), work / "images" / flat, config.max_side)
                factor = np.array(small.size) / np.array([image.camera.width, image.camera.height])
                if not 0.98 < factor[0] / factor[1] < 1.02:
                    raise InputError(f"{images / image.name}: not the shape of its camera in {model}")
                placed[flat] = (image, factor, small.size)
                if known:
                    given = Keypoints.from_colmap(stored[image.name])
                    keypoints[flat] = given.scaled(factor.astype(np.float32))
                    rows[flat] = np.arange(len(given))
                else:
                    keypoints[flat] = detect(small.gray, config.detector)
                    xy = np.array([p.xy for p in image.points2D]).reshape(-1, 2) * factor - 0.5
                    rows[flat] = _nearest(xy, keypoints[flat].xy, 2.0)
                advance()
        scene = scene_of(reconstruction, work, placed, keypoints, rows)
        return scene, {"images": len(placed), "from_database": float(known)}

    return _each_scene(images, output, config, settings, build, restart, quiet)


def from_gl3d(
    folder: Path, output: Path, config: BuildConfig | None = None, *,
    restart: bool = False, quiet: bool = False,
) -> Report:  # fmt: skip
    """Turn scenes in GL3D's layout (one, or a folder of them; see `gl3d`) into scenes below `output`."""
    config = config or BuildConfig()
    found = find_gl3d(folder)

    def build(name: str, work: Path) -> tuple[Scene, dict[str, float]]:
        scene = read_gl3d(found[name])
        return scene, {"images": len(scene)}

    settings = {name: {**asdict(config), "gl3d": True} for name in found}
    return _each_scene(folder, output, config, settings, build, restart, quiet)


def scene_images(folder: Path, fewest: int) -> dict[str, dict[str, Path]]:
    """Scenes of a folder: name to image name to path; refuses scenes with too few images."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of photographs")
    everything = find_images([folder])
    scenes: dict[str, dict[str, Path]] = {}
    single = any("/" not in name or name.startswith("images/") for name in everything)
    for name, path in everything.items():
        scene, _, rest = (_scene_name(folder), "", name) if single else name.partition("/")
        if scenes.setdefault(scene, {}).setdefault(_flat_name(rest), path) != path:
            raise InputError(f"{path}: another image of {scene} would have the same name; rename one")
    for scene, images in scenes.items():
        if len(images) < fewest:
            raise InputError(
                f"{folder}: scene {scene} has {len(images)} images; give at least {fewest} that overlap"
            )
    return scenes


def _each_scene(
    source: Path, output: Path, config: BuildConfig, settings: Mapping[str, Mapping[str, Any]],
    build: Callable[[str, Path], tuple[Scene, dict[str, float]]], restart: bool, quiet: bool,
) -> Report:  # fmt: skip
    """Build, label and write the scenes that `settings` names; each gets its name when it is complete."""
    report, existed = Report(), output.exists()
    for name in settings:
        final, work = output / name, output / f".{name}.unfinished"
        if source.resolve().is_relative_to(final.resolve()):
            raise InputError(f"{source}: would be overwritten by the scene {final}; choose another output")
        if restart:
            shutil.rmtree(work, ignore_errors=True)
            if (final / "scene.json").is_file():  # anything else of that name is not ours to delete
                shutil.rmtree(final)
        if final.exists():
            report.scenes[name] = _finished(final, settings[name])
            report.before.append(name)
    for name in settings:
        if name in report.before:
            continue
        final, work = output / name, output / f".{name}.unfinished"
        begun = time.monotonic()
        try:
            scene, numbers = build(name, work)
            numbers["seconds"] = time.monotonic() - begun
            _finish(scene, work, config, settings[name], numbers, quiet)
        except InputError as error:
            if not isinstance(error, _KeepError):
                shutil.rmtree(work, ignore_errors=True)
            if not existed:
                with suppress(OSError):  # unless it holds something
                    output.rmdir()
            if len(settings) == 1:
                raise
            report.failed[name] = str(error)
            continue
        work.rename(final)
        report.scenes[name] = _finished(final, settings[name])
    return report


class _KeepError(InputError):
    """Bad input that must not cost finished work, such as other settings than those of an unfinished run."""


def _finished(folder: Path, settings: Mapping[str, Any]) -> dict[str, float]:
    """Numbers of a finished scene, which must have the same settings."""
    path = folder / "scene.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        old, numbers = stored["settings"], stored["numbers"]
    except (OSError, ValueError, KeyError, TypeError):
        raise _KeepError(f"{folder}: is in the way and no finished scene; move it") from None
    wanted = json.loads(json.dumps(settings))
    changed = [key for key in {**old, **wanted} if old.get(key) != wanted.get(key)]
    if changed:
        raise _KeepError(
            f"{folder}: was built with other settings ({', '.join(changed)}); "
            "choose another output, or build it again with --restart"
        )
    return dict(numbers)


def _finish(
    scene: Scene, work: Path, config: BuildConfig, settings: Mapping[str, Any], numbers: dict[str, float],
    quiet: bool,
) -> None:  # fmt: skip
    """Label the keypoints, choose the pairs, and write everything that a scene's folder holds."""
    begun = time.monotonic()
    scene.save(work)
    scene = Scene.load(work)
    detected = [scene.detect(image, config.detector) for image in range(len(scene))]
    with progress("label", len(scene), quiet=quiet) as advance:
        labels = []
        for image in range(len(scene)):
            labels.append(label_keypoints(scene, image, detected, config.labels))
            advance()
    save_labels(work / "labels.npz", labels)
    pairs = scene.select_pairs(config.pairs, np.array([len(found) for found in labels]))
    text = "".join(f"{scene.names[a]} {scene.names[b]}\n" for a, b in pairs)
    (work / "pairs.txt").write_text(text, encoding="utf-8")
    cv2.imwrite(str(work / "scene.png"), draw_scene(scene, pairs, labels)[:, :, ::-1])
    kinds = np.bincount(np.concatenate([found.kind for found in labels]), minlength=3)
    projected = [scene.project(i, scene.points[scene.keypoints(i)[1]])[0] for i in range(len(scene))]
    errors = np.linalg.norm(np.concatenate(projected) - scene.xy, axis=1)
    numbers = {
        "registered": len(scene), "tracks": len(scene.points), "observations": len(scene.track),
        "error": float(np.nanmean(errors)), "pairs": len(pairs),
        **dict(zip(KINDS, map(int, kinds), strict=True)), **numbers,
    }  # fmt: skip
    numbers["seconds"] += time.monotonic() - begun
    for path in (*work.glob("*.journal"), *work.glob("database.*"), *work.glob("colmap.*")):
        path.unlink(missing_ok=True)
    shutil.rmtree(work / "sparse", ignore_errors=True)
    for path in (work / "images").iterdir():  # what COLMAP did not register
        if path.name not in scene.names:
            path.unlink()
    (work / "scene.json").write_text(json.dumps({"settings": settings, "numbers": numbers}, indent=1))


def _reconstruct(
    images: dict[str, Path], work: Path, config: BuildConfig, settings: Mapping[str, Any], quiet: bool
) -> tuple[Scene, dict[str, float]]:
    """Features, matches, verification and mapping of one scene in the folder `work`."""
    pycolmap = import_pycolmap()
    where = next(iter(images.values())).parent
    try:
        journals = [Journal(work / f"{name}.journal", settings) for name in ("features", "matches")]
    except InputError as error:
        raise _KeepError(str(error)) from None
    with closing(journals[0]) as detected, closing(journals[1]) as matched:
        features = _features(images, work, detected, config, quiet)
        if len(features) < config.min_images:
            raise InputError(
                f"{where}: {len(features)} different pictures among {len(images)} files; give at least "
                f"{config.min_images} photographs of the scene from different places"
            )
        pairs = all_pairs(list(features))
        with progress("match", len(pairs), len(matched), quiet) as advance:
            for first, second in pairs:
                if f"{first}\n{second}" not in matched:
                    one, two = (features[name]["descriptors"].astype(np.float32) for name in (first, second))
                    indices = match_descriptors(one, two, config.ratio).indices
                    matched.append(f"{first}\n{second}", {"indices": indices.astype(np.uint32)})
                    advance()
        keypoints = {n: Keypoints(f["xy"], f["size"], f["angle"], f["response"]) for n, f in features.items()}
        sizes = {name: tuple(feature["shape"].tolist()) for name, feature in features.items()}
        focals = {name: float(feature["focal"]) or None for name, feature in features.items()}
        cameras = CameraConfig(config.camera_model, "shared" if config.shared_camera else "auto")
        write_database(
            work / "database.db",
            group_cameras(sizes, focals, cameras),
            (ImageRows(name, found) for name, found in keypoints.items()),
            (((a, b), matched[f"{a}\n{b}"]["indices"]) for a, b in pairs),
        )
    verify_pairs(work / "database.db", pairs, quiet)
    models = run_mapping(
        work / "database.db", work / "images", work / "sparse", MapConfig(), len(features),
        work / "colmap.log", quiet,
    )  # fmt: skip
    registered = models[0] if models else 0
    if registered < config.min_images:
        raise InputError(
            f"{where}: only {registered} of {len(features)} images could be placed; "
            "the photographs must overlap and be taken from different places"
        )
    reconstruction = pycolmap.Reconstruction(str(work / "sparse"))
    placed = {
        image.name: (image, np.ones(2), sizes[image.name])
        for image in sorted(reconstruction.images.values(), key=lambda image: str(image.name))
        if image.has_pose
    }
    rows = {name: np.arange(len(keypoints[name])) for name in placed}
    return scene_of(reconstruction, work, placed, keypoints, rows), {"images": len(images)}


def _features(
    images: dict[str, Path], work: Path, journal: Journal, config: BuildConfig, quiet: bool
) -> dict[str, dict[str, NDArray[Any]]]:
    """Keypoints and RootSIFT of each different picture; files that cannot be read are named and left out."""
    with progress("detect", len(images), sum(name in journal for name in images), quiet) as advance:
        for name, path in images.items():
            if name in journal:
                continue
            try:
                small = _write_image(read(path), work / "images" / name, config.max_side)
            except InputError as error:
                advance(f"left out: {error}")
                continue
            found = detect(small.gray, config.detector)
            descriptors = rootsift(small.gray, found, config.detector.precise_upscale)
            journal.append(name, {
                "xy": found.xy, "size": found.size, "angle": found.angle, "response": found.response,
                "descriptors": descriptors.astype(np.float16),
                "focal": np.array(small.focal or 0.0), "shape": np.array(small.size),
                "digest": np.array(hashlib.sha256(small.rgb.tobytes()).hexdigest()),
            })  # fmt: skip
            advance()
    different: dict[str, str] = {}
    features = {name: journal[name] for name in images if name in journal}
    for name, feature in features.items():
        different.setdefault(str(feature["digest"]), name)
    return {name: features[name] for name in different.values()}


def _nearest(queries: NDArray[np.floating], points: NDArray[np.floating], radius: float) -> NDArray[np.int64]:
    """For each query the row of the nearest point, or -1 if none is within `radius`; of equals, the first."""
    pairs = near_pairs(queries, points, radius)
    distance = np.linalg.norm(queries[pairs[:, 0]] - points[pairs[:, 1]], axis=1)
    order = np.lexsort((-pairs[:, 1], -distance))  # the best is written last
    answer = np.full(len(queries), -1, np.int64)
    answer[pairs[order, 0]] = pairs[order, 1]
    return answer


def _scene_name(folder: Path) -> str:
    folder = folder.resolve()
    return folder.parent.name if folder.name == "images" else folder.name


def _digest(images: Mapping[str, Path]) -> str:
    """Changes with the files of a scene, so that work on other photographs is never taken up."""
    text = json.dumps([(name, path.stat().st_size) for name, path in images.items()])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _flat_name(name: str) -> str:
    """The file name of an image in a scene's folder: no subfolders, no spaces, JPEG unless it was PNG."""
    flat = "_".join(name.replace("/", " ").split())
    return flat if flat.lower().endswith((".jpg", ".jpeg", ".png")) else f"{flat}.jpg"


def _write_image(image: Image, path: Path, max_side: int) -> Image:
    """Write an upright, downscaled copy without EXIF and read it back, as everyone else will."""
    small = read(image, max_side)
    path.parent.mkdir(parents=True, exist_ok=True)
    options = [] if path.suffix.lower() == ".png" else [cv2.IMWRITE_JPEG_QUALITY, _QUALITY]
    if not cv2.imwrite(str(path), small.rgb[:, :, ::-1], options):
        raise InputError(f"{path}: cannot be written")
    again = read(path)
    focal = None if image.focal is None else image.focal / float(small.scale[0])
    return Image(again.rgb, again.size, str(path), focal)
