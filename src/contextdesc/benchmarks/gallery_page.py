"""The failures of each method as a sheet (PNG), and all of them as one page (HTML).

Each is three crops: the query, what was chosen, and what is true. They are turned and scaled as their
keypoint and twice as wide as the patch that is described, which is framed.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np

from contextdesc.benchmarks.gallery import ELSEWHERE, FailedPair, Failure, Place
from contextdesc.benchmarks.page import embedded, page
from contextdesc.benchmarks.sequences import DISTANCE
from contextdesc.draw.picture import Colour, Format, Picture, Text, stacked
from contextdesc.formats.atomic import replacing
from contextdesc.image import Image, read
from contextdesc.patches import SUPPORT

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIDE = 112  # pixels of a crop
WIDER = 2.0  # side of a crop over that of the patch in it
_ACROSS = 3  # failures in a row of a sheet
_BETWEEN, _MARGIN, _LETTER, _TITLE = 4, 20, 12, 17  # pixels
_WIDTH = 3 * SIDE + 2 * _BETWEEN
# Okabe and Ito's blue and orange, which are right and wrong in all our pictures
_QUERY, _CHOSEN, _TRUE = (120, 120, 120), (213, 94, 0), (0, 114, 178)
_ABOUT = (
    "False nearest neighbours beside the true ones: the worst pairs of images first, and of each the "
    f"failures with the greatest similarity. Right is within {DISTANCE} pixels of where a keypoint belongs, "
    f"elsewhere beyond {ELSEWHERE:g}. Crops are turned and scaled as their keypoint; the inner frame is the "
    "patch that is described. From left to right: the query (gray), what was chosen (orange) with its "
    "similarity and how far off it is, what is true (blue) with its similarity."
)


def write(
    folder: Path,
    pairs: Mapping[str, Sequence[FailedPair]],
    skipped: Mapping[str, str],
    command: str,
) -> list[Path]:
    """Write `gallery.html` and a sheet for each method.

    Args:
        pairs: those to show, by method.
        skipped: sequences that could not be used, with the reasons.
        command: the line that makes it again.

    Returns:
        The paths of the files.
    """
    load = cache(read)
    parts = [f"<p>{html.escape(_ABOUT)}</p>", f"<pre>{html.escape(command)}</pre>"]
    files: dict[str, bytes] = {}
    for method, of in pairs.items():
        rows = [_line(method, 1.4 * _TITLE)]
        parts.append(f"<h2>{html.escape(method)}</h2>")
        for pair in of:
            images = [load(path) for path in pair.paths]
            crops = [_crops(failure, *images) for failure in pair.failures]
            shown = list(zip(crops, map(captions, pair.failures), strict=True))
            rows += [_line(heading(pair), _TITLE), *_rows(shown)]
            figures = "\n".join(_figure(*one) for one in shown)
            parts.append(f'<h3>{html.escape(heading(pair))}</h3>\n<div class="failures">{figures}</div>')
        files[f"{_file_name(method)}.png"] = _encoded(stacked(rows), "PNG")
    if skipped:
        reasons = "\n".join(f"<li>{html.escape(reason)}</li>" for reason in skipped.values())
        parts.append(f"<h2>Skipped</h2>\n<ul>{reasons}</ul>")
    files["gallery.html"] = page("contextdesc benchmark gallery", "\n".join(parts)).encode()
    for name, content in files.items():
        with replacing(folder / name) as temporary:
            temporary.write_bytes(content)
    return [folder / name for name in files]


def heading(pair: FailedPair) -> str:
    """What happened in a pair, in a line."""
    return (
        f"{pair.sequence}, image 1 to {pair.index}: {pair.share:.1f} % right of "
        f"{pair.right + pair.nearby + pair.elsewhere} keypoints with a partner; {pair.elsewhere} chose "
        f"elsewhere, {pair.nearby} nearby"
    )


def captions(failure: Failure) -> tuple[str, str, str]:
    """What stands below the three crops."""
    return (
        "query",
        f"{failure.similarity:.2f}, {failure.distance:.0f} px off",
        f"true: {failure.true_similarity:.2f}",
    )


def crop(image: Image, place: Place, colour: Colour) -> NDArray[np.uint8]:
    """(SIDE, SIDE, 3) uint8: what surrounds a keypoint, turned by its angle, with its patch framed."""
    step = place.size * SUPPORT * WIDER / SIDE  # image pixels per pixel of the crop
    rgb = image.rgb
    if step > 1:  # against aliasing
        size = [max(1, round(side / step)) for side in image.size]
        rgb = np.asarray(cv2.resize(image.rgb, size, interpolation=cv2.INTER_AREA), np.uint8)
    scale = np.array([rgb.shape[1], rgb.shape[0]]) / np.array(image.size)
    turn = np.deg2rad(place.angle)
    axes = step * scale[:, None] * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    centre = (np.array([place.x, place.y]) + 0.5) * scale - 0.5
    matrix = np.column_stack([axes, centre - axes @ np.full(2, (SIDE - 1) / 2)])
    found = cv2.warpAffine(rgb, matrix, (SIDE, SIDE), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP)
    low = round(SIDE / 2 * (1 - 1 / WIDER))
    for corner, width in ((low, 1), (1, 3)):
        far = SIDE - 1 - corner
        cv2.rectangle(found, (corner, corner), (far, far), colour, width, cv2.LINE_8)
    return np.asarray(found, np.uint8)


def _crops(failure: Failure, first: Image, second: Image) -> list[NDArray[np.uint8]]:
    """Query, chosen and true."""
    return [
        crop(first, failure.query, _QUERY),
        crop(second, failure.chosen, _CHOSEN),
        crop(second, failure.true, _TRUE),
    ]


def _line(text: str, height: float) -> Picture:
    """A line of text over the width of a sheet."""
    canvas = np.full((round(2.4 * height), _ACROSS * (_WIDTH + _MARGIN) + _MARGIN, 3), 255, np.uint8)
    return Picture(canvas).on_top(Text(text, np.array([_MARGIN, 1.7 * height]), height))


def _rows(shown: Sequence[tuple[list[NDArray[np.uint8]], tuple[str, str, str]]]) -> list[Picture]:
    """Failures with their captions, some in each row of a sheet."""
    rows = []
    for start in range(0, len(shown), _ACROSS):
        row = _line("", (SIDE + 3 * _LETTER) / 2.4)
        canvas, texts = row.canvas.copy(), []
        for index, (crops, words) in enumerate(shown[start : start + _ACROSS]):
            for which, (pixels, word) in enumerate(zip(crops, words, strict=True)):
                left = _MARGIN + index * (_WIDTH + _MARGIN) + which * (SIDE + _BETWEEN)
                canvas[:SIDE, left : left + SIDE] = pixels
                texts.append(Text(word, np.array([left, SIDE + 1.3 * _LETTER]), _LETTER))
        rows.append(Picture(canvas, tuple(texts)))
    return rows


def _figure(crops: Sequence[NDArray[np.uint8]], words: Sequence[str]) -> str:
    images = [
        f'<span><img src="{embedded(_encoded(Picture(pixels), "JPEG"), "jpeg")}" width="{SIDE}" '
        f'height="{SIDE}" alt="{kind}"><small>{html.escape(word)}</small></span>'
        for pixels, kind, word in zip(crops, ("query", "chosen", "true"), words, strict=True)
    ]
    return f"<figure>{''.join(images)}</figure>"


def _encoded(picture: Picture, format: Format) -> bytes:
    buffer = BytesIO()
    picture.save(buffer, format)
    return buffer.getvalue()


def _file_name(method: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", method).strip("-.") or "method"
