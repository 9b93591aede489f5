"""`contextdesc match-set FEATURES.h5 --pairs PAIRS.txt -o MATCHES.h5`: many pairs, hloc's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from contextdesc.cli import options as o
from contextdesc.cli.extract import finish


def command(
    features: Annotated[Path, typer.Argument(help="Features, as `extract` wrote them: a file, or shards.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The .h5 file of matches; a folder for shards.")
    ],
    pairs: Annotated[Path | None, typer.Option(help="Two image names a line; all pairs without it.")] = None,
    ratio: o.Ratio = None,
    no_mutual: o.NoMutual = False,
    verify: Annotated[
        o.GeometryChoice | None, typer.Option(help="Keep only matches that agree with this geometry.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Match features of different models.")] = False,
    workers: o.WorkerCount = None,
    cluster: o.Cluster = None,
    shard_size: o.ShardSize = None,
    json_: o.Json = False,
    restart: o.Restart = False,
    quiet: o.Quiet = False,
) -> None:
    """Match many pairs of images. A run that was stopped goes on where it stopped."""
    from contextdesc.errors import InputError
    from contextdesc.formats.shards import open_features
    from contextdesc.match_set import PAIRS_A_SHARD, all_pairs, match_pairs, read_pairs

    if verify is o.GeometryChoice.essential:
        raise InputError("--verify essential needs intrinsics of every image; use fundamental or homography")
    if pairs is not None:
        chosen = read_pairs(pairs)
    else:
        with open_features(features) as file:
            chosen = all_pairs(file.names)
    report = match_pairs(
        features, chosen, output, ratio=ratio, mutual=not no_mutual,
        geometry=None if verify is None else verify.value,  # type: ignore[arg-type]  # the same names
        force=force, restart=restart, quiet=quiet or json_,
        workers=o.chosen_workers(workers, cluster, shard_size), shard_size=shard_size or PAIRS_A_SHARD,
    )  # fmt: skip
    finish(report, output, "pairs", json_)
