"""Recall per transformation on the Oxford affine layout (the core of Heinly et al., ECCV 2012).

A folder per scene with `img1` to `img6` and the homographies `H1to2p` to `H1to6p`. Keypoints are 2048
random SIFT keypoints at contrast 0.04 without precise upscaling; matching is one-way nearest neighbour.
Recall is the share of correct matches among the keypoints of image 1 that have any keypoint of the other
image within 2.5 pixels after warping (section 5.1's recall).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.image import SUFFIXES, Image, read

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.benchmarks.methods import Method
    from contextdesc.keypoints import Keypoints

DISTANCE = 2.5  # pixels
KEYPOINTS = 2048
SEEDS = (0, 1, 2, 3, 4)
TRANSFORMATIONS = {
    "bark": "zoom and rotation", "bikes": "blur", "boat": "zoom and rotation", "graf": "viewpoint",
    "leuven": "light", "trees": "blur", "ubc": "JPEG", "wall": "viewpoint",
}  # fmt: skip


def run(
    data: Path,
    methods: Mapping[str, Method],
    seeds: Sequence[int] = SEEDS,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, dict[str, float]]:
    """Recall in percent by method and scene, mean over the five pairs and the seeds; `mean` over scenes."""
    scenes = find_scenes(data)
    table: dict[str, dict[str, float]] = {name: {} for name in methods}
    for scene, folder in scenes.items():
        images, homographies = read_scene(folder)
        recalls: dict[str, list[float]] = {name: [] for name in methods}
        for seed in seeds:
            detector = Detector(KEYPOINTS, "random", seed, precise_upscale=False)
            keypoints = [detect(image.gray, detector) for image in images]
            for name, method in methods.items():
                described = [method(i, k, False) for i, k in zip(images, keypoints, strict=True)]
                recalls[name] += [
                    recall(keypoints[0], keypoints[j], described[0], described[j], homography)
                    for j, homography in enumerate(homographies, 1)
                ]
            progress()
        for name, values in recalls.items():
            table[name][scene] = 100 * float(np.mean(values))
    for row in table.values():
        row["mean"] = float(np.mean(list(row.values())))
    return table


def recall(
    first: Keypoints,
    second: Keypoints,
    first_descriptors: NDArray[np.float32],
    second_descriptors: NDArray[np.float32],
    homography: NDArray[np.float64],
) -> float:
    """Correct nearest neighbours over correspondences of one pair; 0 if there are none."""
    if not len(first) or not len(second):
        return 0.0
    projected = np.column_stack([first.xy, np.ones(len(first))]) @ homography.T
    warped = projected[:, :2] / projected[:, 2:]
    has_partner = np.zeros(len(first), np.bool_)
    for start in range(0, len(first), 1024):
        apart = np.linalg.norm(warped[start : start + 1024, None] - second.xy[None], axis=2)
        has_partner[start : start + 1024] = apart.min(1) <= DISTANCE
    nearest = (first_descriptors @ second_descriptors.T).argmax(1)
    correct = np.linalg.norm(second.xy[nearest] - warped, axis=1) <= DISTANCE
    return float(correct.sum() / has_partner.sum()) if has_partner.any() else 0.0


def find_scenes(data: Path) -> dict[str, Path]:
    if not data.is_dir():
        raise InputError(f"{data}: no such folder")
    scenes = {path.name: path for path in sorted(data.iterdir()) if (path / "H1to2p").is_file()}
    if not scenes:
        raise InputError(f"{data}: no scenes in the Oxford affine layout (img1 to img6, H1to2p to H1to6p)")
    return scenes


def read_scene(folder: Path) -> tuple[list[Image], list[NDArray[np.float64]]]:
    images = []
    for index in range(1, 7):
        path = next((p for s in SUFFIXES if (p := folder / f"img{index}{s}").is_file()), None)
        if path is None:
            raise InputError(f"{folder}: img{index} is missing (any of {', '.join(SUFFIXES)})")
        images.append(read(path))
    homographies = []
    for index in range(2, 7):
        path = folder / f"H1to{index}p"
        try:
            homographies.append(np.loadtxt(path).reshape(3, 3))
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: not a 3 x 3 homography ({error})") from None
    return images, homographies
