"""`contextdesc export CHECKPOINT...`: trained checkpoints to a model folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from contextdesc.benchmarks.ratio import TwoViews
    from contextdesc.training.config import StageConfig


def command(
    checkpoints: Annotated[
        list[Path],
        typer.Argument(help="Checkpoints of one or more stages; of a part, the last one's is taken."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model folder to write.")],
    base: Annotated[
        str | None,
        typer.Option(help="Model whose local network is taken over, instead of the config's base."),
    ] = None,
    image: Annotated[
        Path | None,
        typer.Option(help="Photograph to compare ONNX and PyTorch on; default one of the training."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model; default the folder's.")] = None,
    ratio: Annotated[float | None, typer.Option(help="Threshold of the ratio test; default 0.8.")] = None,
    ratio_photos: Annotated[
        Path | None, typer.Option(help="Choose the threshold on the last photographs of this folder.")
    ] = None,
    held_out: Annotated[int, typer.Option(help="How many, as in training.", min=1)] = 30,
    ratio_scenes: Annotated[
        Path | None,
        typer.Option(help="Choose the threshold on the scenes of this folder that training held out."),
    ] = None,
    card: Annotated[
        list[Path] | None, typer.Option(help="JSON files with what model.json says of the training.")
    ] = None,
) -> None:
    """Write a model that `contextdesc match --model DIR` uses, after checking that it agrees."""
    from contextdesc.benchmarks.ratio import choose_ratio, photo_views, scene_views
    from contextdesc.errors import InputError
    from contextdesc.image import read
    from contextdesc.modelfile import write_spec

    try:
        from contextdesc.training.assembly import assemble
        from contextdesc.training.export import check_output, export_model
        from contextdesc.training.setup import photographs
    except ImportError as error:
        raise InputError(f"export needs an extra ({error}): pip install 'contextdesc[train]'") from None

    check_output(output)
    try:
        training: dict[str, Any] = {}
        for path in card or []:
            training |= json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: not a readable JSON file ({error})") from None
    model = assemble(checkpoints, name or output.resolve().name, base, training)
    spec = model.spec if ratio is None else replace(model.spec, ratio=ratio)
    picture = read(image or _any_photograph(model.config))
    written = export_model(model.parts, spec, output, picture, model.carried)
    views: list[Iterator[TwoViews]] = []
    if ratio_photos is not None:
        views.append(photo_views(photographs(ratio_photos, held_out)[1]))
    if ratio_scenes is not None:
        views.append(scene_views([ratio_scenes / name for name in model.config.held_out_scenes]))
    if views:
        written = replace(written, ratio=choose_ratio(chain(*views), output))
        write_spec(output, written)
    print(f"{output}: {', '.join(written.files)}; ratio {written.ratio}")


def _any_photograph(config: StageConfig) -> Path:
    from contextdesc.errors import InputError
    from contextdesc.image import find_images

    for folder in (config.photos, config.scenes):
        if folder is not None and Path(folder).is_dir():
            return next(iter(find_images([Path(folder)]).values()))
    raise InputError("the photographs of the training are not there any more: give --image, any photograph")
