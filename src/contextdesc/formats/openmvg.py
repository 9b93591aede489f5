"""OpenMVG's regions: `STEM.feat` as text and `STEM.desc` as bytes, one pair per image, named by its stem.

A line of `.feat` is x, y, scale (sigma), orientation (radians); OpenMVG puts the centre of the top-left pixel
at (0, 0), as we do. `.desc` is what OpenMVG calls SIFT_Regions: the number of rows as uint64, then 128 uint8
a row. OpenMVG compares them by Euclidean distance, so values are stored as 128 + 256 f, clipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contextdesc.errors import InputError
from contextdesc.formats import label
from contextdesc.formats.atomic import replacing
from contextdesc.keypoints import Keypoints

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.features import Features

DIMENSIONS = 128  # of SIFT_Regions
_ZERO, _SCALE = 128, 256  # of quantisation: components of unit vectors beyond 0.5 are rare


def write_to(folder: Path, name: str, features: Features) -> None:
    """Write the regions of an image; the descriptors, which say that it is done, last."""
    if features.descriptors.shape[1] != DIMENSIONS:
        size = features.descriptors.shape[1]
        raise InputError(f"{name}: descriptors of {size} values; OpenMVG's SIFT regions have {DIMENSIONS}")
    label.write(folder, features)
    keypoints = features.keypoints
    lines = np.column_stack([keypoints.xy, keypoints.size / 2, np.deg2rad(keypoints.angle)])
    feat, desc = _paths(folder, name)
    with replacing(feat) as temporary:
        np.savetxt(temporary, lines, fmt="%.9g")
    rows = quantise(features.descriptors)
    with replacing(desc) as temporary:
        temporary.write_bytes(np.array([len(rows)], "<u8").tobytes() + rows.tobytes())


def written_by(folder: Path, name: str, model: str) -> str | None:
    """The source of an image's features in the folder, or None if it has none."""
    return label.read(folder) if _paths(folder, name)[1].exists() else None


def read(folder: Path, name: str) -> tuple[Keypoints, NDArray[np.uint8]]:
    """Keypoints and descriptors (N, 128) uint8 of an image."""
    feat, desc = _paths(folder, name)
    try:
        text, content = feat.read_text(encoding="ascii"), desc.read_bytes()
        lines = np.array(text.split(), np.float32).reshape(-1, 4)
        rows = np.frombuffer(content[8:], np.uint8).reshape(-1, DIMENSIONS)
        if len(lines) != len(rows) or len(rows) != int(np.frombuffer(content[:8], "<u8")[0]):
            raise ValueError(f"{len(lines)} keypoints and {len(rows)} descriptors")
    except FileNotFoundError as error:
        raise InputError(f"{error.filename}: no such file") from None
    except (OSError, ValueError, IndexError) as error:
        raise InputError(f"{feat}, {desc.name}: not regions of OpenMVG, or damaged ({error})") from None
    lines = np.column_stack([lines[:, :2], 2 * lines[:, 2], np.rad2deg(lines[:, 3])])
    return Keypoints.from_array(lines), rows.copy()


def quantise(descriptors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Unit-length descriptors (N, D) as uint8; Euclidean distances keep their order but for rounding."""
    return np.clip(np.rint(descriptors * _SCALE + _ZERO), 0, 255).astype(np.uint8)


def _paths(folder: Path, name: str) -> tuple[Path, Path]:
    stem = Path(name).stem
    return folder / f"{stem}.feat", folder / f"{stem}.desc"
