"""What the inverted lists of a segment add up to: scores of its images, their norms, how rare words are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.retrieval.segment import Segment

_ROWS = 16384  # global descriptors that are compared at once


def shared(segment: Segment, words: NDArray[np.int32], query: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,): product of a query's weights with those of the images that share its words."""
    offsets, documents, weights = (segment.array(name) for name in ("offsets", "documents", "weights"))
    starts, ends = offsets[words], offsets[words + 1]
    lists = [slice(start, end) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    rows = np.concatenate([documents[part] for part in lists])
    products = np.concatenate([weights[part] for part in lists]) * np.repeat(query, ends - starts)
    return np.asarray(np.bincount(rows, products, len(segment)), np.float64)


def similarity(segment: Segment, rows: NDArray[np.int64], vector: NDArray[np.float32]) -> NDArray[np.float64]:
    """(M,): cosine of the global descriptors of some rows with a vector; -inf where they are removed."""
    scores = np.empty(len(rows))
    stored = segment.array("globals")
    for start in range(0, len(rows), _ROWS):
        block = stored[rows[start : start + _ROWS]].astype(np.float32)
        # Not by BLAS, whose rounding depends on how many rows there are.
        scores[start : start + _ROWS] = np.einsum("nc,c->n", block, vector)
    scores[segment.removed[rows]] = -np.inf
    return scores


def frequency_in(segment: Segment, vocabulary: int) -> NDArray[np.int64]:
    """(K,): images of a segment that have each word."""
    if "removed" not in segment.files:
        return np.diff(segment.array("offsets"))
    kept = ~segment.removed[segment.array("documents")]
    return np.bincount(segment.posting_words()[kept], minlength=vocabulary)


def norms_of(segment: Segment, rarity: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,): length of each image's vector of weighted words."""
    weighted = segment.array("weights") * rarity[segment.posting_words()]
    return np.sqrt(np.bincount(segment.array("documents"), np.square(weighted), len(segment)))


def rarity_of(frequency: NDArray[np.int64], images: int) -> NDArray[np.float64]:
    """(K,): weight of words that so many of the images have; 0 for words that none has."""
    return np.where(frequency > 0, np.log1p(images / np.maximum(frequency, 1)), 0.0)
