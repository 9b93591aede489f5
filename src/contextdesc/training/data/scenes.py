"""Scenes: photographs with cameras and tracks in, pairs and the three kinds of keypoints out (section 4.1).

A scene is a folder with `images/` and `tracks.npz`, a result of structure from motion. Its keypoints are in
OpenCV's convention, its intrinsics in COLMAP's, whose top-left pixel has its centre at (0.5, 0.5).
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.formats.atomic import replacing
from contextdesc.image import read
from contextdesc.keypoints import Keypoints

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNREPEATABLE, UNDISCOVERED, MATCHABLE = 0, 1, 2  # kinds of keypoints
KINDS = ("unrepeatable", "undiscovered", "matchable")
MAX_SIDE = 1024  # pixels: coordinates are stored times 64 in 16 bits
DETECTOR = Detector(max_keypoints=4096, contrast=0.02)  # what scenes are built with
_ARRAYS = {  # name in the file: type, shape of a row, what the number of rows equals
    "K": (np.float32, (3, 3), "names"), "R": (np.float32, (3, 3), "names"), "t": (np.float32, (3,), "names"),
    "size": (np.int32, (2,), "names"), "image": (np.int16, (), "track"), "x": (np.uint16, (), "track"),
    "y": (np.uint16, (), "track"), "scale": (np.float16, (), "track"), "angle": (np.uint16, (), "track"),
    "track": (np.int32, (), "track"), "points": (np.float32, (3,), "points"),
}  # fmt: skip


@dataclass(frozen=True)
class PairRules:
    """Which image pairs are trained on; the defaults are the release's."""

    keypoints: int = 1024  # that both images must have; the share below is of this number
    min_rotation: float = 3.0  # degrees between the cameras: nearly equal views teach nothing
    max_angle: float = 60.0  # degrees, mean difference of the orientations of matched keypoints
    min_matched: float = 0.01  # share of `keypoints` that is matched
    min_shared: int = 16  # tracks


@dataclass(frozen=True)
class LabelRules:
    """When a keypoint without a track counts as repeatable; see `label_keypoints`."""

    neighbours: int = 5  # images that share most tracks
    radius: float = 32.0  # pixels around a keypoint whose shared tracks tell its depth
    max_depth_spread: float = 0.1  # of their inverse depths, relative; more is a depth edge
    across: float = 1.5  # pixels from the epipolar line
    along: float = 3.0  # pixels along it, from the predicted place
    max_scale: float = 0.5  # log2 of the ratio of predicted and found size
    max_angle: float = 30.0  # degrees between predicted and found orientation


