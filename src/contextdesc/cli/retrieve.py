"""`contextdesc retrieve build IMAGES -o INDEX` and what can be done with an index: an image among many."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contextdesc.cli import options as o
from contextdesc.cli.extract import finish
from contextdesc.cli.recorded import recorded_options
from contextdesc.retrieval.options import CANDIDATES, EXPANSION, VERIFIED, WORDS

if TYPE_CHECKING:
    from contextdesc.model import ContextDesc
    from contextdesc.retrieval.index import Index
    from contextdesc.retrieval.searching import Answers

app = typer.Typer(
    help="Find the images among many that show what a photograph shows.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class BurstinessChoice(StrEnum):
    root = "root"
    none = "none"


class GlobalChoice(StrEnum):
    mean = "mean"
    gem = "gem"
    mac = "mac"
    none = "none"


class KeptChoice(StrEnum):
    int8 = "int8"
    float16 = "float16"
    none = "none"


class RankChoice(StrEnum):
    words = "words"
    global_ = "global"
    fused = "fused"


Folder = Annotated[Path, typer.Argument(metavar="INDEX", help="Folder of the index.")]
Images = Annotated[list[Path], typer.Argument(help="Image files and folders of images.")]
Top = Annotated[int, typer.Option(help="Answers per image.", min=1)]
RankBy = Annotated[
    RankChoice | None,
    typer.Option("--rank", help="Rank by visual words, global descriptor, or both; both if it has them."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first image that fails.")]


@app.callback()
def _group() -> None:
    """Find the images among many that show what a photograph shows."""


def _build(
    load: o.Loader,
    images: Images,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the index.")],
    words: Annotated[int, typer.Option(help="Visual words of the vocabulary.", min=1)] = WORDS,
    vocabulary: Annotated[
        Path | None, typer.Option(help="A vocabulary that there is: vocabulary.npz of another index.")
    ] = None,
    vocabulary_seed: Annotated[int, typer.Option(help="Of the vocabulary's training.", min=0)] = 0,
    neighbours: Annotated[
        int, typer.Option(help="Words that a descriptor counts for; more than 1 is soft assignment.", min=1)
    ] = 1,
    sigma: Annotated[float, typer.Option(help="Of soft assignment: how fast words fade by distance.")] = 0.2,
    burstiness: Annotated[
        BurstinessChoice, typer.Option(help="Root: words that an image repeats count by the square root.")
    ] = BurstinessChoice.root,
    pooling: Annotated[
        GlobalChoice | None,
        typer.Option("--global", help="Global descriptor; mean, if the model has a regional network."),
    ] = None,
    features: Annotated[
        KeptChoice, typer.Option(help="How local features are kept for verification; none: not at all.")
    ] = KeptChoice.int8,
    strict: Strict = False,
    workers: o.WorkerCount = None,
    cluster: o.Cluster = None,
    json_: o.Json = False,
    restart: o.Restart = False,
    quiet: o.Quiet = False,
) -> None:
    """Build an index of images. A run that was stopped goes on where it stopped."""
    from contextdesc.image import find_images
    from contextdesc.modelfile import REGIONAL
    from contextdesc.retrieval.building import build_index
    from contextdesc.retrieval.manifest import VOCABULARY
    from contextdesc.retrieval.options import Options
    from contextdesc.retrieval.vocabulary import Vocabulary, import_faiss

    import_faiss()
    if vocabulary is not None and vocabulary.is_dir():
        vocabulary /= VOCABULARY
    given = None if vocabulary is None else Vocabulary.load(vocabulary)
    found = find_images(images)
    model = load()
    if pooling is None:
        pooling = GlobalChoice.mean if REGIONAL in model.spec.files else GlobalChoice.none
    options = Options(neighbours, sigma, burstiness.value, pooling.value, features.value)
    report = build_index(
        model, found, output, options, words=words, seed=vocabulary_seed, vocabulary=given,
        strict=strict, restart=restart, quiet=quiet or json_, workers=o.chosen_workers(workers, cluster),
    )  # fmt: skip
    finish(report, output, "images", json_)


def _add(
    context_: typer.Context,
    load: o.Loader,
    index: Folder,
    images: Images,
    strict: Strict = False,
    json_: o.Json = False,
    restart: o.Restart = False,
    quiet: o.Quiet = False,
) -> None:
    """Add images to an index, described as its own are."""
    from contextdesc.image import find_images
    from contextdesc.retrieval.building import add_images
    from contextdesc.retrieval.index import Index

    opened = Index.open(index)
    report = add_images(
        _same_model(opened, load, context_), find_images(images), opened,
        strict=strict, restart=restart, quiet=quiet or json_,
    )  # fmt: skip
    finish(report, index, "images", json_)


def _remove(
    index: Folder,
    names: Annotated[list[str], typer.Argument(help="Names of images, as `info --names` lists them.")],
    json_: o.Json = False,
) -> None:
    """Remove images from an index."""
    from contextdesc.retrieval.index import Index

    opened = Index.open(index)
    before = len(opened)
    opened.remove(names)
    if json_:
        print(json.dumps({"index": str(index), "removed": before - len(opened), "images": len(opened)}))
    else:
        print(f"{index}: {before - len(opened)} removed, {len(opened)} images")


def _query(
    context_: typer.Context,
    load: o.Loader,
    index: Folder,
    images: Images,
    top: Top = 20,
    verify: Annotated[
        int, typer.Option(help="Best ranked images that are verified and ranked by inliers.", min=0)
    ] = VERIFIED,
    rank: RankBy = None,
    sheet: Annotated[
        list[Path] | None, typer.Option(help="Contact sheet to look at: .png or .html; may be repeated.")
    ] = None,
    json_: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Which images of an index show what photographs show: ranked, verified, and ranked again."""
    from contextdesc.errors import ContextDescError
    from contextdesc.image import find_images, read
    from contextdesc.progress import progress
    from contextdesc.retrieval.searching import query
    from contextdesc.retrieval.sheet import check_sheet, write_sheet

    for path in sheet or []:
        check_sheet(path)
    opened = _not_empty(index)
    queries = find_images(images)
    model = _same_model(opened, load, context_)
    found: list[Answers] = []
    failed: dict[str, str] = {}
    with progress("query", len(queries), 0, quiet or json_) as advance:
        for name, path in queries.items():
            try:
                picture = read(path, model.max_side, model.max_pixels)
                found.append(
                    query(opened, model, picture, top, verify, None if rank is None else rank.value, name)
                )
                advance()
            except ContextDescError as error:
                failed[name] = str(error)
                advance(f"{name}: {error}", failed=True)
    for path in sheet or []:
        write_sheet(path, found, queries)
    if json_:
        print(json.dumps({"queries": [answers.to_json() for answers in found], "failed": failed}, indent=2))
    else:
        for answers in found:
            _print(answers)
        for path in sheet or []:
            print(f"contact sheet: {path}")
    _exit(failed, json_)


