"""False nearest neighbours beside the true ones (the paper's figure 1a), worst image pairs first.

Sequences with known homographies in the Oxford or the HPatches layout. A failure is a keypoint of image 1
that has a partner in the other image, within 2.5 pixels, and whose nearest neighbour is another keypoint.
Shown are those that were chosen with the greatest similarity, more than `ELSEWHERE` pixels from where they
belong: nearer ones are usually the same thing at another scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contextdesc.benchmarks.protocol import Protocol
from contextdesc.benchmarks.sequences import (
    DISTANCE,
    EITHER_LAYOUT,
    EITHER_SOURCE,
    Layout,
    find_any_sequences,
    read_sequence,
    warp,
)
from contextdesc.detection import Detector
from contextdesc.matching import match_descriptors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.benchmarks.methods import Described
    from contextdesc.benchmarks.protocol import Request

KEYPOINTS = 2048
SHOWN = 9  # failures of a pair
ELSEWHERE = 10.0  # pixels
_APART = 20.0  # pixels between keypoints of image 1 that are shown

PROTOCOL = Protocol(EITHER_LAYOUT, EITHER_SOURCE, takes=("methods", "limit", "workers"))


@dataclass(frozen=True)
class Place:
    """A keypoint: pixels, pixels, degrees."""

    x: float
    y: float
    size: float
    angle: float


@dataclass(frozen=True)
class Failure:
    """A keypoint of image 1, the one that was chosen in the other image, and the true one."""

    query: Place
    chosen: Place
    true: Place
    similarity: float  # of the chosen one, cosine
    true_similarity: float
    distance: float  # pixels between the chosen one and where the query lies


@dataclass(frozen=True)
class FailedPair:
    """An image pair: how many keypoints with a partner chose right, nearby, elsewhere; some of the last."""

    sequence: str
    index: int  # of the second image, from 2
    paths: tuple[str, str]
    right: int
    nearby: int
    elsewhere: int
    failures: list[Failure]

    @property
    def share(self) -> float:
        """Percent of the keypoints with a partner that chose right."""
        total = self.right + self.nearby + self.elsewhere
        return 100 * self.right / total if total else 0.0


def run(request: Request, shown: int = SHOWN) -> tuple[dict[str, list[FailedPair]], dict[str, str]]:
    """Pairs with failures by method, worst first; and of sequences that could not be used the reasons."""
    sequences = request.limited(find_any_sequences(request.data))
    units = {name: (folder, layout, shown) for name, (folder, layout) in sequences.items()}
    found, skipped = request.each("sequences", units, score)
    failed = {
        method: [pair for of in found.values() for pair in of[method] if pair.failures]
        for method in request.methods
    }
    return {method: sorted(of, key=lambda pair: pair.share) for method, of in failed.items()}, skipped


def score(request: Request, unit: tuple[Path, Layout, int]) -> dict[str, list[FailedPair]]:
    """Failures of the pairs of a sequence, by method."""
    folder, layout, shown = unit
    sequence = read_sequence(folder, layout)
    detector = Detector(KEYPOINTS, precise_upscale=False)
    views = [request.describe(image, detector) for image in sequence.images]
    names = [image.name for image in sequence.images]
    found: dict[str, list[FailedPair]] = {method: [] for method in request.methods}
    for index, homography in enumerate(sequence.homographies, 1):
        for method, pairs in found.items():
            counts, failures = find_failures(views[0][method], views[index][method], homography, shown)
            pairs.append(FailedPair(folder.name, index + 1, (names[0], names[index]), *counts, failures))
    return found


def find_failures(
    first: Described, second: Described, homography: NDArray[np.float64], shown: int = SHOWN
) -> tuple[tuple[int, int, int], list[Failure]]:
    """How many keypoints with a partner chose right, nearby, elsewhere; the most similar of the last."""
    if not len(first.keypoints) or not len(second.keypoints):
        return (0, 0, 0), []
    warped = warp(first.keypoints.xy, homography)
    matches = match_descriptors(first.descriptors, second.descriptors, mutual=False)
    chosen = matches.indices[:, 1]
    apart = np.linalg.norm(second.keypoints.xy[chosen] - warped, axis=1)
    has_partner = np.array([len(_partners(place, second)) > 0 for place in warped])
    wrong = np.flatnonzero(has_partner & (apart > DISTANCE))
    elsewhere = wrong[apart[wrong] > ELSEWHERE]
    counts = (int(has_partner.sum()) - len(wrong), len(wrong) - len(elsewhere), len(elsewhere))
    failures: list[Failure] = []
    for row in elsewhere[np.argsort(-matches.similarity[elsewhere], kind="stable")]:
        query = _place(first, row)
        if any(np.hypot(query.x - f.query.x, query.y - f.query.y) < _APART for f in failures):
            continue
        partners = _partners(warped[row], second)
        similarity = second.descriptors[partners] @ first.descriptors[row]
        failures.append(
            Failure(
                query,
                _place(second, chosen[row]),
                _place(second, partners[similarity.argmax()]),
                float(matches.similarity[row]),
                float(similarity.max()),
                float(apart[row]),
            )
        )
        if len(failures) == shown:
            break
    return counts, failures


def _partners(place: NDArray[np.float64], second: Described) -> NDArray[np.int64]:
    """Rows of the keypoints within `DISTANCE` of a place."""
    return np.flatnonzero(((second.keypoints.xy - place) ** 2).sum(1) <= DISTANCE**2)


def _place(described: Described, row: int) -> Place:
    keypoints = described.keypoints
    return Place(*(float(v) for v in (*keypoints.xy[row], keypoints.size[row], keypoints.angle[row])))
