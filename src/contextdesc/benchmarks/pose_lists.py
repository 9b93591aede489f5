"""Pairs of images with known relative pose: a folder or file in a published layout in, pairs out.

- SuperGlue's pair files: a text file of 38 columns, images beside it: two names, two quarter turns, K of
  both images and the pose from the first to the second.
- Learned correspondences and OANet (YFCC100M, SUN3D): `SEQUENCE/test/{images,calibration,visibility}.txt`,
  which list files; OANet's lists of pairs in `pairs/` beside the sequences or a folder above.
- Strecha: `SCENE/images` and `SCENE/gt_dense_cameras/NAME.camera`; all pairs.
- COLMAP: `SCENE/images` and `SCENE/sparse` (or `sparse/0`); pairs that share enough points.
- Training scenes: `SCENE/images` and `SCENE/tracks.npz`, as `contextdesc dataset build` makes them; likewise.

A folder of scenes gives the pairs of all of them, or of those that are named.
"""

from __future__ import annotations

import itertools
import pickletools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.benchmarks.cameras import Camera, read_strecha, relative_pose
from contextdesc.errors import InputError
from contextdesc.image import Image, read

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.benchmarks.cameras import Pose

PER_SCENE = 1000  # pairs that are drawn at most: the number of the learned correspondences' test sets
SEED = 1234  # of their draw
SHARED_POINTS = 100  # of a COLMAP model, above which a pair is taken
SHARED_TRACKS = 20  # of a training scene, likewise; so few that pairs hard for its reconstruction count too
# Visibilities above which a pair is taken: counts of shared points (YFCC100M, by the learned correspondences;
# OANet's script has 50), or shares of an image (SUN3D, by OANet's)
VISIBLE_POINTS, VISIBLE_SHARE = 100, 0.35
_SPLITS = ("test", "val", "train")  # folders of a sequence
_LISTS = ("images.txt", "calibration.txt", "visibility.txt")
_NO_BASELINE = 1e-5  # length of a translation without direction, OANet's


@dataclass(frozen=True, eq=False)
class View:
    """An image with its camera.

    Attributes:
        name: of the view, unique in a list.
        intrinsics: (3, 3), pixels of the file as it is, before it is turned.
        size: (width, height) that the file must have; None if nothing tells.
        turns: quarter turns counter-clockwise that make the image upright.
        distorted: name and parameters of COLMAP's camera model, for files with distortion; else None.
    """

    name: str
    path: Path
    intrinsics: NDArray[np.float64]
    size: tuple[int, int] | None = None
    turns: int = 0
    distorted: tuple[str, tuple[float, ...]] | None = None

    def read(self) -> Image:
        """The image, upright."""
        image = read(self.path)
        if self.size is not None and image.size != self.size:
            own, camera = (" x ".join(map(str, size)) for size in (image.size, self.size))
            raise InputError(f"{self.path}: is {own} pixels, its camera {camera}")
        if not self.turns:
            return image
        rgb = np.ascontiguousarray(np.rot90(image.rgb, self.turns))
        return Image(rgb, (rgb.shape[1], rgb.shape[0]), image.name)

    def pinhole(self, xy: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.float64]:
        """Pixels (N, 2) of the upright image of a size as those of the camera that `intrinsics` describe."""
        x, y = xy.T.astype(np.float64)
        right, bottom = size[0] - 1, size[1] - 1
        turned = ((x, y), (bottom - y, x), (right - x, bottom - y), (y, right - x))
        points = np.column_stack(turned[self.turns])
        if self.distorted is None:
            return points
        from contextdesc.sfm.binding import import_pycolmap

        model, params = self.distorted
        camera = import_pycolmap().Camera(model=model, width=size[0], height=size[1], params=params)
        rays = np.asarray(camera.cam_from_img(points + 0.5), np.float64)
        return rays * self.intrinsics[[0, 1], [0, 1]] + self.intrinsics[:2, 2]


@dataclass(frozen=True, eq=False)
class PosePair:
    """Two views of a scene, and the pose from the first camera to the second: x2 = R x1 + t."""

    scene: str
    first: View
    second: View
    pose: Pose

    @property
    def name(self) -> str:
        return f"{self.first.name} - {self.second.name}"


