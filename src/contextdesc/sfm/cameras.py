"""Cameras: sizes and focal lengths of images come in, groups with one camera and its first guess go out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal, get_args

from contextdesc.errors import InputError
from contextdesc.sfm.binding import import_pycolmap

CameraMode = Literal["auto", "shared", "folder", "each"]

GUESS = 1.2  # focal length over the longer side, where nothing is known: COLMAP's own guess


@dataclass(frozen=True)
class CameraConfig:
    """What is known of the cameras.

    Attributes:
        model: COLMAP's name of the camera model.
        mode: `shared`: images of one size have one camera; `folder`: those of one folder and size; `each`
            image has its own; `auto`: those of one size and focal length by EXIF share one, and so do those
            without EXIF if all images have one size; else they are alone.
        params: of COLMAP's model, for all images, in pixels; None for EXIF or a guess.
        fixed: whether mapping leaves the parameters as they are.
    """

    model: str = "SIMPLE_RADIAL"
    mode: CameraMode = "auto"
    params: tuple[float, ...] | None = None
    fixed: bool = False

    def __post_init__(self) -> None:
        if self.mode not in get_args(CameraMode):
            raise InputError(f"camera mode is {self.mode!r}: one of {', '.join(get_args(CameraMode))}")
        if self.fixed and self.params is None:
            raise InputError("fixed cameras need their parameters (--camera-params)")


@dataclass(frozen=True)
class Shared:
    """Images that share a camera, and pycolmap's camera for them."""

    camera: Any
    names: tuple[str, ...]


def group_cameras(
    sizes: Mapping[str, tuple[int, int]], focals: Mapping[str, float | None], config: CameraConfig
) -> list[Shared]:
    """Group images by camera.

    Args:
        sizes: (width, height) of each image in pixels.
        focals: in pixels, from EXIF, where known.
    """
    groups: dict[tuple[Any, ...], list[str]] = {}
    one_size = len(set(sizes.values())) == 1
    for name, size in sizes.items():
        known = focals.get(name)
        by = {
            "shared": "", "folder": str(PurePosixPath(name).parent), "each": name,
            "auto": known or ("" if one_size or config.params is not None else name),
        }[config.mode]  # fmt: skip
        groups.setdefault((*size, by), []).append(name)
    if config.params is not None and len(set(sizes.values())) > 1:
        few = ", ".join(f"{w} x {h}" for w, h in sorted(set(sizes.values()))[:3])
        raise InputError(f"camera parameters are of one image size, but the images have several ({few})")
    return [
        Shared(_camera(sizes[names[0]], next((focals[n] for n in names if focals.get(n)), None), config),
               tuple(names))
        for names in groups.values()
    ]  # fmt: skip


def _camera(size: tuple[int, int], focal: float | None, config: CameraConfig) -> Any:
    pycolmap = import_pycolmap()
    models = pycolmap.CameraModelId.__members__
    if config.model not in models or config.model == "INVALID":
        known = ", ".join(name for name in models if name != "INVALID")
        raise InputError(f"camera model is {config.model!r}: one of {known}")
    create = getattr(pycolmap.Camera, "create_from_model_id", pycolmap.Camera.create)  # its name before 4.0
    camera = create(0, models[config.model], focal or GUESS * max(size), *size)
    if config.params is not None:
        if len(config.params) != len(camera.params):
            raise InputError(
                f"{len(config.params)} camera parameters: {config.model} has {len(camera.params)} "
                f"({camera.params_info})"
            )
        camera.params = list(config.params)
    camera.has_prior_focal_length = focal is not None or config.params is not None
    return camera
