"""The command line: one file a command, heavy imports inside the commands.

Errors are one line on standard error: exit code 2 for bad input, 1 for work that failed; `--debug` shows
the traceback.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from contextdesc import __version__
from contextdesc.cli import (
    benchmark,
    colmap,
    dataset,
    demo,
    doctor,
    export,
    extract,
    localize,
    match,
    match_set,
    merge,
    models,
    quantise,
    retrieve,
    sfm,
    stitch,
    train,
)
from contextdesc.errors import ContextDescError, InputError

app = typer.Typer(
    help="Local features that know their surroundings: match images, extract features, train your own.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("match")(match.command)
app.command("extract")(extract.command)
app.command("match-set")(match_set.command)
app.command("merge")(merge.command)
app.command("sfm")(sfm.command)
app.command("colmap")(colmap.command)
app.command("localize")(localize.command)
app.add_typer(retrieve.app, name="retrieve")
app.command("stitch")(stitch.command)
app.command("demo")(demo.command)
app.command("models")(models.command)
app.command("doctor")(doctor.command)
app.add_typer(benchmark.app, name="benchmark")
app.command("train")(train.command)
app.add_typer(dataset.app, name="dataset")
app.command("export")(export.command)
app.command("quantise")(quantise.command)

# Its home differs between versions of Typer.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


_INTERRUPTED = 130  # exit code of a program that was stopped with Ctrl-C


def _version(wanted: bool) -> None:
    if wanted:
        print(f"contextdesc {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    pass


def main() -> NoReturn:
    """Run the command line and exit."""
    debug = "--debug" in sys.argv or "CONTEXTDESC_DEBUG" in os.environ
    if "--debug" in sys.argv[2:]:  # allowed after the command, too
        sys.argv.remove("--debug")
    try:
        code = app(standalone_mode=False) or 0
        if code == _INTERRUPTED:  # Typer turns Ctrl-C into this code
            raise KeyboardInterrupt
        sys.exit(code)
    except _UsageError as error:
        message = getattr(error, "format_message", error.__str__)()
        _fail(f"{message} (see contextdesc --help)", 2)
    except (typer.Abort, KeyboardInterrupt):
        _fail("stopped; what was finished is kept, the same command goes on", _INTERRUPTED)
    except ContextDescError as error:
        if debug:
            raise
        _fail(str(error), 2 if isinstance(error, InputError) else 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if debug:
            raise
        _fail(f"{type(error).__name__}: {error} (a bug? run with --debug for the traceback)", 1)


def _fail(message: str, code: int) -> NoReturn:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
