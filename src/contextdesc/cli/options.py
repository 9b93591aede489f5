"""Options that several commands share, with their meaning in one place. Imports nothing heavy."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from contextdesc.model import ContextDesc


class ContextChoice(StrEnum):
    all = "all"
    both = "both"
    visual = "visual"
    geometric = "geometric"
    none = "none"


class SelectChoice(StrEnum):
    response = "response"
    random = "random"


class DeviceChoice(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class GeometryChoice(StrEnum):
    fundamental = "fundamental"
    homography = "homography"
    essential = "essential"


Model = Annotated[str, typer.Option(help="Packaged model (see `contextdesc models`) or model folder.")]
Context = Annotated[ContextChoice, typer.Option(help="Context terms; `all` that the model has.")]
MaxKeypoints = Annotated[int, typer.Option(help="Keypoints per image; 0 for all.", min=0)]
Select = Annotated[SelectChoice, typer.Option(help="Which keypoints fill the budget.")]
Seed = Annotated[int, typer.Option(help="Of a random selection.")]
Contrast = Annotated[float, typer.Option(help="SIFT's contrast threshold; lower finds more.", min=0.0)]
Upright = Annotated[bool, typer.Option("--upright", help="Ignore orientation: images that do not turn.")]
MaxSide = Annotated[int, typer.Option(help="Downscale images to this longer side; 0 for never.", min=0)]
MaxPixels = Annotated[
    int, typer.Option(help="Refuse files with more pixels; 0 for the default limit.", min=0)
]
DomainSizes = Annotated[str, typer.Option(help="Patch sizes to sum, such as 1,2 (the paper's A.4).")]
Device = Annotated[DeviceChoice, typer.Option(help="Where the networks run.")]
Threads = Annotated[int, typer.Option(help="Of the networks; 0 for all cores.", min=0)]
Ratio = Annotated[float | None, typer.Option(help="Ratio test; the model's own by default, 1 for none.")]
NoMutual = Annotated[bool, typer.Option("--no-mutual", help="Also keep one-way nearest neighbours.")]
Geometry = Annotated[GeometryChoice, typer.Option(help="What verification fits.")]
Threshold = Annotated[float, typer.Option(help="Largest error of an inlier, in pixels.")]
Restart = Annotated[bool, typer.Option("--restart", help="Forget an unfinished run.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Images = Annotated[list[Path], typer.Argument(help="Image files and folders of images.")]


def load_model(
    model: str,
    context: ContextChoice,
    max_keypoints: int,
    select: SelectChoice,
    seed: int,
    contrast: float,
    upright: bool,
    max_side: int,
    max_pixels: int,
    domain_sizes: str,
    device: DeviceChoice,
    threads: int,
) -> ContextDesc:
    """The model that the options ask for."""
    from contextdesc.detection import Detector
    from contextdesc.errors import InputError
    from contextdesc.image import MAX_PIXELS
    from contextdesc.model import load

    try:
        sizes = tuple(float(size) for size in domain_sizes.split(","))
    except ValueError:
        raise InputError(f"--domain-sizes {domain_sizes!r}: give numbers such as 1,2") from None
    detector = Detector(
        max_keypoints=max_keypoints or None,
        select=select.value,
        seed=seed,
        contrast=contrast,
        upright=upright,
    )
    return load(
        model,
        context=context.value,
        detector=detector,
        max_side=max_side or None,
        max_pixels=max_pixels or MAX_PIXELS,
        domain_sizes=sizes,
        device=device.value,
        threads=threads,
    )
