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

from contextdesc.benchmarks.report import Report, Table
from contextdesc.benchmarks.sequences import OXFORD, find_sequences, read_sequence, recall
from contextdesc.detection import Detector, detect

if TYPE_CHECKING:
    from contextdesc.benchmarks.methods import Method

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
    scenes = find_sequences(data, OXFORD)
    table: dict[str, dict[str, float]] = {name: {} for name in methods}
    for scene, folder in scenes.items():
        sequence = read_sequence(folder, OXFORD)
        images = sequence.images
        recalls: dict[str, list[float]] = {name: [] for name in methods}
        for seed in seeds:
            detector = Detector(KEYPOINTS, "random", seed, precise_upscale=False)
            keypoints = [detect(image.gray, detector) for image in images]
            for name, method in methods.items():
                described = [method(i, k, False) for i, k in zip(images, keypoints, strict=True)]
                recalls[name] += [
                    recall(keypoints[0], keypoints[j], described[0], described[j], homography)
                    for j, homography in enumerate(sequence.homographies, 1)
                ]
            progress()
        for name, values in recalls.items():
            table[name][scene] = 100 * float(np.mean(values))
    for row in table.values():
        row["mean"] = float(np.mean(list(row.values())))
    return table


def report(table: Mapping[str, Mapping[str, float]], seeds: int) -> Report:
    """What `run` found, for people."""
    scenes = tuple(next(iter(table.values())))
    return Report(
        "heinly",
        f"Recall in percent: correct one-way nearest neighbours among {KEYPOINTS} random SIFT keypoints at "
        "contrast 0.04 without precise upscaling, the same for every method, that have a partner within 2.5 "
        f"pixels. Mean of the five pairs of a scene and of {seeds} draws of keypoints.",
        {"keypoints": KEYPOINTS, "seeds": seeds, "recall": table},
        [
            Table(
                "Recall by scene",
                ("recall", *scenes),
                [(name, *(row[scene] for scene in scenes)) for name, row in table.items()],
            )
        ],
    )
