"""`contextdesc merge SHARDS -o FILE.h5`: a folder of shards to one file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from contextdesc.cli import options as o


def command(
    shards: Annotated[Path, typer.Argument(help="Folder of shards, as --workers or --cluster write it.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .h5 file.")],
    json_: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Write a folder of shards as one file, after a check of every shard's checksum."""
    from contextdesc.formats.shards import merge

    manifest = merge(shards, output, quiet or json_)
    count = sum(len(shard.names) for shard in manifest.shards)
    if json_:
        print(json.dumps({"output": str(output), "count": count, "failed": manifest.failed}, indent=2))
        return
    what = "pairs" if manifest.kind == "matches" else "images"
    print(f"{output}: {count} {what} of {len(manifest.shards)} shards")
    for name, reason in manifest.failed.items():
        print(f"not in it: {name}: {reason}", file=sys.stderr)
