"""How an index weighs its words and what it keeps of each image, fixed when it is created; and the defaults.

They were chosen on 148 photographs of eight scenes held out from training, each photograph a query:
`scripts/retrieval_defaults.py` measures it, `docs/results/retrieval-defaults.json` has the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from contextdesc.errors import InputError

Burstiness = Literal["none", "root"]
Pooling = Literal["none", "mean", "gem", "mac"]
Kept = Literal["none", "int8", "float16"]
Rank = Literal["words", "global", "fused"]

WORDS = 16384  # of a vocabulary
VERIFIED = 100  # images that a query is matched with, those that rank best
CANDIDATES = 30  # images that each image is matched with to find its partners, those that rank best
EXPANSION, ROUNDS = 5, 6  # partners of its partners that it is matched with in a round, and rounds


@dataclass(frozen=True)
class Options:
    """Options of an index.

    Attributes:
        neighbours: words that a descriptor counts for; more than 1 is soft assignment (Philbin et al., 2008).
        sigma: of soft assignment: a word at distance d counts exp(-d^2 / (2 sigma^2)), the words of a
            descriptor 1 together.
        burstiness: `root` takes the square root of how often a word occurs in an image (Jegou et al., 2009),
            so that a pattern that repeats does not outvote the rest.
        pooling: global descriptor of the regional grid.
        features: how descriptors are kept for verification: bytes with a scale each, half precision, or not.
    """

    neighbours: int = 1
    sigma: float = 0.2
    burstiness: Burstiness = "root"
    pooling: Pooling = "mean"
    features: Kept = "int8"

    def __post_init__(self) -> None:
        if self.neighbours < 1:
            raise InputError(f"neighbours is {self.neighbours}: give 1 or more")
        if not self.sigma > 0:
            raise InputError(f"sigma is {self.sigma}: give a positive number")
        for name, kind in (("burstiness", Burstiness), ("pooling", Pooling), ("features", Kept)):
            if getattr(self, name) not in get_args(kind):
                raise InputError(f"{name} is {getattr(self, name)!r}: one of {', '.join(get_args(kind))}")
