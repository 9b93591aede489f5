"""The page's server: HTTP in, the session's answers out as JSON, pictures and files.

Photographs arrive as plain request bodies and live in memory only; nothing is written to disk.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles

from contextdesc import __version__
from contextdesc.demo import Method, Terms
from contextdesc.demo.guard import Guard
from contextdesc.errors import ContextDescError, InputError

if TYPE_CHECKING:
    from contextdesc.demo.session import Prepared, Result, Session

STATIC = Path(__file__).parent / "static"
MAX_BYTES = 64_000_000  # of an uploaded file
UPLOADS = 2  # bodies that are read at a time, so that memory stays bounded
LONGEST_NAME = 120  # characters of a file's name
KEEP = {"Cache-Control": "private, max-age=3600"}  # for what never changes under its address

Budget = Annotated[int, Query(ge=1, le=100_000)]
Ratio = Annotated[float, Query(gt=0, le=1)]


class TooLargeError(InputError):
    """An upload beyond `MAX_BYTES`."""


def create_app(loading: Future[Session], host: str = "127.0.0.1") -> Guard:
    """The application.

    Args:
        loading: the session, which may still be loading when the page is opened.
        host: the address that the server is bound to.
    """
    app = FastAPI(title="contextdesc", docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(ContextDescError, _kind_message)
    app.add_exception_handler(Exception, _unexpected)
    uploads = asyncio.Semaphore(UPLOADS)

    @app.get("/")
    def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    @app.get("/api/model")
    def model() -> dict[str, Any]:
        session = loading.result()
        spec = session.model.spec
        return {
            "version": __version__,
            "name": spec.name,
            "base": spec.base,
            "contexts": session.contexts,
            "ratio": spec.ratio,
            "max_bytes": MAX_BYTES,
            "samples": importlib.util.find_spec("skimage") is not None,
        }

    @app.post("/api/images")
    async def add_image(request: Request, name: str = "photograph") -> dict[str, Any]:
        async with uploads:
            data = await _body(request)
            return await run_in_threadpool(lambda: _described(loading.result().add(data, _file_name(name))))

    @app.post("/api/samples")
    def add_samples() -> list[dict[str, Any]]:
        return [_described(image) for image in loading.result().samples()]

    @app.get("/api/images/{image}/picture")
    def picture(image: str) -> Response:
        return _picture(loading.result().image(image).picture.rgb, "JPEG")

    @app.get("/api/images/{image}/matchability")
    def matchability(image: str) -> Response:
        from contextdesc.demo.outputs import heat_map
        from contextdesc.draw import matchability_map

        session = loading.result()
        return _picture(heat_map(matchability_map(session.model, session.image(image).picture)), "PNG")

    @app.get("/api/images/{image}/patches/{row}")
    def patch(image: str, row: int) -> Response:
        session = loading.result()
        return _picture(session.patch(session.image(image), row), "PNG")

    @app.get("/api/match")
    def match(first: str, second: str, budget: Budget, ratio: Ratio, context: Terms) -> dict[str, Any]:
        from contextdesc.demo.outputs import snippet

        session = loading.result()
        methods: tuple[Method, ...] = ("sift", "none", context)
        results = [session.result(first, second, budget, ratio, method) for method in methods]
        images = session.image(first), session.image(second)
        return {
            "results": [_numbers(result) for result in results],
            "snippet": snippet(*images, session.model_with(context), budget, ratio),
        }

    @app.get("/api/files/{file}")
    def download(
        file: Literal["matches.png", "matches.csv", "features.h5"],
        first: str, second: str, budget: Budget, ratio: Ratio, method: Method,
    ) -> Response:  # fmt: skip
        from contextdesc.demo import outputs

        make: dict[str, tuple[Callable[..., bytes], str]] = {
            "matches.png": (outputs.picture_png, "image/png"),
            "matches.csv": (outputs.matches_csv, "text/csv"),
            "features.h5": (outputs.features_h5, "application/x-hdf5"),
        }
        session = loading.result()
        content, kind = make[file]
        result = session.result(first, second, budget, ratio, method)
        disposition = {"Content-Disposition": f'attachment; filename="{file}"'}
        return Response(content(session.image(first), session.image(second), result), 200, disposition, kind)

    return Guard(app, host)


async def _body(request: Request) -> bytes:
    """The request's body, refused as soon as it is too long."""
    limit = f"{MAX_BYTES // 1_000_000} MB"
    too_large = TooLargeError(f"files of more than {limit} are not taken: make the photograph smaller")
    if int(request.headers.get("content-length", 0)) > MAX_BYTES:
        raise too_large
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BYTES:
            raise too_large
    return bytes(data)


def _file_name(name: str) -> str:
    """The last part of a path, fit to name a group of an HDF5 file and to stand in a message."""
    last = PurePosixPath(name.replace("\\", "/")).name
    return "".join(c for c in last if c.isprintable())[-LONGEST_NAME:] or "photograph"


def _described(image: Prepared) -> dict[str, Any]:
    """An image as the page needs it; keypoints are rows x, y, size, angle in pixels of the original."""
    keypoints = image.keypoints
    columns = (keypoints.xy.T[0], keypoints.xy.T[1], keypoints.size, keypoints.angle)
    return {
        "id": image.id,
        "name": image.picture.name,
        "size": image.picture.original_size,
        "keypoints": [list(row) for row in zip(*(c.round(1).tolist() for c in columns), strict=True)],
        "has_matchability": image.score is not None,
        "seconds": image.seconds,
    }


def _numbers(result: Result) -> dict[str, Any]:
    """A result as the page needs it; matches are rows of the first and second image's keypoints."""
    checked = result.verification
    return {
        "keypoints": [len(features) for features in result.features],
        "matches": result.matches.indices.tolist(),
        "similarity": result.matches.similarity.round(3).tolist(),
        "inliers": checked.inliers.tolist(),
        "inlier_count": checked.inlier_count,
        "inlier_ratio": checked.inlier_ratio,
        "geometry": checked.geometry,
        "verdict": checked.verdict,
        "probability": getattr(checked, "probability", None),
        "seconds": result.seconds,
    }


def _picture(pixels: Any, kind: str) -> Response:
    from contextdesc.demo.outputs import encoded

    return Response(encoded(pixels, kind), 200, KEEP, f"image/{kind.lower()}")


def _kind_message(_: Request, error: Exception) -> Response:
    from contextdesc.demo.session import ForgottenError

    statuses: dict[type[Exception], int] = {ForgottenError: 404, TooLargeError: 413, InputError: 400}
    return JSONResponse({"error": str(error)}, statuses.get(type(error), 500))


def _bad_request(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return JSONResponse({"error": f"{first['loc'][-1]}: {first['msg']}"}, 400)


def _unexpected(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": "something went wrong; the terminal of contextdesc demo tells what"}, 500)
