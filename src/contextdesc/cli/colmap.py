"""`contextdesc colmap --database FILE --images DIR`: our features into a COLMAP project."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from contextdesc.cli import options as o
from contextdesc.cli import sfm


def _command(
    load: o.Loader,
    database: Annotated[Path, typer.Option(help="COLMAP's database, which is filled.")],
    images: Annotated[Path, typer.Option(help="Folder that the database's image names are relative to.")],
    keep_keypoints: Annotated[
        bool, typer.Option("--keep-keypoints", help="Describe the keypoints that the database holds.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace keypoints and matches that the database holds.")
    ] = False,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Convert a database of another COLMAP; keeps a copy of it.")
    ] = False,
    pairs: sfm.Pairs = sfm.PairChoice.auto,
    pair_list: sfm.PairList = None,
    exhaustive_up_to: sfm.ExhaustiveUpTo = 100,
    neighbours: sfm.Neighbours = 20,
    window: sfm.Window = 10,
    ratio: o.Ratio = None,
    no_mutual: o.NoMutual = False,
    camera: sfm.Camera = sfm.CameraChoice.auto,
    camera_model: sfm.CameraModel = "SIMPLE_RADIAL",
    camera_params: sfm.CameraParams = None,
    masks: Annotated[
        Path | None, typer.Option(help="Folder of masks, NAME.png, black where nothing is.")
    ] = None,
    strict: sfm.Strict = False,
    json_: o.Json = False,
    restart: o.Restart = False,
    quiet: o.Quiet = False,
) -> None:
    """Fill a COLMAP database with keypoints, descriptors and verified matches. Resumes after a stop."""
    from contextdesc.sfm.pairs import PairConfig
    from contextdesc.sfm.project import FillConfig, fill_database

    config = FillConfig(
        keep_keypoints, overwrite, upgrade, ratio, not no_mutual,
        PairConfig(pairs.value, exhaustive_up_to, neighbours, window),
        sfm.camera_config(camera, camera_model, camera_params),
    )  # fmt: skip
    filled = fill_database(
        load(), database, images, config,
        masks=masks, pair_list=pair_list, strict=strict, restart=restart, quiet=quiet or json_,
    )  # fmt: skip
    if json_:
        print(json.dumps(asdict(filled), indent=2))
    else:
        print(
            f"{database}: {filled.images} images, {filled.keypoints} keypoints, {filled.matches} matches; "
            f"{filled.pairs} pairs verified, {filled.inliers} inliers"
        )
        for name, reason in filled.failed.items():
            print(f"failed: {name}: {reason}", file=sys.stderr)
    if filled.failed:
        raise typer.Exit(1)


command = o.with_model_options(_command, **sfm.DEFAULTS)
