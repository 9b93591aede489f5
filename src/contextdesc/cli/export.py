"""`contextdesc export`: trained checkpoints to a model folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer


def command(
    local: Annotated[Path, typer.Option(help="Checkpoint of the stage `local`.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model folder to write.")],
    image: Annotated[Path, typer.Option(help="A photograph to compare ONNX and PyTorch on.")],
    geometric: Annotated[Path | None, typer.Option(help="Checkpoint of the stage `geometric`.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model; default the folder's.")] = None,
    ratio: Annotated[float | None, typer.Option(help="Threshold of the ratio test; default 0.8.")] = None,
    ratio_photos: Annotated[
        Path | None, typer.Option(help="Choose the threshold on the last photographs of this folder.")
    ] = None,
    held_out: Annotated[int, typer.Option(help="How many, as in training.", min=1)] = 30,
    card: Annotated[
        Path | None, typer.Option(help="JSON file with what model.json says of the training.")
    ] = None,
) -> None:
    """Write a model that `contextdesc match --model DIR` uses, after checking that it agrees."""
    from contextdesc.benchmarks.ratio import choose_ratio
    from contextdesc.errors import InputError
    from contextdesc.image import read
    from contextdesc.modelfile import ModelSpec, write_spec

    try:
        from contextdesc.training.export import Networks, export_model
        from contextdesc.training.loop import load_network, read_config
        from contextdesc.training.networks import GeometricContext, LocalNetwork
        from contextdesc.training.stages import photographs
    except ImportError as error:
        raise InputError(f"export needs an extra ({error}): pip install 'contextdesc[train]'") from None

    networks = Networks()
    config = read_config(local)
    networks.local = LocalNetwork(config.local)
    load_network(local, networks.local)
    if geometric is not None:
        networks.geometric = GeometricContext(read_config(geometric).geometric)
        load_network(geometric, networks.geometric)
    try:
        training = json.loads(card.read_text(encoding="utf-8")) if card is not None else {}
    except (OSError, ValueError) as error:
        raise InputError(f"{card}: not a readable JSON file ({error})") from None
    spec = ModelSpec(
        name=name or output.name,
        base="local",
        files={},
        support=config.pairs.support,
        ratio=0.8 if ratio is None else ratio,
        matchability=config.local.matchability,
        training=training,
    )
    written = export_model(networks, spec, output, read(image))
    if ratio_photos is not None:
        photos = photographs(ratio_photos, held_out)[1]
        written = replace(written, ratio=choose_ratio(photos, output))
        write_spec(output, written)
    print(f"{output}: {', '.join(written.files)}; ratio {written.ratio}")
