"""The page's server, running, and photographs to give it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import uvicorn

from contextdesc.cli.demo import _listen, _session
from contextdesc.demo.app import create_app
from contextdesc.demo.session import Session

MAX_PIXELS = 2_000_000


@dataclass(frozen=True)
class Server:
    """A running server; `url` ends with a slash."""

    url: str
    session: Session
    http: httpx.Client


@contextmanager
def serving(session: Session, host: str = "127.0.0.1") -> Iterator[Server]:
    loading: Future[Session] = Future()
    loading.set_result(session)
    listening = _listen("127.0.0.1", 0)
    settings = uvicorn.Config(create_app(loading, host), log_level="error", lifespan="off")
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    try:
        with httpx.Client(base_url=url, timeout=120) as http:
            yield Server(url, session, http)
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """On the model that needs no patch network, since tests are many and patches slow."""
    session = _session("sift-context", max_side=320, max_pixels=MAX_PIXELS, device="cpu", threads=1)
    with serving(session) as running:
        yield running


@pytest.fixture(scope="session")
def stereo_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two photographs of a motorcycle as JPEG files."""
    import PIL.Image

    from contextdesc.samples import sample_pair

    folder = tmp_path_factory.mktemp("stereo")
    paths = folder / "left.jpg", folder / "right.jpg"
    for path, image in zip(paths, sample_pair(), strict=False):
        PIL.Image.fromarray(image.rgb).save(path, quality=95)
    return paths
