"""`contextdesc localize MODEL QUERY...`: new images in a reconstruction that `contextdesc sfm` made."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contextdesc.cli import options as o
from contextdesc.cli import sfm
from contextdesc.cli.recorded import recorded_options

if TYPE_CHECKING:
    from contextdesc.localization import Localization

_DEFAULT_TABLES = [Path("poses.csv"), Path("poses.json")]


def _command(
    context_: typer.Context,
    load: o.Loader,
    reconstruction: Annotated[Path, typer.Argument(help="Output folder of `contextdesc sfm`.")],
    queries: Annotated[list[Path], typer.Argument(help="Image files and folders of images.")],
    output: Annotated[
        list[Path] | None,
        typer.Option("--output", "-o", help="Table: .csv, .json, .txt; [default: poses.csv, poses.json]"),
    ] = None,
    candidates: Annotated[int, typer.Option(help="Mapped images that a query is matched with.")] = 20,
    ratio: o.Ratio = None,
    max_error: Annotated[float, typer.Option(help="Largest error of an inlier, in pixels.")] = 12.0,
    min_inliers: Annotated[int, typer.Option(help="Inliers that make a pose.")] = 20,
    focal: Annotated[float | None, typer.Option(help="Focal length of the queries, in pixels.")] = None,
    camera_model: sfm.CameraModel = "SIMPLE_RADIAL",
    camera_params: sfm.CameraParams = None,
    json_: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Find where photographs were taken, with the model and keypoints that the reconstruction has."""
    from contextdesc.formats import poses
    from contextdesc.image import find_images
    from contextdesc.localization import Map, Settings, localize_images

    camera = sfm.camera_config(sfm.CameraChoice.auto, camera_model, camera_params)
    settings = Settings(candidates, ratio, max_error, min_inliers, camera, focal)
    tables = output or _DEFAULT_TABLES
    for path in tables:
        poses.check(path)
    found = find_images(queries)
    map_ = Map(reconstruction)
    made_by = map_.made_by
    recorded = recorded_options(
        "the reconstruction", made_by.model, made_by.checksum, made_by.context, map_.extraction, context_
    )
    model = load(**recorded)
    answers = localize_images(map_, model, found, settings, quiet or json_)
    for path in tables:
        poses.write(path, answers)
    if json_:
        print(poses.to_json(answers), end="")
    else:
        _print(answers, tables)
    if any(answer.pose is None for answer in answers):
        raise typer.Exit(1)


def _print(answers: list[Localization], tables: list[Path]) -> None:
    for answer in answers:
        if answer.pose is None:
            continue
        pose = answer.pose
        place = " ".join(f"{number:.4f}" for number in pose.centre)
        turn = " ".join(f"{number:.5f}" for number in pose.quaternion)
        same = f"; the same picture as {answer.nearest}" if answer.identical else ""
        print(
            f"{answer.name}: at {place}, quaternion {turn}, {answer.inliers} of {answer.pairs} inliers, "
            f"{pose.error:.2f} px, focal {pose.parameters[0]:.0f} ({pose.origin}){same}"
        )
    done = sum(answer.pose is not None for answer in answers)
    print(f"{done} of {len(answers)} localised; {', '.join(map(str, tables))}")
    for answer in answers:
        if answer.pose is None:
            print(f"not localised: {answer.name}: {answer.reason}", file=sys.stderr)


command = o.with_model_options(_command, **sfm.DEFAULTS)
