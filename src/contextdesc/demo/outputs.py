"""What the page shows and gives to take home: pictures, matches, features, and the Python that makes them."""

from __future__ import annotations

import csv
import json
from io import BytesIO, StringIO
from typing import TYPE_CHECKING

import cv2
import h5py
import numpy as np

from contextdesc import modelfile
from contextdesc.draw import draw_matches
from contextdesc.formats import hloc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.demo.session import Prepared, Result
    from contextdesc.model import ContextDesc

COLUMNS = ("first_x", "first_y", "second_x", "second_y", "similarity", "inlier", "first_row", "second_row")

HEAT_SIDE = 480  # pixels, longer side of the heat map
HEAT_SPREAD = (2, 98)  # percentiles of the scores at the ends of its colours


def encoded(pixels: NDArray[np.uint8], kind: str) -> bytes:
    """An image (H, W) or (H, W, 3) RGB as a file, `kind` as Pillow names it."""
    import PIL.Image

    memory = BytesIO()
    PIL.Image.fromarray(pixels).save(memory, kind)
    return memory.getvalue()


def heat_map(scores: NDArray[np.float32]) -> NDArray[np.uint8]:
    """(H, W, 3) uint8: scores (h, w) from dark blue (low) over green to yellow (high), smoothly enlarged."""
    factor = HEAT_SIDE / max(scores.shape)
    large = cv2.resize(scores, None, fx=factor, fy=factor, interpolation=cv2.INTER_CUBIC)
    low, high = np.percentile(scores, HEAT_SPREAD)
    levels = np.clip((large - low) / max(high - low, 1e-6) * 255, 0, 255).astype(np.uint8)
    colours = cv2.applyColorMap(levels, cv2.COLORMAP_VIRIDIS)
    return np.asarray(cv2.cvtColor(colours, cv2.COLOR_BGR2RGB), np.uint8)


def picture_png(first: Prepared, second: Prepared, result: Result) -> bytes:
    """The matches, drawn as `contextdesc match` draws them."""
    memory = BytesIO()
    draw_matches(first.picture, second.picture, result.verification).save(memory, "PNG")
    return memory.getvalue()


def matches_csv(first: Prepared, second: Prepared, result: Result) -> bytes:
    """One match a line: pixels of the original images, OpenCV convention, and rows of the features."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    checked, matches = result.verification, result.matches
    lines = zip(checked.points, matches.similarity, checked.inliers, matches.indices, strict=True)
    for points, similarity, inlier, rows in lines:
        places = (f"{place:.3f}" for place in points.ravel())
        writer.writerow([*places, f"{similarity:.4f}", int(inlier), *rows.tolist()])
    return text.getvalue().encode()


def features_h5(first: Prepared, second: Prepared, result: Result) -> bytes:
    """The features of both images in hloc's layout."""
    names = [image.picture.name for image in (first, second)]
    if names[0] == names[1]:
        names = [f"{place}/{name}" for place, name in zip(("first", "second"), names, strict=True)]
    memory = BytesIO()
    with h5py.File(memory, "w") as file:
        for name, features in zip(names, result.features, strict=True):
            hloc.write_group(file, name, features)
    return memory.getvalue()


def snippet(first: Prepared, second: Prepared, model: ContextDesc, budget: int, ratio: float) -> str:
    """Python that finds the same matches."""
    packaged = model.folder.parent == modelfile.PACKAGED
    options = [_quoted(model.spec.name if packaged else str(model.folder))]
    if model.terms != model.spec.terms:
        options.append(f"context={_quoted(model.terms[0] if model.terms else 'none')}")
    if model.precision != "fp32":
        options.append(f"precision={_quoted(model.precision)}")
    options.append(f"detector=cd.Detector(max_keypoints={budget})")
    if model.max_side is not None:
        options.append(f"max_side={model.max_side}")
    is_sample = first.is_sample and second.is_sample
    names = ", ".join(_quoted(image.picture.name) for image in (first, second))
    lines = [
        "import contextdesc as cd",
        *(["from contextdesc.samples import sample_pair"] if is_sample else []),
        "",
        f"first, second = {'sample_pair()[:2]' if is_sample else names}",
        "model = cd.load(",
        *(f"    {option}," for option in options),
        ")",
        "a, b = model.extract(first), model.extract(second)",
        f"matches = cd.match(a, b, ratio={ratio:g})",
        "result = cd.verify(a, b, matches)",
        'print(f"{len(matches)} matches, {result.inlier_count} inliers: {result.verdict}")',
        'cd.draw_matches(first, second, result).save("matches.png")',
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
