"""`contextdesc extract IMAGES -o FILE.h5`: features of many images."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contextdesc.cli import options as o

if TYPE_CHECKING:
    from contextdesc.report import Report


class FormatChoice(StrEnum):
    h5 = "h5"
    npz = "npz"
    eth = "eth"
    imw = "imw"
    aachen = "aachen"
    openmvg = "openmvg"


@o.with_model_options
def command(
    load: o.Loader,
    images: Annotated[
        list[str], typer.Argument(help="Image files and folders of images; URLs such as s3://bucket/folder.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The .h5 file; a folder for other formats and for shards.")
    ],
    format: Annotated[
        FormatChoice,
        typer.Option(help="h5: hloc's layout; npz: a file per image; others as their benchmarks read them."),
    ] = FormatChoice.h5,
    masks: Annotated[
        Path | None, typer.Option(help="Folder of masks, NAME.png, black where nothing is.")
    ] = None,
    keypoints: Annotated[
        Path | None, typer.Option(help="Folder of NAME.txt, .npy or ETH's .bin: describe these keypoints.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first image that fails.")] = False,
    workers: o.WorkerCount = None,
    cluster: o.Cluster = None,
    shard_size: o.ShardSize = None,
    json_: o.Json = False,
    restart: o.Restart = False,
    quiet: o.Quiet = False,
) -> None:
    """Extract the features of many images. A run that was stopped goes on where it stopped."""
    from contextdesc.errors import InputError
    from contextdesc.extraction import IMAGES_A_SHARD, extract_images
    from contextdesc.image import find_images
    from contextdesc.remote import refuse_url

    refuse_url(output, "the output")
    found = find_images(images)
    for folder in (masks, keypoints):
        if folder is not None and not folder.is_dir():
            raise InputError(f"{folder}: no such folder")
    report = extract_images(
        load(), found, output, format=format.value, masks=masks, keypoints=keypoints,
        strict=strict, restart=restart, quiet=quiet or json_,
        workers=o.chosen_workers(workers, cluster, shard_size), shard_size=shard_size or IMAGES_A_SHARD,
    )  # fmt: skip
    finish(report, output, "images", json_)


def finish(report: Report, output: Path, what: str, as_json: bool) -> None:
    """Say what a run over many pieces did; exit with 1 if some failed."""
    if as_json:
        numbers = {
            "output": str(output),
            "done": len(report.done),
            "before": report.before,
            "failed": report.failed,
        }
        print(json.dumps(numbers, indent=2))
    else:
        total = len(report.done) + report.before
        note = f" ({report.before} were finished before)" if report.before else ""
        print(f"{output}: {total} {what}{note}")
        for name, reason in report.failed.items():
            print(f"failed: {name}: {reason}", file=sys.stderr)
    if report.failed:
        raise typer.Exit(1)
