"""Queries: the same picture comes first, verified; what cannot be answered says why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from contextdesc.errors import InputError
from contextdesc.image import find_images, read
from contextdesc.model import ContextDesc, load
from contextdesc.retrieval import searching
from contextdesc.retrieval.building import build_index
from contextdesc.retrieval.index import GLOBAL_WEIGHT, Index
from contextdesc.retrieval.options import Options, Rank
from contextdesc.retrieval.searching import FLOOR, query, rerank
from tests.retrieval.conftest import same_picture


def test_crops_of_the_same_picture_come_first(built: Index, model: ContextDesc, photo_folder: Path) -> None:
    """A crop that the index does not hold: all three that overlap it are found and verified."""
    picture = read(photo_folder / "a" / "00.png")
    found = query(built, model, picture.rgb[20:, 30:], top=6)
    assert [same_picture(answer.name, "00.png") for answer in found.answers] == [True] * 3 + [False] * 3
    inliers = [answer.inliers for answer in found.answers]
    assert min(inliers[:3]) >= FLOOR > max(inliers[3:])
    assert inliers[:3] == sorted(inliers[:3], reverse=True)
    assert (found.keypoints, found.note) == (len(model.extract(picture.rgb[20:, 30:])), None)
    assert found.to_json()["answers"][0]["rank"] == 1


@pytest.mark.parametrize("by", ["words", "global", "fused"])
def test_every_rank_finds_the_image_itself(
    by: Rank, built: Index, model: ContextDesc, photo_folder: Path
) -> None:
    path = photo_folder / "b" / "07.png"
    found = query(built, model, path, top=2, verify=0, by=by)
    assert found.query == str(path)
    assert found.answers[0].name == "b/07.png"
    assert found.answers[0].path == str(path.resolve())
    assert found.answers[0].inliers is None
    assert found.answers[0].score == pytest.approx(1 + GLOBAL_WEIGHT if by == "fused" else 1, abs=2e-3)


def test_inliers_outrank_scores_from_a_floor_on(built: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many inliers as the test says, whatever the images; the fifth is not verified."""
    counts = iter([FLOOR - 1, FLOOR, 0, 200])
    monkeypatch.setattr(searching, "inliers_of", lambda *_: next(counts))
    names = ["a/00.png", "a/01.png", "a/02.png", "a/03.png", "a/04.png"]
    ranked = [(name, 1 - place / 10) for place, name in enumerate(names)]
    order = rerank(built, built.features("a/00.png"), ranked, 4)
    assert [name for name, _, _ in order] == ["a/03.png", "a/01.png", "a/00.png", "a/02.png", "a/04.png"]
    assert [inliers for _, _, inliers in order] == [200, FLOOR, FLOOR - 1, 0, None]


def test_a_query_without_keypoints(built: Index, model: ContextDesc) -> None:
    gray = np.full((80, 100, 3), 128, np.uint8)
    found = query(built, model, gray)
    assert (found.keypoints, found.answers) == (0, ())
    assert found.note == "no keypoints in the query; only a global rank needs none"
    assert len(query(built, model, gray, top=5, by="global").answers) == 5


def test_an_empty_index(built: Index, model: ContextDesc, photo_folder: Path) -> None:
    built.remove(built.names)
    found = query(built, model, photo_folder / "a" / "00.png")
    assert (found.answers, found.note) == ((), "the index is empty")


def test_another_model_is_refused_with_both_names(
    built: Index, rootsift_model: Path, photo_folder: Path
) -> None:
    other = load(rootsift_model)
    with pytest.raises(InputError, match=r"an index of sift-context \(.* context none\), not of rootsift \("):
        query(built, other, photo_folder / "a" / "00.png")


def test_without_features_answers_are_not_verified(
    model: ContextDesc, photo_folder: Path, tmp_path: Path
) -> None:
    images = dict(list(find_images([photo_folder]).items())[:3])
    options = Options(features="none", pooling="none")
    build_index(model, images, tmp_path / "index", options, words=50, quiet=True)
    found = query(Index.open(tmp_path / "index"), model, images["a/01.png"])
    assert found.note == "not verified: the index keeps no local features"
    assert found.answers[0].name == "a/01.png"
    assert all(answer.inliers is None for answer in found.answers)
