"""Pictures of matches, made to be looked at: blue lines agree with the geometry, thin orange ones do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cv2
import numpy as np

from contextdesc.image import Source, read

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image as PillowImage

    from contextdesc.geometry import Verification

# Blue and orange stay apart for every common kind of colour blindness (Okabe and Ito's palette).
INLIER, OUTLIER = (86, 180, 233), (213, 94, 0)
MAX_HEIGHT, MAX_WIDTH = 1200, 2400  # pixels of each image in the picture
MAX_LINES = 150  # of each kind; more would hide the images
_OPACITY = 0.7  # of the lines; their ends are opaque
_SHIFT = 4  # fractional bits of cv2's drawing coordinates


def draw_matches(
    first: Source, second: Source, result: Verification, outliers: bool = True, max_lines: int = MAX_LINES
) -> PillowImage:
    """Two images side by side with lines between their matches.

    Args:
        first, second: the images that the features were extracted from.
        result: of `verify`; its points are in pixels of the original images.
        outliers: draw matches that did not agree, too.
        max_lines: of each kind; an even sample is drawn of more.

    Returns:
        A Pillow image; `.save("matches.png")` writes it.
    """
    import PIL.Image

    images = [read(source) for source in (first, second)]
    wanted = min(MAX_HEIGHT, max(image.size[1] for image in images))
    panels = [_panel(image.rgb, wanted) for image in images]
    height = max(panel.shape[0] for panel in panels)
    padded = [
        cv2.copyMakeBorder(p, 0, height - p.shape[0], 0, 0, cv2.BORDER_CONSTANT, value=(255, 255, 255))
        for p in panels
    ]
    gap = np.full((height, max(2, height // 100), 3), 255, np.uint8)
    canvas = np.ascontiguousarray(np.hstack([padded[0], gap, padded[1]]))

    scales = [
        np.array(p.shape[1::-1]) / np.array(i.original_size) for p, i in zip(panels, images, strict=True)
    ]
    ends = (result.points + 0.5) * np.stack(scales)[None] - 0.5  # (M, 2, 2)
    ends[:, 1, 0] += panels[0].shape[1] + gap.shape[1]
    width = max(1, round(height / 500))
    kinds = [(_sample(ends[result.inliers], max_lines), INLIER, width)]
    if outliers:
        kinds.insert(0, (_sample(ends[~result.inliers], max_lines), OUTLIER, max(1, width // 2)))
    lines = canvas.copy()
    for kind in kinds:
        _draw_lines(lines, *kind)
    canvas = np.asarray(cv2.addWeighted(lines, _OPACITY, canvas, 1 - _OPACITY, 0), np.uint8)
    for kind in kinds:
        _draw_ends(canvas, *kind)
    return PIL.Image.fromarray(canvas)


def _panel(rgb: NDArray[np.uint8], height: int) -> NDArray[np.uint8]:
    """An image at a height, or lower where it would be wider than `MAX_WIDTH`."""
    factor = min(height / rgb.shape[0], MAX_WIDTH / rgb.shape[1])
    size = [max(1, round(side * factor)) for side in rgb.shape[1::-1]]
    interpolation = cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(rgb, size, interpolation=interpolation), np.uint8)


def _draw_lines(
    canvas: NDArray[np.uint8], ends: NDArray[np.floating], colour: tuple[int, int, int], width: int
) -> None:
    for start, end in _fixed_point(ends):
        cv2.line(canvas, start.tolist(), end.tolist(), colour, width, cv2.LINE_AA, _SHIFT)


def _draw_ends(
    canvas: NDArray[np.uint8], ends: NDArray[np.floating], colour: tuple[int, int, int], width: int
) -> None:
    for point in _fixed_point(ends).reshape(-1, 2):
        radius = (width + 2) << _SHIFT
        cv2.circle(canvas, point.tolist(), radius, (255, 255, 255), -1, cv2.LINE_AA, _SHIFT)
        cv2.circle(canvas, point.tolist(), radius * 2 // 3, colour, -1, cv2.LINE_AA, _SHIFT)


def _fixed_point(ends: NDArray[np.floating]) -> NDArray[np.int64]:
    return np.rint(ends * 2**_SHIFT).astype(np.int64)


def _sample(ends: NDArray[np.floating], most: int) -> NDArray[np.floating]:
    if len(ends) <= most:
        return ends
    return ends[np.linspace(0, len(ends) - 1, most).astype(int)]
