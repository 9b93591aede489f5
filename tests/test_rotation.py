"""Turned images: keypoints follow exactly, context follows, and nothing is paid where nothing is turned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.image import Image
from contextdesc.keypoints import Keypoints
from contextdesc.matching import Matches
from contextdesc.model import ContextDesc, load
from contextdesc.rotation import (
    TURNS,
    Base,
    Turn,
    match_rotated,
    quarter_votes,
    turned_image,
    turned_keypoints,
)

QUARTERS = TURNS[1:]
BACK: dict[Turn, Turn] = {0: 0, 90: 270, 180: 180, 270: 90}  # what undoes a turn


def image_of(rgb: np.ndarray, name: str = "photo") -> Image:
    return Image(np.ascontiguousarray(rgb), (rgb.shape[1], rgb.shape[0]), name)


@pytest.fixture(scope="module")
def two_views(photo: Image) -> tuple[Image, Image]:
    """Two windows of a photograph, neither square nor equally large."""
    return image_of(photo.rgb[20:420, 10:500]), image_of(photo.rgb[60:440, 40:510])


@pytest.fixture(scope="module")
def model() -> ContextDesc:
    """A packaged model, both contexts, few keypoints."""
    return load("sift-context", detector=Detector(400), threads=1)


class Count:
    """How often a model's methods ran."""

    def __init__(self, model: ContextDesc, monkeypatch: pytest.MonkeyPatch) -> None:
        self.raw = self.regional = 0
        for name in ("raw", "regional"):
            monkeypatch.setattr(model, name, self._counted(name, getattr(model, name)))

    def _counted(self, name, method):
        def run(*arguments):
            setattr(self, name, getattr(self, name) + 1)
            return method(*arguments)

        return run


@pytest.mark.parametrize("turn", TURNS)
def test_keypoints_turn_with_the_pixels_and_back(turn: Turn) -> None:
    rng = np.random.default_rng(turn)
    image = image_of(rng.integers(0, 256, (37, 53, 3), dtype=np.uint8))
    xy = np.column_stack([rng.integers(0, 53, 200), rng.integers(0, 37, 200)]).astype(np.float32)
    angle = rng.integers(0, 360, 200).astype(np.float32)
    keypoints = Keypoints(xy, np.full(200, 5, np.float32), angle, np.ones(200, np.float32))
    turned, there = turned_image(image, turn), turned_keypoints(keypoints, image.size, turn)
    x, y = there.xy.astype(int).T
    assert np.array_equal(turned.rgb[y, x], image.rgb[xy[:, 1].astype(int), xy[:, 0].astype(int)])
    assert turned.original_size == turned.size
    back = turned_keypoints(there, turned.size, BACK[turn])
    assert np.array_equal(back.xy, keypoints.xy)
    assert np.array_equal(back.angle, keypoints.angle)


@pytest.mark.parametrize("turn", QUARTERS)
def test_sift_finds_the_turned_keypoints_in_the_turned_image(two_views, turn: Turn) -> None:
    image = two_views[0]
    expected = turned_keypoints(detect(image.gray, Detector(200)), image.size, turn)
    found = detect(turned_image(image, turn).gray, Detector(None))
    apart = np.linalg.norm(expected.xy[:, None] - found.xy[None], axis=2)
    off = np.abs((expected.angle[:, None] - found.angle[None] + 180) % 360 - 180)
    assert ((apart < 0.5) & (off < 5)).any(1).mean() > 0.9


@pytest.mark.parametrize("max_side", [None, 300])
def test_without_a_turn_it_is_extract(two_views, rootsift_model: Path, max_side: int | None) -> None:
    model = load(rootsift_model, detector=Detector(300), max_side=max_side)
    mine, plain = Base.of(model, two_views[0]).features(), model.extract(two_views[0])
    assert np.array_equal(mine.descriptors, plain.descriptors)
    assert np.array_equal(mine.keypoints.xy, plain.keypoints.xy)
    assert np.array_equal(mine.keypoints.size, plain.keypoints.size)
    assert np.array_equal(mine.matchability, plain.matchability)
    assert (mine.source, mine.image_size, mine.ratio) == (plain.source, plain.image_size, plain.ratio)


