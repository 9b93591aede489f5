"""`contextdesc export`: trained checkpoints to a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def command(
    local: Annotated[Path, typer.Option(help="Checkpoint of the stage `local`.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model folder to write.")],
    image: Annotated[Path, typer.Option(help="A photograph to compare ONNX and PyTorch on.")],
    geometric: Annotated[Path | None, typer.Option(help="Checkpoint of the stage `geometric`.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model; default the folder's.")] = None,
    ratio: Annotated[float, typer.Option(help="Threshold of the ratio test.")] = 0.8,
    card: Annotated[
        Path | None, typer.Option(help="JSON file with what model.json says of the training.")
    ] = None,
) -> None:
    """Write a model that `contextdesc match --model DIR` uses, after checking that it agrees."""
    from contextdesc.errors import InputError
    from contextdesc.image import read
    from contextdesc.modelfile import ModelSpec

    try:
        from contextdesc.training.export import Networks, export_model
        from contextdesc.training.loop import load_network, read_config
        from contextdesc.training.networks import GeometricContext, LocalNetwork
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
        ratio=ratio,
        matchability=config.local.matchability,
        training=training,
    )
    written = export_model(networks, spec, output, read(image))
    print(f"{output}: {', '.join(written.files)}")
