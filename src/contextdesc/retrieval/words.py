"""The words of one image: its descriptors come in, word numbers and how much each counts go out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.retrieval.options import Options
    from contextdesc.retrieval.vocabulary import Vocabulary


def words_of(
    vocabulary: Vocabulary, descriptors: NDArray[np.float32], options: Options
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The words that an image has, and the weight of each before the index weighs it by its rarity.

    Args:
        descriptors: (N, D) float32.

    Returns:
        words (M,) int32, each once, rising; weights (M,) float32: how many descriptors have the word, shared
        among a descriptor's words with soft assignment, and the square root of that with `burstiness`.
    """
    found, distances = vocabulary.quantise(descriptors, options.neighbours)
    shares = _shares(distances, options.sigma)
    known = found >= 0
    words, place = np.unique(found[known], return_inverse=True)
    counts = np.bincount(place, shares[known], len(words))
    weights = np.sqrt(counts) if options.burstiness == "root" else counts
    kept = weights > 0
    return words[kept].astype(np.int32), weights[kept].astype(np.float32)


def _shares(distances: NDArray[np.float32], sigma: float) -> NDArray[np.float64]:
    """(N, k): what each word of a descriptor counts; rows add up to 1."""
    if not distances.size:
        return np.zeros(distances.shape)
    squared = np.square(distances.astype(np.float64))
    weights = np.exp((squared[:, :1] - squared) / (2 * sigma**2))  # the nearest is 1, before they are shared
    return weights / weights.sum(1, keepdims=True)
