"""Sequences of images of a plane with known homographies, and what a method gets right on a pair.

Two layouts are read: Oxford affine (`img1` to `img6`, `H1to2p` to `H1to6p`) and HPatches sequences (`1` to
`6`, `H_1_2` to `H_1_6`). Images may have any suffix that `contextdesc.image` reads. A sequence has six
images, or as many as there are homographies.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np

from contextdesc.errors import InputError
from contextdesc.geometry import CONFIDENCE, ITERATIONS
from contextdesc.image import SUFFIXES, Image, read
from contextdesc.matching import match_descriptors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.keypoints import Keypoints

SIX = 6  # images of a sequence, unless its homographies are of more
_MOST = 50  # images of a sequence
DISTANCE = 2.5  # pixels, of a correct match in the paper's recall
_BLOCK = 1024  # keypoints whose distances to all others are held at a time


@dataclass(frozen=True)
class Layout:
    """How the files of a sequence are named."""

    title: str
    images: str  # with {} for the number, without suffix
    homographies: str  # from image 1 to that number

    def image(self, index: int) -> str:
        return self.images.format(index)

    def homography(self, index: int) -> str:
        return self.homographies.format(index)

    @property
    def files(self) -> str:
        return f"{self.image(1)} to {self.image(6)}, {self.homography(2)} to {self.homography(6)}"


OXFORD = Layout("the Oxford affine layout", "img{}", "H1to{}p")
HPATCHES = Layout("the layout of HPatches sequences", "{}", "H_1_{}")

# For protocols that take either
EITHER_LAYOUT = (
    "sequences in the Oxford affine layout (img1 to img6, H1to2p to H1to6p) or that of HPatches sequences "
    "(1 to 6, H_1_2 to H_1_6)"
)
EITHER_SOURCE = (
    "HPatches, archive hpatches-sequences-release on the page of the hpatches-dataset project; Oxford "
    "affine: https://www.robots.ox.ac.uk/~vgg/data/affine/"
)


@dataclass(frozen=True, eq=False)
class Sequence:
    """Images, and the homographies (3, 3) from the first to each of the others."""

    images: list[Image]
    homographies: list[NDArray[np.float64]]


def find_sequences(data: Path, layout: Layout) -> dict[str, Path]:
    """Folders of sequences by name: all that have a homography, or an image, of one."""
    if not data.is_dir():
        raise InputError(f"{data}: no such folder")
    found = {
        path.name: path
        for path in sorted(data.iterdir())
        if any((path / layout.homography(i)).is_file() or _image_file(path, layout, i) for i in range(2, 7))
    }
    if not found:
        raise InputError(f"{data}: no sequences in {layout.title} ({layout.files})")
    return found


def find_any_sequences(data: Path) -> dict[str, tuple[Path, Layout]]:
    """Folders of sequences in either layout by name, each with what `read_sequence` wants."""
    for layout in (OXFORD, HPATCHES):
        with suppress(InputError):
            return {name: (folder, layout) for name, folder in find_sequences(data, layout).items()}
    if not data.is_dir():
        raise InputError(f"{data}: no such folder")
    raise InputError(
        f"{data}: no sequences in {OXFORD.title} ({OXFORD.files}) or {HPATCHES.title} ({HPATCHES.files})"
    )


def read_sequence(folder: Path, layout: Layout, least: int = SIX) -> Sequence:
    """All images of a sequence, at least so many, each but the first with its homography."""
    numbers = [i for i in range(2, _MOST + 1) if (folder / layout.homography(i)).is_file()]
    count = max([least, *numbers])
    homographies = [_read_homography(folder / layout.homography(index)) for index in range(2, count + 1)]
    images = []
    for index in range(1, count + 1):
        path = _image_file(folder, layout, index)
        if path is None:
            raise InputError(f"{folder / layout.image(index)}: missing (any of {', '.join(SUFFIXES)})")
        images.append(read(path))
    return Sequence(images, homographies)


def _image_file(folder: Path, layout: Layout, index: int) -> Path | None:
    stem = layout.image(index)
    return next((path for suffix in SUFFIXES if (path := folder / f"{stem}{suffix}").is_file()), None)


def _read_homography(path: Path) -> NDArray[np.float64]:
    if not path.is_file():
        raise InputError(f"{path}: missing")
    try:
        matrix = np.loadtxt(path).reshape(3, 3)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a 3 x 3 homography ({error})") from None
    if not np.isfinite(matrix).all() or abs(np.linalg.det(matrix)) < 1e-12:
        raise InputError(f"{path}: a homography that is not invertible")
    return np.asarray(matrix, np.float64)


def warp(xy: NDArray[np.floating], homography: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 2) pixels through a homography (3, 3)."""
    projected = np.column_stack([xy, np.ones(len(xy))]) @ homography.T
    return np.asarray(projected[:, :2] / projected[:, 2:], np.float64)


def recall(
    first: Keypoints,
    second: Keypoints,
    first_descriptors: NDArray[np.float32],
    second_descriptors: NDArray[np.float32],
    homography: NDArray[np.float64],
) -> float:
    """Correct nearest neighbours over correspondences of one pair; 0 if there are none (section 5.1)."""
    if not len(first) or not len(second):
        return 0.0
    warped = warp(first.xy, homography)
    has_partner = np.zeros(len(first), np.bool_)
    for start in range(0, len(first), _BLOCK):
        x, y = warped[start : start + _BLOCK].T
        apart = (x[:, None] - second.xy[:, 0]) ** 2 + (y[:, None] - second.xy[:, 1]) ** 2
        has_partner[start : start + _BLOCK] = apart.min(1) <= DISTANCE**2
    nearest = match_descriptors(first_descriptors, second_descriptors, mutual=False).indices[:, 1]
    correct = np.linalg.norm(second.xy[nearest] - warped, axis=1) <= DISTANCE
    correct &= first_descriptors.any(1)  # a keypoint without a descriptor finds nothing
    return float(correct.sum() / has_partner.sum()) if has_partner.any() else 0.0


def match_errors(points: NDArray[np.float32], homography: NDArray[np.float64]) -> NDArray[np.float64]:
    """(M,) pixels: how far the second point of each match (M, 2, 2) is from its first one, warped."""
    return np.asarray(np.linalg.norm(warp(points[:, 0], homography) - points[:, 1], axis=1), np.float64)


def corner_error(
    estimated: NDArray[np.float64] | None, homography: NDArray[np.float64], size: tuple[int, int]
) -> float:
    """Mean distance of the corners of an image (width, height) under both homographies; inf without one."""
    if estimated is None:
        return float("inf")
    right, bottom = size[0] - 1, size[1] - 1
    corners = np.array([[0, 0], [right, 0], [right, bottom], [0, bottom]], np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.linalg.norm(warp(corners, estimated) - warp(corners, homography), axis=1).mean()
    return float(apart) if np.isfinite(apart) else float("inf")


def estimate_homography(points: NDArray[np.float32], threshold: float) -> NDArray[np.float64] | None:
    """The homography that most matches (M, 2, 2) agree with, within `threshold` pixels; None if none."""
    if len(points) < 4:
        return None
    matrix, _ = cv2.findHomography(
        points[:, 0], points[:, 1], cv2.USAC_MAGSAC, threshold, maxIters=ITERATIONS, confidence=CONFIDENCE
    )
    return None if matrix is None else np.asarray(matrix, np.float64)
