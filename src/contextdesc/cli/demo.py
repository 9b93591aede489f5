"""`contextdesc demo`: a page to try it on."""

from __future__ import annotations

import errno
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contextdesc import modelfile
from contextdesc.cli import options as o
from contextdesc.errors import InputError

if TYPE_CHECKING:
    from contextdesc.demo.session import Session

MAX_PIXELS = 100_000_000  # of an uploaded photograph


def command(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 for any free one.", min=0, max=65535)
    ] = 8000,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open the page.")] = False,
    model: Annotated[str, typer.Option(help="Packaged model or model folder.")] = modelfile.DEFAULT,
    max_side: Annotated[int, typer.Option(help="Downscale photographs to this longer side.", min=32)] = 1600,
    max_pixels: Annotated[int, typer.Option(help="Refuse photographs with more pixels.", min=1)] = MAX_PIXELS,
    precision: o.Precision = o.PrecisionChoice.fp32,
    device: Annotated[o.DeviceChoice, typer.Option(help="Where the networks run.")] = o.DeviceChoice.auto,
    threads: Annotated[int, typer.Option(help="Of the networks; 0 for all cores.", min=0)] = 0,
) -> None:
    """Open a page in the browser: two photographs, their matches, and controls to play with."""
    folder = modelfile.resolve(model)  # so that a wrong name fails here and not on the page
    if precision is o.PrecisionChoice.int8:
        modelfile.read_int8(folder, *modelfile.read_spec(folder))
    listening = _listen(host, port)
    try:
        import uvicorn

        from contextdesc.demo.app import create_app
    except ImportError:
        raise InputError("the page comes with an extra: pip install 'contextdesc[demo]'") from None
    with listening, ThreadPoolExecutor(1) as background:
        loading = background.submit(
            _session, model, max_side=max_side, max_pixels=max_pixels, precision=precision.value,
            device=device.value, threads=threads,
        )  # fmt: skip
        settings = uvicorn.Config(
            create_app(loading, host), log_level="warning", lifespan="off", server_header=False
        )
        _announce(host, listening.getsockname()[1], opens=not no_browser)
        try:
            uvicorn.Server(settings).run(sockets=[listening])
        except KeyboardInterrupt:
            print("stopped")


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket: the browser may knock before the server is ready."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"port {port} is in use: choose another with --port (0: any)") from None
        raise InputError(f"cannot listen on {host}, port {port}: {error.strerror}") from None


def _session(model: str, **options: Any) -> Session:
    """With models that `load` gives for these options."""
    from contextdesc.demo.session import Session
    from contextdesc.model import load

    session = Session(lambda context: load(model, context=context, **options))
    session.warm_up()
    return session


def _announce(host: str, port: int, opens: bool) -> None:
    import webbrowser

    from contextdesc.demo.guard import is_every_interface

    everywhere = is_every_interface(host)
    name = "localhost" if everywhere else f"[{host}]" if ":" in host else host
    url = f"http://{name}:{port}/"
    reach = "; everyone who reaches this machine can use it" if everywhere else ""
    print(f"the page: {url} (Ctrl-C stops it{reach})", flush=True)
    has_screen = sys.platform != "linux" or any(
        key in os.environ for key in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )  # else webbrowser may start one in this terminal
    if opens and has_screen:
        webbrowser.open(url)
