"""Embedding: the content of a reconstruction comes in, one HTML file that loads nothing else goes out."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contextdesc.formats.atomic import replacing
from contextdesc.sfm_page.content import Content, Photograph, read_content
from contextdesc.sfm_page.thumbnails import thumbnails
from contextdesc.sfm_page.view import View, first_view

_SCRIPTS = ("vectors.js", "cloud.js", "orbit.js", "photograph.js", "table.js", "page.js")  # in this order


@dataclass(frozen=True)
class Limits:
    """How much a page holds at most; what is more is thinned evenly, and the page says so."""

    points: int = 500_000
    keypoints: int = 2_000_000  # of all images together
    thumbnails: int = 15_000_000  # bytes of JPEG, a third more in the file


def write_page(directory: Path, images: Path, output: Path, limits: Limits | None = None) -> None:
    """Write the page of a reconstruction.

    Args:
        directory: what `contextdesc sfm` wrote: `sparse/` (a COLMAP model) and `features.h5`.
        images: the folder of the photographs.
        output: the HTML file; it opens from disk in any browser and loads nothing else.
    """
    limits = limits or Limits()
    content = read_content(directory, images)
    paths = {photograph.name: images / photograph.name for photograph in content.photographs}
    pictures = thumbnails(paths, limits.thumbnails)
    title = images.resolve().parent.name if images.resolve().name == "images" else images.resolve().name
    style = _resource("page.css")
    script = "\n".join(_resource(name) for name in _SCRIPTS)
    page = Template(_resource("page.html")).substitute(
        title=escape(title),
        policy=escape(_policy(style, script)),
        style=style,
        script=script,
        numbers=_numbers_html(content),
        rows="\n".join(_row_html(row, photograph) for row, photograph in enumerate(content.photographs)),
        data=_script_safe(_data(content, first_view(content), pictures, limits)),
    )
    with replacing(output) as temporary:
        temporary.write_text(page, encoding="utf-8", errors="replace")  # names may be no Unicode


def _resource(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """A content security policy: this script, this style, embedded pictures, and no network at all."""

    def digest(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    return f"default-src 'none'; img-src data:; style-src {digest(style)}; script-src {digest(script)}"


def _numbers_html(content: Content) -> str:
    observations = int(content.track.sum())
    points = len(content.xyz)
    numbers = {
        "images registered": f"{len(content.poses):,} of {len(content.photographs):,}",
        "points": f"{points:,}",
        "observations": f"{observations:,}",
        "images per point": _decimal(observations / points if points else math.nan),
        "px reprojection error": _decimal(float(content.error.mean()) if points else math.nan),
    }
    return "\n".join(f"<div><dd>{value}</dd><dt>{name}</dt></div>" for name, value in numbers.items())


def _row_html(row: int, photograph: Photograph) -> str:
    """A row of the table; `data-value` is what it is sorted by."""
    registered = photograph.pose is not None
    cells = [
        (int(registered), "yes" if registered else "no"),
        (len(photograph.keypoints), f"{len(photograph.keypoints):,}"),
        (len(photograph.points), f"{len(photograph.points):,}"),
        (_number(photograph.error), _decimal(photograph.error)),
        (_number(photograph.track), _decimal(photograph.track)),
    ]
    name = escape(photograph.name)
    return (
        f'<tr data-row="{row}"><th scope="row"><button type="button" class="name">{name}</button></th>'
        + "".join(f'<td data-value="{"" if key is None else key}">{text}</td>' for key, text in cells)
        + "</tr>"
    )


def _data(content: Content, view: View, pictures: dict[str, bytes], limits: Limits) -> dict[str, Any]:
    """All that the scripts need, arrays as base64."""
    kept = _evenly(len(content.xyz), limits.points)
    place = np.full(len(content.xyz), 0xFFFFFFFF, np.uint32)  # which stands for a point that is left out
    place[kept] = np.arange(len(kept), dtype=np.uint32)
    share = min(1.0, limits.keypoints / max(1, sum(len(p.keypoints) for p in content.photographs)))
    images = [
        _image_data(photograph, view, place, share, pictures.get(photograph.name))
        for photograph in content.photographs
    ]
    return {
        "images": images,
        "points": len(content.xyz),
        "xyz": _base64((content.xyz[kept] - view.origin) / view.scale, np.float32),
        "rgb": _base64(content.rgb[kept], np.uint8),
        "error": _base64(content.error[kept], np.float32),
        "track": _base64(np.minimum(content.track[kept], 0xFFFF), np.uint16),
        "view": {
            "direction": view.direction.tolist(),
            "up": view.up.tolist(),
            "half": view.half.tolist(),
            "frustum": view.frustum,
        },
    }


def _image_data(
    photograph: Photograph, view: View, place: NDArray[np.uint32], share: float, picture: bytes | None
) -> dict[str, Any]:
    total, seen = len(photograph.keypoints), len(photograph.points)
    with_point = _evenly(seen, math.ceil(seen * share))
    without = seen + _evenly(total - seen, math.ceil((total - seen) * share))
    keypoints = np.clip(photograph.keypoints[np.concatenate([with_point, without])], 0, 1)
    data: dict[str, Any] = {
        "name": photograph.name,
        "size": photograph.size,
        "total": total,
        "seen": seen,
        "error": _number(photograph.error),
        "track": _number(photograph.track),
        "reason": photograph.reason,
        "keypoints": _base64(np.rint(keypoints * 0xFFFF), np.uint16),
        "points": _base64(place[photograph.points[with_point]], np.uint32),
        "picture": picture and base64.b64encode(picture).decode(),
    }
    if photograph.pose is not None:
        pose = photograph.pose
        data["pose"] = {
            "centre": ((pose.centre - view.origin) / view.scale).tolist(),
            "corners": pose.corners.tolist(),
            "model": pose.model,
            "focal": pose.focal,
        }
    return data


def _evenly(total: int, most: int) -> NDArray[np.int64]:
    """Rows of at most `most` of `total` things, in order, none preferred."""
    if total <= most:
        return np.arange(total)
    return np.sort(np.random.default_rng(0).choice(total, most, replace=False))


def _base64(array: NDArray[Any], dtype: type[np.generic]) -> str:
    little_endian = np.dtype(dtype).newbyteorder("<")
    return base64.b64encode(np.ascontiguousarray(array, little_endian).tobytes()).decode()


def _script_safe(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element that holds it, whatever the images are called."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _number(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def _decimal(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "none"
