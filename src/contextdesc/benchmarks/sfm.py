"""Reconstructions with several descriptors at the same keypoints (the ETH local feature evaluation).

A scene is a folder of photographs, or one with `images/`; with `database.db` beside them (the layout of the
ETH evaluation) its keypoints are described, else SIFT's. All pairs are matched, mutually and with the ratio
of each method, and mapped by COLMAP. With Strecha's `gt_dense_cameras/` cameras are compared with the truth.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from contextdesc.benchmarks.cache import key_of
from contextdesc.benchmarks.cameras import Camera, read_strecha, rotation_angle, similarity
from contextdesc.benchmarks.protocol import Protocol, Request, Setting
from contextdesc.benchmarks.report import Cell, Intervals, Report, Table
from contextdesc.benchmarks.statistics import Mean, bootstrap
from contextdesc.detection import Detector
from contextdesc.errors import InputError
from contextdesc.features import Features
from contextdesc.image import SUFFIXES, find_images, read
from contextdesc.keypoints import Keypoints
from contextdesc.sfm.binding import import_pycolmap
from contextdesc.sfm.cameras import CameraConfig, CameraMode
from contextdesc.sfm.pairs import PairConfig
from contextdesc.sfm.settings import fingerprints
from contextdesc.sfm.summary import registered

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from contextdesc.benchmarks.methods import Method

PROTOCOL = Protocol(
    layout="a folder of photographs, or a folder of such folders, each also with images/; optional "
    "gt_dense_cameras/NAME.camera (Strecha) and database.db (the ETH evaluation)",
    source="github.com/ahojnnes/local-feature-evaluation; Strecha's scenes: Strecha et al., CVPR 2008",
    takes=("methods", "limit", "baseline", "workers"),
    settings=(
        Setting("max-keypoints", 4096, "strongest keypoints of an image, where no database has them"),
        Setting("contrast", 0.0067, "SIFT's contrast threshold"),
        Setting("camera", "auto", f"who shares a camera: {', '.join(get_args(CameraMode))}"),
        Setting("folder", "", "keeps the reconstructions, and goes on with those that it has"),
    ),
)
# What is told of a reconstruction: title and format
COLUMNS = {
    "ratio": ("ratio", ".2f"),
    "images": ("images", "s"),
    "points": ("points", ",d"),
    "observations": ("observations", ",d"),
    "track_length": ("track length", ".2f"),
    "reprojection_error": ("reprojection error, px", ".3f"),
    "position_error_mean": ("position error, mean %", ".2f"),
    "position_error_max": ("max %", ".2f"),
    "rotation_error_mean": ("rotation error, mean °", ".3f"),
    "rotation_error_max": ("max °", ".3f"),
}
COUNTED = ("points", "observations")  # also told as multiples of the first method's
_SUMMARY = ("registered", "points", "observations", "track_length", "reprojection_error")


def run(request: Request) -> Report:
    """Numbers of a reconstruction by scene and method."""
    scenes = request.limited(find_scenes(request.data))
    units = {
        f"{scene}, {method}": (folder, method)
        for scene, folder in scenes.items()
        for method in request.methods
    }
    found, skipped = request.each("reconstructions", units, reconstruction)
    results: dict[str, dict[str, Any]] = {}
    for scene, method in itertools.product(scenes, request.methods):
        if (numbers := found.get(f"{scene}, {method}")) is not None:
            results.setdefault(scene, {})[method] = numbers
    return _report(request, results, skipped)


def find_scenes(data: Path) -> dict[str, Path]:
    """Folders of scenes by name: the folder itself, or those in it."""
    if not data.is_dir():
        raise InputError(f"{data}: no such folder")
    if _is_scene(data):
        return {data.resolve().name: data}
    found = {path.name: path for path in sorted(data.iterdir()) if path.is_dir() and _is_scene(path)}
    if not found:
        raise InputError(f"{data}: no photographs in it, in its images/, or in its folders")
    return found


def _is_scene(folder: Path) -> bool:
    return (folder / "images").is_dir() or any(path.suffix.lower() in SUFFIXES for path in folder.iterdir())


def _photographs(scene: Path) -> Path:
    return scene / "images" if (scene / "images").is_dir() else scene


def reconstruction(request: Request, unit: tuple[Path, str]) -> dict[str, Any]:
    """Numbers of the reconstruction of a scene with one method."""
    from contextdesc.formats import hloc
    from contextdesc.model import load
    from contextdesc.sfm.pipeline import Given, SfmConfig, reconstruct

    scene, name = unit
    alone = replace(request, methods={name: request.methods[name]}, baseline=None)
    method, images = request.methods[name], _photographs(scene)
    truth = true_cameras(scene)
    config = SfmConfig(
        pairs=PairConfig("exhaustive"),
        ratio=method.ratio**0.5 if method.metric == "hamming" else method.ratio,
        cameras=CameraConfig(mode=request.setting("camera", PROTOCOL)),  # type: ignore[arg-type]  # it checks
    )
    with _work_folder(request, scene, method) as work:
        features = work / "given.h5"
        if not features.exists():
            hloc.write(features, _features(alone, scene, images, name))
        outcome = reconstruct(load(), images, work / "model", config, Given(features=features), quiet=True)
        model = import_pycolmap().Reconstruction(str(work / "model" / "sparse"))
    numbers = {key: outcome.summary[key] for key in _SUMMARY}
    numbers |= {"images": f"{numbers['registered']}/{outcome.summary['images']}", "ratio": method.ratio}
    numbers |= camera_errors(estimated_cameras(model), truth) if truth else {}
    intervals = point_intervals(model) | numbers.pop("intervals", {})
    return numbers | {"intervals": intervals}


def point_intervals(model: Any) -> dict[str, list[float]]:
    """95 % intervals of the means over the points of a pycolmap reconstruction."""
    points = list(model.points3D.values())
    if not points:
        return {}
    lengths, errors = [p.track.length() for p in points], [p.error for p in points]
    return {"track_length": _interval(lengths), "reprojection_error": _interval(errors)}


def _interval(values: ArrayLike) -> list[float]:
    found = bootstrap(values)
    return [found.low, found.high]


@contextmanager
def _work_folder(request: Request, scene: Path, method: Method) -> Iterator[Path]:
    """Where a reconstruction is made: a folder named by what it depends on, or a temporary one."""
    kept = str(request.setting("folder", PROTOCOL))
    if kept and method.identity:
        files = find_images([_photographs(scene)])
        if (scene / "database.db").is_file():
            files["database.db"] = scene / "database.db"
        settings = (_detector(request), method.ratio, request.setting("camera", PROTOCOL))
        depends = key_of(method.identity, *settings, fingerprints(files))
        label = "".join(c if c.isalnum() else "-" for c in method.name)
        yield Path(kept) / scene.resolve().name / f"{label}-{depends[:8]}"
    else:
        with TemporaryDirectory() as folder:
            yield Path(folder)


def _detector(request: Request) -> Detector:
    budget, contrast = (request.setting(name, PROTOCOL) for name in ("max-keypoints", "contrast"))
    return Detector(int(budget), contrast=float(contrast))


def _features(request: Request, scene: Path, images: Path, name: str) -> Iterator[tuple[str, Features]]:
    """Features of one method, image by image; an image that cannot be read is left to the reconstruction."""
    known = database_keypoints(scene / "database.db")
    for file, path in find_images([images]).items():
        if known is not None and file not in known:
            continue
        try:
            image = read(path)
        except InputError:
            continue
        if known is None:
            described = request.describe(image, _detector(request))[name]
        else:
            described = request.describe_at(image, known[file], True)[name]
        ratio = request.methods[name].ratio
        yield file, Features(described.keypoints, described.descriptors, image.size, name, "", ratio=ratio)


def database_keypoints(path: Path) -> dict[str, Keypoints] | None:
    """Keypoints of every image of a COLMAP database; None if there is no database or none in it."""
    from contextdesc.sfm.database import copy_database, read_keypoints

    if not path.is_file():
        return None
    with TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        try:
            copy_database(path, copy)  # opening a database writes to it, and converts that of an older COLMAP
            rows = read_keypoints(copy)
        except (sqlite3.Error, RuntimeError) as error:
            raise InputError(f"{path}: not a COLMAP database ({error})") from None
    found = {name: Keypoints.from_colmap(values) for name, values in rows.items()}
    return found if any(map(len, found.values())) else None


def true_cameras(scene: Path) -> dict[str, Camera]:
    """Strecha's cameras by image; empty if there are none."""
    return {
        path.name.removesuffix(".camera"): read_strecha(path)
        for path in sorted((scene / "gt_dense_cameras").glob("*.camera"))
    }


