"""Hard keypoints of a pair: those that a descriptor just finds, or just does not, and what it takes them for.

Most keypoints of a pair are found by any trained network, and teach it little. The frozen descriptors of an
earlier network tell which are not. Pairs with many of them are drawn more often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from contextdesc.training.data.places import at_place

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.training.data.pairs import Pair

_CLOSE = 0.1  # of cosines: keypoints with this margin are drawn 1 / e times as often as those with none
_SHARE = 4  # one of so many rows is a hard keypoint; as many are what hard ones are taken for


def hardness(margin: NDArray[np.float32]) -> NDArray[np.float32]:
    """How hard keypoints are by their margin, in [0, 1]: 1 on the boundary between found and not found."""
    return np.exp(-np.abs(margin) / np.float32(_CLOSE))


def hard_rows(
    margin: NDArray[np.float32], rival: NDArray[np.integer], total: int, count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Rows of a pair to train on: hard keypoints, their rivals, then matchable ones, then others.

    Args:
        margin, rival: of the keypoints with a partner, as `margins` has them.
        total: number of all keypoints of an image.
        count: number of rows, at most `total`.
    """
    # The largest of log weights plus Gumbel noise: a weighted draw without replacement
    weight = np.log(hardness(margin) + 1e-9) + rng.gumbel(size=len(margin))
    hard = np.argsort(-weight)[: count // _SHARE]
    others = len(margin) + rng.permutation(total - len(margin))
    drawn = np.concatenate([hard, rival[hard], rng.permutation(len(margin)), others])
    _, first = np.unique(drawn, return_index=True)
    return drawn[np.sort(first)][:count].astype(np.int64)


def margins(
    pair: Pair, raw: NDArray[np.float16], near: float
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """How far each keypoint with a partner is from being taken for another: its margin, and that one's row.

    Returns:
        (count,) cosine of partners less that of the nearest wrong keypoint of either image, and its row.
    """
    count = pair.count
    unit = raw.astype(np.float32)
    unit /= np.maximum(np.linalg.norm(unit, axis=2, keepdims=True), 1e-6)
    partner = (unit[0, :count] * unit[1, :count]).sum(1)
    places = at_place(pair.place, pair.xy[1], near)  # (K, K)
    wrong = []
    for side, place in ((0, places[:count]), (1, places.T[:count])):  # who looks for partners in the other
        cosine = unit[side, :count] @ unit[1 - side].T  # (count, K)
        cosine[place | at_place(pair.xy[1 - side, :count], pair.xy[1 - side], near)] = -1
        wrong.append(cosine)
    rows = np.stack([cosine.argmax(1) for cosine in wrong])  # (2, count)
    nearest = np.stack([cosine.max(1) for cosine in wrong])
    worse = nearest.argmax(0)
    each = np.arange(count)
    return partner - nearest[worse, each], rows[worse, each]