@pytest.mark.parametrize("upright", [False, True])
@pytest.mark.parametrize("turn", QUARTERS)
def test_a_turn_is_what_the_model_makes_of_the_turned_image(two_views, turn: Turn, upright: bool) -> None:
    model = load("sift-context", detector=Detector(150, upright=upright), threads=1)
    image = two_views[0]
    base = Base.of(model, image)
    keypoints = turned_keypoints(base.keypoints, image.size, turn)
    if upright:
        keypoints = replace(keypoints, angle=np.zeros_like(keypoints.angle))
    described = model.describe(turned_image(image, turn), keypoints)
    likeness = (base.features(turn).descriptors * described.descriptors).sum(1)
    assert np.median(likeness) > 0.999
    assert (likeness > 0.95).mean() > 0.95


def test_a_pair_that_is_not_turned_costs_nothing_more(
    two_views, model: ContextDesc, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = Count(model, monkeypatch)
    found = match_rotated(model, *two_views)
    assert found.result.verdict == "same scene"
    assert (found.turn, found.tried) == (0, (0,))
    assert (count.raw, count.regional) == (2, 2)


@pytest.mark.parametrize("turn", QUARTERS)
def test_a_turned_image_is_turned_back(
    two_views, model: ContextDesc, turn: Turn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One turn is tried, its keypoints are not described again, and all answers are in original pixels."""
    count = Count(model, monkeypatch)
    first, second = two_views[0], turned_image(two_views[1], turn)
    found = match_rotated(model, first, second)
    assert found.turn == BACK[turn]
    assert (count.raw, count.regional) == (2, 1 + len(found.tried))
    plain = match_rotated(model, first, second, "none")
    assert found.result.inlier_count > plain.result.inlier_count
    inliers = found.result.points[found.result.inliers]
    shift = np.array([30, 40], np.float32)  # of the two windows
    flat = replace(found.features[0].keypoints[np.zeros(len(inliers), int)], xy=inliers[:, 0] - shift)
    expected = turned_keypoints(flat, two_views[1].size, turn).xy
    assert (np.linalg.norm(expected - inliers[:, 1], axis=1) < 2).mean() > 0.95
    assert found.features[1].image_size == second.size


def test_a_given_turn_is_the_only_one_tried(two_views, model: ContextDesc) -> None:
    found = match_rotated(model, *two_views, 180)
    assert (found.turn, found.tried) == (180, (180,))
    assert match_rotated(model, *two_views, "none").tried == (0,)
    with pytest.raises(InputError, match="rotate is 45: one of auto, none, 0, 90, 180, 270"):
        match_rotated(model, *two_views, 45)  # type: ignore[arg-type]


def test_upright_keypoints_have_no_vote_so_every_turn_is_tried(two_views) -> None:
    model = load("sift-context", detector=Detector(400, upright=True), threads=1)
    found = match_rotated(model, two_views[0], turned_image(two_views[1], 90))
    assert found.tried == TURNS
    assert found.turn == 270
    assert found.result.verdict == "same scene"
    assert match_rotated(model, *two_views).tried == (0,)


def test_matches_vote_for_the_quarter_that_undoes_their_turn(photo: Image, rootsift_model: Path) -> None:
    features = load(rootsift_model, detector=Detector(40)).extract(photo)
    turned = replace(features, keypoints=turned_keypoints(features.keypoints, photo.size, 90))
    rows = np.column_stack([np.arange(40)] * 2)
    assert quarter_votes((features, turned), rows) == {0: 0, 90: 0, 180: 0, 270: 40}
    assert quarter_votes((features, turned), rows[:0]) == {0: 0, 90: 0, 180: 0, 270: 0}


def test_images_without_keypoints_are_an_answer(model: ContextDesc, photo: Image) -> None:
    blank = image_of(np.full((40, 60, 3), 128, np.uint8))
    for pair in ((blank, photo), (photo, blank), (blank, blank)):
        for rotate in ("auto", 90):
            found = match_rotated(model, *pair, rotate)  # type: ignore[arg-type]
            assert len(found.matches) == 0
            assert found.result.probability is None
            assert found.result.verdict == "unsure"


def test_the_callers_verification_is_used(two_views, model: ContextDesc) -> None:
    from contextdesc.geometry import verify

    def few(first, second, matches: Matches):
        return verify(first, second, Matches(matches.indices[:9], matches.similarity[:9]), "homography")

    found = match_rotated(model, *two_views, "none", check=few, ratio=1.0)
    assert found.result.geometry == "homography"
    assert len(found.result.inliers) == 9 < len(found.matches)
