"""`contextdesc benchmark NAME --data DIR`: a published protocol, any number of methods."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contextdesc.cli import options as o
from contextdesc.modelfile import DEFAULT

if TYPE_CHECKING:
    from contextdesc.benchmarks.report import Report


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
    report: Annotated[
        Path | None,
        typer.Option(
            help="Folder for a report: JSON, Markdown, plots and one HTML file (extra `benchmark`)."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="heinly: number of random draws of keypoints.", min=1)] = 5,
    limit: Annotated[
        int | None, typer.Option(help="hsequences: only so many sequences, for a quick look.", min=1)
    ] = None,
    json_: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Run a benchmark and print its tables."""
    from contextdesc.formats.atomic import replacing

    chosen, silent = methods.split(","), quiet or json_
    if name is Protocol.heinly:
        found = _heinly(data, chosen, seeds, silent)
    elif name is Protocol.hsequences:
        found = _hsequences(data, chosen, limit, silent)
    else:
        found = _terms(data, chosen, silent)
    if output is not None:
        with replacing(output) as temporary:
            temporary.write_text(found.json)
    if report is not None:
        options = f" --seeds {seeds}" if name is Protocol.heinly else f" --limit {limit}" if limit else ""
        found.write(
            report,
            f"contextdesc benchmark {name} --data {data.name} --methods {methods}{options} --report DIR",
        )
    print(found.json if json_ else found.markdown, end="" if json_ else "\n")


def _heinly(data: Path, methods: list[str], seeds: int, quiet: bool) -> Report:
    from contextdesc.benchmarks import heinly
    from contextdesc.benchmarks.methods import build_method
    from contextdesc.benchmarks.sequences import OXFORD, find_sequences
    from contextdesc.progress import progress

    built = {method: build_method(method) for method in methods}
    with progress("heinly", len(find_sequences(data, OXFORD)) * seeds, quiet=quiet) as advance:
        return heinly.report(heinly.run(data, built, range(seeds), advance), seeds)


def _hsequences(data: Path, methods: list[str], limit: int | None, quiet: bool) -> Report:
    from contextdesc.benchmarks import hsequences
    from contextdesc.benchmarks.methods import build_method
    from contextdesc.benchmarks.sequences import HPATCHES, find_sequences
    from contextdesc.progress import progress

    built = {method: build_method(method) for method in methods}
    total = len(find_sequences(data, HPATCHES))
    with progress("hsequences", min(total, limit or total), quiet=quiet) as advance:
        return hsequences.run(data, built, limit, advance)


def _terms(data: Path, methods: list[str], quiet: bool) -> Report:
    import tempfile

    from contextdesc.benchmarks import terms
    from contextdesc.progress import progress
    from contextdesc.training.data.cache import Cache

    recalls: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for model in methods:
            if model in ("sift", "rootsift"):
                continue  # no context in them
            recalls[model] = {}
            for kind, pairs in terms.held_out_pairs(model, data, Cache(Path(folder))).items():
                with progress(f"{model} {kind}", len(pairs), quiet=quiet) as advance:
                    recalls[model][kind] = terms.run(model, pairs, advance)
    return terms.report(recalls)