def estimated_cameras(model: Any) -> dict[str, Camera]:
    """Cameras of the images that a pycolmap reconstruction has placed."""
    found = {}
    for image in registered(model):
        pose = np.asarray(image.cam_from_world().matrix(), np.float64)
        intrinsics = np.asarray(model.cameras[image.camera_id].calibration_matrix(), np.float64)
        found[str(image.name)] = Camera(intrinsics, pose[:, :3], pose[:, 3])
    return found


def camera_errors(found: Mapping[str, Camera], true: Mapping[str, Camera]) -> dict[str, Any]:
    """Errors of cameras whose world is the true one up to a similarity, and intervals of their means over
    cameras; of fewer than three cameras, nothing.

    Positions are compared after the similarity that brings them closest, in percent of the largest distance
    between two true cameras; rotations after the one that brings them closest (positions on a line would
    leave it open), in degrees.
    """
    names = sorted(found.keys() & true.keys())
    if len(names) < 3:
        return {}
    target = np.array([true[name].centre for name in names])
    centres = np.array([found[name].centre for name in names])
    scale, turn, shift = similarity(centres, target)
    apart = np.linalg.norm(scale * centres @ turn.T + shift - target, axis=1)
    extent = max(np.linalg.norm(a.centre - b.centre) for a, b in itertools.combinations(true.values(), 2))
    world = mean_rotation([true[name].rotation.T @ found[name].rotation for name in names])
    angles = [rotation_angle(found[name].rotation, true[name].rotation @ world) for name in names]
    return {
        "position_error_mean": float(100 * apart.mean() / extent),
        "position_error_max": float(100 * apart.max() / extent),
        "rotation_error_mean": float(np.mean(angles)),
        "rotation_error_max": float(max(angles)),
        "intervals": {
            "position_error_mean": _interval(100 * apart / extent),
            "rotation_error_mean": _interval(angles),
        },
    }


