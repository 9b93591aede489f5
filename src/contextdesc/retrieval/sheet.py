"""Contact sheets: answers to queries come in, a PNG picture or one HTML file to look at goes out.

The query is on the left, its answers beside it with rank, score and inliers. The HTML file holds its
pictures and loads nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np

from contextdesc.draw.picture import (
    DARK,
    Colour,
    Lines,
    Picture,
    Shape,
    Text,
    beside,
    format_of,
    stacked,
)
from contextdesc.errors import InputError
from contextdesc.formats.atomic import replacing
from contextdesc.image import Image, read
from contextdesc.retrieval.searching import FLOOR

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.retrieval.searching import Answer, Answers

_TILE = 200  # pixels, height and largest width of an answer in a picture; a query has twice that
_GAP, _LINE = 8, 18  # pixels around tiles, and of a line of text
_COLUMNS = 6  # answers in a row
_SIDE = 360  # pixels, longer side of an embedded picture
_QUALITY = 80
_RIGHT, _SOFT, _EMPTY = (0, 114, 178), (96, 96, 96), (232, 232, 232)
_LETTERS = 26  # of a name that fit below a tile

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1a1f2b; --paper: #ffffff; --line: #d7dbe2; --soft: #5a6474;
  --agrees: #0063a0; --tile: #f2f4f7; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e8ebf0; --paper: #14181f; --line: #3a414d; --soft: #a5adba; --agrees: #6cc0f5;
    --tile: #1e242e; }}
}}
body {{ margin: 1.5rem auto; padding: 0 1.25rem; max-width: 90rem; font: 15px/1.45 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }}
h1 {{ font-size: 1.35rem; }}
h2 {{ margin: 0 0 0.6rem; font-size: 1rem; overflow-wrap: anywhere; }}
p {{ margin: 0.3rem 0; color: var(--soft); }}
section {{ display: grid; grid-template-columns: minmax(12rem, 22rem) 1fr; gap: 1.5rem; padding: 1.5rem 0;
  border-top: 1px solid var(--line); }}
@media (max-width: 46rem) {{ section {{ grid-template-columns: 1fr; }} }}
section > div > img {{ width: 100%; }}
ol {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: 0.9rem; margin: 0;
  padding: 0; list-style: none; align-content: start; }}
li {{ display: flex; flex-direction: column; overflow: hidden; border: 2px solid var(--line);
  border-radius: 8px; background: var(--tile); }}
li.agrees {{ border-color: var(--agrees); }}
li img, .missing {{ width: 100%; height: 8.5rem; object-fit: contain; background: var(--paper); }}
.missing {{ display: grid; place-items: center; color: var(--soft); font-size: 0.85rem; }}
li div.text {{ padding: 0.45rem 0.6rem; font-size: 0.85rem; font-variant-numeric: tabular-nums; }}
.rank {{ font-weight: 700; }}
.inliers, .score {{ white-space: nowrap; }}
.agrees .inliers {{ color: var(--agrees); font-weight: 600; }}
.name {{ display: block; color: var(--soft); overflow-wrap: anywhere; }}
img {{ display: block; border-radius: 6px; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{about}</p>
{body}
</body>
</html>
"""


def write_sheet(path: Path, found: Sequence[Answers], queries: Mapping[str, Path]) -> None:
    """Write a contact sheet: `.html`, or a picture by its suffix.

    Args:
        queries: files of the query images, by the names that the answers have.
    """
    if path.suffix.lower() in (".html", ".htm"):
        with replacing(path) as temporary:
            temporary.write_text(html_sheet(found, queries), encoding="utf-8", errors="replace")
    else:
        draw_sheet(found, queries).save(path)


def check_sheet(path: Path) -> None:
    """Refuse a suffix that cannot be written, before the work."""
    if path.suffix.lower() not in (".html", ".htm"):
        try:
            format_of(path)
        except InputError:
            raise InputError(f"{path}: contact sheets are written as .html, .png, .jpg or .svg") from None


def draw_sheet(found: Sequence[Answers], queries: Mapping[str, Path]) -> Picture:
    """The sheet as a picture, a band for each query."""
    bands = [_band(answers, queries.get(answers.query)) for answers in found]
    return stacked(bands or [Picture(np.full((_TILE, _TILE, 3), 255, np.uint8))])


