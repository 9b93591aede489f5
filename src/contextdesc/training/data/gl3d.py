"""GL3D's layout in, a `Scene` out (Shen et al., ACCV 2018; the data the paper trained on).

A scene of GL3D is a folder `data/PID`. Read are

- `undist_images/00000000.jpg` ...: the undistorted images, named by image number; the published ones are
  resized to a square, so x and y have scales of their own;
- `geolabel/cameras.txt`: a line per image: number, fx, fy, px, py, skew, translation (3), rotation (9, by
  rows; world to camera), radial distortion (3), width and height of the original photograph, in whose pixels
  the intrinsics are;
- `geolabel/corr.bin`: records of a header, three int64 (two image numbers, number of matches), and a row of
  15 float32 per match: two 2x3 transformations, a distance, two feature numbers;
- `img_kpts/00000000.bin` (optional, `read_keypoints`): six float32 per keypoint, its 2x3 transformation.

A transformation maps the square [-1, 1]^2 of a keypoint's support region to the distorted photograph in
coordinates that run from -1 to 1 between its borders. Depth maps, masks and overlap ratios are not read.
Tracks are not part of GL3D: matches that share a feature are joined, and the track's point is triangulated.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np

from contextdesc.errors import InputError
from contextdesc.image import read
from contextdesc.keypoints import Keypoints
from contextdesc.patches import SUPPORT
from contextdesc.training.data.scenes import Scene

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COLUMNS = 23  # numbers in a line of cameras.txt
_FEATURES = 1 << 24  # above every feature number that a float32 can hold exactly


@dataclass(frozen=True)
class Camera:
    """A line of `cameras.txt`.

    Attributes:
        intrinsics: (3, 3) float64, pixels of the original photograph, whose left border is at 0.
        rotation, translation: (3, 3), (3,) float64, world to camera.
        distortion: (3,) float64, radial k1, k2, k3.
        size: (2,) float64, width and height of the original photograph.
    """

    intrinsics: NDArray[np.float64]
    rotation: NDArray[np.float64]
    translation: NDArray[np.float64]
    distortion: NDArray[np.float64]
    size: NDArray[np.float64]

    def keypoints(self, transformations: NDArray[np.float32], size: tuple[int, int]) -> Keypoints:
        """Keypoints in an undistorted image of `size` (width, height) from transformations (N, 6).

        The support region becomes that of our patches: size is its side over `SUPPORT`; the angle is that
        of its first axis. The change of shape by undistortion is left out.
        """
        if not len(transformations):
            return Keypoints.empty()
        theta = transformations.reshape(-1, 2, 3).astype(np.float64)
        photograph = (theta[:, :, 2] + 1) * self.size / 2  # (N, 2)
        k1, k2, k3 = self.distortion
        lens = np.array([k1, k2, 0, 0, k3])
        straight = cv2.undistortPoints(photograph[:, None], self.intrinsics, lens, P=self.intrinsics)
        xy = straight.reshape(-1, 2) * np.array(size) / self.size - 0.5
        shape = theta[:, :, :2] * (np.array(size) / 2)[:, None]  # (N, 2, 2) pixels
        side = 2 * np.sqrt(np.abs(np.linalg.det(shape)))
        angle = np.rad2deg(np.arctan2(shape[:, 1, 0], shape[:, 0, 0])) % 360
        columns = (xy, side / SUPPORT, angle, np.ones(len(xy)))
        return Keypoints(*(column.astype(np.float32) for column in columns))


def read_gl3d(folder: Path, max_error: float = 4.0) -> Scene:
    """Read a scene `data/PID` of GL3D; its images stay where they are.

    Args:
        max_error: pixels; a track is kept if its point lies before its cameras and reprojects no worse than
            this on average, and if no image sees it twice.
    """
    cameras = read_cameras(folder / "geolabel" / "cameras.txt")
    first, second, rows = read_matches(folder / "geolabel" / "corr.bin")
    paths = {number: folder / "undist_images" / f"{number:08}.jpg" for number in cameras}
    numbers = [number for number, path in sorted(paths.items()) if path.is_file()]
    if not numbers:
        raise InputError(
            f"{folder / 'undist_images'}: none of the {len(cameras)} images is here; download them"
        )
    sizes = {number: read(paths[number]).size for number in numbers}
    usable = np.isin(first, numbers) & np.isin(second, numbers)
    first, second, rows = first[usable], second[usable], rows[usable]

    # Each feature of an image is a node, each match an edge.
    ends = [
        image * _FEATURES + rows[:, 13 + side].astype(np.int64) for side, image in enumerate((first, second))
    ]
    nodes, where, inverse = np.unique(np.concatenate(ends), return_index=True, return_inverse=True)
    track = _components(len(nodes), inverse[: len(rows)], inverse[len(rows) :])
    transformations = np.concatenate([rows[:, :6], rows[:, 6:12]])[where]
    number_of = nodes // _FEATURES
    index_of = np.searchsorted(numbers, number_of)
    twice = np.unique(np.column_stack([track, index_of]), axis=0, return_counts=True)
    good = ~np.isin(track, twice[0][twice[1] > 1, 0])
    observed = Keypoints.concatenate(
        [cameras[n].keypoints(transformations[good & (number_of == n)], sizes[n]) for n in numbers]
    )
    # Nodes are sorted by image, as is the concatenation.
    track, image = np.unique(track[good], return_inverse=True)[1].ravel(), index_of[good]
    factors = [np.array(sizes[n]) / cameras[n].size for n in numbers]
    scene = Scene(
        folder / "undist_images", tuple(paths[n].name for n in numbers),
        np.array([np.diag([*f, 1.0]) @ cameras[n].intrinsics for n, f in zip(numbers, factors, strict=True)],
                 np.float32),
        np.array([cameras[n].rotation for n in numbers], np.float32),
        np.array([cameras[n].translation for n in numbers], np.float32),
        np.array([sizes[n] for n in numbers], np.int32), image.astype(np.int16), observed.xy, observed.size,
        observed.angle, track.astype(np.int32), np.zeros((int(track.max(initial=-1)) + 1, 3), np.float32),
    )  # fmt: skip
    return _triangulated(scene, max_error, folder)


def read_cameras(path: Path) -> dict[int, Camera]:
    """Cameras by image number."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); it belongs to GL3D's gl3d_cams") from None
    cameras = {}
    for row, line in enumerate(lines, 1):
        if line.startswith("#"):
            continue
        try:
            values = np.array(line.split(), np.float64)
        except ValueError:
            values = np.zeros(0)
        if len(values) != _COLUMNS or not np.isfinite(values).all():
            raise InputError(f"{path}, line {row}: expected {_COLUMNS} numbers, got {line[:60]!r}")
        fx, fy, px, py, skew = values[1:6]
        intrinsics = np.array([[fx, skew, px], [0, fy, py], [0, 0, 1]])
        cameras[int(values[0])] = Camera(
            intrinsics, values[9:18].reshape(3, 3), values[6:9], values[18:21], values[21:23]
        )
    return cameras