@dataclass(frozen=True, eq=False)
class Scene:
    """Cameras and tracks of I images with N observations of T tracks.

    Attributes:
        images: folder of the images; `images/` of the scene's own.
        names: of the images.
        intrinsics: (I, 3, 3) float32, COLMAP pixel convention; a lens distortion is not kept.
        rotation, translation: (I, 3, 3), (I, 3) float32, world to camera.
        size: (I, 2) int32, width and height in pixels.
        image: (N,) int16, index into `names`, not decreasing.
        xy: (N, 2) float32, pixels, OpenCV convention.
        scale: (N,) float32, keypoint size (diameter) in pixels.
        angle: (N,) float32, degrees.
        track: (N,) int32, row of `points`.
        points: (T, 3) float32, world.
    """

    images: Path
    names: tuple[str, ...]
    intrinsics: NDArray[np.float32]
    rotation: NDArray[np.float32]
    translation: NDArray[np.float32]
    size: NDArray[np.int32]
    image: NDArray[np.int16]
    xy: NDArray[np.float32]
    scale: NDArray[np.float32]
    angle: NDArray[np.float32]
    track: NDArray[np.int32]
    points: NDArray[np.float32]

    @classmethod
    def load(cls, folder: Path) -> Scene:
        """Read `tracks.npz` of a folder and check that its images are there."""
        path = folder / "tracks.npz"
        if not (folder / "images").is_dir():
            raise InputError(f"{folder / 'images'}: no such folder; a scene has images/ and tracks.npz")
        try:
            with np.load(path, allow_pickle=False) as file:
                stored = {name: file[name] for name in ("names", *_ARRAYS)}
        except FileNotFoundError:
            raise InputError(f"{path}: no such file; make it with contextdesc dataset build") from None
        except KeyError as error:
            raise InputError(f"{path}: {error.args[0]}; build the scene again") from None
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise InputError(f"{path}: damaged ({error}); build the scene again") from None
        _check(stored, path)
        names = tuple(str(name) for name in stored["names"])
        for name in names:
            if not (folder / "images" / name).is_file():
                raise InputError(f"{folder / 'images' / name}: no such image, which {path} names")
        order = np.argsort(stored["image"], kind="stable")
        rows = {name: stored[name][order] for name in ("image", "x", "y", "scale", "angle", "track")}
        xy = (np.column_stack([rows["x"], rows["y"]]) / 64).astype(np.float32)
        return cls(
            folder / "images", names, stored["K"], stored["R"], stored["t"], stored["size"], rows["image"],
            xy, rows["scale"].astype(np.float32), (rows["angle"] / 100).astype(np.float32), rows["track"],
            stored["points"],
        )  # fmt: skip

    def save(self, folder: Path) -> None:
        """Write `tracks.npz`, and copy the images if the folder is another one."""
        if self.size.max(initial=0) > MAX_SIDE:
            raise InputError(
                f"{folder}: an image has a side of {self.size.max()} pixels; scenes hold at most {MAX_SIDE}"
            )
        if (folder / "images").resolve() != self.images.resolve():
            for name in self.names:
                (folder / "images" / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.images / name, folder / "images" / name)
        x, y = np.clip(np.rint(self.xy.T * 64), 0, 65535)
        values = (
            self.intrinsics, self.rotation, self.translation, self.size, self.image, x, y, self.scale,
            np.rint(self.angle % 360 * 100), self.track, self.points,
        )  # fmt: skip
        stored: dict[str, Any] = {
            name: np.asarray(value).astype(_ARRAYS[name][0])
            for name, value in zip(_ARRAYS, values, strict=True)
        }
        with replacing(folder / "tracks.npz") as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, names=np.array(self.names), **stored)

    def __len__(self) -> int:
        return len(self.names)

    def path(self, image: int) -> Path:
        return self.images / self.names[image]

    def rows(self, image: int) -> slice:
        """Rows of the observations in an image."""
        start, stop = np.searchsorted(self.image, [image, image + 1])
        return slice(int(start), int(stop))

    def keypoints(self, image: int) -> tuple[Keypoints, NDArray[np.int32]]:
        """The matchable keypoints of an image (response 1) and their tracks, (N,) int32."""
        rows = self.rows(image)
        response = np.ones(rows.stop - rows.start, np.float32)
        return Keypoints(self.xy[rows], self.scale[rows], self.angle[rows], response), self.track[rows]

    def matches(self, first: int, second: int) -> NDArray[np.int64]:
        """(M, 2) rows of `keypoints(first)` and `keypoints(second)` on one track, a track at most once."""
        one, firsts = np.unique(self.keypoints(first)[1], return_index=True)
        two, seconds = np.unique(self.keypoints(second)[1], return_index=True)
        _, a, b = np.intersect1d(one, two, assume_unique=True, return_indices=True)
        return np.column_stack([firsts[a], seconds[b]]).astype(np.int64)

    def project(
        self, image: int, points: NDArray[np.floating]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """World points (N, 3) to pixels (N, 2), OpenCV convention, and depths (N,)."""
        seen = points.astype(np.float64) @ self.rotation[image].T + self.translation[image]
        depth = seen[:, 2]
        with np.errstate(divide="ignore", invalid="ignore"):
            xy = (seen / depth[:, None] @ self.intrinsics[image].T.astype(np.float64))[:, :2] - 0.5
        return np.where(depth[:, None] > 0, xy, np.nan), depth

    def unproject(
        self, image: int, xy: NDArray[np.floating], depth: NDArray[np.floating]
    ) -> NDArray[np.float64]:
        """Pixels (N, 2) at depths (N,) to world points (N, 3)."""
        rays = np.column_stack([xy + 0.5, np.ones(len(xy))])
        rays = rays @ np.linalg.inv(self.intrinsics[image].astype(np.float64)).T
        return np.asarray((rays * depth[:, None] - self.translation[image]) @ self.rotation[image])

    def fundamental(self, first: int, second: int) -> NDArray[np.float64]:
        """(3, 3): second' F first = 0 for pixels of two images, OpenCV convention."""
        rotation = self.rotation[second].astype(np.float64) @ self.rotation[first].T
        x, y, z = self.translation[second] - rotation @ self.translation[first]
        across = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
        to_ray = [
            np.linalg.inv(self.intrinsics[image].astype(np.float64)) @ [[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]]
            for image in (first, second)
        ]
        return np.asarray(to_ray[1].T @ across @ rotation @ to_ray[0])

    @cached_property
    def shared_tracks(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Image pairs that share tracks.

        Returns:
            (P, 2) images, the smaller first; (P,) number of tracks; (P,) mean difference in degrees of the
            orientations of their keypoints. Only pairs that share a track are listed.
        """
        order = np.lexsort((self.image, self.track))
        image, track, angle = self.image[order].astype(np.int64), self.track[order], self.angle[order]
        first = np.ones(len(image), np.bool_)  # a track that an image sees twice counts once
        first[1:] = (track[1:] != track[:-1]) | (image[1:] != image[:-1])
        image, track, angle = image[first], track[first], angle[first]
        longest = int(np.bincount(track).max(initial=0)) if len(track) else 0
        codes, turns = [np.zeros(0, np.int64)], [np.zeros(0)]
        for step in range(1, longest):  # observations of one track stand together, by image
            same = np.flatnonzero(track[:-step] == track[step:])
            codes.append(image[same] * len(self) + image[same + step])
            turns.append(np.abs((angle[same] - angle[same + step] + 180) % 360 - 180))
        code, inverse, count = np.unique(np.concatenate(codes), return_inverse=True, return_counts=True)
        turn = np.bincount(inverse.ravel(), np.concatenate(turns), len(code)) / np.maximum(count, 1)
        return np.column_stack([code // len(self), code % len(self)]), count, turn

    def select_pairs(
        self, rules: PairRules, detected: NDArray[np.integer] | None = None
    ) -> NDArray[np.int64]:
        """Pairs (P, 2) that the rules admit.

        Args:
            detected: (I,) number of keypoints detected in each image; without it, that rule is left out,
                since tracks do not tell it.
        """
        pairs, count, turn = self.shared_tracks
        rotations = self.rotation.astype(np.float64)
        trace = (rotations[pairs[:, 0]] * rotations[pairs[:, 1]]).sum((1, 2))
        rotation = np.rad2deg(np.arccos(np.clip((trace - 1) / 2, -1, 1)))
        keep = (rotation >= rules.min_rotation) & (turn <= rules.max_angle)
        keep &= (count >= rules.min_shared) & (count >= rules.min_matched * rules.keypoints)
        if detected is not None:
            keep &= (np.asarray(detected)[pairs] >= rules.keypoints).all(1)
        return pairs[keep]

    def covisible(self, image: int, most: int) -> NDArray[np.int64]:
        """The images that share most tracks with an image, best first, at most `most`."""
        pairs, count, _ = self.shared_tracks
        mine = (pairs == image).any(1)
        others = np.where(pairs[mine, 0] == image, pairs[mine, 1], pairs[mine, 0])
        return others[np.argsort(-count[mine], kind="stable")[:most]]

    def detector(self) -> Detector:
        """`DETECTOR` with or without OpenCV's bias of 0.25 pixels: what finds this scene's observations."""
        either = [replace(DETECTOR, precise_upscale=precise) for precise in (True, False)]
        known = self.keypoints(0)[0].xy
        return max(either, key=lambda d: len(near_pairs(known, self.detect(0, d).xy, 0.05)))

    def detect(self, image: int, detector: Detector = DETECTOR) -> Keypoints:
        """All keypoints of an image, detected again."""
        found = read(self.path(image))
        if found.size != tuple(self.size[image]):
            raise InputError(
                f"{self.path(image)}: is {found.size[0]} x {found.size[1]} pixels, its camera "
                f"{self.size[image][0]} x {self.size[image][1]}; put back the image that was reconstructed"
            )
        return detect(found.gray, detector)


@dataclass(frozen=True)
class LabelledKeypoints:
    """All keypoints of an image; track (N,) int32, -1 without one; kind (N,) uint8, see `KINDS`."""

    keypoints: Keypoints
    track: NDArray[np.int32]
    kind: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.kind)


def label_keypoints(
    scene: Scene, image: int, detected: Sequence[Keypoints], rules: LabelRules | None = None
) -> LabelledKeypoints:
    """Tell matchable, undiscovered and unrepeatable keypoints of an image apart.

    Matchable: the keypoint is an observation of a track. Observations that were not detected again are
    appended, so every track of the image is in the answer.

    Undiscovered: no track, but repeatable: one of the `neighbours` images that share most tracks has a
    keypoint where this one must appear. Where that is follows from the tracks that both images share within
    `radius`: their inverse depths, weighted by distance, give the keypoint's depth; the known cameras map its
    place, size and orientation (a small piece of a plane parallel to the image); the tracks' own residuals
    correct the place, which absorbs lens distortion. The partner must lie within `across` pixels of the
    epipolar line and `along` pixels of the predicted place on it, and agree in size and orientation.

    Unrepeatable: everything else, which includes keypoints that no shared track is near.

    Args:
        detected: the keypoints of every image of the scene, as `Scene.detect` gives them; `Scene.detector`
            says with which settings.
    """
    rules = rules or LabelRules()
    found = detected[image]
    tracked, ids = scene.keypoints(image)
    track = np.full(len(found), -1, np.int32)
    pairs = near_pairs(tracked.xy, found.xy, 1.0)
    a, b = tracked[pairs[:, 0]], found[pairs[:, 1]]
    turn = np.abs((a.angle - b.angle + 180) % 360 - 180)
    cost = np.linalg.norm(a.xy - b.xy, axis=1) + np.abs(np.log2(a.size / b.size)) + turn / 30
    good = (np.abs(np.log2(a.size / b.size)) < 0.25) & (turn < 15)
    pairs = pairs[good][np.argsort(-cost[good], kind="stable")]  # the best is written last
    best = np.full(len(tracked), -1)
    best[pairs[:, 0]] = pairs[:, 1]
    track[best[best >= 0]] = ids[best >= 0]
    lost = ~np.isin(ids, track)
    found = Keypoints.concatenate([found, tracked[lost]])
    track = np.concatenate([track, ids[lost]])
    repeatable = np.zeros(len(found), np.bool_)
    for other in scene.covisible(image, rules.neighbours):
        repeatable |= repeated(scene, image, int(other), found, detected[other], rules)
    kind = np.where(track >= 0, MATCHABLE, np.where(repeatable, UNDISCOVERED, UNREPEATABLE))
    return LabelledKeypoints(found, track, kind.astype(np.uint8))


def repeated(
    scene: Scene, image: int, other: int, keypoints: Keypoints, candidates: Keypoints, rules: LabelRules,
    shift: tuple[float, float] = (0.0, 0.0),
) -> NDArray[np.bool_]:  # fmt: skip
    """(N,) bool: which keypoints of one image have a partner among the candidates in another.

    `shift` moves the predicted places by (x, y) pixels: what is found then is found by chance.
    """
    matches = scene.matches(image, other)
    (mine, ids), (theirs, _) = scene.keypoints(image), scene.keypoints(other)
    known = mine.xy[matches[:, 0]]
    depth = scene.project(image, scene.points[ids[matches[:, 0]]])[1]
    there = scene.project(other, scene.unproject(image, known, depth))[0]
    residual = theirs.xy[matches[:, 1]] - there
    good = (depth > 0) & (np.abs(residual) < 8).all(1)
    known, inverse, residual = known[good], 1 / depth[good], residual[good]

    pairs = near_pairs(keypoints.xy, known, rules.radius)
    distance = np.linalg.norm(keypoints.xy[pairs[:, 0]] - known[pairs[:, 1]], axis=1)
    pairs, distance = pairs[distance > 0], distance[distance > 0]  # never predicted by itself
    weight = 1 / (distance + 1) ** 2

    def mean(values: NDArray[np.floating]) -> NDArray[np.float64]:
        return np.bincount(pairs[:, 0], weight * values, len(keypoints)) / np.maximum(total, 1e-12)

    total = np.bincount(pairs[:, 0], weight, len(keypoints))
    nearness = mean(inverse[pairs[:, 1]])
    spread = np.sqrt(mean((inverse[pairs[:, 1]] - nearness[pairs[:, 0]]) ** 2))
    rows = np.flatnonzero((total > 0) & (spread <= rules.max_depth_spread * nearness))
    correction = np.column_stack([mean(residual[pairs[:, 1], axis]) for axis in (0, 1)])[rows] + shift
    xy, depth = keypoints.xy[rows].astype(np.float64), 1 / nearness[rows]
    radians = np.deg2rad(keypoints.angle[rows])
    tip = xy + np.column_stack([np.cos(radians), np.sin(radians)]) * keypoints.size[rows, None] / 2
    place, farther, end = (
        scene.project(other, scene.unproject(image, *at))[0]
        for at in ((xy, depth), (xy, depth * 1.02), (tip, depth))
    )
    line = farther - place
    line /= np.maximum(np.linalg.norm(line, axis=1, keepdims=True), 1e-9)
    arrow, place = end - place, place + correction

    pairs = near_pairs(place, candidates.xy, np.hypot(rules.along, rules.across))
    a, b = pairs.T
    error = candidates.xy[b] - place[a]
    along = np.abs((error * line[a]).sum(1))
    across = np.sqrt(np.maximum(0, (error**2).sum(1) - along**2))
    scale = np.abs(np.log2(2 * np.linalg.norm(arrow[a], axis=1) / candidates.size[b]))
    angle = np.rad2deg(np.arctan2(arrow[a, 1], arrow[a, 0]))
    turn = np.abs((angle - candidates.angle[b] + 180) % 360 - 180)
    accepted = (along <= rules.along) & (across <= rules.across)
    accepted &= (scale <= rules.max_scale) & (turn <= rules.max_angle)
    answer = np.zeros(len(keypoints), np.bool_)
    answer[rows[a[accepted]]] = True
    return answer


def near_pairs(first: NDArray[np.floating], second: NDArray[np.floating], radius: float) -> NDArray[np.int64]:
    """(P, 2) rows of points (N, 2) and (M, 2) at most `radius` apart; sorted cells, no N x M table."""
    queries = np.flatnonzero(np.isfinite(first).all(1))
    if not len(queries) or not len(second):
        return np.zeros((0, 2), np.int64)
    low = second.min(0)
    cells = np.floor((second - low) / radius).astype(np.int64) + 1  # from 1: there is a column to the left
    width = int(cells[:, 0].max()) + 2
    order = np.argsort(cells[:, 1] * width + cells[:, 0], kind="stable")
    codes = (cells[:, 1] * width + cells[:, 0])[order]
    wanted = np.clip(np.floor((first[queries] - low) / radius), -2, 2**30).astype(np.int64) + 1
    inside = (wanted[:, 0] >= 0) & (wanted[:, 0] <= width - 1)
    queries, wanted = queries[inside], wanted[inside]
    found = []
    for row in (-1, 0, 1):
        code = (wanted[:, 1] + row) * width
        start = np.searchsorted(codes, code + np.maximum(wanted[:, 0] - 1, 0))
        stop = np.searchsorted(codes, code + np.minimum(wanted[:, 0] + 1, width - 1), "right")
        count = np.maximum(stop - start, 0)
        each = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        found.append(np.column_stack([np.repeat(queries, count), order[np.repeat(start, count) + each]]))
    pairs = np.concatenate(found)
    return pairs[np.linalg.norm(first[pairs[:, 0]] - second[pairs[:, 1]], axis=1) <= radius]


def _check(stored: dict[str, NDArray[Any]], path: Path) -> None:
    """Refuse arrays that do not belong together."""
    for name, (_, shape, rows) in _ARRAYS.items():
        wanted = (len(stored[rows]), *shape)
        if stored[name].shape != wanted:
            raise InputError(
                f"{path}: array {name} has shape {stored[name].shape}, not {wanted}; build the scene again"
            )
    for name, of in (("image", "names"), ("track", "points")):
        values = stored[name]
        if len(values) and not 0 <= values.min() <= values.max() < len(stored[of]):
            raise InputError(
                f"{path}: {name} {values.min()} to {values.max()} with {len(stored[of])} {of}; "
                "build the scene again"
            )
    for name in ("K", "R", "t", "points", "scale"):
        if not np.isfinite(stored[name]).all():
            raise InputError(f"{path}: array {name} holds values that are not finite; build the scene again")
