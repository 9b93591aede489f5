"""Recall per transformation (Heinly et al., ECCV 2012): the Oxford affine scenes, and Heinly's where present.

A folder per scene with `img1` to `img6` and the homographies `H1to2p` to `H1to6p`; Heinly's own scenes may
have fewer or more images. Keypoints are 2048 random SIFT keypoints at contrast 0.04 without precise
upscaling; matching is one-way nearest neighbour. Recall is the share of correct matches among the keypoints
of image 1 that have any keypoint of the other image within 2.5 pixels after warping (section 5.1's recall).
Intervals of a scene or transformation are over its image pairs, each the mean of the seeds; those of the mean
of all are over scenes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.benchmarks.protocol import Protocol, Request, Setting
from contextdesc.benchmarks.report import Intervals, Report, Table
from contextdesc.benchmarks.sequences import OXFORD, SIX, find_sequences, read_sequence, recall
from contextdesc.benchmarks.statistics import bootstrap, difference
from contextdesc.detection import Detector
from contextdesc.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEYPOINTS = 2048
OXFORD_SCENES = {
    "bark": "scale and rotation", "bikes": "blur", "boat": "scale and rotation", "graf": "planar",
    "leuven": "exposure", "trees": "blur", "ubc": "JPEG", "wall": "planar",
}  # fmt: skip
GRAFFITI = "graffiti"  # graf in Heinly's release, to judge by programs that read it
# Heinly's own sequences, by the names of their folders, of which rome is not confirmed; others are told with
# --set transformations=
HEINLY_SCENES = {
    "ceiling": "rotation", "day_night": "day and night", "rome": "rotation", "semper": "rotation",
    "venice": "scale",
}  # fmt: skip
MEAN = "mean"  # of scenes

PROTOCOL = Protocol(
    layout="a folder per scene with img1 to img6 (any image format) and H1to2p to H1to6p; Heinly's extra "
    "sequences in the same layout, of any length",
    source="affine covariant regions data sets, Visual Geometry Group, University of Oxford "
    "(https://www.robots.ox.ac.uk/~vgg/data/affine/); Heinly's extra sequences on the project page of "
    "'Comparative evaluation of binary features' (UNC Chapel Hill)",
    takes=("methods", "seeds", "limit", "baseline", "keypoints", "workers"),
    settings=(
        Setting(
            "transformations", "", "of scenes with other names than the published ones: NAME:WORD,NAME:WORD"
        ),
    ),
)

# Recalls in percent (seeds, pairs), by method and scene
Recalls = Mapping[str, Mapping[str, "NDArray[np.float64]"]]


def run(request: Request) -> Report:
    """Recall by method, scene and transformation."""
    published = {**OXFORD_SCENES, GRAFFITI: OXFORD_SCENES["graf"], **HEINLY_SCENES}
    kinds = {**published, **_told(str(request.setting("transformations", PROTOCOL)))}
    scenes = request.limited(find_sequences(request.data, OXFORD))
    draws = {scene: [f"{scene}, seed {seed}" for seed in request.seeds] for scene in scenes}
    units = {
        name: (scenes[scene], seed)
        for scene, names in draws.items()
        for name, seed in zip(names, request.seeds, strict=True)
    }
    found, failed = request.each("scenes", units, score)
    recalls = {
        method: {
            scene: np.array([found[name][method] for name in names])
            for scene, names in draws.items()
            if found.keys() >= set(names)
        }
        for method in request.methods
    }
    skipped = {units[unit][0].name: reason for unit, reason in failed.items()}
    if request.limit is None and scenes.keys() & OXFORD_SCENES.keys():
        missing = OXFORD_SCENES.keys() - scenes.keys() - ({"graf"} if GRAFFITI in scenes else set())
        skipped |= {scene: f"{request.data / scene}: missing" for scene in sorted(missing)}
    return report(request, recalls, kinds, skipped)


def score(request: Request, unit: tuple[Path, int]) -> dict[str, list[float]]:
    """Recall in percent of the pairs of a scene, by method, on one draw of keypoints."""
    folder, seed = unit
    sequence = read_sequence(folder, OXFORD, least=2 if folder.name in HEINLY_SCENES else SIX)
    detector = Detector(KEYPOINTS, "random", seed, precise_upscale=False)
    views = [request.describe(image, detector) for image in sequence.images]
    recalls: dict[str, list[float]] = {}
    for method in request.methods:
        first, *others = (view[method] for view in views)
        recalls[method] = [
            100 * recall(first.keypoints, other.keypoints, first.descriptors, other.descriptors, homography)
            for other, homography in zip(others, sequence.homographies, strict=True)
        ]
    return recalls


def report(
    request: Request, recalls: Recalls, kinds: Mapping[str, str], skipped: Mapping[str, str]
) -> Report:
    """What `run` found, for people; `kinds` has the transformation of each scene."""
    groups = {method: _groups(of, kinds) for method, of in recalls.items()}
    means = {method: {name: bootstrap(units) for name, units in of.items()} for method, of in groups.items()}
    scenes = [*next(iter(recalls.values())), MEAN]
    seeds = len(request.seeds)
    numbers: dict[str, Any] = {
        "keypoints": KEYPOINTS,
        "seeds": seeds,
        "transformations": {scene: kinds[scene] for scene in scenes if scene in kinds},
        "recall": {method: {scene: of[scene].mean for scene in scenes} for method, of in means.items()},
        "intervals": {
            method: {name: asdict(mean) for name, mean in of.items()} for method, of in means.items()
        },
        "pairs": {m: {scene: values.tolist() for scene, values in of.items()} for m, of in recalls.items()},
    }
    rows = {
        f"{name} ({kinds[name]})" if name in kinds else name: name
        for name in next(iter(means.values()))
        if name in scenes or "," in name  # a transformation with one scene is that scene
    }
    tables = [
        Table(
            "Recall by scene",
            ("recall", *scenes),
            [(method, *(of[scene].mean for scene in scenes)) for method, of in means.items()],
        ),
        Table(
            "Recall with 95 % intervals",
            ("recall", *means),
            [(row, *(of[name] for of in means.values())) for row, name in rows.items()],
        ),
    ]
    if request.baseline is not None and request.compared:
        base = groups[request.baseline]
        gains = {
            method: {name: difference(groups[method][name], base[name]) for name in base}
            for method in request.compared
        }
        numbers |= {
            "baseline": request.baseline,
            "difference": {m: {name: asdict(gain) for name, gain in of.items()} for m, of in gains.items()},
        }
        tables.append(
            Table(
                f"Difference from {request.baseline}, paired, with 95 % intervals",
                ("recall", *gains),
                [(row, *(of[name] for of in gains.values())) for row, name in rows.items()],
            )
        )
    return Report(
        "heinly",
        f"Recall in percent: correct one-way nearest neighbours among {KEYPOINTS} random keypoints "
        f"({request.which_keypoints('SIFT at contrast 0.04 without precise upscaling')}) that have a partner "
        f"within 2.5 pixels. Mean of the pairs of a scene and of {seeds} draws of keypoints. Intervals of a "
        "scene or transformation are bootstraps over its image pairs, those of the mean over scenes.",
        numbers,
        tables,
        [
            Intervals(
                "Recall by scene", "recall", "", "recall, %",
                {scene: {method: of[scene] for method, of in means.items()} for scene in scenes},
            )
        ],
        skipped,
    )  # fmt: skip


def _groups(
    recalls: Mapping[str, NDArray[np.float64]], kinds: Mapping[str, str]
) -> dict[str, NDArray[np.float64]]:
    """Values of the units that each mean and interval is of, by scene, by transformation and of all."""
    pairs = {scene: values.mean(0) for scene, values in recalls.items()}
    groups = dict(pairs)
    for kind in dict.fromkeys(kinds[scene] for scene in pairs if scene in kinds):
        among = [scene for scene in pairs if kinds.get(scene) == kind]
        groups[f"{kind} ({', '.join(among)})"] = np.concatenate([pairs[scene] for scene in among])
    groups[MEAN] = np.array([values.mean() for values in pairs.values()])
    return groups


def _told(text: str) -> dict[str, str]:
    """Transformations from `NAME:WORD,NAME:WORD`."""
    parts = [part.partition(":") for part in text.split(",") if part]
    if not all(scene and word for scene, _, word in parts):
        raise InputError(f"--set transformations={text}: NAME:WORD,NAME:WORD, such as ceiling:rotation")
    return {scene: word for scene, _, word in parts}