def read_matches(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Matches of a scene: (M,) number of the first image, (M,) of the second, (M, 15) rows as stored."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); it belongs to GL3D's gl3d_corr"
        ) from None
    position, images, parts = 0, [np.zeros((0, 2), np.int64)], [np.zeros((0, 15), np.float32)]
    while position < len(data):
        header = np.frombuffer(data[position : position + 24].ljust(24, b"\xff"), "<i8")
        count = int(header[2])
        body = data[position + 24 : position + 24 + 60 * max(0, count)]
        if count < 0 or len(body) < 60 * count:
            raise InputError(f"{path}: truncated after {position} of {len(data)} bytes; download it again")
        images.append(np.tile(header[:2], (count, 1)))
        parts.append(np.frombuffer(body, "<f4").reshape(-1, 15))
        position += 24 + 60 * count
    first, second = np.concatenate(images).T
    return first, second, np.concatenate(parts)


def read_keypoints(folder: Path, number: int, camera: Camera, size: tuple[int, int]) -> Keypoints:
    """All keypoints of `img_kpts` of an image, in its undistorted image of `size` (width, height)."""
    path = folder / "img_kpts" / f"{number:08}.bin"
    try:
        values = np.fromfile(path, "<f4")
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); it belongs to GL3D's gl3d_kpts"
        ) from None
    if len(values) % 6:
        raise InputError(f"{path}: {len(values)} numbers are no rows of six; download it again")
    return camera.keypoints(values.reshape(-1, 6).astype(np.float32), size)


def find_gl3d(folder: Path) -> dict[str, Path]:
    """Scenes by name: the folder itself, its subfolders, or those of its `data`, that hold `geolabel`."""
    for root in (folder / "data", folder):
        if root.is_dir():
            found = {path.name: path for path in sorted(root.iterdir()) if (path / "geolabel").is_dir()}
            if found:
                return found
    if (folder / "geolabel").is_dir():
        return {folder.resolve().name: folder}
    raise InputError(f"{folder}: no scene of GL3D here (a folder with geolabel/ and undist_images/)")


def _components(count: int, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    """(count,) the smallest node of each node's connected component."""
    label = np.arange(count)
    while True:
        lowest = np.minimum(label[first], label[second])
        new = label.copy()
        np.minimum.at(new, label[first], lowest)
        np.minimum.at(new, label[second], lowest)
        new = new[new]
        if (new == label).all():
            return label
        label = new


def _triangulated(scene: Scene, max_error: float, folder: Path) -> Scene:
    """The scene with the points of its tracks, without the tracks that no point explains."""
    rays = np.empty((len(scene.track), 2))
    for image in range(len(scene)):
        rows = scene.rows(image)
        homogeneous = np.column_stack([scene.xy[rows] + 0.5, np.ones(rows.stop - rows.start)])
        rays[rows] = (homogeneous @ np.linalg.inv(scene.intrinsics[image].astype(np.float64)).T)[:, :2]
    poses = np.concatenate([scene.rotation, scene.translation[:, :, None]], 2).astype(np.float64)[scene.image]
    equations = rays[:, :, None] * poses[:, 2:] - poses[:, :2]  # (N, 2, 4), zero at the point
    normal = np.zeros((len(scene.points), 4, 4))
    np.add.at(normal, scene.track, np.einsum("nij,nik->njk", equations, equations))
    point = np.linalg.eigh(normal)[1][:, :, 0]  # of the smallest eigenvalue
    with np.errstate(divide="ignore", invalid="ignore"):
        points = point[:, :3] / point[:, 3:]
    error = np.empty(len(scene.track))
    for image in range(len(scene)):
        rows = scene.rows(image)
        place = scene.project(image, points[scene.track[rows]])[0]  # NaN behind the camera
        error[rows] = np.linalg.norm(place - scene.xy[rows], axis=1)
    mean = np.bincount(scene.track, error, len(points)) / np.maximum(np.bincount(scene.track), 1)
    kept = mean <= max_error
    if not kept.any():
        raise InputError(
            f"{folder}: no match of geolabel/corr.bin fits geolabel/cameras.txt; download them again"
        )
    good = kept[scene.track]
    return Scene(
        scene.images, scene.names, scene.intrinsics, scene.rotation, scene.translation, scene.size,
        scene.image[good], scene.xy[good], scene.scale[good], scene.angle[good],
        (np.cumsum(kept) - 1)[scene.track[good]].astype(np.int32), points[kept].astype(np.float32),
    )  # fmt: skip
