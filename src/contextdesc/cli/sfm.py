"""`contextdesc sfm IMAGES -o DIR`: cameras and 3D points from a folder of photographs."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contextdesc.cli import options as o

if TYPE_CHECKING:
    from contextdesc.sfm.cameras import CameraConfig


class PairChoice(StrEnum):
    auto = "auto"
    exhaustive = "exhaustive"
    retrieval = "retrieval"
    sequence = "sequence"


class CameraChoice(StrEnum):
    auto = "auto"
    shared = "shared"
    folder = "folder"
    each = "each"


class MapperChoice(StrEnum):
    incremental = "incremental"
    global_ = "global"


Pairs = Annotated[
    PairChoice, typer.Option(help="Pairs to match; auto: all of them for small sets, else by retrieval.")
]
PairList = Annotated[Path | None, typer.Option(help="Pairs to match: two image names a line.")]
ExhaustiveUpTo = Annotated[int, typer.Option(help="Images of which --pairs auto matches all pairs.", min=2)]
Neighbours = Annotated[int, typer.Option(help="Similar images per image, for --pairs retrieval.", min=1)]
Window = Annotated[int, typer.Option(help="Following images per image, for --pairs sequence.", min=1)]
Camera = Annotated[
    CameraChoice, typer.Option(help="Who shares a camera: images of one size, of one folder, or none.")
]
CameraModel = Annotated[str, typer.Option(help="COLMAP's camera model.")]
CameraParams = Annotated[
    str | None, typer.Option(help="Its parameters in pixels, such as 1150,640,426,0; from EXIF or guessed.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first image that fails.")]

# The release's contrast threshold for reconstruction, and a budget that a laptop bears.
DEFAULTS = {"max_keypoints": 4096, "contrast": 0.0067}


def _command(
    load: o.Loader,
    images: Annotated[Path, typer.Argument(help="Folder of photographs.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder that the results are written to.")],
    pairs: Pairs = PairChoice.auto,
    pair_list: PairList = None,
    exhaustive_up_to: ExhaustiveUpTo = 100,
    neighbours: Neighbours = 20,
    window: Window = 10,
    ratio: o.Ratio = None,
    no_mutual: o.NoMutual = False,
    camera: Camera = CameraChoice.auto,
    camera_model: CameraModel = "SIMPLE_RADIAL",
    camera_params: CameraParams = None,
    fixed_cameras: Annotated[
        bool, typer.Option("--fixed-cameras", help="Leave --camera-params as they are.")
    ] = False,
    mapper: Annotated[
        MapperChoice, typer.Option(help="Image by image, or all at once.")
    ] = MapperChoice.incremental,
    masks: Annotated[
        Path | None, typer.Option(help="Folder of masks, NAME.png, black where nothing is.")
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help="Features in hloc's layout, or a folder of shards, instead of ours.")
    ] = None,
    strict: Strict = False,
    restart: Annotated[bool, typer.Option("--restart", help="Forget all that an earlier run did.")] = False,
    update: Annotated[
        bool, typer.Option("--update", help="Redo what changed settings or added photographs touch.")
    ] = False,
    json_: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Reconstruct a scene from photographs. What was finished is kept; the same command goes on."""
    from contextdesc.sfm.mapping import MapConfig
    from contextdesc.sfm.pairs import PairConfig
    from contextdesc.sfm.pipeline import Given, SfmConfig, reconstruct
    from contextdesc.sfm.summary import table

    config = SfmConfig(
        PairConfig(pairs.value, exhaustive_up_to, neighbours, window),
        ratio,
        not no_mutual,
        camera_config(camera, camera_model, camera_params, fixed_cameras),
        MapConfig(mapper.value, fixed_cameras),
    )
    given = Given(masks, features, pair_list)
    outcome = reconstruct(
        load(), images, output, config, given,
        strict=strict, restart=restart, update=update, quiet=quiet or json_,
    )  # fmt: skip
    summary = outcome.summary
    if json_:
        print(json.dumps(summary, indent=2))
    else:
        print(table(summary))
        for name, original in summary["copies"].items():
            print(f"left out: {name}: the same picture as {original}")
        if others := summary["other_models"]:
            print(f"{len(others)} more models of {', '.join(map(str, others))} images did not connect to it")
        print(f"page: {output / 'index.html'}")
        for name, reason in outcome.failed.items():
            print(f"failed: {name}: {reason}", file=sys.stderr)
    if outcome.failed:
        raise typer.Exit(1)


def camera_config(camera: CameraChoice, model: str, params: str | None, fixed: bool = False) -> CameraConfig:
    """What the options say about cameras."""
    from contextdesc.errors import InputError
    from contextdesc.sfm.cameras import CameraConfig

    try:
        numbers = None if params is None else tuple(float(number) for number in params.split(","))
    except ValueError:
        raise InputError(f"--camera-params {params!r}: give numbers such as 1150,640,426,0") from None
    return CameraConfig(model, camera.value, numbers, fixed)


command = o.with_model_options(_command, **DEFAULTS)
