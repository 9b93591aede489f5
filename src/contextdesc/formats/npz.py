"""NumPy archives: the features of one image in one `.npz`, our own layout."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.errors import InputError
from contextdesc.features import Features
from contextdesc.formats.atomic import replacing
from contextdesc.keypoints import Keypoints

if TYPE_CHECKING:
    from numpy.typing import NDArray


def to_arrays(features: Features) -> dict[str, NDArray[Any]]:
    """Features as named arrays, without objects, so that no reader needs pickle."""
    keypoints = features.keypoints
    arrays: dict[str, NDArray[Any]] = {
        "xy": keypoints.xy,
        "size": keypoints.size,
        "angle": keypoints.angle,
        "response": keypoints.response,
        "descriptors": features.descriptors,
        "image_size": np.array(features.image_size, np.int64),
        "ratio": np.array(features.ratio),
        "source": np.array([features.model, features.checksum, features.context]),
    }
    if features.matchability is not None:
        arrays["matchability"] = features.matchability
    return arrays


def from_arrays(arrays: Any, where: str) -> Features:
    try:
        keypoints = Keypoints(*(arrays[name] for name in ("xy", "size", "angle", "response")))
        model, checksum, context = (str(text) for text in arrays["source"])
        width, height = (int(side) for side in arrays["image_size"])
        matchability = arrays["matchability"] if "matchability" in arrays else None  # noqa: SIM401  # not a dict
        descriptors, ratio = arrays["descriptors"], float(arrays["ratio"])
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{where}: not features of contextdesc ({error})") from None
    return Features(keypoints, descriptors, (width, height), model, checksum, context, ratio, matchability)


def write(path: Path, features: Features) -> None:
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **to_arrays(features))  # type: ignore[arg-type]  # as in journal.py


def write_to(folder: Path, name: str, features: Features) -> None:
    write(folder / f"{name}.npz", features)


def written_by(folder: Path, name: str, model: str) -> str | None:
    """The source of an image's features in the folder, or None if it has none."""
    path = folder / f"{name}.npz"
    return read(path).source if path.exists() else None


def read(path: Path) -> Features:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return from_arrays(arrays, str(path))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: damaged or not a NumPy archive ({error})") from None