def _band(answers: Answers, query: Path | None) -> Picture:
    """The query on the left, rows of answers beside it."""
    about = [(_short(answers.query, 2 * _LETTERS), DARK), (f"{answers.keypoints} keypoints", _SOFT)]
    left = _labelled(query, 2 * _TILE, [*about, (answers.note or "", _SOFT)])
    tiles = []
    for place, answer in enumerate(answers.answers, 1):
        agrees = _agrees(answer)
        caption = (_caption(place, answer), _RIGHT if agrees else DARK)
        lines = [caption, (_short(answer.name, _LETTERS), _SOFT)]
        tiles.append(_labelled(Path(answer.path), _TILE, lines, agrees))
    rows = [beside(tiles[start : start + _COLUMNS]) for start in range(0, len(tiles), _COLUMNS)]
    band = beside([left, stacked(rows)]) if rows else left
    end = np.array([[[0, band.size[1] - 1], [band.size[0], band.size[1] - 1]]], np.float64)
    return band.on_top(Lines(end, _EMPTY, 1.0))


def _labelled(
    path: Path | None, side: int, lines: Sequence[tuple[str, Colour]], framed: bool = False
) -> Picture:
    """An image as large as fits a square, with lines of text below, and some white around."""
    pixels = _pixels(path, side)
    height, width = pixels.shape[:2]
    canvas = np.full((height + len(lines) * _LINE + 2 * _GAP, side + 2 * _GAP, 3), 255, np.uint8)
    canvas[_GAP : _GAP + height, _GAP : _GAP + width] = pixels
    shapes: list[Shape] = [
        Text(text, np.array([_GAP, _GAP + height + (n + 1) * _LINE - 4], np.float64), 13.0, colour)
        for n, (text, colour) in enumerate(lines)
    ]
    if framed:
        corners = _GAP + np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64)
        shapes.append(Lines(np.stack([corners, np.roll(corners, -1, 0)], 1), _RIGHT, 2.0))
    return Picture(canvas, tuple(shapes))


def _pixels(path: Path | None, side: int) -> NDArray[np.uint8]:
    image = _read(path, side)
    if image is None:
        return np.full((side * 2 // 3, side, 3), _EMPTY, np.uint8)
    factor = side / max(image.size)
    target = [max(1, round(length * factor)) for length in image.size]
    return np.asarray(cv2.resize(image.rgb, target, interpolation=cv2.INTER_AREA), np.uint8)


def html_sheet(found: Sequence[Answers], queries: Mapping[str, Path]) -> str:
    """The sheet as one HTML file."""
    count = f"{len(found)} {'query' if len(found) == 1 else 'queries'}"
    about = (
        f"{count}. Answers are ranked by verified matches where there are at least {FLOOR} (framed), "
        "else by score."
    )
    body = "\n".join(_section(answers, queries.get(answers.query)) for answers in found)
    return _PAGE.format(title="contextdesc retrieve query", about=escape(about), body=body)


def _section(answers: Answers, query: Path | None) -> str:
    items = "\n".join(_item(place, answer) for place, answer in enumerate(answers.answers, 1))
    note = f"<p>{escape(answers.note)}</p>" if answers.note else ""
    return (
        f"<section>\n<div><h2>{escape(answers.query)}</h2>\n"
        f"{_embedded(query, f'query {answers.query}')}\n<p>{answers.keypoints} keypoints</p>{note}</div>\n"
        f"<ol>\n{items}\n</ol>\n</section>"
    )


def _item(place: int, answer: Answer) -> str:
    agrees = ' class="agrees"' if _agrees(answer) else ""
    return (
        f"<li{agrees}>{_embedded(Path(answer.path), f'answer {place}: {answer.name}')}"
        f'<div class="text"><span class="rank">{place}</span> · '
        f'<span class="inliers">{_inliers(answer)}</span> · '
        f'<span class="score">score {answer.score:.3f}</span>'
        f'<span class="name">{escape(answer.name)}</span></div></li>'
    )


def _embedded(path: Path | None, text: str) -> str:
    image = _read(path, _SIDE)
    if image is None:
        return '<div class="missing">file not found or not readable</div>'
    _, encoded = cv2.imencode(".jpg", image.rgb[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
    data = base64.b64encode(encoded.tobytes()).decode()
    return f'<img src="data:image/jpeg;base64,{data}" alt="{escape(text)}" loading="lazy">'


def _read(path: Path | None, side: int) -> Image | None:
    try:
        return None if path is None else read(path, side)
    except InputError:
        return None


def _agrees(answer: Answer) -> bool:
    return answer.inliers is not None and answer.inliers >= FLOOR


def _inliers(answer: Answer) -> str:
    return "not verified" if answer.inliers is None else f"{answer.inliers} inliers"


def _caption(place: int, answer: Answer) -> str:
    return f"{place} · {_inliers(answer)} · score {answer.score:.3f}"


def _short(name: str, letters: int) -> str:
    return name if len(name) <= letters else f"…{name[-letters + 1 :]}"
