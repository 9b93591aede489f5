"""`contextdesc localize MODEL QUERY...`: new images in a reconstruction that `contextdesc sfm` made."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contextdesc.cli import options as o
from contextdesc.cli import sfm

if TYPE_CHECKING:
    from contextdesc.localization import Localization, Map

_CONTEXTS = {
    "none": o.ContextChoice.none,
    "visual": o.ContextChoice.visual,
    "geometric": o.ContextChoice.geometric,
    "visual+geometric": o.ContextChoice.both,
}
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
    model = load(**_recorded(map_, context_))
    answers = localize_images(map_, model, found, settings, quiet or json_)
    for path in tables:
        poses.write(path, answers)
    if json_:
        print(poses.to_json(answers), end="")
    else:
        _print(answers, tables)
    if any(answer.pose is None for answer in answers):
        raise typer.Exit(1)


def _recorded(map_: Map, context_: typer.Context) -> dict[str, Any]:
    """Options as the reconstruction was made with, for those that the user left alone."""
    from contextdesc.errors import InputError
    from contextdesc.modelfile import packaged_models

    made_by = map_.made_by
    terms, _, sizes = made_by.context.partition("@")
    recorded: dict[str, Any] = {
        "model": made_by.model,
        "context": _CONTEXTS.get(terms, o.ContextChoice.all),
        "domain_sizes": sizes.replace("+", ",") or "1",
    }
    if map_.extraction:
        detector = map_.extraction["detector"]
        recorded |= {name: detector[name] for name in ("seed", "contrast", "upright")}
        recorded["max_keypoints"] = detector["max_keypoints"] or 0
        recorded["select"] = o.SelectChoice(detector["select"])
        recorded["max_side"] = map_.extraction["max_side"] or 0
    left_alone = {
        name: value
        for name, value in recorded.items()
        if getattr(context_.get_parameter_source(name), "name", "") == "DEFAULT"
    }
    if "model" in left_alone and made_by.model not in packaged_models():
        raise InputError(f"the reconstruction was made with {made_by.source}: give that model with --model")
    return left_alone


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
