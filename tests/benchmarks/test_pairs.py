"""Relative pose: errors, mAP and AUC worked out by hand, and a rendered scene of known cameras."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from contextdesc.benchmarks import pairs
from contextdesc.benchmarks.cameras import Camera, pose_error, relative_pose, rotation_angle, similarity
from contextdesc.benchmarks.methods import build_methods
from contextdesc.benchmarks.pose_scores import area_under_curve, interval, mean_precision, median
from contextdesc.benchmarks.protocol import Request
from contextdesc.errors import InputError
from tests.benchmarks.strecha import write_strecha
from tests.cli.test_cli import run
from tests.training.test_scenes import views


def turn(degrees: float, axis: tuple[float, float, float] = (0, 0, 1)) -> np.ndarray:
    return cv2.Rodrigues(np.deg2rad(degrees) * np.array(axis, float))[0]


def test_pose_errors_by_hand() -> None:
    """The larger of the two angles counts, and the sign of the translation does not."""
    true = np.eye(3), np.array([2.0, 0, 0])
    sideways = turn(30) @ [1, 0, 0]
    assert pose_error((turn(10), sideways), true) == pytest.approx(30)
    assert pose_error((turn(40), sideways), true) == pytest.approx(40)
    assert pose_error((turn(10), -sideways), true) == pytest.approx(30)
    assert pose_error((np.eye(3), np.array([-1.0, 0, 0])), true) == 0
    assert pose_error((np.eye(3), np.array([0.0, 1, 0])), true) == pytest.approx(90)
    assert pose_error(None, true) == np.inf
    axes_in_turn = np.array([[0.0, 0, 1], [1, 0, 0], [0, 1, 0]])  # x to y to z: a third of a full turn
    assert rotation_angle(np.eye(3), axes_in_turn) == pytest.approx(120)


def test_relative_pose_by_hand() -> None:
    """The second camera stands one unit to the right of the first, which looks along the world's x axis."""
    look = turn(-90, (0, 1, 0))  # takes the world's x axis to the camera's z axis
    np.testing.assert_allclose(look @ [1, 0, 0], [0, 0, 1], atol=1e-12)
    right = look.T @ [1, 0, 0]
    first = Camera(np.eye(3), look, np.zeros(3))
    second = Camera(np.eye(3), look, -look @ right)
    rotation, translation = relative_pose(first, second)
    np.testing.assert_allclose(rotation, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(translation, [-1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(second.centre, right, atol=1e-12)


def test_similarity_by_hand() -> None:
    """Points that were turned by 90 degrees, doubled and moved by (5, 0, 0)."""
    points = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    target = 2 * points @ turn(90).T + [5, 0, 0]
    scale, rotation, shift = similarity(points, target)
    assert scale == pytest.approx(2)
    np.testing.assert_allclose(rotation, turn(90), atol=1e-12)
    np.testing.assert_allclose(shift, [5, 0, 0], atol=1e-12)


def test_mean_precision_by_hand() -> None:
    """Below 5 degrees: 1 of 4 (5 itself is not below); below 10: 2; below 15 and 20: 3."""
    errors = np.array([5.0, np.inf, 4.9, 12])
    assert mean_precision(errors, 5) == 25
    assert mean_precision(errors, 10) == 37.5
    assert mean_precision(errors, 15) == 50
    assert mean_precision(errors, 20) == 56.25


def test_area_under_the_curve_by_hand() -> None:
    """Lines through (0, 0), (1, 1/4), (2, 1/2), then level up to 5.

    1/8 up to 1, 3/8 between 1 and 2, 3/2 between 2 and 5: 2 of 5.
    """
    errors = np.array([8.0, 2, np.inf, 1])
    assert area_under_curve(errors, 5) == pytest.approx(40)
    # up to 10 also (8, 3/4): the line from 2 to 8 has 6 * 5/8, level 2 * 3/4; 1/2 + 15/4 + 3/2 of 10
    assert area_under_curve(errors, 10) == pytest.approx(57.5)
    assert area_under_curve(np.array([5.0, np.inf]), 5) == 0
    assert area_under_curve(np.zeros(3), 5) == 100
    many = np.random.default_rng(0).exponential(8, (3, 50))
    for row, found in zip(many, area_under_curve(many, 20), strict=True):
        below = np.sort(row[row < 20])
        x = np.concatenate([[0], below, [20]])
        y = np.concatenate([np.arange(len(below) + 1), [len(below)]]) / 50
        assert found == pytest.approx(100 * np.trapezoid(y, x) / 20)


def test_intervals_are_over_pairs() -> None:
    """Of two pairs with 10 and 30 inliers, resamples have medians 10, 20 and 30."""
    found = interval(median, np.array([10.0, 30]))
    assert (found.mean, found.low, found.high) == (20, 10, 30)
    gain = interval(median, np.array([10.0, 30]), np.array([8.0, 28]))
    assert (gain.mean, gain.low, gain.high) == (2, 2, 2)  # paired: always the same pairs
    with pytest.raises(InputError, match="no pairs"):
        interval(median, np.zeros(0))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two scenes in Strecha's layout, three views and two."""
    folder = tmp_path_factory.mktemp("strecha")
    write_strecha(views(3), folder / "three")
    write_strecha(views(5)[1:3], folder / "two")
    return folder


def test_poses_of_a_rendered_scene(scenes: Path) -> None:
    report = pairs.run(Request(scenes, build_methods("sift,rootsift"), baseline="sift"))
    numbers = report.numbers
    assert numbers["pairs"] == 4
    assert report.skipped == {}
    for method in ("sift", "rootsift"):
        scores = numbers["scores"][method]
        assert max(scores["ratio"]["error"]) < 3
        assert min(scores["ratio"]["inliers"]) > 40
        assert min(scores["nearest"]["matches"]) > max(scores["ratio"]["matches"])
        of = numbers["summary"][method]["ratio"]
        assert of["mAP 5°"]["mean"] == of["mAP 20°"]["mean"] == 100
        assert of["median inliers"]["mean"] == np.median(scores["ratio"]["inliers"])
        assert 40 < of["AUC 5°"]["mean"] <= of["AUC 10°"]["mean"] <= of["AUC 20°"]["mean"] <= 100
    gain = numbers["difference"]["rootsift"]["ratio"]["median inliers"]["mean"]
    medians = [numbers["summary"][m]["ratio"]["median inliers"]["mean"] for m in ("rootsift", "sift")]
    assert gain == medians[0] - medians[1]
    assert "| three | sift | ratio test |" in report.markdown
    lines = report.curves[1].lines["sift"]
    assert lines[-1] == (32, 100)
    assert json.loads(report.json)["scores"]["pair"][0] == "three/000.png - three/001.png"


def test_mutual_matches_are_fewer(scenes: Path) -> None:
    one_way, mutual = (
        pairs.run(Request(scenes, build_methods("sift"), settings=settings, limit=2))
        for settings in ({}, {"mutual": True})
    )
    assert "mutual nearest neighbours" in mutual.about
    assert "one-way nearest neighbours" in one_way.about
    for kind in ("nearest", "ratio"):
        few, many = (report.numbers["scores"]["sift"][kind]["matches"] for report in (mutual, one_way))
        assert (np.array(few) < many).all()
    assert max(mutual.numbers["scores"]["sift"]["ratio"]["error"]) < 3


def test_only_named_scenes_are_scored(scenes: Path) -> None:
    report = pairs.run(Request(scenes, build_methods("sift"), settings={"scenes": "two"}))
    assert report.numbers["scores"]["pair"] == ["two/000.png - two/001.png"]


def test_a_broken_pair_is_named_and_skipped(scenes: Path, tmp_path: Path) -> None:
    for path in (scenes / "three").rglob("*.*"):
        target = tmp_path / "three" / path.relative_to(scenes / "three")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    (tmp_path / "three" / "images" / "002.png").write_bytes(b"no picture")
    (tmp_path / "three" / "images" / "001.png").unlink()
    out = run("benchmark", "pairs", "--data", tmp_path, "--methods", "sift", "--no-cache", "--workers", "1")
    assert out.returncode == 2
    assert "no pairs could be used; the first: " in out.stderr
    (tmp_path / "three" / "images" / "001.png").write_bytes((scenes / "three/images/001.png").read_bytes())
    out = run(
        "benchmark", "pairs", "--data", tmp_path, "--methods", "sift", "--json", "--no-cache",
        "--set", "max-keypoints=500", "--workers", "1",
    )  # fmt: skip
    assert out.returncode == 0, out.stderr
    numbers = json.loads(out.stdout)
    assert numbers["pairs"] == 1
    assert numbers["detector"]["max_keypoints"] == 500
    assert set(numbers["skipped"]) == {
        "three/000.png - three/002.png", "three/001.png - three/002.png",
    }  # fmt: skip


def test_no_keypoints_is_a_pair_without_pose(tmp_path: Path) -> None:
    write_strecha(views(2), tmp_path / "blank")
    for path in (tmp_path / "blank" / "images").iterdir():
        cv2.imwrite(str(path), np.full((480, 640, 3), 90, np.uint8))
    numbers = pairs.run(Request(tmp_path, build_methods("rootsift"))).numbers
    assert numbers["scores"]["rootsift"]["ratio"] == {"matches": [0], "inliers": [0], "error": [None]}
    assert numbers["summary"]["rootsift"]["ratio"]["AUC 20°"]["mean"] == 0


def test_a_limit_spreads_over_the_list(scenes: Path) -> None:
    found = pairs.run(Request(scenes, build_methods("rootsift"), limit=2)).numbers["scores"]["pair"]
    assert found == ["three/000.png - three/001.png", "two/000.png - two/001.png"]


@pytest.mark.data
def test_real_photographs_of_an_entry(data: Path) -> None:
    """Five of the 45 pairs of Strecha's entry-P10, from neighbours to the widest: most poses are found."""
    scene = data / "eval" / "strecha" / "entry-P10"
    numbers = pairs.run(Request(scene, build_methods("rootsift"), limit=5)).numbers
    errors = numbers["scores"]["rootsift"]["ratio"]["error"]
    assert len(errors) == 5
    assert np.median(errors) < 5
