"""`contextdesc train CONFIG`: one stage of training; `train --photos DIR`: all of them on a folder."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Annotated, Any

import typer


def command(
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Folder of checkpoint and log; without CONFIG, the model's."),
    ],
    config: Annotated[
        Path | None, typer.Argument(help="TOML file of a stage; without it, --photos is trained on.")
    ] = None,
    photos: Annotated[
        Path | None, typer.Option(help="Folder of photographs, instead of the config's or without one.")
    ] = None,
    scenes: Annotated[Path | None, typer.Option(help="Folder of scenes, instead of the config's.")] = None,
    base: Annotated[str | None, typer.Option(help="Base descriptors, instead of the config's.")] = None,
    init: Annotated[
        list[str] | None,
        typer.Option(
            help="Checkpoints or models to start from, instead of the config's; without CONFIG, a "
            "packaged model (default) or 'nothing'."
        ),
    ] = None,
    regional: Annotated[
        str | None, typer.Option(help="Weights of the regional network, instead of the config's.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of steps, instead of the config's.", min=1)
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Time budget; without CONFIG, of all stages together (default 60).", min=0.1),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(help="Folder of prepared data; default OUTPUT/cache, OUTPUT.work/cache without CONFIG."),
    ] = None,
    cache_limit: Annotated[
        float | None, typer.Option(help="Gigabytes that the cache may hold; older data is deleted.", min=0.01)
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that prepare pairs; 0 for every core.", min=0)] = 0,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard logs too.")] = False,
) -> None:
    """Train a stage, or a whole model on your photographs; what was unfinished in OUTPUT is continued."""
    from contextdesc.config import from_toml
    from contextdesc.errors import InputError

    try:
        from contextdesc.training.config import StageConfig
        from contextdesc.training.data.cache import GIGABYTE, Cache
        from contextdesc.training.loop import train
        from contextdesc.training.recipe import train_on_photos
    except ImportError as error:
        raise InputError(f"training needs an extra ({error}): pip install 'contextdesc[train]'") from None

    limit = None if cache_limit is None else cache_limit * GIGABYTE
    processes = workers or os.cpu_count() or 1
    if config is None:
        if photos is None:
            raise InputError("nothing to train: give a CONFIG, or --photos and a folder of photographs")
        for option, value in (
            ("--scenes", scenes),
            ("--base", base),
            ("--regional", regional),
            ("--steps", steps),
        ):
            if value is not None:
                raise InputError(f"{option} goes with a CONFIG")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise InputError("torchrun goes with a CONFIG")
        if init is not None and len(init) > 1:
            raise InputError("--init without a CONFIG takes one model")
        work = output.with_name(output.name + ".work")
        store = Cache(cache or work / "cache", limit)
        train_on_photos(photos, output, work, store, minutes or 60.0, init[0] if init else None, processes)
        return
    settings = from_toml(StageConfig, config)
    given: dict[str, Any] = {
        "photos": photos and str(photos),
        "scenes": scenes and str(scenes),
        "base": base,
        "init": tuple(init) if init else None,
        "steps": steps,
        "minutes": minutes,
        "tensorboard": tensorboard or None,
    }
    if regional is not None:
        given["regional"] = dataclasses.replace(settings.regional, weights=regional)
    settings = dataclasses.replace(settings, **{k: v for k, v in given.items() if v is not None})
    path = train(settings, output, Cache(cache or output / "cache", limit), processes)
    if os.environ.get("RANK", "0") == "0":  # of torchrun
        print(f"checkpoint: {path}")
