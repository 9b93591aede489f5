"""Sizes of the region that descriptors read (the paper's A.4): half, once and twice, and sums of two sizes.

Sequences of images of a plane, in the layout of Oxford affine or HPatches; recall within 2.5 pixels of the
2048 strongest keypoints, as `hsequences` has it: one-way nearest neighbours, mean of the pairs of a sequence.
`methods/sizes.py` says what a size is of each method. Every size is compared with 1x of the same method;
intervals are over sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from contextdesc.benchmarks.methods import build_method
from contextdesc.benchmarks.protocol import Protocol, Request, Setting
from contextdesc.benchmarks.repeatability import kinds
from contextdesc.benchmarks.report import Cell, Intervals, Report, Table
from contextdesc.benchmarks.sequences import (
    EITHER_LAYOUT,
    EITHER_SOURCE,
    Layout,
    find_any_sequences,
    read_sequence,
    recall,
)
from contextdesc.benchmarks.statistics import Mean, bootstrap, difference
from contextdesc.detection import Detector
from contextdesc.errors import InputError

KEYPOINTS = 2048
SIZES = "0.5,2,1,1+0.5,1+2"
ONCE = "1"  # the size that methods have

PROTOCOL = Protocol(
    layout=EITHER_LAYOUT,
    source=EITHER_SOURCE,
    takes=("methods", "limit", "workers"),
    settings=(Setting("sizes", SIZES, "factors on the side of the region; those with a + are summed"),),
)

# Recall in percent by size and method
BySize = dict[str, dict[str, float]]


def run(request: Request) -> Report:
    """Recall by method and size of its region."""
    sizes = [part.strip() for part in str(request.setting("sizes", PROTOCOL)).split(",")]
    if ONCE not in sizes:
        raise InputError(f"--set sizes={','.join(sizes)}: with 1, which the others are compared with")
    names = {
        _sized(name, size): f"{method.name}@{size}" if size != ONCE else method.name
        for name, method in request.methods.items()
        for size in sizes
    }
    threads = {method.threads for method in request.methods.values()}
    variants = {name: build_method(known, max(threads)) for name, known in names.items()}
    found, skipped = replace(request, methods=variants).each(
        "sequences", request.limited(find_any_sequences(request.data)), score
    )
    by_size = {
        sequence: {size: {name: of[_sized(name, size)] for name in request.methods} for size in sizes}
        for sequence, of in found.items()
    }
    return report(by_size, skipped)


def score(request: Request, unit: tuple[Path, Layout]) -> dict[str, float]:
    """Recall in percent of a sequence, mean of its pairs, by method."""
    sequence = read_sequence(*unit)
    detector = Detector(KEYPOINTS, precise_upscale=False)
    views = [request.describe(image, detector) for image in sequence.images]
    found = {}
    for method in request.methods:
        first, *others = (view[method] for view in views)
        pairs = [
            recall(first.keypoints, other.keypoints, first.descriptors, other.descriptors, homography)
            for other, homography in zip(others, sequence.homographies, strict=True)
        ]
        found[method] = 100 * float(np.mean(pairs))
    return found


def report(found: Mapping[str, BySize], skipped: Mapping[str, str]) -> Report:
    """What `run` found, for people."""
    sizes = list(next(iter(found.values())))
    methods = list(next(iter(found.values()))[ONCE])
    numbers: dict[str, Any] = {"keypoints": KEYPOINTS, "summary": {}, "sequences": dict(found)}
    tables, plots = [], []
    for kind, names in kinds(list(found)).items():
        values = {
            method: {size: np.array([found[name][size][method] for name in names]) for size in sizes}
            for method in methods
        }
        means = {m: {size: bootstrap(v) for size, v in of.items()} for m, of in values.items()}
        gains = {m: {size: difference(v, of[ONCE]) for size, v in of.items()} for m, of in values.items()}
        numbers["summary"][kind] = {
            "sequences": len(names),
            "recall": {m: {size: asdict(v) for size, v in of.items()} for m, of in means.items()},
            "difference from 1x": {
                m: {size: asdict(v) for size, v in of.items() if size != ONCE} for m, of in gains.items()
            },
        }
        title = f"Recall by size, {len(names)} sequences ({kind})"
        tables.append(Table(title, ("size", *methods), _rows(means, sizes)))
        others = [size for size in sizes if size != ONCE]
        title = f"Difference from 1x, paired, with 95 % intervals ({kind})"
        tables.append(Table(title, ("size", *methods), _rows(gains, others)))
        plots.append(
            Intervals(
                f"Recall by size of the region ({kind})", f"recall-{kind}", "size of the region",
                "recall, %",
                {_label(size): {m: of[size] for m, of in means.items()} for size in sizes},
            )
        )  # fmt: skip
    return Report(
        "domain",
        f"{len(found)} sequences. Recall in percent of the {KEYPOINTS} strongest keypoints (the same for "
        "every method; SIFT at contrast 0.04 without precise upscaling): one-way nearest neighbours within "
        "2.5 pixels, of those that have a partner. A size is a factor on the side of the region that a "
        "descriptor reads; two sizes are summed and normalised. Intervals are over sequences.",
        numbers,
        tables,
        plots,
        skipped,
    )


def _sized(name: str, size: str) -> str:
    return f"{name}, {_label(size)}"


def _label(size: str) -> str:
    return f"({size})x" if "+" in size else f"{size}x"


def _rows(means: Mapping[str, Mapping[str, Mean]], sizes: list[str]) -> list[list[Cell]]:
    return [[_label(size), *(of[size] for of in means.values())] for size in sizes]
