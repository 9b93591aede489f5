"""Pairs of scenes: rows that correspond see one point, and a stage trains on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from contextdesc.errors import InputError
from contextdesc.training.config import StageConfig
from contextdesc.training.data.cache import Cache
from contextdesc.training.data.frozen import Examples, Mixture
from contextdesc.training.data.pairs import Pair
from contextdesc.training.data.scene_pairs import ScenePairConfig, build_scene_pairs, find_scenes, scene_pair
from contextdesc.training.data.scenes import PairRules, Scene
from contextdesc.training.loop import train
from tests.training.test_scenes import View, made, rendered, true_place  # noqa: F401  # two are fixtures

CONFIG = ScenePairConfig(keypoints=256, min_corresponding=32, rules=PairRules(min_rotation=0))


def correlation(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Correlation of patches (N, 32, 32), row by row."""
    flat = [p.reshape(len(p), -1).astype(float) for p in (first, second)]
    flat = [(p - p.mean(1, keepdims=True)) / (p.std(1, keepdims=True) + 1e-6) for p in flat]
    return (flat[0] * flat[1]).mean(1)


def assert_patches_correspond(pair: Pair) -> None:
    first, second = pair.patches[:, : pair.count]
    assert np.median(correlation(first, second)) > 0.7
    assert np.median(correlation(first, np.roll(second, 1, axis=0))) < 0.3


def test_rows_that_correspond_see_one_point(made: Scene, rendered: list[View]) -> None:  # noqa: F811
    pair = scene_pair(made, 0, 1, np.random.default_rng(0), CONFIG)
    assert pair.count == 192  # three quarters
    expected = true_place(made, rendered, 0, 1, pair.xy[0])
    error = np.linalg.norm(expected - pair.xy[1], axis=1)
    assert error[: pair.count].max() < 1.5
    assert np.nanmedian(error[pair.count :]) > 20  # the rest is unrelated (NaN: out of sight)
    assert_patches_correspond(pair)
    few = ScenePairConfig(keypoints=256, min_corresponding=100_000)
    assert scene_pair(made, 0, 1, np.random.default_rng(0), few).count == 0


def test_a_random_draw_keeps_what_both_draws_share(made: Scene, rendered: list[View]) -> None:  # noqa: F811
    config = replace(CONFIG, keypoints=1024, draw="random", min_corresponding=8)
    pair = scene_pair(made, 0, 1, np.random.default_rng(0), config)
    assert 8 <= pair.count < 768  # fewer than are put first
    expected = true_place(made, rendered, 0, 1, pair.xy[0])
    assert np.linalg.norm(expected - pair.xy[1], axis=1)[: pair.count].max() < 1.5
    assert_patches_correspond(pair)
    for side in pair.keypoints:
        assert len(np.unique(side, axis=0)) == config.keypoints  # no keypoint twice
    few = replace(config, min_corresponding=pair.count + 1)
    assert scene_pair(made, 0, 1, np.random.default_rng(0), few).count == 0


def test_pair_sets_of_scenes_are_kept_and_joined(made: Scene, tmp_path: Path) -> None:  # noqa: F811
    folder = made.images.parent
    pairs = build_scene_pairs([folder], Cache(tmp_path), CONFIG)
    assert len(pairs) == 3  # neighbouring views share tracks
    assert build_scene_pairs([folder], Cache(tmp_path), CONFIG).folder == pairs.folder
    both = Mixture([Examples(pairs), Examples(pairs)])
    assert len(both) == 6
    np.testing.assert_array_equal(both[4].pair.xy, pairs[1].xy)
    first, second = (made.names.index(view.name) for view in both[4].views)
    tracks = [set(made.keypoints(image)[1]) for image in (first, second)]
    assert len(tracks[0] & tracks[1]) >= 32


def test_a_stage_trains_on_scenes_and_validates_on_others(made: Scene, tmp_path: Path) -> None:  # noqa: F811
    folder = tmp_path / "scenes"
    for name in ("one", "two"):
        made.save(folder / name)
    config = StageConfig(
        stage="local", steps=4, scenes=str(folder), held_out_scenes=("two",), keypoints=32, warmup=2,
        scene_pairs=CONFIG,
    )  # fmt: skip
    lines: list[str] = []
    train(config, tmp_path / "run", Cache(tmp_path / "cache"), log=lines.append)
    assert any("held_out_recall" in line and "raw_scenes" in line for line in lines)


def test_mistakes_are_named(made: Scene, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(InputError, match="no scenes in it; make them with contextdesc dataset build"):
        find_scenes(tmp_path)
    strict = ScenePairConfig(rules=PairRules(min_shared=100_000))
    with pytest.raises(InputError, match="no pair of its images passes the rules"):
        build_scene_pairs([made.images.parent], Cache(tmp_path), strict)
    made.save(tmp_path / "scenes" / "one")

    def start(**options: object) -> None:
        config = StageConfig(stage="local", steps=1, **options)  # type: ignore[arg-type]
        train(config, tmp_path / "run", Cache(tmp_path / "cache"), log=lambda line: None)

    with pytest.raises(InputError, match="nothing to train on: give 'photos', 'scenes' or both"):
        start()
    with pytest.raises(InputError, match="no scene called two, which is to be held out"):
        start(scenes=str(tmp_path / "scenes"), held_out_scenes=("two",))
    with pytest.raises(InputError, match="all of its scenes are held out"):
        start(scenes=str(tmp_path / "scenes"), held_out_scenes=("one",))


@pytest.mark.data
def test_photographs_of_a_real_scene_correspond(data: Path) -> None:
    scene = Scene.load(data / "train" / "scenes" / "lund_chalmers_4")
    first, second = scene.select_pairs(PairRules(min_shared=200))[0]
    pair = scene_pair(
        scene, int(first), int(second), np.random.default_rng(0), ScenePairConfig(keypoints=512)
    )
    assert pair.count > 100
    assert_patches_correspond(pair)
