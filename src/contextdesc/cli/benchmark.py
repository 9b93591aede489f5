"""`contextdesc benchmark NAME --data DIR`: a published protocol, any number of methods."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contextdesc.benchmarks.registry import PROTOCOLS
from contextdesc.cli import options as o
from contextdesc.modelfile import DEFAULT

if TYPE_CHECKING:
    from contextdesc.benchmarks.cache import Cache
    from contextdesc.benchmarks.protocol import Protocol, Request, Value

app = typer.Typer(
    help="Published protocols, each one command, for any number of methods on the same keypoints.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
METHODS = f"sift,rootsift,{DEFAULT}"
GALLERY = "False nearest neighbours beside the true patch, worst pairs of images first, on one page."


class KeypointsChoice(StrEnum):
    shared = "shared"
    own = "own"


Data = Annotated[Path, typer.Option(help="Folder of the data, in its published layout.")]
Methods = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated: sift, rootsift, a model, MODEL:none for its raw descriptor, MODEL:int8, "
        f"kornia:HardNet=FILE, opencv:ORB, h5:FILE, python:MODULE.FUNCTION. By default {METHODS}."
    ),
]
Limit = Annotated[int | None, typer.Option(help="Only so many sequences or pairs, for a quick look.", min=1)]
Workers = Annotated[int | None, typer.Option(help="Processes; by default one per core, at most 8.", min=1)]
CacheFolder = Annotated[
    Path | None, typer.Option(help="Folder that keeps descriptors; in the user's cache by default.")
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Keep nothing, compute all.")]


@app.callback()
def _group() -> None:
    """Published protocols, each one command, for any number of methods on the same keypoints."""


@app.command("list")
def list_protocols(json_: o.Json = False) -> None:
    """What each protocol measures, the data that it needs and where that is published."""
    from contextdesc.benchmarks.registry import protocol

    abouts = PROTOCOLS | {"gallery": GALLERY}
    found = {name: {"about": about, **_facts(protocol(name))} for name, about in abouts.items()}
    if json_:
        print(json.dumps(found, indent=2))
        return
    for name, facts in found.items():
        print(name)
        for fact, text in facts.items():
            print(f"    {fact}: {text}")


def _facts(protocol: Protocol) -> dict[str, str]:
    options = [f"--{option}" for option in protocol.takes]
    options += [f"--set {s.name}={s.default} ({s.help})" for s in protocol.settings]
    return {"data": protocol.layout, "published": protocol.source, "options": ", ".join(options)}


def _command(name: str) -> Callable[..., None]:
    """The command of a protocol."""

    def command(
        data: Data,
        methods: Methods = None,
        baseline: Annotated[
            str | None, typer.Option(help="One of the methods, to compare the others with.")
        ] = None,
        keypoints: Annotated[
            KeypointsChoice | None,
            typer.Option(help="The same keypoints for every method (default), or each method's own."),
        ] = None,
        seeds: Annotated[
            int | None, typer.Option(help="Number of random draws of keypoints (5).", min=1)
        ] = None,
        limit: Limit = None,
        settings: Annotated[
            list[str] | None,
            typer.Option("--set", help="NAME=VALUE, options of this protocol: `benchmark list`."),
        ] = None,
        workers: Workers = None,
        cache: CacheFolder = None,
        no_cache: NoCache = False,
        output: Annotated[
            Path | None, typer.Option("--output", "-o", help="Write the numbers as JSON.")
        ] = None,
        report: Annotated[
            Path | None,
            typer.Option(
                help="Folder for a report: JSON, Markdown, plots and one HTML file (extra `benchmark`)."
            ),
        ] = None,
        json_: o.Json = False,
        quiet: o.Quiet = False,
    ) -> None:
        from contextdesc.benchmarks import registry
        from contextdesc.benchmarks.methods import build_methods
        from contextdesc.benchmarks.protocol import OWN, SEEDS, Request
        from contextdesc.formats.atomic import replacing

        protocol = registry.protocol(name)
        given = {
            "methods": methods, "baseline": baseline, "keypoints": keypoints, "seeds": seeds, "limit": limit,
        }  # fmt: skip
        _refuse(name, protocol, given | {"workers": workers})
        own = OWN if keypoints is KeypointsChoice.own else ""
        built = build_methods(methods or METHODS, threads=1) if "methods" in protocol.takes else {}
        labels = _labels(built)
        request = Request(
            data,
            {f"{labels[known]}{own}": method for known, method in built.items()},
            seeds=tuple(range(seeds)) if seeds else SEEDS,
            limit=limit,
            baseline=baseline and f"{labels.get(baseline, baseline)}{own}",
            keypoints="own" if own else "shared",
            workers=workers or 0,
            cache=_cache(cache, no_cache),
            quiet=quiet or json_,
            settings=_settings(name, protocol, settings or []),
        )
        found = registry.run(name, request)
        if request.cache is not None:
            request.cache.prune()
        words = [f"--{option} {value}" for option, value in given.items() if value is not None]
        words += [f"--set {shlex.quote(setting)}" for setting in settings or []]
        line = " ".join([f"contextdesc benchmark {name} --data {_folder(data)}", *words])
        found = replace(found, origin=_origin(line, request))
        if output is not None:
            with replacing(output) as temporary:
                temporary.write_text(found.json)
        if report is not None:
            found.write(report, f"{line} --report DIR")
        print(found.json if json_ else found.markdown, end="" if json_ else "\n")

    return command


@app.command("gallery", help=GALLERY)
def gallery(
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the page and the sheets.")],
    methods: Methods = None,
    pairs: Annotated[int, typer.Option(help="Pairs of images to show, the worst.", min=1)] = 8,
    shown: Annotated[int, typer.Option(help="Failures of each pair to show.", min=1)] = 9,
    limit: Limit = None,
    workers: Workers = None,
    cache: CacheFolder = None,
    no_cache: NoCache = False,
    quiet: o.Quiet = False,
) -> None:
    from contextdesc.benchmarks import gallery, gallery_page
    from contextdesc.benchmarks.methods import build_methods
    from contextdesc.benchmarks.protocol import Request

    chosen = methods or METHODS
    built = build_methods(chosen, threads=1)
    labels = _labels(built)
    request = Request(
        data,
        {labels[known]: method for known, method in built.items()},
        limit=limit,
        workers=workers or 0,
        cache=_cache(cache, no_cache),
        quiet=quiet,
    )
    found, skipped = gallery.run(request, shown)
    worst = {method: of[:pairs] for method, of in found.items()}
    line = f"contextdesc benchmark gallery --data {_folder(data)} --methods {chosen} -o DIR"
    if request.cache is not None:
        request.cache.prune()
    for path in gallery_page.write(output, worst, skipped, line):
        print(path)


def _labels(names: Collection[str]) -> dict[str, str]:
    """Names of methods in tables: with files and folders but not the way to them, unless two would be one."""
    short = {name: re.sub(r"[^=:,]*[/\\]", "", name) for name in names}
    return short if len(set(short.values())) == len(short) else {name: name for name in names}


def _folder(data: Path) -> str:
    """The folder's name without the path to it, which is another on other machines."""
    return shlex.quote(data.resolve().name)


