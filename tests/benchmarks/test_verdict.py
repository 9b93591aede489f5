"""Calibration of the verdict: fits that recover what made the data, and pairs whose answer is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contextdesc.benchmarks import verdict as v
from contextdesc.benchmarks import verdict_pairs as vp
from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.geometry import Geometry
from contextdesc.image import Image, find_images
from contextdesc.model import ContextDesc, load
from contextdesc.modelfile import packaged_models, read_spec, resolve, write_spec
from contextdesc.training.data.scenes import Scene
from contextdesc.verdict import calibration_of

NO_TRACKS = np.zeros((0, 2), np.float32), np.zeros(0, np.int32)


def evidence(features: np.ndarray, same: np.ndarray, groups: list[list[str]]) -> v.Evidence:
    kind = np.where(same, "whole images", "two scenes")
    counts = np.zeros(len(same), np.int64)
    return v.Evidence(
        dict.fromkeys(v.GEOMETRIES, features),
        dict.fromkeys(v.GEOMETRIES, counts),
        same,
        kind,
        np.array(groups),
    )


def simulated(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, answers and their true probability: logit 3 x + y, half of the answers `same`."""
    rng = np.random.default_rng(seed)
    features = rng.normal(0, 1, (count, 2))
    true = 1 / (1 + np.exp(-(features @ [3.0, 1.0])))
    return features, rng.random(count) < true, true


def test_a_fit_recovers_what_made_the_data() -> None:
    features, same, true = simulated(20_000)
    fitted = v.fit(features, same, np.ones(len(same)))
    assert fitted.coefficients == pytest.approx((3.0, 1.0), rel=0.06)
    assert np.abs(fitted.probability(features) - true).mean() < 0.01


def test_the_prior_is_even_whatever_the_numbers_of_pairs() -> None:
    features, same, true = simulated(40_000)
    kept = same | (np.arange(len(same)) % 10 == 0)  # ten times as many of the same thing
    fitted = v.fit(features[kept], same[kept], np.ones(kept.sum()))
    assert np.abs(fitted.probability(features) - true).mean() < 0.02


def test_separable_pairs_have_a_finite_fit() -> None:
    features = np.array([[0.0], [1], [2], [10], [11], [12]])
    same = features[:, 0] > 5
    fitted = v.fit(features, same, np.ones(6))
    assert np.isfinite(fitted.coefficients).all()
    assert (fitted.probability(features) > 0.5).tolist() == same.tolist()
    with pytest.raises(InputError, match="pairs of the same thing and on pairs of different things"):
        v.fit(features, same | True, np.ones(6))


def test_thresholds_keep_the_stated_error_rates() -> None:
    _, same, true = simulated(50_000)
    weights = np.ones(len(same))
    same_from, different_below = v.thresholds(true, same, weights)
    assert 0 < different_below <= 0.5 <= same_from < 1
    assert (true[~same] >= same_from).mean() <= v.SAME_AT_MOST
    assert (true[~same] >= same_from - 0.01).mean() > v.SAME_AT_MOST
    assert (true[same] < different_below).mean() <= v.DIFFERENT_AT_MOST
    assert different_below == pytest.approx(1 - v.SURE)  # the rate alone would allow more
    worse = true**3  # says less for pairs of the same thing
    lower = v.thresholds(worse, same, weights)[1]
    assert (worse[same] < lower).mean() <= v.DIFFERENT_AT_MOST < (worse[same] < lower + 0.01).mean()


def test_error_rates_are_of_fits_that_never_saw_the_scene() -> None:
    """Two scenes agree and the third contradicts them: held out, it is judged by the other two alone."""
    x = np.tile([0.0, 1.0], 90)
    scene = np.repeat(["a", "b", "c"], 60)
    same = np.where(scene == "c", x == 0, x == 1)
    found = v.cross_validated(evidence(x[:, None], same, [[s, s] for s in scene]), "fundamental")
    odd = scene == "c"
    assert (found.held_out[odd & same] < 0.1).all()
    assert (found.held_out[odd & ~same] > 0.9).all()
    assert v.cross_validated(
        evidence(x[:, None], x == 1, [[s, s] for s in scene]), "fundamental"
    ).held_out[x == 1].min() > 0.9  # fmt: skip


