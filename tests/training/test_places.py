"""Places: which keypoints lie on one spot, and recall by them, worked out by hand and on real views."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from contextdesc.image import Image
from contextdesc.training.data.cache import Cache
from contextdesc.training.data.homography import two_views
from contextdesc.training.data.pairs import PairConfig, build_homography_pairs, no_pair, photo_pair
from contextdesc.training.data.places import at_place, place_recall
from contextdesc.training.data.scene_pairs import ScenePairConfig, scene_pair
from contextdesc.training.data.scenes import PairRules, Scene
from tests.training.test_scenes import made, rendered  # noqa: F401  # fixtures

# Two keypoints on one spot, two alone
XY = np.array([[10, 10], [11, 10], [50, 50], [90, 90]], np.float32)
# On both of the first; 2.4 pixels off the third; unknown; 2.6 pixels off the last; on the third
PLACE = np.array([[10, 10], [50, 52.4], [np.nan, np.nan], [90, 92.6], [50, 50]], np.float32)


def test_keypoints_at_a_place() -> None:
    found = at_place(PLACE, XY)
    assert found.dtype == np.bool_
    np.testing.assert_array_equal(found, np.array([
        [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0],
    ], bool))  # fmt: skip
    assert at_place(PLACE, XY, 2.7)[3, 3]
    assert not at_place(PLACE, XY, 0.5)[0, 1]
    assert at_place(PLACE, np.zeros((0, 2), np.float32)).shape == (5, 0)


@pytest.mark.parametrize(
    ("nearest", "recall"),
    [
        ((0, 2, 0, 0, 2), 1.0),
        ((1, 2, 0, 0, 2), 1.0),  # the other keypoint of that spot will do
        ((1, 2, 3, 3, 0), 2 / 3),  # the last is wrong; without a keypoint: not counted
        ((2, 0, 0, 0, 3), 0.0),
    ],
)
def test_recall_by_hand(nearest: tuple[int, ...], recall: float) -> None:
    second = np.eye(4, dtype=np.float32)
    assert place_recall(second[list(nearest)], second, PLACE, XY) == pytest.approx(recall)


def test_places_of_a_photograph_follow_the_views(photo: Image, tmp_path: Path) -> None:
    config = PairConfig(keypoints=256, min_corresponding=16)
    views = [tmp_path / "a.jpg", tmp_path / "b.jpg"]
    pair = photo_pair(photo.rgb, np.random.default_rng(2), config, views)
    assert 16 <= pair.count <= 192
    *_, homography = two_views(photo.rgb, np.random.default_rng(2), config.homography)  # its first draw
    expected = cv2.perspectiveTransform(pair.xy[:1].astype(np.float64), homography)[0]
    assert pair.place.dtype == np.float32
    np.testing.assert_allclose(pair.place, expected, atol=0.01)  # also of keypoints without a partner
    apart = np.linalg.norm(pair.place - pair.xy[1], axis=1)[: pair.count]
    assert 0.05 < apart.mean() < apart.max() <= config.homography.max_distance + 0.01


def test_places_are_stored(few_photos: Path, tmp_path: Path) -> None:
    config = PairConfig(keypoints=64, min_corresponding=16, per_photo=1)
    pairs = build_homography_pairs([few_photos / "00.png"], Cache(tmp_path), config)
    stored = np.load(pairs.folder / "place.npy")
    assert stored.shape == (1, 64, 2)
    np.testing.assert_array_equal(pairs[0].place, stored[0])
    count = pairs[0].count
    assert at_place(pairs[0].place, pairs[0].xy[1])[range(count), range(count)].all()
    assert np.isnan(no_pair(64).place).all()


def test_places_of_a_scene_are_those_of_partners(made: Scene) -> None:  # noqa: F811
    config = ScenePairConfig(keypoints=256, min_corresponding=32, rules=PairRules(min_rotation=0))
    pair = scene_pair(made, 0, 1, np.random.default_rng(0), config)
    assert pair.count == 192
    np.testing.assert_array_equal(pair.place[: pair.count], pair.xy[1, : pair.count])
    assert np.isnan(pair.place[pair.count :]).all()  # where the others lie is not known
