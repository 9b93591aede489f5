"""Features that were computed before, in a file of hloc's layout or a folder of shards: `h5:FILE`.

An image's features are those of the longest end of its path that the file knows: of `data/bark/img1.png`
it is `bark/img1.png` before `img1.png`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contextdesc.benchmarks.methods.method import Described, Method, checked
from contextdesc.detection import Detector, budget_rows
from contextdesc.errors import InputError
from contextdesc.formats.shards import open_features

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.features import Features
    from contextdesc.image import Image
    from contextdesc.keypoints import Keypoints

_SAME = 0.01  # pixels: files may hold half precision


def build(name: str, rest: str) -> Method:
    stored = _Stored(Path(rest))

    def describe(image: Image, keypoints: Keypoints, precise: bool) -> NDArray[np.float32]:
        features = stored.features(image)
        if len(features.keypoints) != len(keypoints) or not np.allclose(
            features.keypoints.xy, keypoints.xy, rtol=0, atol=_SAME
        ):
            raise InputError(
                f"method {name}: its keypoints of {image.name} are not the shared ones; give --keypoints own"
            )
        return checked(features.descriptors, len(keypoints), name)

    def extract(image: Image, detector: Detector) -> Described:
        features = stored.features(image)
        rows = budget_rows(features.keypoints.response, detector)
        return Described(features.keypoints[rows], checked(features.descriptors[rows], len(rows), name))

    return Method(name, describe, None, ratio=stored.ratio, extract=extract)


class _Stored:
    """A file of features that answers for images by their path."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, open_features(path)
        if not self.file.names:
            raise InputError(f"{path}: no features in hloc's layout (a group per image)")
        ratio = self.file[self.file.names[0]].ratio
        self.ratio = ratio if ratio < 1 else 0.8  # files of others say nothing about it
        self._answered: dict[str, str] = {}  # image of each group

    def features(self, image: Image) -> Features:
        parts = Path(image.name).parts
        ends = ("/".join(parts[start:]) for start in range(len(parts)))
        group = next((end for end in ends if end in self.file), None)
        if group is None:
            raise InputError(f"{self.path}: no features of {image.name}; extract them from the same folder")
        if self._answered.setdefault(group, image.name) != image.name:
            raise InputError(
                f"{self.path}: {group} would stand for {self._answered[group]} and for {image.name}; extract "
                "the features of their common folder"
            )
        features = self.file[group]
        if features.image_size != image.original_size:
            raise InputError(f"{self.path}: {group} is of another size than {image.name}")
        return features
