"""The ETH local feature evaluation: `keypoints/NAME.bin`, `descriptors/NAME.bin` and `matches/A---B.bin`.

A file is a matrix: rows and columns as int32, then the values row by row. Keypoints are (x, y, scale,
orientation) in COLMAP's convention, into whose database the evaluation copies them. A matrix has no place for
the model's name, so `contextdesc.json` beside the folders holds it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.errors import InputError
from contextdesc.formats import label
from contextdesc.formats.atomic import replacing
from contextdesc.keypoints import Keypoints

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from contextdesc.features import Features


def write_to(folder: Path, name: str, features: Features) -> None:
    """Write the keypoints and descriptors of an image; the descriptors, which say that it is done, last."""
    label.write(folder, features)
    write_matrix(folder / "keypoints" / f"{name}.bin", features.keypoints.to_colmap(), np.float32)
    write_matrix(_descriptors(folder, name), features.descriptors, np.float32)


def written_by(folder: Path, name: str, model: str) -> str | None:
    """The source of an image's features in the folder, or None if it has none."""
    return label.read(folder) if _descriptors(folder, name).exists() else None


def read_keypoints(path: Path) -> Keypoints:
    """Keypoints of a `.bin` file, in OpenCV's convention."""
    rows = read_matrix(path, np.float32)
    try:
        return Keypoints.from_colmap(rows)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read_descriptors(path: Path) -> NDArray[np.float32]:
    """(N, D) float32 of a `.bin` file."""
    return read_matrix(path, np.float32)


def write_matches(folder: Path, first: str, second: str, indices: NDArray[np.integer]) -> None:
    """Write matches (M, 2) of two images; the layout has no place for slashes in their names."""
    if "/" in first + second:
        raise InputError(f"{first}, {second}: the ETH layout of matches takes no names with slashes")
    write_matrix(folder / "matches" / f"{first}---{second}.bin", indices, np.uint32)


def read_matches(folder: Path, first: str, second: str) -> NDArray[np.int64]:
    """(M, 2) int64, rows of the first and second image's features."""
    return read_matrix(folder / "matches" / f"{first}---{second}.bin", np.uint32).astype(np.int64)


def write_matrix(path: Path, matrix: NDArray[Any], dtype: DTypeLike) -> None:
    rows = np.ascontiguousarray(matrix, np.dtype(dtype).newbyteorder("<"))
    with replacing(path) as temporary:
        temporary.write_bytes(np.array(rows.shape, "<i4").tobytes() + rows.tobytes())


def read_matrix(path: Path, dtype: DTypeLike) -> NDArray[Any]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    shape = np.frombuffer(content[:8], "<i4") if len(content) >= 8 else np.array([-1, -1])
    values = np.frombuffer(content[8:], np.uint8)
    stored = np.dtype(dtype).newbyteorder("<")
    if (shape < 0).any() or len(values) != int(shape[0]) * int(shape[1]) * stored.itemsize:
        raise InputError(f"{path}: not a matrix of the ETH evaluation, or damaged; write it again")
    return values.view(stored).reshape(shape).astype(dtype)


def _descriptors(folder: Path, name: str) -> Path:
    return folder / "descriptors" / f"{name}.bin"
