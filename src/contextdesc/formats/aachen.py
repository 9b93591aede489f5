"""The visual localisation benchmark's local features: a NumPy archive `NAME.MODEL` beside each image.

`keypoints` (N, 2) are in COLMAP's convention, `descriptors` are (N, D), `scores` (N,). The benchmark's
scripts read no more than the first two; `source` says which model wrote them.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contextdesc.errors import InputError
from contextdesc.formats.atomic import replacing
from contextdesc.keypoints import Keypoints

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.features import Features


def write_to(folder: Path, name: str, features: Features) -> None:
    """Write `FOLDER/NAME.MODEL`; the benchmark wants FOLDER to be that of the images."""
    keypoints = features.keypoints
    with replacing(_path(folder, name, features.model)) as temporary, temporary.open("wb") as file:
        np.savez(
            file, keypoints=keypoints.to_colmap()[:, :2], descriptors=features.descriptors,
            scores=keypoints.response, source=np.array(features.source),
        )  # fmt: skip


def written_by(folder: Path, name: str, model: str) -> str | None:
    """The source of an image's features in the folder, or None if it has none."""
    path = _path(folder, name, model)
    return _load(path)[2] if path.exists() else None


def read(path: Path) -> tuple[Keypoints, NDArray[np.float32]]:
    """Keypoints in OpenCV's convention, without their size and angle, and descriptors (N, D) float32."""
    keypoints, descriptors, _ = _load(path)
    return keypoints, descriptors


def _load(path: Path) -> tuple[Keypoints, NDArray[np.float32], str]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            keypoints = Keypoints.from_colmap(arrays["keypoints"][:, :2])
            if "scores" in arrays:
                scores = np.asarray(arrays["scores"], np.float32)
                keypoints = Keypoints(keypoints.xy, keypoints.size, keypoints.angle, scores)
            source = str(arrays["source"]) if "source" in arrays else "unknown"
            return keypoints, np.asarray(arrays["descriptors"], np.float32), source
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not local features of the localisation benchmark ({error})") from None


def _path(folder: Path, name: str, model: str) -> Path:
    return folder / f"{name}.{model}"
