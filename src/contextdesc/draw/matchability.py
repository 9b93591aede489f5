"""Matchability as a heat map over the whole image: where the model expects to find its keypoints again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cv2
import numpy as np

from contextdesc.draw.panel import MIN_HEIGHT, Panel, panels
from contextdesc.draw.picture import Picture, Text, beside
from contextdesc.errors import InputError
from contextdesc.image import Source, read

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.model import ContextDesc

GRID = 56  # patches along the longer side of the image, so at most GRID^2
PATCHES_PER_SIDE = 8  # that would cover the longer side without overlap: the size of a patch
_OPACITY = 0.6  # of the colours over the gray image
_SPREAD = (2, 98)  # percentiles of the scores at the ends of the colours


def matchability_map(model: ContextDesc, image: Source) -> NDArray[np.float32]:
    """Scores of upright patches on a regular grid over an image, (h, w) float32, the longer side `GRID`.

    They are the scores before the tanh that `Features.matchability` has gone through, since that makes
    them nearly black and white.
    """
    picture = read(image, model.max_side, model.max_pixels)
    width, height = picture.original_size
    longer = max(width, height)
    columns, rows = (max(1, round(GRID * side / longer)) for side in (width, height))
    x = (np.arange(columns) + 0.5) * width / columns - 0.5
    y = (np.arange(rows) + 0.5) * height / rows - 0.5
    size = longer / PATCHES_PER_SIDE / model.spec.support
    places = np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)
    keypoints = np.column_stack([places, np.full(len(places), size), np.zeros(len(places))])
    _, score = model.raw(picture, keypoints)
    if score is None:
        raise InputError(f"{model.spec.name} has no matchability to draw; use a model that has")
    return score.reshape(rows, columns)


def draw_matchability(model: ContextDesc, image: Source) -> Picture:
    """The image, in gray, with its matchability in colours from dark blue (low) to yellow (high)."""
    scores = matchability_map(model, image)
    (panel,) = panels([image], min_height=MIN_HEIGHT)
    low, high = np.percentile(scores, _SPREAD)
    smooth = cv2.resize(scores, panel.rgb.shape[1::-1], interpolation=cv2.INTER_CUBIC)
    share = np.clip((smooth - low) / max(high - low, 1e-6), 0, 1)
    gray = cv2.cvtColor(cv2.cvtColor(panel.rgb, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    blended = cv2.addWeighted(_colours(share), _OPACITY, gray, 1 - _OPACITY, 0)
    return beside([Picture(np.asarray(blended, np.uint8)), _colour_bar(panel, low, high)])


def _colours(share: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Numbers (H, W) from 0 to 1 as colours (H, W, 3) of a perceptually uniform map."""
    mapped = cv2.applyColorMap(np.rint(share * 255).astype(np.uint8), cv2.COLORMAP_VIRIDIS)
    return np.asarray(cv2.cvtColor(mapped, cv2.COLOR_BGR2RGB), np.uint8)


def _colour_bar(panel: Panel, low: float, high: float) -> Picture:
    """A strip as high as the panel, with the scores at its ends."""
    height, letters = panel.rgb.shape[0], panel.text_height
    margin, width = round(letters / 2), round(letters)
    canvas = np.full((height, width + 4 * width, 3), 255, np.uint8)
    share = np.linspace(1, 0, height)[:, None].repeat(width, 1)
    canvas[:, margin : margin + width] = _colours(share)
    x = margin + width + letters / 3
    return Picture(canvas).on_top(
        Text(f"{high:.1f}", np.array([x, letters]), letters * 0.8),
        Text(f"{low:.1f}", np.array([x, height - letters / 3]), letters * 0.8),
    )
