"""`contextdesc benchmark NAME --data DIR`: a published protocol, any number of methods."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from contextdesc.cli import options as o
from contextdesc.modelfile import DEFAULT


class Protocol(StrEnum):
    heinly = "heinly"
    hsequences = "hsequences"
    terms = "terms"


def command(
    name: Annotated[
        Protocol,
        typer.Argument(
            help="heinly: recall per transformation, Oxford affine layout. hsequences: recall, matching "
            "accuracy and homographies on HPatches sequences. terms: what each context term adds on a "
            "model's held-out photos/ and scenes/, with intervals."
        ),
    ],
    data: Annotated[Path, typer.Option(help="Folder of the data, in its published layout.")],
    methods: Annotated[
        str,
        typer.Option(help="Comma-separated: sift, rootsift, a model, or MODEL:none for its raw descriptor."),
    ] = f"sift,rootsift,{DEFAULT}",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the numbers as JSON.")] = None,
    seeds: Annotated[int, typer.Option(help="heinly: number of random draws of keypoints.", min=1)] = 5,
    limit: Annotated[
        int | None, typer.Option(help="hsequences: only so many sequences, for a quick look.", min=1)
    ] = None,
    json_: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Run a benchmark and print its table."""
    from contextdesc.formats.atomic import replacing

    chosen, silent = methods.split(","), quiet or json_
    if name is Protocol.heinly:
        result, table = _heinly(data, chosen, seeds, silent)
    elif name is Protocol.hsequences:
        result, table = _hsequences(data, chosen, limit, silent)
    else:
        result, table = _terms(data, chosen, silent)
    if output is not None:
        with replacing(output) as temporary:
            temporary.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2) if json_ else table)


def _heinly(data: Path, methods: list[str], seeds: int, quiet: bool) -> tuple[dict[str, Any], str]:
    from contextdesc.benchmarks import heinly
    from contextdesc.benchmarks.methods import build_method
    from contextdesc.benchmarks.sequences import OXFORD, find_sequences
    from contextdesc.progress import progress

    built = {method: build_method(method) for method in methods}
    scenes = find_sequences(data, OXFORD)
    with progress("heinly", len(scenes) * seeds, quiet=quiet) as advance:
        table = heinly.run(data, built, range(seeds), advance)
    result = {"protocol": "heinly", "keypoints": heinly.KEYPOINTS, "seeds": seeds, "recall": table}
    return result, _markdown(table)


def _hsequences(data: Path, methods: list[str], limit: int | None, quiet: bool) -> tuple[dict[str, Any], str]:
    from contextdesc.benchmarks import hsequences
    from contextdesc.benchmarks.methods import build_method
    from contextdesc.benchmarks.sequences import HPATCHES, find_sequences
    from contextdesc.progress import progress

    built = {method: build_method(method) for method in methods}
    total = len(find_sequences(data, HPATCHES))
    with progress("hsequences", min(total, limit or total), quiet=quiet) as advance:
        result = hsequences.run(data, built, limit, advance)
    return result, hsequences.markdown(result)


def _terms(data: Path, methods: list[str], quiet: bool) -> tuple[dict[str, Any], str]:
    import tempfile

    from contextdesc.benchmarks import statistics, terms
    from contextdesc.progress import progress
    from contextdesc.training.data.cache import Cache

    result: dict[str, Any] = {"protocol": "terms", "resamples": statistics.RESAMPLES, "models": {}}
    lines = ["| model | pairs | what | mean | 95 % interval |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        for model in methods:
            if model in ("sift", "rootsift"):
                continue  # no context in them
            numbers = result["models"][model] = {}
            for kind, pairs in terms.held_out_pairs(model, data, Cache(Path(folder))).items():
                with progress(f"{model} {kind}", len(pairs), quiet=quiet) as advance:
                    recalls = terms.run(model, pairs, advance)
                found = terms.gains(recalls)
                numbers[kind] = {
                    "pairs": len(pairs),
                    "recall": {context: float(values.mean()) for context, values in recalls.items()},
                    "gain": {what: asdict(gain) for what, gain in found.items()},
                }
                where = f"| {model} | {len(pairs)} {kind}"
                lines += [f"{where} | recall, {c} | {values.mean():.2f} | |" for c, values in recalls.items()]
                lines += [
                    f"{where} | {what} | {gain.mean:+.2f} | {gain.low:+.2f} to {gain.high:+.2f} |"
                    for what, gain in found.items()
                ]
    return result, "\n".join(lines)


def _markdown(table: dict[str, dict[str, float]]) -> str:
    columns = list(next(iter(table.values())))
    lines = [f"| recall | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for method, row in table.items():
        lines.append(f"| {method} | {' | '.join(f'{row[column]:.1f}' for column in columns)} |")
    return "\n".join(lines)
