"""Searching: a query image comes in, ranked answers go out.

The index ranks its images by their words; the best are matched with the query and verified, and those that
agree with one camera geometry come first, by the number of their inliers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from contextdesc.geometry import verify as verify_matches
from contextdesc.image import read
from contextdesc.matching import match
from contextdesc.retrieval.extraction import describe
from contextdesc.retrieval.options import VERIFIED
from contextdesc.retrieval.words import words_of

if TYPE_CHECKING:
    from contextdesc.features import Features
    from contextdesc.image import Source
    from contextdesc.model import ContextDesc
    from contextdesc.retrieval.index import Index, Ranked
    from contextdesc.retrieval.options import Rank

FLOOR = 15  # inliers; 400 pairs of images of different scenes, held out from training, had at most 8


@dataclass(frozen=True)
class Answer:
    """An image of the index.

    Attributes:
        name, path: of the image.
        score: by which the index ranked it; see `Index.rank`.
        inliers: matches that agree with one geometry; None if it was not verified.
    """

    name: str
    path: str
    score: float
    inliers: int | None = None


@dataclass(frozen=True)
class Answers:
    """What an index answers to a query.

    Attributes:
        query: name of the image.
        keypoints: of the query.
        answers: best first.
        note: why there are none, or why they are not verified.
    """

    query: str
    keypoints: int
    answers: tuple[Answer, ...]
    note: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "answers": [{"rank": i, **asdict(a)} for i, a in enumerate(self.answers, 1)]}


def query(
    index: Index,
    model: ContextDesc,
    image: Source,
    top: int = 20,
    verify: int = VERIFIED,
    by: Rank | None = None,
    name: str | None = None,
) -> Answers:
    """The images of an index that show what a query shows.

    Args:
        model: the one that the index was made with.
        image: path, bytes, array or `Image`.
        top: answers, at most.
        verify: how many of the best ranked are verified and ranked again; 0 for none.
        by: what the index ranks by; `Index.best_rank` if not given.
        name: of the query in the answers; that of its file if it has none.
    """
    index.extraction.check(model, index.folder)
    picture = read(image, model.max_side, model.max_pixels)
    described = describe(model, picture, index.options)
    features = described.features.features(index.extraction)
    name = name or picture.name
    if not len(index):
        return Answers(name, len(features), (), "the index is empty")
    by = by or index.best_rank
    if not len(features) and by != "global":
        return Answers(name, 0, (), "no keypoints in the query; only a global rank needs none")
    words, weights = words_of(index.vocabulary, features.descriptors, index.options)
    ranked = index.rank(words, weights, described.descriptor, max(top, verify), by)
    note = None if ranked else "no image shares a word with the query"
    if verify and not index.keeps_features:
        verify, note = 0, "not verified: the index keeps no local features"
    found = rerank(index, features, ranked, verify)[:top]
    answers = tuple(Answer(name, index.path(name), score, inliers) for name, score, inliers in found)
    return Answers(name, len(features), answers, note)


def rerank(
    index: Index, features: Features, ranked: Ranked, verify: int
) -> list[tuple[str, float, int | None]]:
    """Ranked images as (name, score, inliers): the first `verify` with at least `FLOOR` inliers come first,
    by inliers; the others keep their order."""
    found: list[tuple[str, float, int | None]] = [
        (name, score, inliers_of(features, index.features(name)) if place < verify else None)
        for place, (name, score) in enumerate(ranked)
    ]
    return sorted(found, key=lambda item: -item[2] if item[2] is not None and item[2] >= FLOOR else 0)


def inliers_of(first: Features, second: Features) -> int:
    """Matches of two images that agree with one fundamental matrix."""
    return verify_matches(first, second, match(first, second)).inlier_count
