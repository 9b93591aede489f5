"""`contextdesc benchmark NAME --data DIR`: a published protocol, any number of methods."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from contextdesc.cli import options as o


class Protocol(StrEnum):
    heinly = "heinly"


def command(
    name: Annotated[
        Protocol, typer.Argument(help="heinly: recall per transformation, Oxford affine layout.")
    ],
    data: Annotated[Path, typer.Option(help="Folder of the data, in its published layout.")],
    methods: Annotated[
        str,
        typer.Option(help="Comma-separated: sift, rootsift, a model, or MODEL:none for its raw descriptor."),
    ] = "sift,rootsift,preview",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the numbers as JSON.")] = None,
    seeds: Annotated[int, typer.Option(help="Number of random draws of keypoints.", min=1)] = 5,
    json_: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Run a benchmark and print its table."""
    from contextdesc.benchmarks import heinly
    from contextdesc.benchmarks.methods import build_method
    from contextdesc.formats.atomic import replacing
    from contextdesc.progress import progress

    built = {method: build_method(method) for method in methods.split(",")}
    scenes = heinly.find_scenes(data)
    with progress(name.value, len(scenes) * seeds, quiet=quiet or json_) as advance:
        table = heinly.run(data, built, range(seeds), advance)
    result = {"protocol": name.value, "keypoints": heinly.KEYPOINTS, "seeds": seeds, "recall": table}
    if output is not None:
        with replacing(output) as temporary:
            temporary.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2) if json_ else _markdown(table))


def _markdown(table: dict[str, dict[str, float]]) -> str:
    columns = list(next(iter(table.values())))
    lines = [f"| recall | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for method, row in table.items():
        lines.append(f"| {method} | {' | '.join(f'{row[column]:.1f}' for column in columns)} |")
    return "\n".join(lines)
