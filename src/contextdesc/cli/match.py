"""`contextdesc match A B`: do two images show the same thing, and where."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contextdesc.cli import options as o
from contextdesc.cli.picture import Kind, draw_kind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from contextdesc.image import Image
    from contextdesc.rotation import Matched


@o.with_model_options
def command(
    load: o.Loader,
    first: Annotated[
        str | None, typer.Argument(help="An image, or its URL; none for the sample pair.")
    ] = None,
    second: Annotated[str | None, typer.Argument(help="Another image.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The picture: .png, .jpg or .svg.")
    ] = None,
    draw: Annotated[Kind, typer.Option(help="What the picture shows.")] = Kind.matches,
    no_picture: Annotated[bool, typer.Option("--no-picture", help="Write no picture.")] = False,
    json_: o.Json = False,
    ratio: o.Ratio = None,
    no_mutual: o.NoMutual = False,
    geometry: Annotated[
        o.GeometryChoice, typer.Option(help="What verification fits.")
    ] = o.GeometryChoice.fundamental,
    threshold: Annotated[float, typer.Option(help="Largest error of an inlier, in pixels.")] = 2.0,
    focal: Annotated[
        float | None, typer.Option(help="Focal length in pixels, for `essential`; else EXIF.")
    ] = None,
    rotate: Annotated[
        o.RotateChoice,
        typer.Option(help="Turn of the second image, degrees clockwise; `auto` where the pair asks for it."),
    ] = o.RotateChoice.auto,
) -> None:
    """Match two images, verify the matches, and draw them. Without images: the sample pair."""
    from contextdesc.draw.picture import format_of
    from contextdesc.errors import InputError
    from contextdesc.geometry import verify
    from contextdesc.image import read
    from contextdesc.rotation import match_rotated
    from contextdesc.samples import sample_pair

    if (first is None) != (second is None):
        raise InputError("match takes two images, or none for the sample pair")
    picture = None if no_picture else output or Path(f"{draw}.png")
    if picture is not None:
        format_of(picture)
    model = load()
    images: list[Image]
    if first is None or second is None:
        images = list(sample_pair()[:2])
    else:
        images = [read(path, max_pixels=model.max_pixels) for path in (first, second)]
    cameras = _cameras(images, focal) if geometry is o.GeometryChoice.essential else None
    check = partial(verify, geometry=geometry.value, threshold=threshold, intrinsics=cameras)
    found = match_rotated(
        model, images[0], images[1], rotate.turn, ratio=ratio, mutual=not no_mutual, check=check
    )
    features, matches, result = list(found.features), found.matches, found.result
    if picture is not None:
        draw_kind(draw, model, images, features, matches, result, threshold, ratio).save(picture)
    if json_:
        print(json.dumps(_numbers(images, found, picture), indent=2))
    else:
        _print(images, found, picture)


def _cameras(images: list[Image], focal: float | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Intrinsics of both cameras, from the option or from EXIF."""
    from contextdesc.errors import InputError
    from contextdesc.geometry import intrinsics

    matrices = []
    for image in images:
        known = focal or image.focal
        if known is None:
            raise InputError(f"{image.name}: no focal length in its EXIF data; give --focal in pixels")
        matrices.append(intrinsics(image.original_size, known))
    return matrices[0], matrices[1]


def _print(images: list[Image], found: Matched, picture: Path | None) -> None:
    result = found.result
    for image, features in zip(images, found.features, strict=True):
        width, height = image.original_size
        print(f"{image.name}: {width} x {height} pixels, {len(features)} keypoints")
    if found.turn:
        print(f"{images[1].name}: turned by {found.turn} degrees clockwise to match")
    print(
        f"{len(result.inliers)} matches, {result.inlier_count} inliers "
        f"({result.inlier_ratio:.0%}; geometry: {result.geometry})"
    )
    if result.pose is not None:
        rotation, translation = result.pose
        print(
            f"relative pose: rotation {rotation.round(4).tolist()}, direction {translation.round(4).tolist()}"
        )
    print(f"verdict: {result.judgement}")
    if picture is not None:
        print(f"picture: {picture}")


def _numbers(images: list[Image], found: Matched, picture: Path | None) -> dict[str, Any]:
    features, result, judgement = found.features, found.result, found.result.judgement
    return {
        "images": [
            {"name": image.name, "size": list(image.original_size), "keypoints": len(rows)}
            for image, rows in zip(images, features, strict=True)
        ],
        "model": features[0].model,
        "context": features[0].context,
        "matches": len(result.inliers),
        "inliers": result.inlier_count,
        "inlier_ratio": round(result.inlier_ratio, 4),
        "geometry": result.geometry,
        "matrix": None if result.matrix is None else result.matrix.tolist(),
        "rotation": None if result.pose is None else result.pose[0].tolist(),
        "translation": None if result.pose is None else result.pose[1].tolist(),
        "turn": found.turn,
        "verdict": result.verdict,
        "probability": result.probability,
        "same_from": None if judgement is None else judgement.same_from,
        "different_below": None if judgement is None else judgement.different_below,
        "picture": None if picture is None else str(picture),
        "points": result.points.round(2).tolist(),
        "inlier_mask": result.inliers.tolist(),
    }