def test_a_pair_of_two_scenes_is_held_out_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [["a", "a"], ["b", "b"], ["a", "b"], ["c", "c"], ["c", "d"], ["d", "d"], ["a", "d"]]
    same = np.array([True, True, False, True, False, True, False])
    fitted_on: list[set[float]] = []
    fit = v.fit

    def recorded(features, answers, weights):
        fitted_on.append(set(features[:, 0].tolist()))
        return fit(features, answers, weights) if answers.any() and not answers.all() else fit(x, same, w)

    x, w = np.arange(7.0)[:, None], np.ones(7)
    monkeypatch.setattr(v, "fit", recorded)
    v.cross_validated(evidence(x, same, groups), "fundamental")
    assert {3.0, 4.0, 5.0} in fitted_on  # for the pair of a and b: what touches neither
    assert fitted_on[-1] == set(range(7))


def test_both_answers_weigh_half() -> None:
    same = np.array([True] * 8 + [False] * 3)
    pairs = evidence(np.zeros((11, 1)), same, [["a", "a"]] * 6 + [["b", "b"]] * 2 + [["a", "b"]] * 3)
    pairs = replace(pairs, kind=np.array(["whole images"] * 8 + ["two scenes", "two scenes", "two halves"]))
    weights = pairs.weights()
    assert weights[same].sum() == pytest.approx(0.5)
    assert weights[~same].sum() == pytest.approx(0.5)
    assert weights[:6].sum() == pytest.approx(weights[6:8].sum())
    assert weights[8:10].sum() / weights[10] == pytest.approx(v.SHARES["two scenes"] / v.SHARES["two halves"])


def test_reliability_of_true_probabilities_is_a_diagonal() -> None:
    _, same, true = simulated(50_000)
    table = v.reliability(true, same, np.ones(len(same)))
    assert sum(row["pairs"] for row in table) == 50_000
    assert v.calibration_error(table) < 0.01
    assert v.calibration_error(v.reliability(np.sqrt(true), same, np.ones(len(same)))) > 0.05


def test_rates_count_answers() -> None:
    same = np.array([True, True, False, False])
    pairs = evidence(np.zeros((4, 1)), same, [["a", "a"], ["b", "b"], ["a", "b"], ["a", "b"]])
    answers = v.answers(np.array([0.95, 0.5, 0.05, 0.9]), 0.9, 0.1)
    assert answers.tolist() == ["same scene", "unsure", "different scenes", "same scene"]
    table = v.rates(pairs, answers)
    assert table["same: all, weighted"] == {
        "pairs": 2, "same scene": 0.5, "unsure": 0.5, "different scenes": 0.0,
    }  # fmt: skip
    assert table["different: two scenes"] == {
        "pairs": 2, "same scene": 0.5, "unsure": 0.0, "different scenes": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["whole", "changed", "mirrored", "left", "right"])
def test_a_view_knows_where_its_pixels_were(photo_folder: Path, kind: vp.Kind) -> None:
    """A mark in the image is where `to_view` says, and tracks outside of the view are not seen."""
    source = photo_folder / "a" / "00.png"
    x, y = np.meshgrid(np.arange(4, 320, 8), np.arange(4, 250, 8))
    xy = np.column_stack([x.ravel(), y.ravel()]).astype(np.float32)
    view = vp.make_view("s", source, kind, 300.0, xy, np.arange(len(xy), dtype=np.int32))
    placed = xy[view.seen] @ view.to_view[:, :2].T + view.to_view[:, 2]
    column, row = np.rint(placed).astype(int).T
    original = vp.make_view("s", source, "whole", None, *NO_TRACKS).image
    here, there = (
        view.image.gray[row, column],
        original.gray[xy[view.seen, 1].astype(int), xy[view.seen, 0].astype(int)],
    )
    assert len(here) > 100
    assert np.corrcoef(here, there)[0, 1] > 0.7
    if kind in ("left", "right"):
        assert len(view.seen) == pytest.approx(0.45 * len(xy), rel=0.05)


def test_the_halves_of_an_image_share_no_pixel(photo_folder: Path) -> None:
    left, right = (
        vp.make_view("s", photo_folder / "a" / "00.png", kind, None, *NO_TRACKS) for kind in ("left", "right")
    )
    assert -right.to_view[0, 2] - left.image.size[0] >= 0.1 * 320 - 1


