"""The verdict: a probability that grows with the evidence, thresholds that are named, no guess without it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contextdesc.detection import Detector
from contextdesc.features import Features
from contextdesc.geometry import Verification, intrinsics, verify
from contextdesc.image import Image
from contextdesc.keypoints import Keypoints
from contextdesc.matching import Matches, match
from contextdesc.model import load
from contextdesc.modelfile import packaged_models, read_spec, resolve
from contextdesc.verdict import (
    CALIBRATIONS,
    FEATURES,
    GENERAL,
    LIMIT,
    Judgement,
    PairFacts,
    calibration_of,
    measure,
)

GEOMETRIES = ("fundamental", "homography", "essential")
SIZE = (640, 480)
K = intrinsics(SIZE, 500)


def plane(good: int, bad: int, model: str = "m", checksum: str = "c") -> tuple[Features, Features, Matches]:
    """A plane seen twice, `good` matches on it and `bad` random ones, among 1000 keypoints."""
    rng = np.random.default_rng(good)
    one = rng.uniform(0, 480, (1000, 2))
    two = np.vstack(
        [one[:good] * 0.9 + [20, 15] + rng.normal(0, 0.3, (good, 2)), rng.uniform(0, 480, (1000 - good, 2))]
    )
    rows = np.arange(good + bad)
    matches = Matches(np.column_stack([rows, rows]), np.ones(len(rows), np.float32))
    first, second = (
        Features(Keypoints.from_array(xy), np.zeros((1000, 128), np.float32), SIZE, model, checksum)
        for xy in (one, two)
    )
    return first, second, matches


def verified(good: int, bad: int, geometry: str = "fundamental", **source: str) -> Verification:
    return verify(*plane(good, bad, **source), geometry, intrinsics=(K, K))  # type: ignore[arg-type]


def _measured(result: Verification) -> np.ndarray:
    return measure(result.geometry, result.points, result.inliers, result.errors, result.facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("probability", "answer"),
    [(0.95, "same scene"), (0.949, "unsure"), (0.2, "unsure"), (0.199, "different scenes"), (None, "unsure")],
)
def test_thresholds_are_where_they_are_named(probability: float | None, answer: str) -> None:
    assert Judgement(probability, 0.95, 0.2).answer == answer


def test_a_judgement_names_its_thresholds() -> None:
    known, unknown = Judgement(0.9876, 0.95, 0.2), Judgement(None, 0.95, 0.2)
    assert str(known) == "same scene (probability 0.988; same from 0.95, different below 0.2)"
    assert str(unknown) == "unsure (too few keypoints to tell; same from 0.95, different below 0.2)"


def test_every_packaged_model_is_calibrated_with_its_very_weights() -> None:
    """After a change of weights: scripts/calibrate_verdict.py."""
    stored = json.loads(CALIBRATIONS.read_text(encoding="utf-8"))
    assert set(stored) == {GENERAL, *packaged_models()}
    for name in packaged_models():
        assert stored[name]["checksum"] == read_spec(resolve(name))[1]
    for entry in stored.values():
        assert set(entry["geometries"]) == set(GEOMETRIES)
        for values in entry["geometries"].values():
            assert tuple(values["coefficients"]) == FEATURES
            assert 0 < values["different_below"] <= 0.5 <= values["same_from"] < 1


def test_other_weights_of_a_known_name_get_the_general_calibration() -> None:
    checksum = read_spec(resolve("contextdesc"))[1]
    own = calibration_of("contextdesc", checksum, "fundamental")
    general = calibration_of("someone's", checksum, "fundamental")
    assert own != general
    assert calibration_of("contextdesc", "0" * 16, "fundamental") == general


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_probability_grows_with_the_evidence(geometry: str) -> None:
    found = [verified(good, 40, geometry).probability for good in (0, 20, 60, 300)]
    assert all(p is not None and LIMIT <= p <= 1 - LIMIT for p in found)
    assert found == sorted(found)  # type: ignore[type-var]
    assert found[0] < 0.5  # type: ignore[operator]
    assert found[-1] > 0.95  # type: ignore[operator]


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_no_match_is_a_different_scene_and_no_keypoint_is_unsure(geometry: str) -> None:
    assert verified(0, 0, geometry).verdict == "different scenes"
    first, second, _ = plane(0, 0)
    nothing = Features(Keypoints.empty(), np.zeros((0, 128), np.float32), SIZE, "m", "c")
    none = Matches(np.zeros((0, 2), np.int64), np.zeros(0, np.float32))
    for pair in ((nothing, second), (first, nothing), (nothing, nothing)):
        result = verify(*pair, none, geometry, intrinsics=(K, K))  # type: ignore[arg-type]
        assert (result.probability, result.verdict) == (None, "unsure")


def test_features_without_an_image_size_give_no_probability() -> None:
    first, second, matches = plane(60, 0)
    result = verify(replace(first, image_size=(0, 0)), second, matches)
    assert result.inlier_count > 50
    assert (result.probability, result.verdict) == (None, "unsure")


def test_keypoints_without_orientation_and_size_prove_less() -> None:
    """`plane` has none: its matches count as alike only as often as chance has it."""
    first, second, matches = plane(60, 0)
    rng = np.random.default_rng(0)
    angle, size = rng.uniform(0, 360, 1000).astype(np.float32), rng.uniform(2, 20, 1000).astype(np.float32)
    oriented = [replace(f, keypoints=replace(f.keypoints, angle=angle, size=size)) for f in (first, second)]
    results = [verify(*pair, matches) for pair in ((first, second), oriented)]
    alike = [dict(zip(FEATURES, _measured(result), strict=True))["alike"] for result in results]
    assert alike[0] < alike[1] == pytest.approx(np.log(58), abs=0.1)


def test_a_mirror_is_no_evidence() -> None:
    first, second, matches = plane(60, 0)
    mirrored = second.keypoints.xy * [-1, 1] + [639, 0]
    image = replace(second, keypoints=Keypoints.from_array(mirrored))
    results = [verify(first, other, matches) for other in (second, image)]
    assert min(result.inlier_count for result in results) > 50
    found = [dict(zip(FEATURES, _measured(result), strict=True)) for result in results]
    expected = [pytest.approx(np.log(count / 1020), abs=0.1) for count in (61, 1)]
    assert [f["inlier share"] for f in found] == expected
    assert results[1].verdict != "same scene"


def test_a_verification_without_facts_has_no_opinion() -> None:
    bare = Verification("fundamental", None, np.zeros((0, 2, 2), np.float32), np.zeros(0, np.bool_))
    assert (bare.judgement, bare.probability, bare.verdict) == (None, None, "unsure")


def test_evidence_is_what_it_says() -> None:
    corners = np.array([[0, 0], [320, 0], [320, 240], [0, 240], [100, 100]], np.float32)
    points = np.stack([np.vstack([corners, [[600, 400]]]), np.vstack([corners, [[10, 10]]])], 1)
    inliers = np.array([True] * 5 + [False])
    errors = np.array([0.1, 0.2, 0.5, 0.6, 0.7, 90], np.float32)
    turns = np.array([350, 10, 5, 0, 90, 0], np.float32)
    scales = np.array([0, 0.1, 0.2, 3, 0, 0], np.float32)
    facts = PairFacts((SIZE, SIZE), (100, 50), "m", "c", 2.0, turns, scales)
    found = dict(zip(FEATURES, measure("homography", points, inliers, errors, facts), strict=True))
    assert found == {
        "inlier share": pytest.approx(np.log(6 / 70)),
        "inlier ratio": pytest.approx(1 / 11),  # a homography explains any four
        "alike": 0.0,  # three may be chance
        "spread": pytest.approx(0.5),
        "closeness": pytest.approx(0.75),
    }


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_errors_are_in_pixels_and_tell_inliers_apart(geometry: str) -> None:
    result = verified(200, 100, geometry)
    assert result.errors is not None
    assert result.errors[result.inliers].max() <= 2.5
    assert np.median(result.errors[:200]) < 1
    assert np.median(result.errors[200:]) > 5


def test_photographs(photo: Image) -> None:
    """Two windows of one photograph; two photographs; a photograph and its mirror image."""
    from skimage.data import coffee

    model = load("sift-context", detector=Detector(1000), threads=1)
    first, second, other, mirrored = (
        model.extract(np.ascontiguousarray(rgb))
        for rgb in (photo.rgb[:, :400], photo.rgb[50:, 100:], coffee(), photo.rgb[:, ::-1])
    )
    answers = {
        name: verify(first, features, match(first, features))
        for name, features in (("second", second), ("other", other), ("mirrored", mirrored))
    }
    assert answers["second"].verdict == "same scene"
    assert answers["second"].probability >= 0.99  # type: ignore[operator]
    for name in ("other", "mirrored"):
        assert answers[name].verdict != "same scene"
        assert answers[name].probability < 0.5  # type: ignore[operator]


def test_every_feature_counts_and_is_on_the_page() -> None:
    page = (Path(__file__).parent.parent / "docs" / "verdict.md").read_text(encoding="utf-8")
    assert all(f"\n| {feature} | " in page for feature in FEATURES)
    stored = json.loads(CALIBRATIONS.read_text(encoding="utf-8"))
    for entry in stored.values():
        for geometry in entry["geometries"].values():
            coefficients = geometry["coefficients"]
            assert all(coefficients[feature] for feature in FEATURES)
            assert min(coefficients[feature] for feature in ("inlier share", "inlier ratio", "alike")) > 0
