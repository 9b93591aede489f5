"""Patch strips of HPatches: read from its release, or cut from sequences as its authors cut them.

A folder per sequence has `ref.png` and, with three amounts of geometric noise, `e1` to `e5`, `h1` to `h5`
and `t1` to `t5.png`, each a column of 65 x 65 patches; row i shows the same place in all of them.

Cutting follows the page of the data and its paper (Balntas et al., CVPR 2017): regions of a detector above
scale 1.6, of those that overlap by more than half one at random, then a random `REGIONS` of them; five times
as large, turned to their orientation, moved by noise, and mapped into the other images by the homographies; a
region that is not inside every image with every noise is left out. The authors mixed three detectors (DoG,
Hessian, Harris); here it is SIFT's DoG alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np

from contextdesc.benchmarks.sequences import Sequence
from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.image import Image, read

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.keypoints import Keypoints

SIDE = 65  # pixels of a patch
IMAGES = 5  # besides the reference
REFERENCE = "ref"
REGIONS = 1300  # of a sequence, at most
_SCALE = 1.6  # pixels, sigma of the smallest region
_MAGNIFICATION = 5.0  # half a patch's side over sigma
_OVERLAP = 0.5  # intersection over union of two regions of which one is dropped


@dataclass(frozen=True)
class Noise:
    """Limits of uniform noise on a region, after the HPatches paper.

    Its table was not at hand to compare them with; the median overlaps that they give are within 0.04 of
    those on the page of the data, 0.85 of easy and 0.72 of hard noise.

    Attributes:
        rotation: degrees.
        translation: over the region's scale.
        scale, anisotropy: binary logarithms of the factors.
    """

    rotation: float
    translation: float
    scale: float
    anisotropy: float


NOISES = {
    "easy": Noise(10, 0.15, 0.15, 0.2),
    "hard": Noise(20, 0.3, 0.3, 0.4),
    "tough": Noise(30, 0.45, 0.5, 0.45),
}

# Patches (N, 65, 65) uint8 by the name of their strip
Strips = Mapping[str, "NDArray[np.uint8]"]


def strip_name(noise: str, image: int) -> str:
    """Of image 0 (the reference) to 5 with a noise: `e1` is the first image with easy noise."""
    return f"{noise[0]}{image}" if image else REFERENCE


NAMES = (REFERENCE, *(strip_name(noise, image) for noise in NOISES for image in range(1, IMAGES + 1)))


def find_strips(data: Path) -> dict[str, Path]:
    """Folders of strips by sequence."""
    if not data.is_dir():
        raise InputError(f"{data}: no such folder")
    return {path.parent.name: path.parent for path in sorted(data.glob(f"*/{REFERENCE}.png"))}


def read_strips(folder: Path) -> dict[str, NDArray[np.uint8]]:
    strips = {name: _read_strip(folder / f"{name}.png") for name in NAMES}
    counts = {name: len(patches) for name, patches in strips.items()}
    for name, count in counts.items():
        if count != counts[REFERENCE]:
            raise InputError(
                f"{folder / name}.png: {count} patches, {REFERENCE}.png has {counts[REFERENCE]}; "
                "fetch the sequence again"
            )
    return strips


def _read_strip(path: Path) -> NDArray[np.uint8]:
    if not path.is_file():
        raise InputError(f"{path}: missing")
    gray = read(path).gray
    height, width = gray.shape
    if width != SIDE or height % SIDE:
        raise InputError(f"{path}: {width} x {height} pixels, not a column of {SIDE} x {SIDE} patches")
    return gray.reshape(-1, SIDE, SIDE)


def cut_strips(sequence: Sequence, name: str) -> dict[str, NDArray[np.uint8]]:
    """Strips of a sequence of images; what is random depends on its name alone."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    images = sequence.images[: IMAGES + 1]
    homographies = [np.eye(3), *sequence.homographies[:IMAGES]]
    found = detect(images[0].gray, Detector(None))
    regions = found[found.size >= 2 * _SCALE]
    regions = regions[apart(regions, random)]
    places = {REFERENCE: (0, _frames(regions))}
    for noise, limits in NOISES.items():
        for image in range(1, IMAGES + 1):
            moved = _frames(regions) @ perturbations(limits, len(regions), random)
            places[strip_name(noise, image)] = (image, moved)
    inside = np.ones(len(regions), np.bool_)
    for image, frames in places.values():
        inside &= _inside(frames, homographies[image], images[image].size)
    kept = random.permutation(np.flatnonzero(inside))[:REGIONS]
    if not len(kept):
        raise InputError(f"{name}: no region is inside all images")
    return {
        strip: _cut(images[image], frames[kept], homographies[image])
        for strip, (image, frames) in places.items()
    }