def _cache(folder: Path | None, none: bool) -> Cache | None:
    from contextdesc.benchmarks.cache import Cache, default_folder

    return None if none else Cache(folder or default_folder())


def _refuse(name: str, protocol: Protocol, given: Mapping[str, object]) -> None:
    """Options that a protocol has no use for are an error, not silently ignored."""
    from contextdesc.errors import InputError

    for option, value in given.items():
        if value is not None and option not in protocol.takes:
            takes = ", ".join(f"--{taken}" for taken in protocol.takes)
            raise InputError(f"benchmark {name} has no use for --{option}; it takes {takes}")


def _settings(name: str, protocol: Protocol, given: list[str]) -> dict[str, Value]:
    """Values of the protocol's own options from NAME=VALUE."""
    from contextdesc.errors import InputError

    known = {setting.name: setting for setting in protocol.settings}
    values: dict[str, Value] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or key not in known:
            raise InputError(f"--set {text}: benchmark {name} has {', '.join(known) or 'no such options'}")
        values[key] = known[key].parse(value)
    return values


def _origin(line: str, request: Request) -> dict[str, Any]:
    from contextdesc import __version__

    identities = {name: method.identity or "not known" for name, method in request.methods.items()}
    return {"command": line, "contextdesc": __version__, "methods": identities}


for _name, _about in PROTOCOLS.items():
    app.command(_name, help=_about)(_command(_name))
