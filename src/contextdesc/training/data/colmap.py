"""COLMAP through pycolmap: a database of our keypoints and matches, mapping in a child process, tracks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import cv2  # noqa: F401  # before pycolmap: see import_pycolmap
import numpy as np
from numpy.typing import NDArray

from contextdesc.errors import ContextDescError, InputError
from contextdesc.keypoints import Keypoints
from contextdesc.progress import progress
from contextdesc.training.data.scenes import Scene

if TYPE_CHECKING:
    from contextdesc.journal import Journal
    from contextdesc.training.data.sfm import BuildConfig

# pycolmap's image; pixels of our copy per pixel of the model's in x and y; (width, height) of our copy
Placed: TypeAlias = tuple[Any, NDArray[np.floating], tuple[int, int]]


def import_pycolmap() -> Any:
    """pycolmap. OpenCV is imported first, as it is above: the other order aborts the process (4.2.1)."""
    try:
        import pycolmap
    except ImportError:
        raise InputError("structure from motion needs an extra: pip install 'contextdesc[sfm]'") from None
    return pycolmap


def write_database(
    pycolmap: Any, work: Path, features: Mapping[str, Mapping[str, NDArray[Any]]], matched: Journal,
    pairs: list[tuple[str, str]], config: BuildConfig,
) -> None:  # fmt: skip
    """A new COLMAP database with our keypoints and matches; its coordinates are 0.5 larger than ours."""
    for path in work.glob("database.*"):
        path.unlink()
    cameras: dict[tuple[Any, ...], list[str]] = {}
    for name, feature in features.items():
        alone = not config.shared_camera and not feature["focal"]
        key = (*feature["shape"].tolist(), 0.0 if config.shared_camera else float(feature["focal"]))
        cameras.setdefault((*key, name if alone else ""), []).append(name)
    target = str(work / "database.db")
    pycolmap.Database.open(target).close()  # which creates it
    for (width, height, focal, _), names in cameras.items():
        options = pycolmap.ImageReaderOptions()
        options.camera_model = config.camera_model
        if focal and config.camera_model in ("SIMPLE_PINHOLE", "SIMPLE_RADIAL"):
            extra = ",0" if config.camera_model == "SIMPLE_RADIAL" else ""
            options.camera_params = f"{focal},{width / 2},{height / 2}{extra}"
        pycolmap.import_images(target, str(work / "images"), pycolmap.CameraMode.SINGLE, names, options)
    with pycolmap.Database.open(target) as database:
        ids = {image.name: image.image_id for image in database.read_all_images()}
        for name, f in features.items():
            keypoints = Keypoints(f["xy"], f["size"], f["angle"], f["response"])
            database.write_keypoints(ids[name], keypoints.to_colmap())
        for first, second in pairs:
            database.write_matches(ids[first], ids[second], matched[f"{first}\n{second}"]["indices"])
    text = "".join(f"{first} {second}\n" for first, second in pairs)
    (work / "colmap.pairs").write_text(text, encoding="utf-8")


def run_colmap(work: Path, total: int, quiet: bool) -> int:
    """Verify and map in a child process; the number of registered images of the largest model."""
    command = [sys.executable, "-m", __name__, str(work)]
    pipe = subprocess.PIPE
    with (work / "colmap.log").open("wb") as log:
        child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True)
        registered, out = 0, child.stdout or iter(())
        try:
            with progress("map", total, quiet=quiet) as advance:
                for line in out:
                    if line.startswith("placed"):
                        advance()
                    elif line.startswith("registered"):
                        registered = int(line.split()[1])
            code = child.wait()
        finally:
            child.kill()
            child.wait()
    if code:
        lines = (work / "colmap.log").read_text(errors="replace").splitlines()
        raise ContextDescError(f"{work / 'colmap.log'}: COLMAP failed (code {code}): {' '.join(lines[-1:])}")
    return registered


def _colmap_child(work: Path) -> None:
    """What the child process does: says `placed` for each image and `registered N` at the end."""
    # Standard input ends when the parent does, however it ends.
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
    pycolmap = import_pycolmap()
    pycolmap.set_random_seed(0)
    database = str(work / "database.db")
    pycolmap.verify_matches(database, str(work / "colmap.pairs"))
    options = pycolmap.IncrementalPipelineOptions()
    options.random_seed = 0
    options.extract_colors = False
    options.min_model_size = 2
    (work / "sparse").mkdir(exist_ok=True)
    models = pycolmap.incremental_mapping(
        database, str(work / "images"), str(work / "sparse"), options,
        initial_image_pair_callback=lambda: print("placed\nplaced", flush=True),
        next_image_callback=lambda: print("placed", flush=True),
    )  # fmt: skip
    best = max(models.values(), key=lambda model: int(model.num_reg_images()), default=None)
    if best is not None:
        best.write(str(work / "sparse"))
    print("registered", 0 if best is None else best.num_reg_images())


def scene_of(
    reconstruction: Any, folder: Path, images: Mapping[str, Placed],
    keypoints: Mapping[str, Keypoints], rows: Mapping[str, NDArray[np.integer]],
) -> Scene:  # fmt: skip
    """Tracks of a reconstruction.

    Args:
        images: the registered images.
        rows: for each of the model's 2D points, its row in `keypoints`, or -1.
    """
    cameras: dict[str, list[Any]] = {"K": [], "R": [], "t": []}
    image_of, track_of, parts = [], [], []
    for index, (name, (image, factor, _)) in enumerate(images.items()):
        cameras["K"].append(np.diag([*factor, 1.0]) @ image.camera.calibration_matrix())
        pose = image.cam_from_world()
        cameras["R"].append(pose.rotation.matrix())
        cameras["t"].append(pose.translation)
        points = image.points2D
        seen = np.array([i for i, point in enumerate(points) if point.has_point3D()], np.int64)
        track = np.array([points[i].point3D_id for i in seen], np.int64)
        row = rows[name][seen] if len(seen) else seen
        _, first = np.unique(row, return_index=True)  # of two observations at one keypoint, the first
        kept = np.sort(first[row[first] >= 0])
        image_of.append(np.full(len(kept), index, np.int16))
        track_of.append(track[kept])
        parts.append(keypoints[name][row[kept]])
    observed = Keypoints.concatenate(parts)
    ids, track = np.unique(np.concatenate(track_of), return_inverse=True)
    intrinsics, rotation, translation = (np.array(cameras[key], np.float32) for key in ("K", "R", "t"))
    size = np.array([size for _, _, size in images.values()], np.int32)
    points = [reconstruction.point3D(int(i)).xyz for i in ids]
    return Scene(
        folder / "images", tuple(images), intrinsics, rotation, translation, size, np.concatenate(image_of),
        observed.xy, observed.size, observed.angle, track.astype(np.int32).ravel(),
        np.array(points, np.float32).reshape(-1, 3),
    )  # fmt: skip


def database_keypoints(pycolmap: Any, path: Path) -> dict[str, NDArray[np.float32]]:
    with pycolmap.Database.open(str(path)) as database:
        return {image.name: database.read_keypoints(image.image_id) for image in database.read_all_images()}


if __name__ == "__main__":
    _colmap_child(Path(sys.argv[1]))