@dataclass
class PoseList:
    """Pairs, and files or pairs that could not be used, with the reason."""

    pairs: list[PosePair] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def find_pairs(data: Path, only: Sequence[str] = ()) -> PoseList:
    """All pairs of a file or folder in one of the layouts, or those of the scenes that are named."""
    if data.is_file():
        if only:
            raise InputError(f"{data}: a file has no scenes to choose from; leave out scenes={only[0]}")
        return read_superglue(data)
    if not data.is_dir():
        raise InputError(f"{data}: no such file or folder")
    found, scenes = PoseList(), list(_scenes(data))
    if only and scenes:
        names = {_scene_name(folder): (folder, read_scene) for folder, read_scene in scenes}
        if missing := [name for name in only if name not in names]:
            raise InputError(f"{data}: no scene {missing[0]} in it; it has {', '.join(names)}")
        scenes = [names[name] for name in only]
    for folder, read_scene in scenes:
        try:
            scene = read_scene(folder)
        except InputError as error:
            found.skipped[folder.name] = str(error)
            continue
        found.pairs += scene.pairs
        found.skipped |= scene.skipped
    if not scenes:
        raise InputError(
            f"{data}: no pairs with known pose; give a pair file of SuperGlue's, or a folder of scenes with "
            "images and gt_dense_cameras (Strecha), images and sparse (COLMAP), images and tracks.npz "
            "(contextdesc dataset build), or test/images.txt, calibration.txt and visibility.txt (learned "
            "correspondences, OANet)"
        )
    return found


def _scenes(data: Path) -> Iterator[tuple[Path, Callable[[Path], PoseList]]]:
    """Folders of scenes with the function that reads them: the folder itself, or those in it."""
    folders = [data, *sorted(path for path in data.iterdir() if path.is_dir())]
    for folder in folders:
        if (folder / "gt_dense_cameras").is_dir():
            yield folder, read_strecha_scene
        elif (folder / "sparse").is_dir() and (folder / "images").is_dir():
            yield folder, read_colmap_scene
        elif (folder / "tracks.npz").is_file() and (folder / "images").is_dir():
            yield folder, read_training_scene
        elif split := next((f for f in (folder, folder / "test") if (f / _LISTS[1]).is_file()), None):
            yield split, read_correspondence_scene


def _scene_name(folder: Path) -> str:
    return folder.parent.name if folder.name in _SPLITS else folder.name


def read_superglue(path: Path) -> PoseList:
    """A pair file: `name0 name1 turns0 turns1 K0 (9) K1 (9) T_0to1 (16)` a line; images are beside it."""
    found = PoseList()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        columns = line.split()
        if not columns:
            continue
        label = f"line {number}"
        try:
            if len(columns) != 38:
                raise ValueError(f"{len(columns)} columns instead of 38; only pairs with ground truth")
            turns = [int(value) % 4 for value in columns[2:4]]
            numbers = np.array(columns[4:], np.float64)
        except ValueError as error:
            found.skipped[label] = f"{path}: line {number}: {error}"
            continue
        intrinsics, pose = numbers[:18].reshape(2, 3, 3), numbers[18:].reshape(4, 4)
        views = [
            View(name, path.parent / name, k, None, turn)
            for name, turn, k in zip(columns[:2], turns, intrinsics, strict=True)
        ]
        _add(found, PosePair(path.stem, views[0], views[1], (pose[:3, :3], pose[:3, 3])))
    if not found.pairs:
        reason = next(iter(found.skipped.values()), f"{path}: no lines")
        raise InputError(f"{path}: no pairs with known pose; the first reason: {reason}")
    return found


def read_strecha_scene(folder: Path) -> PoseList:
    """All pairs of the images that have a camera."""
    found = PoseList()
    cameras: dict[str, Camera] = {}
    for path in sorted((folder / "gt_dense_cameras").glob("*.camera")):
        try:
            cameras[path.name.removesuffix(".camera")] = read_strecha(path)
        except InputError as error:
            found.skipped[f"{folder.name}/{path.name}"] = str(error)
    views = {
        name: View(f"{folder.name}/{name}", folder / "images" / name, camera.intrinsics, camera.size)
        for name, camera in cameras.items()
    }
    for one, two in itertools.combinations(views, 2):
        pose = relative_pose(cameras[one], cameras[two])
        _add(found, PosePair(folder.name, views[one], views[two], pose))
    return found


