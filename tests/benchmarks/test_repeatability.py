"""Repeatability: partners worked out by hand, a photograph that moves, and what stands in for detectors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from contextdesc.benchmarks import repeatability
from contextdesc.benchmarks.methods import build_method, build_methods
from contextdesc.benchmarks.protocol import Request
from contextdesc.benchmarks.repeatability import (
    RANDOM,
    distinct,
    kinds,
    partner_distances,
    score_pair,
    shared_area,
)
from contextdesc.errors import InputError
from contextdesc.keypoints import Keypoints
from tests.cli.test_cli import run

SAME, TWICE = np.eye(3), np.diag([2.0, 2.0, 1.0])


def points(*rows: tuple[float, float]) -> np.ndarray:
    return np.array(rows, np.float32).reshape(-1, 2)


def test_partners_by_hand() -> None:
    """(10, 10) takes (11, 10), the nearer; (12, 10) then has nobody left within 5 pixels."""
    first = points((10, 10), (20, 10), (50, 50))
    second = points((12, 10), (11, 10), (50, 52), (90, 90))
    assert partner_distances(first, second, SAME, 5).tolist() == [1, 2]
    assert partner_distances(second, first, SAME, 5).tolist() == [1, 2]
    assert partner_distances(first, second, SAME, 1.5).tolist() == [1]
    assert partner_distances(first, points(), SAME, 5).tolist() == []
    assert partner_distances(points(), second, SAME, 5).tolist() == []


def test_distances_hold_in_both_images() -> None:
    """Under a zoom by 2, (10, 10) belongs to (20, 20): (24, 20) is 4 pixels off there and 2 here."""
    assert partner_distances(points((10, 10)), points((24, 20)), TWICE, 5).tolist() == [4]
    assert partner_distances(points((24, 20)), points((10, 10)), np.linalg.inv(TWICE), 5).tolist() == [4]


def test_the_shared_area_by_hand() -> None:
    """A zoom by 2 between images of 100 x 80 pixels: the second shows x up to 49.5 and y up to 39.5."""
    first = points((49.5, 39.5), (50, 10), (10, 40), (0, 0))
    second = points((99, 79), (0, 0), (-1, 5))
    seen = shared_area(first, second, TWICE, ((100, 80), (100, 80)))
    assert seen[0].tolist() == [True, False, False, True]
    assert seen[1].tolist() == [True, True, False]


def test_scores_of_a_pair_by_hand() -> None:
    """Three and four keypoints of the shared area, one more outside of it.

    Partners are at 1 and 2 pixels: 2 of 7 keypoints are repeated within 1 pixel, 4 of 7 within 2 and more.
    By their descriptors the first and the third match; both are right, so 4 of 7 match as well. With the
    second descriptor of the second image exchanged for the last, one of them is wrong.
    """
    axes = np.eye(8, dtype=np.float32)
    first = ((100, 100), points((10, 10), (20, 10), (50, 50)), axes[:3])
    second = ((100, 100), points((12, 10), (11, 10), (50, 52), (90, 90), (200, 200)), axes[[3, 0, 2, 4, 1]])
    method = build_method("sift")
    found = score_pair([first, second], SAME, method)
    assert found.repeatability[-1] == pytest.approx([200 / 7, 400 / 7, 400 / 7, 400 / 7, 400 / 7])
    assert found.matching == pytest.approx([400 / 7] * 3)
    exchanged = (*second[:2], axes[[3, 4, 2, 0, 1]])
    assert score_pair([first, exchanged], SAME, method).matching == pytest.approx([200 / 7] * 3)
    nothing = ((100, 100), points(), axes[:0])
    empty = score_pair([first, nothing], SAME, method)
    assert empty.repeatability == [[0.0] * 5] * 3
    assert empty.matching == [0.0] * 3


def test_orientations_of_one_place_are_one_detection() -> None:
    response = np.array([1, 3, 2, 3], np.float32)
    xy = points((1, 1), (2, 2), (2, 2), (3, 3))
    found = distinct(Keypoints(xy, np.ones(4, np.float32), np.arange(4, dtype=np.float32), response))
    assert found.xy.tolist() == [[2, 2], [3, 3], [1, 1]]
    assert found.angle.tolist() == [1, 3, 0]  # the stronger of the two


def test_kinds_of_sequences() -> None:
    assert kinds(["graf", "v_a"]) == {"all": ["graf", "v_a"]}
    assert kinds(["i_a", "v_b", "i_c"]) == {"illumination": ["i_a", "i_c"], "viewpoint": ["v_b"]}
    assert kinds(["v_b"]) == {"viewpoint": ["v_b"]}


def test_a_photograph_that_moves(scene: Path, small_model: Path) -> None:
    """Both detectors move with the image by 4 pixels a step, random places do not."""
    methods = build_methods(f"sift,rootsift,{small_model}", threads=1)
    report = repeatability.run(Request(scene.parent, methods, baseline="rootsift"))
    dense = f"{small_model}, matchability"
    of = report.numbers["summary"]["all"]
    assert list(of) == ["sift", dense, RANDOM]  # RootSIFT's detector is SIFT
    assert of["sift"]["repeatability, 512"]["mean"] > 90
    assert of[dense]["repeatability, 512"]["mean"] > 70  # scores depend on the whole image, which changes
    assert of[RANDOM]["repeatability, 512"]["mean"] < 30
    assert of["sift"]["matching, 2048"]["mean"] > 70
    assert of[RANDOM]["matching, 2048"]["mean"] < 50  # so many places that some are near each other
    curve = [share for _, share in report.curves[0].lines["sift"]]
    assert curve == sorted(curve)
    assert f"| {dense} | 1 all |" in report.markdown
    assert "**Difference from sift, paired, with 95 % intervals**" in report.markdown


def test_broken_sequences_and_models(scene: Path, rootsift_model: Path) -> None:
    other = scene.parent / "broken"
    other.mkdir()
    (other / "H1to2p").write_text("no numbers")
    out = run(
        "benchmark", "repeatability", "--data", scene.parent, "--methods", "sift", "--json", "--workers", "1"
    )
    assert out.returncode == 0, out.stderr
    assert list(json.loads(out.stdout)["skipped"]) == ["broken"]
    with pytest.raises(InputError, match="rootsift has no patch network"):
        repeatability.run(Request(scene.parent, build_methods(str(rootsift_model))))
    with pytest.raises(InputError, match="no sequences in the Oxford affine layout"):
        repeatability.run(Request(scene, {}))
