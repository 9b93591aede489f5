"""`contextdesc quantise MODEL`: 8-bit networks beside a model's own, for `--precision int8`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from contextdesc.cli import options as o


def command(
    model: Annotated[str, typer.Argument(help="Packaged model or model folder; gets the files.")],
    photos: Annotated[
        Path,
        typer.Option(help="Photographs of its training; those that it held out only measure recall."),
    ],
    scenes: Annotated[
        Path | None, typer.Option(help="Scenes of its training; the held-out ones measure recall.")
    ] = None,
    patches: Annotated[int, typer.Option(help="Patches to calibrate on.", min=64)] = 2048,
    seed: Annotated[int, typer.Option(help="Of their choice.")] = 0,
    tolerance: Annotated[
        float, typer.Option(help="Write nothing if recall is so many points lower.", min=0.0)
    ] = 0.5,
    limit: Annotated[
        int | None, typer.Option(help="Only so many pairs of each kind, for a quick look.", min=1)
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder that keeps the held-out pairs.")] = None,
    workers: Annotated[int, typer.Option(help="Processes that prepare pairs; 0 for every core.", min=0)] = 0,
    quiet: o.Quiet = False,
) -> None:
    """Quantise a model's networks to 8 bits, if that is faster and costs no recall on held-out data."""
    from contextdesc.errors import InputError
    from contextdesc.modelfile import resolve

    folder = resolve(model)
    try:
        from contextdesc.training.data.cache import Cache
        from contextdesc.training.quantise import quantise
    except ImportError as error:
        raise InputError(f"quantise needs an extra ({error}): pip install 'contextdesc[train]'") from None

    for given in (photos, scenes):
        if given is not None and not given.is_dir():
            raise InputError(f"{given}: no such folder")
    said = ["contextdesc quantise", folder.name, "--photos PHOTOS", *(["--scenes SCENES"] if scenes else [])]
    said += [f"--patches {patches} --seed {seed}", *([f"--limit {limit}"] if limit else [])]
    with tempfile.TemporaryDirectory() as temporary:
        spec = quantise(
            folder, photos, scenes, Cache(cache or Path(temporary)), patches=patches, seed=seed,
            tolerance=tolerance, limit=limit, workers=workers or os.cpu_count() or 1,
            command=" ".join(said), quiet=quiet,
        )  # fmt: skip
    for name, facts in spec.networks.items():
        ratios = [f"{of['ratio']['median']:.2f} ({n})" for n, of in facts["speed"]["threads"].items()]
        used = "in 8 bits" if facts["used"] else f"stays in full precision ({facts['why']})"
        print(f"{name}: {used}; times fp32's speed, by threads: {', '.join(ratios)}")
    for kind, facts in spec.recall.items():
        lost = facts["difference"]
        print(
            f"recall on {facts['pairs']} held-out pairs of {kind}: fp32 {facts['fp32']:.2f}, int8 "
            f"{facts['int8']:.2f} ({lost['mean']:+.2f}, {lost['low']:+.2f} to {lost['high']:+.2f})"
        )
    ratios = [f"{of['ratio']['median']:.2f} ({n})" for n, of in spec.speed["threads"].items()]
    print(f"{folder}: {', '.join(spec.files)}; an image is described {', '.join(ratios)} times as fast")