def apart(regions: Keypoints, random: np.random.Generator) -> NDArray[np.int64]:
    """Rows of circles of radius sigma, in random order, of which no two overlap by more than `_OVERLAP`."""
    kept = np.zeros(0, np.int64)
    for row in random.permutation(len(regions)):
        distance = np.linalg.norm(regions.xy[kept] - regions.xy[row], axis=1)
        if not (overlap(distance, regions.size[kept] / 2, float(regions.size[row] / 2)) > _OVERLAP).any():
            kept = np.append(kept, row)
    return kept


def overlap(
    distance: NDArray[np.floating], first: NDArray[np.floating], second: float
) -> NDArray[np.float64]:
    """Intersection over union of circles (N,) of radius `first` with one of radius `second`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        one = np.arccos(np.clip((distance**2 + first**2 - second**2) / (2 * distance * first), -1, 1))
        two = np.arccos(np.clip((distance**2 + second**2 - first**2) / (2 * distance * second), -1, 1))
    lens = first**2 * (one - np.sin(2 * one) / 2) + second**2 * (two - np.sin(2 * two) / 2)
    small = np.pi * np.minimum(first, second) ** 2
    shared = np.where(distance <= np.abs(first - second), small, lens)
    return np.asarray(shared / (np.pi * (first**2 + second**2) - shared), np.float64)


def perturbations(limits: Noise, count: int, random: np.random.Generator) -> NDArray[np.float64]:
    """(N, 3, 3) noise in coordinates of patches, whose border is at +-1."""
    turn, stretch, ratio, x, y = random.uniform(-1, 1, (5, count))
    angle = np.deg2rad(limits.rotation * turn)
    scale, root = 2 ** (limits.scale * stretch), 2 ** (limits.anisotropy * ratio / 2)
    wide, high, reach = scale / root, scale * root, limits.translation / _MAGNIFICATION
    noise = np.zeros((count, 3, 3))
    noise[:, 0] = np.stack([np.cos(angle) * wide, -np.sin(angle) * high, reach * x], 1)
    noise[:, 1] = np.stack([np.sin(angle) * wide, np.cos(angle) * high, reach * y], 1)
    noise[:, 2, 2] = 1
    return noise


def _frames(regions: Keypoints) -> NDArray[np.float64]:
    """(N, 3, 3): from coordinates of a patch, whose border is at +-1, to pixels of the reference."""
    half = _MAGNIFICATION * regions.size.astype(np.float64) / 2
    angle = np.deg2rad(regions.angle.astype(np.float64))
    frames = np.zeros((len(regions), 3, 3))
    frames[:, 0] = np.stack([half * np.cos(angle), -half * np.sin(angle), regions.xy[:, 0]], 1)
    frames[:, 1] = np.stack([half * np.sin(angle), half * np.cos(angle), regions.xy[:, 1]], 1)
    frames[:, 2, 2] = 1
    return frames


def _inside(
    frames: NDArray[np.float64], homography: NDArray[np.float64], size: tuple[int, int]
) -> NDArray[np.bool_]:
    """(N,) whether the corners of the patches lie in an image (width, height)."""
    corners = np.array([[-1, -1, 1], [1, -1, 1], [1, 1, 1], [-1, 1, 1]], np.float64)
    projected = corners @ (homography @ frames).transpose(0, 2, 1)  # (N, 4, 3)
    depth = projected[..., 2:]
    ahead = (depth * np.linalg.det(homography) > 0).all((1, 2))  # beyond the horizon views are mirrored
    xy = projected[..., :2] / np.where(depth == 0, 1, depth)
    return np.asarray(ahead & ((xy >= 0) & (xy <= np.array(size) - 1)).all((1, 2)), np.bool_)


def _cut(image: Image, frames: NDArray[np.float64], homography: NDArray[np.float64]) -> NDArray[np.uint8]:
    """(N, 65, 65) patches; where a patch is coarser than the image, the image is blurred as much before."""
    grid = ((2 * np.arange(SIDE) + 1) / SIDE - 1).astype(np.float32)
    parts = (homography @ frames).astype(np.float32)[..., None, None]  # (N, 3, 3, 1, 1)
    x, y, depth = (parts[:, i, 0] * grid + parts[:, i, 1] * grid[:, None] + parts[:, i, 2] for i in range(3))
    x, y = x / depth, y / depth  # (N, 65, 65)
    diagonal = np.hypot(x[:, -1, -1] - x[:, 0, 0], y[:, -1, -1] - y[:, 0, 0])
    step = diagonal / np.sqrt(2) / (SIDE - 1)  # image pixels a patch pixel
    level = np.maximum(0, np.rint(np.log2(np.maximum(step, 1e-6)))).astype(np.int64)
    patches = np.empty((len(frames), SIDE, SIDE), np.uint8)
    for one in np.unique(level):
        rows = np.flatnonzero(level == one)
        blurred = cv2.GaussianBlur(image.gray, (0, 0), 0.5 * np.sqrt(4.0**one - 1)) if one else image.gray
        x_of, y_of = (part[rows].reshape(-1, SIDE * SIDE) for part in (x, y))
        cut = cv2.remap(blurred, x_of, y_of, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        patches[rows] = cut.reshape(-1, SIDE, SIDE)
    return patches
