"""A picture is a canvas of pixels and shapes on top of it; it is saved as pixels, or as SVG with its shapes.

Coordinates are pixels of the canvas, the centre of the top-left pixel at (0, 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from contextdesc.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from PIL.Image import Image as PillowImage

Colour: TypeAlias = tuple[int, int, int]
Format: TypeAlias = Literal["PNG", "JPEG", "SVG"]

WHITE, DARK = (255, 255, 255), (40, 40, 40)
JPEG_QUALITY = 90
_FORMATS: dict[str, Format] = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".svg": "SVG"}


@dataclass(frozen=True, eq=False)
class Lines:
    """N lines: ends (N, 2, 2), colours (N, 3) or one for all, one width, opacity of them all together."""

    ends: NDArray[np.floating]
    colour: ArrayLike
    width: float
    opacity: float = 1.0

    @property
    def colours(self) -> NDArray[np.uint8]:
        """(N, 3) uint8."""
        return _each(self.colour, len(self.ends))

    def moved(self, by: NDArray[np.floating]) -> Lines:
        return replace(self, ends=self.ends + by)


@dataclass(frozen=True, eq=False)
class Circles:
    """N circles: centres (N, 2), radii (N,) or one, colours (N, 3) or one; filled where width is 0."""

    centres: NDArray[np.floating]
    radius: ArrayLike
    colour: ArrayLike
    width: float = 0.0

    @property
    def colours(self) -> NDArray[np.uint8]:
        """(N, 3) uint8."""
        return _each(self.colour, len(self.centres))

    @property
    def radii(self) -> NDArray[np.float64]:
        """(N,) float64."""
        return np.broadcast_to(np.asarray(self.radius, np.float64), len(self.centres))

    def moved(self, by: NDArray[np.floating]) -> Circles:
        return replace(self, centres=self.centres + by)


@dataclass(frozen=True, eq=False)
class Text:
    """A line of text: place (2,) of the left end of its baseline, height of its letters in pixels."""

    text: str
    place: NDArray[np.floating]
    height: float
    colour: Colour = DARK

    def moved(self, by: NDArray[np.floating]) -> Text:
        return replace(self, place=self.place + by)


def _each(colour: ArrayLike, count: int) -> NDArray[np.uint8]:
    return np.broadcast_to(np.asarray(colour, np.uint8), (count, 3))


Shape: TypeAlias = Lines | Circles | Text


@dataclass(frozen=True, eq=False)
class Picture:
    """What the functions `draw_...` return.

    Attributes:
        canvas: (H, W, 3) uint8 RGB.
        shapes: on top of it, in the order they are drawn.

    `np.asarray(picture)` gives the pixels with everything drawn, (H, W, 3) uint8; a notebook shows them.
    """

    canvas: NDArray[np.uint8]
    shapes: tuple[Shape, ...] = ()

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels."""
        return self.canvas.shape[1], self.canvas.shape[0]

    @cached_property
    def image(self) -> PillowImage:
        """The picture as a Pillow image."""
        import PIL.Image

        from contextdesc.draw.raster import render

        return PIL.Image.fromarray(render(self))

    @property
    def svg(self) -> Svg:
        """The picture as an SVG document: the canvas as an embedded JPEG, the shapes as vectors."""
        from contextdesc.draw.svg import document

        return Svg(document(self))

    def save(
        self, target: str | PathLike[str] | IO[bytes], format: Format | None = None, **options: Any
    ) -> None:
        """Write the picture to a path or a binary file, as PNG, JPEG or SVG.

        Args:
            format: by the path's suffix if not given.
            options: of Pillow's writer, such as `quality` for JPEG.
        """
        from contextdesc.formats.atomic import replacing

        if not isinstance(target, (str, PathLike)):
            self._write(target, format or "PNG", options)
            return
        chosen = format or format_of(Path(target))
        with replacing(Path(target)) as temporary, temporary.open("wb") as file:
            self._write(file, chosen, options)

    def on_top(self, *shapes: Shape) -> Picture:
        """The picture with more shapes."""
        return replace(self, shapes=(*self.shapes, *shapes))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.image, dtype)

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.save(buffer, "PNG")
        return buffer.getvalue()

    def _write(self, file: IO[bytes], format: Format, options: dict[str, Any]) -> None:
        if format == "SVG":
            file.write(self.svg.encode())
        else:
            quality = {"quality": JPEG_QUALITY} if format == "JPEG" else {}
            self.image.save(file, format, **(quality | options))


class Svg(str):
    """An SVG document; a notebook shows it as a picture."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)


def format_of(path: Path) -> Format:
    """The format that a path's suffix asks for."""
    if path.suffix.lower() not in _FORMATS:
        raise InputError(f"{path}: pictures are written as .png, .jpg or .svg")
    return _FORMATS[path.suffix.lower()]


def beside(pictures: Sequence[Picture]) -> Picture:
    """Pictures from left to right with a narrow white gap, their upper borders in line."""
    return _arranged(pictures, 0, max(2, max(picture.size[1] for picture in pictures) // 100))


def stacked(pictures: Sequence[Picture]) -> Picture:
    """Pictures from top to bottom, their left borders in line."""
    return _arranged(pictures, 1, 0)


def _arranged(pictures: Sequence[Picture], axis: Literal[0, 1], gap: int) -> Picture:
    """Axis 0 is x, axis 1 is y."""
    sizes = np.array([picture.size for picture in pictures])  # (K, 2)
    starts = np.zeros_like(sizes)
    starts[1:, axis] = np.cumsum(sizes[:-1, axis] + gap)
    width, height = (starts + sizes).max(0)
    canvas = np.full((height, width, 3), WHITE, np.uint8)
    shapes: list[Shape] = []
    for picture, (x, y), (w, h) in zip(pictures, starts, sizes, strict=True):
        canvas[y : y + h, x : x + w] = picture.canvas
        shapes += [shape.moved(np.array([x, y], np.float64)) for shape in picture.shapes]
    return Picture(canvas, tuple(shapes))
