"""An image at the size that a picture shows it, and where its original pixels come to lie there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import cv2
import numpy as np

from contextdesc.draw.picture import Picture
from contextdesc.image import Image, Source, read

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_HEIGHT, MAX_WIDTH = 1200, 2400  # pixels of each image in a picture
MIN_HEIGHT = 480  # pixels, for pictures with text and small marks; smaller images are enlarged


@dataclass(frozen=True, eq=False)
class Panel:
    """An image in a picture.

    Attributes:
        rgb: (H, W, 3) uint8.
        scale: (2,) float64: pixels of the panel per pixel of the original image, in x and y.
    """

    rgb: NDArray[np.uint8]
    scale: NDArray[np.float64]

    @property
    def picture(self) -> Picture:
        return Picture(self.rgb)

    @property
    def paled(self) -> NDArray[np.uint8]:
        """(H, W, 3) uint8: gray and pale, for coloured marks to stand out."""
        gray = cv2.cvtColor(self.rgb, cv2.COLOR_RGB2GRAY)
        return np.asarray(cv2.cvtColor(gray // 2 + 112, cv2.COLOR_GRAY2RGB), np.uint8)

    @property
    def dimmed(self) -> Panel:
        """The same panel, darker, for many light lines to stand out."""
        return replace(self, rgb=(self.rgb * 0.5).astype(np.uint8))

    @property
    def stroke(self) -> float:
        """Width of a line that suits the panel, in pixels."""
        return max(1.0, self.rgb.shape[0] / 500)

    @property
    def text_height(self) -> float:
        return max(12.0, self.rgb.shape[0] / 28)

    @property
    def matrix(self) -> NDArray[np.float64]:
        """(3, 3): homogeneous original pixels to pixels of the panel."""
        shift = self.scale / 2 - 0.5
        return np.array([[self.scale[0], 0, shift[0]], [0, self.scale[1], shift[1]], [0, 0, 1]])

    def place(self, xy: NDArray[np.floating]) -> NDArray[np.float64]:
        """(..., 2) original pixels to pixels of the panel."""
        return (np.asarray(xy, np.float64) + 0.5) * self.scale - 0.5


def panels(sources: Sequence[Source], max_height: int = MAX_HEIGHT, min_height: int = 1) -> list[Panel]:
    """Images at the height of the highest of them, within bounds; very wide ones are lower."""
    images = [read(source) for source in sources]
    highest = max(image.size[1] for image in images)
    return [_panel(image, min(max(highest, min_height), max_height)) for image in images]


def _panel(image: Image, height: int) -> Panel:
    factor = min(height / image.size[1], MAX_WIDTH / image.size[0])
    size = [max(1, round(side * factor)) for side in image.size]
    interpolation = cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC
    rgb = np.asarray(cv2.resize(image.rgb, size, interpolation=interpolation), np.uint8)
    return Panel(rgb, np.array(size) / np.array(image.original_size))
