"""Labelled keypoints on disk: the three kinds of all images of a scene in one `labels.npz`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from contextdesc.errors import InputError
from contextdesc.formats.atomic import replacing
from contextdesc.keypoints import Keypoints
from contextdesc.training.data.scenes import LabelledKeypoints


def save_labels(path: Path, labels: list[LabelledKeypoints]) -> None:
    """Write the labelled keypoints of all images of a scene into one file."""
    keypoints = Keypoints.concatenate([found.keypoints for found in labels])
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(
            file, count=np.array([len(found) for found in labels], np.int32), xy=keypoints.xy,
            scale=keypoints.size, angle=keypoints.angle, response=keypoints.response,
            track=np.concatenate([found.track for found in labels]),
            kind=np.concatenate([found.kind for found in labels]),
        )  # fmt: skip


def load_labels(path: Path) -> list[LabelledKeypoints]:
    """Read what `save_labels` wrote, an entry per image."""
    try:
        with np.load(path, allow_pickle=False) as file:
            stored = dict(file)
        keypoints = Keypoints(*(stored[name] for name in ("xy", "scale", "angle", "response")))
        ends = np.cumsum(stored["count"])
        parts = [slice(end - count, end) for end, count in zip(ends, stored["count"], strict=True)]
        return [LabelledKeypoints(keypoints[p], stored["track"][p], stored["kind"][p]) for p in parts]
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; make it with contextdesc dataset build") from None
    except Exception as error:
        raise InputError(f"{path}: damaged ({error}); build the scene again") from None