@pytest.fixture(scope="module")
def data_folder(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of a coffee and a cat; two scenes: windows of a photograph, its keypoints as tracks."""
    import cv2
    from skimage import data

    folder = tmp_path_factory.mktemp("data")
    (folder / "photos").symlink_to(photo_folder)
    for name, rgb in (("face", data.astronaut()), ("rocket", data.rocket()[100:, 150:])):
        images = folder / "scenes" / name / "images"
        images.mkdir(parents=True)
        keypoints = detect(Image(rgb, rgb.shape[1::-1], name).gray, Detector(400, contrast=0.02))
        rows = []
        for number, (left, top) in enumerate([(0, 0), (30, 20), (60, 0)]):
            crop = np.ascontiguousarray(rgb[top : top + 270, left : left + 380])
            cv2.imwrite(str(images / f"{number}.png"), cv2.cvtColor(crop, cv2.COLOR_RGB2BGR))
            xy = keypoints.xy - [left, top]
            inside = np.flatnonzero(((xy >= 0) & (xy < [379, 269])).all(1))
            rows += [(number, *xy[i], keypoints.size[i], keypoints.angle[i], i) for i in inside]
        image, x, y, scale, angle, track = (np.array(column) for column in zip(*rows, strict=True))
        camera = np.array([[300, 0, 190], [0, 300, 135], [0, 0, 1]], np.float32)
        Scene(
            images, ("0.png", "1.png", "2.png"), np.stack([camera] * 3),
            np.stack([np.eye(3, dtype=np.float32)] * 3), np.zeros((3, 3), np.float32),
            np.array([[380, 270]] * 3, np.int32), image.astype(np.int16),
            np.column_stack([x, y]).astype(np.float32), scale, angle, track.astype(np.int32),
            np.ones((len(keypoints), 3), np.float32),
        ).save(folder / "scenes" / name)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def model(rootsift_model: Path, tmp_path_factory: pytest.TempPathFactory) -> ContextDesc:
    """A model that says what it was not trained on; its context is random, so it is left out."""
    folder = tmp_path_factory.mktemp("told")
    for file in rootsift_model.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "model.json").unlink()
    spec, _ = read_spec(rootsift_model)
    write_spec(folder, replace(spec, training={"held_out": 3, "held_out_scenes": ["face", "rocket"]}))
    return load(folder, context="none")


SMALL = vp.Size(scene_images=3, halved=1, photos=2, random_pairs=6, hard_pairs=3)


def test_pairs_of_held_out_images_are_collected_and_fitted(
    model: ContextDesc, data_folder: Path, tmp_path: Path
) -> None:
    prepared = vp.prepare(model, data_folder, tmp_path, SMALL)
    names = [view.name for view in prepared.views]
    held_out = [path.name for path in find_images([data_folder / "photos"]).values()][-2:]
    assert {name.split("/")[1].split(":")[0] for name in names if name.startswith("photos")} == set(held_out)
    found = vp.collect(prepared)
    kinds = set(found.kind[~found.same].tolist())
    assert kinds | {v.CHANCE} == set(v.SHARES)
    assert set(found.groups[found.same].ravel().tolist()) == {"face", "rocket"}
    assert (found.groups[found.same, 0] == found.groups[found.same, 1]).all()
    inliers = found.inliers["fundamental"]
    assert np.median(inliers[found.same & (found.kind == "whole images")]) > 50
    assert np.median(inliers[found.kind == "two scenes"]) < 20
    calibration = v.fit(found.features["fundamental"], found.same, found.weights())
    probability = calibration.probability(found.features["fundamental"])
    assert probability[found.same].mean() > 0.65  # the ridge weighs as much as a few of so few pairs
    assert probability[~found.same & (found.weights() > 0)].mean() < 0.35  # mirror images are not fitted
    again = vp.prepare(model, data_folder, tmp_path, SMALL)  # out of the cache
    assert np.array_equal(again.bases[0].raw, prepared.bases[0].raw)
    rows = vp.turning(prepared, pairs=2)
    assert [row["turned"] for row in rows] == [0, 90, 180, 270]
    assert rows[0]["inliers, none"] == rows[0]["inliers, auto"] > 50
    assert rows[0]["turns tried"] == 1


def test_what_was_trained_on_is_refused(rootsift_model: Path, data_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="lacks anything that rootsift was not trained on"):
        vp.prepare(load(rootsift_model), data_folder, tmp_path, SMALL)


@pytest.mark.parametrize("geometry", v.GEOMETRIES)
def test_no_packaged_verdict_takes_random_matches_for_a_scene(geometry: Geometry) -> None:
    features = vp.by_chance(40, seed=1).features[geometry]  # another draw than the one that was fitted
    for name in packaged_models():
        found = calibration_of(name, read_spec(resolve(name))[1], geometry)
        assert found.probability(features).max() < found.same_from
