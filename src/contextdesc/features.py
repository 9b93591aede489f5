"""Features: keypoints and their descriptors, row by row, with what is needed to use them safely later."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contextdesc.errors import InputError
from contextdesc.keypoints import Keypoints

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Features:
    """The features of one image. Row i of every array belongs to keypoint i.

    Attributes:
        keypoints: N keypoints in pixels of the original image, OpenCV convention.
        descriptors: (N, D) float32, unit length.
        image_size: (width, height) of the original image.
        model: name of the model that made them.
        checksum: of that model.
        context: context terms in the descriptors, such as `visual+geometric`, or `none`.
        ratio: the model's own threshold of the ratio test; 1 for none.
        matchability: (N,) float32 in [-1, 1], or None for a model without it.
    """

    keypoints: Keypoints
    descriptors: NDArray[np.float32]
    image_size: tuple[int, int]
    model: str
    checksum: str
    context: str = "none"
    ratio: float = 1.0
    matchability: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        rows = {len(self.keypoints), len(self.descriptors)}
        if self.matchability is not None:
            rows.add(len(self.matchability))
        if len(rows) != 1:
            raise InputError(f"features of differing numbers of rows: {sorted(rows)}")

    def __len__(self) -> int:
        return len(self.keypoints)

    @property
    def source(self) -> str:
        """What must be equal for two sets of features to be comparable."""
        return source_of(self.model, self.checksum, self.context)

    def _repr_html_(self) -> str:
        from contextdesc.notebook import html_table

        width, height = self.image_size
        rows: dict[str, object] = {
            "keypoints": len(self),
            "descriptors": f"{len(self)} x {self.descriptors.shape[1]}",
            "image": f"{width} x {height} pixels",
            "model": self.model,
            "context": self.context,
        }
        if self.matchability is not None and len(self):
            rows["matchability"] = f"median {np.median(self.matchability):.2f}"
        return html_table("Features", rows)

    def save(self, path: str | Path, name: str | None = None) -> None:
        """Write to `.npz`, or to a `.h5` in hloc's layout under the image's `name`."""
        path = Path(path)
        if path.suffix == ".npz":
            from contextdesc.formats import npz

            npz.write(path, self)
        elif path.suffix in (".h5", ".hdf5"):
            from contextdesc.formats import hloc

            hloc.write(path, {name or path.stem: self})
        else:
            raise InputError(f"{path}: features are saved as .npz or .h5")

    @classmethod
    def load(cls, path: str | Path, name: str | None = None) -> Features:
        """Read what `save` wrote; `name` chooses among the images of a `.h5`, or a folder of shards."""
        path = Path(path)
        if path.suffix == ".npz":
            from contextdesc.formats import npz

            return npz.read(path)
        if path.suffix in (".h5", ".hdf5") or path.is_dir():
            from contextdesc.formats.shards import open_features

            with open_features(path) as file:
                if name is None and len(file.names) != 1:
                    raise InputError(f"{path}: holds {len(file.names)} images; say which one")
                return file[name or file.names[0]]
        raise InputError(f"{path}: features are loaded from .npz or .h5")


def source_of(model: str, checksum: str, context: str) -> str:
    """A model's name, checksum and context terms as messages and files put them."""
    return f"{model} ({checksum}, context {context})"
