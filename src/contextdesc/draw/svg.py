"""A picture to SVG: its canvas as an embedded JPEG, its shapes as vector elements that any editor opens."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from io import BytesIO
from xml.sax.saxutils import escape

from contextdesc.draw.picture import JPEG_QUALITY, Circles, Lines, Picture, Shape


def document(picture: Picture) -> str:
    """The whole document."""
    width, height = picture.size
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}">',
        f'<image width="{width}" height="{height}" href="data:image/jpeg;base64,{_jpeg(picture)}"/>',
        '<g transform="translate(0.5 0.5)">',  # SVG puts the corner of the first pixel at 0, we its centre
        *(line for shape in picture.shapes for line in _elements(shape)),
        "</g>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _elements(shape: Shape) -> Iterator[str]:
    if isinstance(shape, Lines):
        yield f'<g stroke-width="{shape.width:.4g}" stroke-linecap="round" opacity="{shape.opacity:.4g}">'
        for (start, end), colour in zip(shape.ends, _hex(shape.colours), strict=True):
            x1, y1, x2, y2 = (f"{value:.2f}" for value in (*start, *end))
            yield f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}"/>'
        yield "</g>"
    elif isinstance(shape, Circles):
        paint, other = ("stroke", "fill") if shape.width else ("fill", "stroke")
        yield f'<g {other}="none" stroke-width="{shape.width:.4g}">'
        for (x, y), r, colour in zip(shape.centres, shape.radii, _hex(shape.colours), strict=True):
            yield f'<circle cx="{x:.2f}" cy="{y:.2f}" r="{r:.2f}" {paint}="{colour}"/>'
        yield "</g>"
    else:
        x, y = shape.place
        (colour,) = _hex([shape.colour])
        yield (
            f'<text x="{x:.2f}" y="{y:.2f}" font-family="sans-serif" font-size="{shape.height:.4g}" '
            f'fill="{colour}">{escape(shape.text)}</text>'
        )


def _hex(colours: Iterable[Iterable[int]]) -> list[str]:
    return ["#" + "".join(f"{part:02x}" for part in colour) for colour in colours]


def _jpeg(picture: Picture) -> str:
    import PIL.Image

    buffer = BytesIO()
    PIL.Image.fromarray(picture.canvas).save(buffer, "JPEG", quality=JPEG_QUALITY)
    return base64.b64encode(buffer.getvalue()).decode()
