"""hloc's HDF5 layouts: features as a group per image, matches as a group per pair.

Keypoints keep OpenCV's convention, which is hloc's too; descriptors are stored (D, N), `scales` as sigma
(half of our size) and `oris` in degrees. What hloc does not know (response, matchability, the model) is
stored beside it and ignored by hloc.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from contextdesc.errors import InputError
from contextdesc.features import Features
from contextdesc.formats.atomic import replacing
from contextdesc.formats.manifest import shard_of_pair
from contextdesc.keypoints import Keypoints
from contextdesc.matching import Matches


def write(path: Path, features: Mapping[str, Features] | Iterable[tuple[str, Features]]) -> None:
    """Write features by image name; the file appears when it is complete."""
    items = features.items() if isinstance(features, Mapping) else features
    with replacing(path) as temporary, h5py.File(temporary, "w") as file:
        for name, item in items:
            write_group(file, name, item)


def write_group(file: h5py.File, name: str, features: Features) -> None:
    keypoints = features.keypoints
    group = file.create_group(name)
    group.create_dataset("keypoints", data=keypoints.xy).attrs["uncertainty"] = 1.0
    group["descriptors"] = np.ascontiguousarray(features.descriptors.T)  # (D, N)
    group["scores"] = keypoints.response
    group["scales"] = keypoints.size / np.float32(2)
    group["oris"] = keypoints.angle
    group["image_size"] = np.array(features.image_size)
    if features.matchability is not None:
        group["matchability"] = features.matchability
    for key in ("model", "checksum", "context", "ratio"):
        group.attrs[key] = getattr(features, key)


class FeatureFile:
    """An open feature file: `names` of its images, and `file[name]` for their features.

    Files of other extractors open too; their model is `unknown`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open_h5(path)
        self.names: list[str] = []
        self._file.visititems(self._collect)
        self.names.sort()

    def _collect(self, name: str, item: Any) -> None:
        if isinstance(item, h5py.Group) and "keypoints" in item and "descriptors" in item:
            self.names.append(name)

    def __contains__(self, name: str) -> bool:
        return name in self._file and "keypoints" in self._file[name]

    def __getitem__(self, name: str) -> Features:
        if name not in self:
            raise InputError(f"{self.path}: no image called {name}")
        group = self._file[name]
        try:
            xy = np.asarray(group["keypoints"], np.float32)[:, :2]
            response = _optional(group, "scores", np.ones(len(xy), np.float32))
            keypoints = Keypoints(
                xy,
                _optional(group, "scales", np.full(len(xy), 3.0, np.float32)) * np.float32(2),
                _optional(group, "oris", np.zeros(len(xy), np.float32)),
                response,
            )
            descriptors = np.ascontiguousarray(np.asarray(group["descriptors"], np.float32).T)
            matchability = np.asarray(group["matchability"]) if "matchability" in group else None
            width, height = (int(side) for side in group["image_size"])
        except (KeyError, OSError, ValueError, IndexError) as error:
            raise InputError(f"{self.path}: features of {name} are damaged ({error})") from None
        model, checksum, context = (
            str(group.attrs.get(key, "unknown")) for key in ("model", "checksum", "context")
        )
        ratio = float(group.attrs.get("ratio", 1.0))
        size = (width, height)
        return Features(keypoints, descriptors, size, model, checksum, context, ratio, matchability)

    def __enter__(self) -> FeatureFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def write_matches(path: Path, pairs: Iterable[tuple[str, str, int, Matches]]) -> None:
    """Write matches as (name of image 0, name of image 1, keypoints of image 0, matches)."""
    with replacing(path) as temporary, h5py.File(temporary, "w") as file:
        for first, second, rows, matches in pairs:
            write_pair(file, first, second, rows, matches)


def write_pair(file: h5py.File, first: str, second: str, rows: int, matches: Matches) -> None:
    """Write the matches of a pair, of which the first image has `rows` keypoints."""
    group = file.create_group(pair_group(first, second))
    partner = np.full(rows, -1, np.int32)
    score = np.zeros(rows, np.float16)
    partner[matches.indices[:, 0]] = matches.indices[:, 1]
    score[matches.indices[:, 0]] = (matches.similarity + 1) / 2
    group["matches0"], group["matching_scores0"] = partner, score


def pair_group(first: str, second: str) -> str:
    """Where the matches of a pair are in a file."""
    return f"{first.replace('/', '-')}/{second.replace('/', '-')}"


def read_matches(path: Path, first: str, second: str) -> Matches:
    """The matches of a pair, in the order of its names, whichever of the two it is stored under.

    Args:
        path: a file, or a folder of shards. Files of other matchers may lack scores; the similarity is
            then 1.
    """
    with open_h5(shard_of_pair(path, first, second) if path.is_dir() else path) as file:
        key, turned = pair_group(first, second), pair_group(second, first)
        if key not in file and turned not in file:
            raise InputError(f"{path}: no pair {first} {second}")
        group = file[key if key in file else turned]
        partner = np.asarray(group["matches0"], np.int64)
        rows = np.flatnonzero(partner >= 0)
        similarity = _optional(group, "matching_scores0", np.ones(len(partner), np.float32))[rows] * 2 - 1
        indices = np.column_stack([rows, partner[rows]])
        if key not in file:
            order = np.argsort(partner[rows], kind="stable")
            indices, similarity = indices[order, ::-1], similarity[order]
    return Matches(np.ascontiguousarray(indices), similarity)


def open_h5(path: Path) -> h5py.File:
    if not path.exists():
        raise InputError(f"{path}: no such file")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        reason = str(error).split("(")[-1].rstrip(")")
        raise InputError(f"{path}: not a readable HDF5 file ({reason}); write it again") from None


def _optional(group: h5py.Group, name: str, default: Any) -> Any:
    return np.asarray(group[name], np.float32) if name in group else default