def read_colmap_scene(folder: Path) -> PoseList:
    """Pairs of a COLMAP model that share more than `SHARED_POINTS` points, at most `PER_SCENE`."""
    from contextdesc.sfm.binding import import_pycolmap
    from contextdesc.sfm.summary import registered

    sparse = next((f for f in (folder / "sparse", folder / "sparse" / "0") if _holds_model(f)), None)
    if sparse is None:
        raise InputError(f"{folder / 'sparse'}: no COLMAP model (cameras, images, points3D)")
    model = import_pycolmap().Reconstruction(str(sparse))
    images = sorted(registered(model), key=lambda image: str(image.name))
    points = [{p.point3D_id for p in image.get_observation_points2D()} for image in images]
    pairs = [
        (i, j)
        for i, j in itertools.combinations(range(len(images)), 2)
        if len(points[i] & points[j]) > SHARED_POINTS
    ]
    found = PoseList()
    views = [_colmap_view(folder, model, image) for image in images]
    for i, j in _drawn(pairs):
        pose = _rigid(images[j].cam_from_world() * images[i].cam_from_world().inverse())
        _add(found, PosePair(folder.name, views[i], views[j], pose))
    return found


def _holds_model(folder: Path) -> bool:
    return any((folder / f"cameras{suffix}").is_file() for suffix in (".bin", ".txt"))


def _rigid(transform: Any) -> Pose:
    matrix = np.asarray(transform.matrix(), np.float64)  # (3, 4)
    return matrix[:, :3], matrix[:, 3]


def _colmap_view(folder: Path, model: Any, image: Any) -> View:
    camera = model.cameras[image.camera_id]
    intrinsics = np.asarray(camera.calibration_matrix(), np.float64)
    intrinsics[:2, 2] -= 0.5  # from COLMAP's pixel convention to OpenCV's
    name, size = str(image.name), (camera.width, camera.height)
    distorted = (camera.model.name, tuple(float(value) for value in camera.params))
    return View(f"{folder.name}/{name}", folder / "images" / name, intrinsics, size, distorted=distorted)


def read_training_scene(folder: Path) -> PoseList:
    """Pairs of a training scene that share more than `SHARED_TRACKS` tracks, at most `PER_SCENE`."""
    from contextdesc.training.data.scenes import Scene

    scene = Scene.load(folder)
    cameras, views = [], []
    for image, name in enumerate(scene.names):
        intrinsics = scene.intrinsics[image].astype(np.float64)
        intrinsics[:2, 2] -= 0.5  # from COLMAP's pixel convention to OpenCV's
        rotation, translation = (a[image].astype(np.float64) for a in (scene.rotation, scene.translation))
        width, height = scene.size[image]
        cameras.append(Camera(intrinsics, rotation, translation, (int(width), int(height))))
        views.append(View(f"{folder.name}/{name}", scene.path(image), intrinsics, cameras[-1].size))
    pairs, count, _ = scene.shared_tracks
    found = PoseList()
    for i, j in _drawn([(int(i), int(j)) for i, j in pairs[count > SHARED_TRACKS]]):
        _add(found, PosePair(folder.name, views[i], views[j], relative_pose(cameras[i], cameras[j])))
    return found


def read_correspondence_scene(folder: Path) -> PoseList:
    """Pairs of a split of a sequence as the learned correspondences' and OANet's releases have it.

    Calibrations are HDF5 files with K, R, T and imsize, K's principal point relative to the image's centre.
    Pairs are those of OANet's list where there is one; else drawn as both releases draw them, from the pairs
    (in both orders) whose visibility is above a threshold. That the lists were made by this very draw is not
    documented. SUN3D's sequences are taken to have the same layout, as their reader in OANet does.
    """
    sequence = _scene_name(folder)
    images, calibrations, visibilities = (_listed(folder, name) for name in _LISTS)
    if not len(images) == len(calibrations) == len(visibilities):
        raise InputError(f"{folder}: {', '.join(_LISTS)} have differing numbers of lines")
    found = PoseList()
    views: dict[int, tuple[View, Camera]] = {}
    for index, (image, calibration) in enumerate(zip(images, calibrations, strict=True)):
        try:
            camera = read_calibration(calibration)
        except InputError as error:
            found.skipped[f"{sequence}/{calibration.name}"] = str(error)
            continue
        view = View(f"{sequence}/{image.name}", image, camera.intrinsics, camera.size)
        views[index] = view, camera
    listed = _pair_list(folder, sequence)
    for i, j in _visible(visibilities) if listed is None else listed:
        if i in views and j in views:
            (one, first), (two, second) = views[i], views[j]
            _add(found, PosePair(sequence, one, two, relative_pose(first, second)))
    return found


