"""Hard keypoints of a pair: those that a descriptor just finds, or just does not, and what it takes them for.

Most keypoints of a pair are found by any trained network, and teach it little. The frozen descriptors of an
earlier network tell which are not. Pairs with many of them are drawn more often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from contextdesc.training.data.places import at_place

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.training.data.pairs import Pair

_CLOSE = 0.1  # of cosines: keypoints with this margin are drawn 1 / e times as often as those with none
_SHARE = 4  # one of so many rows is a hard keypoint; as many are what hard ones are taken for


@dataclass(frozen=True)
class Hard:
    """By keypoint with a partner, how far it is from being taken for another, and for which.

    Attributes:
        margin: (count,), cosine of the partners less that of the nearest wrong keypoint of either image.
        rival: (count,), the row of that wrong keypoint.
    """

    margin: NDArray[np.float32]
    rival: NDArray[np.int32]

    @property
    def hardness(self) -> NDArray[np.float32]:
        """(count,) in [0, 1]: 1 on the boundary between found and not found."""
        return np.exp(-np.abs(self.margin) / np.float32(_CLOSE))


def hard_rows(hard: Hard, total: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`count` of the `total` rows of a pair: hard keypoints, their rivals, then matchable ones, others."""
    matchable = len(hard.margin)
    # The largest of log weights plus Gumbel noise: a weighted draw without replacement
    weight = np.log(hard.hardness + 1e-9) + rng.gumbel(size=matchable)
    hardest = np.argsort(-weight)[: count // _SHARE]
    others = matchable + rng.permutation(total - matchable)
    drawn = np.concatenate([hardest, hard.rival[hardest], rng.permutation(matchable), others])
    _, first = np.unique(drawn, return_index=True)
    return drawn[np.sort(first)][:count].astype(np.int64)


def find_hard(pair: Pair, raw: NDArray[np.float16], near: float) -> Hard:
    """What is hard for descriptors `raw` (2, K, C). No rivals lie within `near` pixels of the partner."""
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
    return Hard(partner - nearest[worse, each], rows[worse, each].astype(np.int32))