def _print(answers: Answers) -> None:
    note = f"; {answers.note}" if answers.note else ""
    print(f"{answers.query}: {answers.keypoints} keypoints{note}")
    if answers.answers:
        print("  rank  inliers  score  image")
    for place, answer in enumerate(answers.answers, 1):
        inliers = "-" if answer.inliers is None else str(answer.inliers)
        print(f"  {place:4}  {inliers:>7}  {answer.score:.3f}  {answer.name}")


def _pairs(
    index: Folder,
    output: Annotated[Path, typer.Option("--output", "-o", help="The pair list, two names a line.")],
    top: Annotated[int, typer.Option(help="Partners per image, at most.", min=1)] = 20,
    candidates: Annotated[
        int, typer.Option(help="Best ranked images that each image is matched with.", min=1)
    ] = CANDIDATES,
    expansion: Annotated[
        int, typer.Option(help="And partners of its partners, in each of six rounds.", min=0)
    ] = EXPANSION,
    rank: RankBy = None,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Take the best ranked as they are, without matching.")
    ] = False,
    json_: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Pairs of images that are worth matching, for `contextdesc sfm --pair-list`."""
    from contextdesc.retrieval.linking import link

    opened = _not_empty(index)
    links = link(
        opened,
        top,
        candidates,
        expansion,
        None if rank is None else rank.value,
        not no_verify,
        quiet or json_,
    )
    links.write(output)
    numbers = {
        "output": str(output), "images": links.images, "pairs": len(links.pairs),
        "matched": len(links.inliers), "possible": links.possible,
    }  # fmt: skip
    if json_:
        print(json.dumps(numbers, indent=2))
    else:
        matched = f"{len(links.inliers)} of {links.possible} possible pairs were matched"
        print(f"{output}: {len(links.pairs)} pairs of {links.images} images; {matched}")


def _duplicates(index: Folder, json_: o.Json = False, quiet: o.Quiet = False) -> None:
    """Groups of near-duplicates: one picture resized, compressed again or cropped a little.

    Two images are one picture if 20 matches or more, and three quarters of all, agree with one homography
    that only scales and shifts, and they have 70 % of their area in common.
    """
    from contextdesc.retrieval.duplicates import duplicates

    groups = duplicates(_not_empty(index), quiet=quiet or json_)
    if json_:
        print(json.dumps({"groups": groups}, indent=2))
        return
    for group in groups:
        print("\t".join(group))
    print(f"{len(groups)} groups of {sum(map(len, groups))} images", file=sys.stderr)


def _info(
    index: Folder,
    check: Annotated[bool, typer.Option("--check", help="Read every file and compare checksums.")] = False,
    names: Annotated[bool, typer.Option("--names", help="List the images.")] = False,
    json_: o.Json = False,
) -> None:
    """What an index holds, and whether its files are whole."""
    from dataclasses import asdict

    from contextdesc.errors import InputError
    from contextdesc.retrieval.index import Index

    opened = Index.open(index)
    if check and (damaged := opened.damaged()):
        raise InputError(f"{'; '.join(damaged)}; `contextdesc retrieve rebuild {index}` mends it")
    numbers: dict[str, Any] = {
        "index": str(index), "model": opened.extraction.source, "images": len(opened),
        "words": len(opened.vocabulary), "vocabulary": opened.vocabulary.checksum,
        "postings": opened.postings, "segments": len(opened.segments), "bytes": opened.disk_bytes,
        **asdict(opened.options),
    }  # fmt: skip
    if json_:
        print(json.dumps(numbers | ({"names": opened.names} if names else {}), indent=2))
        return
    for key, value in numbers.items():
        print(f"{key}: {value}")
    if check:
        print("every file is whole")
    for name in opened.names if names else []:
        print(name)


def _rebuild(
    context_: typer.Context,
    load: o.Loader,
    index: Folder,
    images: Annotated[
        list[Path] | None, typer.Argument(help="Where the images are now, if they were moved.")
    ] = None,
    json_: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Check every file of an index, and make it whole again if one is damaged."""
    from contextdesc.image import find_images
    from contextdesc.retrieval.mending import mend

    mended = mend(
        index,
        lambda opened: _same_model(opened, load, context_),
        find_images(images) if images else {},
        quiet or json_,
    )
    if json_:
        print(json.dumps(vars(mended), indent=2))
    else:
        for line in (*mended.damaged, *mended.notes):
            print(line)
        state = (
            f"mended; {mended.again} images were described anew" if mended.damaged else "every file is whole"
        )
        print(f"{index}: {state}")
    _exit(mended.failed, json_)


def _same_model(index: Index, load: o.Loader, given: typer.Context) -> ContextDesc:
    """The model that an index was made with, with its settings where the user named no others."""
    made = index.extraction
    extraction = {"detector": made.detector, "max_side": made.max_side}
    model = load(
        **recorded_options(f"{index.folder}", made.model, made.checksum, made.context, extraction, given)
    )
    made.check(model, index.folder)
    return model


def _not_empty(folder: Path) -> Index:
    from contextdesc.errors import InputError
    from contextdesc.retrieval.index import Index

    index = Index.open(folder)
    if not len(index):
        raise InputError(f"{folder}: the index is empty; add images with contextdesc retrieve add")
    return index


def _exit(failed: Mapping[str, str], as_json: bool) -> None:
    """Name what failed and exit with 1, if something did."""
    if not as_json:
        for name, reason in failed.items():
            print(f"failed: {name}: {reason}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)


app.command("build")(o.with_model_options(_build))
app.command("add")(o.with_model_options(_add))
app.command("remove")(_remove)
app.command("query")(o.with_model_options(_query))
app.command("pairs")(_pairs)
app.command("duplicates")(_duplicates)
app.command("info")(_info)
app.command("rebuild")(o.with_model_options(_rebuild))