def read_calibration(path: Path) -> Camera:
    """The camera of an HDF5 file with K (3, 3), R (3, 3), T (3,) and imsize (width, height)."""
    import h5py

    try:
        with h5py.File(path) as file:
            values = [np.asarray(file[key], np.float64) for key in ("K", "R", "T", "imsize")]
        intrinsics, rotation = (value.reshape(3, 3).copy() for value in values[:2])
        translation, size = values[2].reshape(3), values[3].ravel()[:2]
        intrinsics[:2, 2] += (size - 1) / 2
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"{path}: not a calibration with K, R, T and imsize ({error})") from None
    return Camera(intrinsics, rotation, translation, (int(size[0]), int(size[1])))


def _listed(folder: Path, name: str) -> list[Path]:
    try:
        lines = (folder / name).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"{folder / name}: {error.strerror}") from None
    return [folder / line.strip() for line in lines if line.strip()]


def _visible(paths: Sequence[Path]) -> list[tuple[int, int]]:
    """Pairs drawn by visibility, a file per image with a number for every image."""
    try:
        visibility = np.stack([np.loadtxt(path).ravel() for path in paths])
    except (OSError, ValueError) as error:
        raise InputError(f"{paths[0].parent}: visibilities cannot be read ({error})") from None
    if visibility.shape != (len(paths), len(paths)):
        raise InputError(
            f"{paths[0].parent}: visibilities of shape {visibility.shape} for {len(paths)} images"
        )
    threshold = VISIBLE_SHARE if visibility.max() <= 1 else VISIBLE_POINTS
    order = itertools.permutations(range(len(paths)), 2)
    return _drawn([(i, j) for i, j in order if visibility[i, j] > threshold])


def _drawn(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    order = np.random.RandomState(SEED).permutation(len(pairs))[:PER_SCENE]
    return [pairs[index] for index in order]


def _pair_list(folder: Path, sequence: str) -> list[tuple[int, int]] | None:
    """OANet's `pairs/SEQUENCE-te-1000-pairs.pkl`, in a folder above the sequence; None if there is none."""
    for above in list(folder.parents)[:3]:
        path = above / "pairs" / f"{sequence}-te-1000-pairs.pkl"
        if path.is_file():
            return read_pickled_pairs(path)
    return None


def read_pickled_pairs(path: Path) -> list[tuple[int, int]]:
    """Pairs of indices out of a pickled list, whose instructions are read as data and never run."""
    numbers: list[int] = []
    try:
        for code, argument, _ in pickletools.genops(path.read_bytes()):
            if code.name in ("GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "REDUCE", "BUILD", "PERSID"):
                raise ValueError("it holds more than numbers")
            if argument is not None and code.name in ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"):
                numbers.append(int(argument))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a pickled list of pairs of numbers ({error})") from None
    if len(numbers) % 2:
        raise InputError(f"{path}: an odd number of indices, so not a list of pairs")
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _add(found: PoseList, pair: PosePair) -> None:
    """Add a pair, or say why not."""
    missing = next((view.path for view in (pair.first, pair.second) if not view.path.is_file()), None)
    if missing is not None:
        found.skipped[pair.name] = f"{missing}: no such file"
    elif not np.isfinite(np.column_stack(pair.pose)).all():
        found.skipped[pair.name] = f"{pair.name}: its pose is not finite"
    elif np.linalg.norm(pair.pose[1]) <= _NO_BASELINE:
        found.skipped[pair.name] = f"{pair.name}: both cameras stand at one place, so no direction is right"
    else:
        found.pairs.append(pair)
