"""`contextdesc train CONFIG`: one stage of training."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Annotated

import typer


def command(
    config: Annotated[Path, typer.Argument(help="TOML file of the stage; see configs/.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of checkpoint and log.")],
    photos: Annotated[
        Path | None, typer.Option(help="Folder of photographs, instead of the config's.")
    ] = None,
    scenes: Annotated[Path | None, typer.Option(help="Folder of scenes, instead of the config's.")] = None,
    base: Annotated[
        Path | None, typer.Option(help="Model with the frozen local network, instead of the config's.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of steps, instead of the config's.", min=1)
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder of prepared pairs; default OUTPUT/cache.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that prepare pairs; 0 for every core.", min=0)] = 0,
) -> None:
    """Train a stage; an unfinished run in OUTPUT is continued."""
    from contextdesc.config import from_toml
    from contextdesc.errors import InputError

    try:
        from contextdesc.training.loop import train
        from contextdesc.training.stages import StageConfig
    except ImportError as error:
        raise InputError(f"training needs an extra ({error}): pip install 'contextdesc[train]'") from None

    settings = from_toml(StageConfig, config)
    given = {
        "photos": photos and str(photos),
        "scenes": scenes and str(scenes),
        "base": base and str(base),
        "steps": steps,
    }
    settings = dataclasses.replace(settings, **{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]
    path = train(settings, output, cache or output / "cache", workers or os.cpu_count() or 1)
    print(f"checkpoint: {path}")