def mean_rotation(rotations: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The rotation (3, 3) closest to all of `rotations`, by the sum of squared differences."""
    u, _, v = np.linalg.svd(np.sum(rotations, axis=0))
    return np.asarray(u @ np.diag([1, 1, np.linalg.det(u @ v)]) @ v)


def table(results: Mapping[str, Mapping[str, Mapping[str, Any]]], baseline: str | None = None) -> Table:
    """A row per scene and method; points and observations also as multiples of a method's, or the first's."""
    columns = {
        key: column
        for key, column in COLUMNS.items()
        if any(key in numbers for of in results.values() for numbers in of.values())
    }
    rows: list[list[Cell]] = []
    for scene, of in results.items():
        base = of.get(baseline or "", next(iter(of.values())))
        for method, numbers in of.items():
            rows.append([scene, method])
            for key, (_, how) in columns.items():
                cell = format(numbers[key], how) if key in numbers else ""
                if key in numbers.get("intervals", {}):
                    cell += " ({} to {})".format(*(format(end, how) for end in numbers["intervals"][key]))
                if key in COUNTED and base[key]:
                    cell += f" ({numbers[key] / base[key]:.2f}x)"
                rows[-1].append(cell)
    titles = (title for title, _ in columns.values())
    return Table("Reconstructions", ("scene", "descriptor", *titles), rows)


def _report(
    request: Request, results: Mapping[str, Mapping[str, Mapping[str, Any]]], skipped: Mapping[str, str]
) -> Report:
    detector = _detector(request)
    plots = [
        Intervals(
            f"{title} by scene", key.replace("_", "-"), "scene", title,
            {
                scene: {m: Mean(*[float(numbers[key])] * 3) for m, numbers in of.items()}
                for scene, of in results.items()
            },
        )
        for key, title in (("points", "sparse points"), ("observations", "observations"))
    ]  # fmt: skip
    return Report(
        "sfm",
        "Reconstructions by COLMAP of all pairs, matched mutually with the ratio of each method. Keypoints, "
        "the same for every method: those of the scene's database, else the "
        f"{detector.max_keypoints} strongest of SIFT at contrast {detector.contrast}. Who shares a camera: "
        f"{request.setting('camera', PROTOCOL)}; focal lengths are not known beforehand unless EXIF tells. "
        "Errors of positions, after alignment by a similarity, are in percent of the largest distance of two "
        "cameras.",
        {
            "keypoints": {"max_keypoints": detector.max_keypoints, "contrast": detector.contrast},
            "pycolmap": import_pycolmap().__version__,
            "scenes": results,
        },
        [table(results, request.baseline)],
        plots,
        skipped,
    )
