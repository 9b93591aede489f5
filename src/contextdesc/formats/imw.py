"""The Image Matching Workshop's HDF5 files, one folder a scene: a dataset per image, named by its stem.

`keypoints.h5` (N, 2), `descriptors.h5` (N, D), `scales.h5` (N,) sigma, `angles.h5` (N,) degrees, `scores.h5`
(N,); `matches.h5` has (2, M) named `A-B` with A after B in the alphabet. The benchmark keeps OpenCV's
coordinates. Name, image size and model are stored as attributes, which its scripts do not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from contextdesc.errors import InputError
from contextdesc.features import Features
from contextdesc.formats.atomic import replacing
from contextdesc.formats.hloc import open_h5
from contextdesc.keypoints import Keypoints
from contextdesc.matching import Matches

# Keypoints are replaced last: an image is there when its keypoints are.
_PARTS = ("keypoints", "descriptors", "scales", "angles", "scores")


def write(folder: Path, features: Mapping[str, Features] | Iterable[tuple[str, Features]]) -> None:
    """Write features by image name."""
    items = features.items() if isinstance(features, Mapping) else features
    with ExitStack() as stack:
        files = {
            part: stack.enter_context(h5py.File(stack.enter_context(replacing(_path(folder, part))), "w"))
            for part in _PARTS
        }
        for name, item in items:
            keypoints, stem = item.keypoints, Path(name).stem
            rows = (keypoints.xy, item.descriptors, keypoints.size / 2, keypoints.angle, keypoints.response)
            for part, values in zip(_PARTS, rows, strict=True):
                files[part][stem] = values
            attributes = files["keypoints"][stem].attrs
            attributes["name"], attributes["image_size"] = name, item.image_size
            for key in ("model", "checksum", "context", "ratio"):
                attributes[key] = getattr(item, key)


class FeatureFolder:
    """An open folder: `names` of its images, and `folder[name]` for their features.

    Folders of other extractors open too; their images are known by stem and their model is `unknown`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._files = {
            part: self._stack.enter_context(open_h5(_path(folder, part)))
            for part in _PARTS
            if part in _PARTS[:2] or _path(folder, part).exists()
        }
        stored = self._files["keypoints"]
        self._stems = {str(stored[stem].attrs.get("name", stem)): stem for stem in stored}
        self.names = sorted(self._stems)

    def __contains__(self, name: str) -> bool:
        return name in self._stems

    def __getitem__(self, name: str) -> Features:
        if name not in self:
            raise InputError(f"{self.folder}: no image called {name}")
        stem = self._stems[name]
        attributes = self._files["keypoints"][stem].attrs
        try:
            xy = np.asarray(self._files["keypoints"][stem], np.float32)
            descriptors = np.asarray(self._files["descriptors"][stem], np.float32)
            keypoints = Keypoints(
                xy,
                self._column("scales", stem, len(xy), 3.0) * np.float32(2),
                self._column("angles", stem, len(xy), 0.0),
                self._column("scores", stem, len(xy), 1.0),
            )
        except (KeyError, OSError, ValueError) as error:
            raise InputError(f"{self.folder}: features of {name} are damaged ({error})") from None
        model, checksum, context = (
            str(attributes.get(key, "unknown")) for key in ("model", "checksum", "context")
        )
        width, height = (int(side) for side in attributes.get("image_size", (0, 0)))
        ratio = float(attributes.get("ratio", 1.0))
        return Features(keypoints, descriptors, (width, height), model, checksum, context, ratio)

    def __enter__(self) -> FeatureFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _column(self, part: str, stem: str, rows: int, default: float) -> Any:
        if part not in self._files:
            return np.full(rows, default, np.float32)
        return np.asarray(self._files[part][stem], np.float32)


def write_matches(folder: Path, pairs: Iterable[tuple[str, str, Matches]]) -> None:
    """Write matches by the names of their two images."""
    with replacing(_path(folder, "matches")) as temporary, h5py.File(temporary, "w") as file:
        for first, second, matches in pairs:
            key, swapped = _pair(first, second)
            columns = matches.indices[:, ::-1] if swapped else matches.indices
            file[key] = np.ascontiguousarray(columns.T)


def read_matches(folder: Path, first: str, second: str) -> Matches:
    """The matches of a pair, in the order of its names; the format keeps no similarity, so it is 1."""
    key, swapped = _pair(first, second)
    with open_h5(_path(folder, "matches")) as file:
        if key not in file:
            raise InputError(f"{_path(folder, 'matches')}: no pair {first} {second}")
        indices = np.asarray(file[key], np.int64).T
    indices = indices[:, ::-1] if swapped else indices
    order = np.argsort(indices[:, 0], kind="stable")
    return Matches(np.ascontiguousarray(indices[order]), np.ones(len(indices), np.float32))


def _pair(first: str, second: str) -> tuple[str, bool]:
    """The pair's key, and whether it names the second image first."""
    one, two = Path(first).stem, Path(second).stem
    return (f"{two}-{one}", True) if one < two else (f"{one}-{two}", False)


def _path(folder: Path, part: str) -> Path:
    return folder / f"{part}.h5"
