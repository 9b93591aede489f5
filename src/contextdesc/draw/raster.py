"""A picture to pixels: shapes with OpenCV, text with Pillow, whose font knows more than ASCII."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cv2
import numpy as np

from contextdesc.draw.picture import Circles, Lines, Picture, Text

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHIFT = 4  # fractional bits of cv2's drawing coordinates


def render(picture: Picture) -> NDArray[np.uint8]:
    """(H, W, 3) uint8 RGB: the canvas with the shapes drawn on it."""
    canvas = np.ascontiguousarray(picture.canvas).copy()
    for shape in picture.shapes:
        if isinstance(shape, Lines):
            canvas = _lines(canvas, shape)
        elif isinstance(shape, Circles):
            _circles(canvas, shape)
        else:
            canvas = _text(canvas, shape)
    return canvas


def _lines(canvas: NDArray[np.uint8], lines: Lines) -> NDArray[np.uint8]:
    drawn, width = canvas.copy(), max(1, round(lines.width))
    ends = np.rint(lines.ends * 2**_SHIFT).astype(np.int64).tolist()
    for (start, end), colour in zip(ends, lines.colours.tolist(), strict=True):
        cv2.line(drawn, start, end, colour, width, cv2.LINE_AA, _SHIFT)
    return np.asarray(cv2.addWeighted(drawn, lines.opacity, canvas, 1 - lines.opacity, 0), np.uint8)


def _circles(canvas: NDArray[np.uint8], circles: Circles) -> None:
    """As polygons, since cv2's own small circles look like diamonds."""
    width = max(1, round(circles.width))
    for centre, radius, colour in zip(circles.centres, circles.radii, circles.colours.tolist(), strict=True):
        turn = np.linspace(0, 2 * np.pi, int(np.clip(3 * radius, 16, 180)), endpoint=False)
        rim = centre + radius * np.column_stack([np.cos(turn), np.sin(turn)])
        polygon = np.rint(rim * 2**_SHIFT).astype(np.int32)
        if circles.width:
            cv2.polylines(canvas, [polygon], True, colour, width, cv2.LINE_AA, _SHIFT)
        else:
            cv2.fillPoly(canvas, [polygon], colour, cv2.LINE_AA, _SHIFT)


def _text(canvas: NDArray[np.uint8], text: Text) -> NDArray[np.uint8]:
    import PIL.Image
    import PIL.ImageDraw
    import PIL.ImageFont

    image = PIL.Image.fromarray(canvas)
    font = PIL.ImageFont.load_default(text.height)
    x, y = text.place.tolist()
    PIL.ImageDraw.Draw(image).text((x, y), text.text, text.colour, font, anchor="ls")
    return np.array(image)
