"""`contextdesc match`: the verdict with its probability and thresholds, and images that are turned."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from contextdesc.image import Image
from tests.cli.test_cli import run

OPTIONS = ("--model", "sift-context", "--max-keypoints", "500", "--no-picture", "--threads", "1")


@pytest.fixture(scope="module")
def files(photo: Image, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from skimage.data import coffee

    folder = tmp_path_factory.mktemp("files")
    window = photo.rgb[60:440, 40:510]
    pictures = {
        "first": photo.rgb[20:420, 10:500], "second": window, "turned": np.rot90(window, -1),
        "other": coffee(), "blank": np.full((60, 80, 3), 200, np.uint8),
    }  # fmt: skip
    for name, rgb in pictures.items():
        cv2.imwrite(str(folder / f"{name}.png"), cv2.cvtColor(np.ascontiguousarray(rgb), cv2.COLOR_RGB2BGR))
    return {name: folder / f"{name}.png" for name in pictures}


def answered(files: dict[str, Path], second: str, *options: str) -> dict:
    out = run("match", files["first"], files[second], *OPTIONS, "--json", *options)
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)


def test_the_verdict_names_its_probability_and_thresholds(files: dict[str, Path]) -> None:
    out = run("match", files["first"], files["second"], *OPTIONS)
    assert out.returncode == 0, out.stderr
    (line,) = (line for line in out.stdout.splitlines() if line.startswith("verdict: "))
    numbers = answered(files, "second")
    same_from, below = numbers["same_from"], numbers["different_below"]
    assert line == (
        f"verdict: same scene (probability {numbers['probability']:.3f}; "
        f"same from {same_from:g}, different below {below:g})"
    )
    assert numbers["verdict"] == "same scene"
    assert numbers["probability"] >= same_from > below
    assert numbers["turn"] == 0


def test_other_things_are_not_the_same(files: dict[str, Path]) -> None:
    numbers = answered(files, "other")
    assert numbers["verdict"] != "same scene"
    assert numbers["probability"] < numbers["same_from"]


def test_an_image_without_texture_gives_no_probability(files: dict[str, Path]) -> None:
    numbers = answered(files, "blank")
    assert (numbers["probability"], numbers["verdict"]) == (None, "unsure")
    out = run("match", files["first"], files["blank"], *OPTIONS)
    assert "verdict: unsure (too few keypoints to tell; same from" in out.stdout


def test_a_turned_image_is_turned_unless_told_otherwise(files: dict[str, Path]) -> None:
    out = run("match", files["first"], files["turned"], *OPTIONS)
    assert f"{files['turned']}: turned by 270 degrees clockwise to match" in out.stdout
    found, still = answered(files, "turned"), answered(files, "turned", "--rotate", "none")
    assert (found["turn"], still["turn"]) == (270, 0)
    assert found["inliers"] > still["inliers"]
    given = answered(files, "turned", "--rotate", "270")
    assert given["points"] == found["points"]
    assert answered(files, "turned", "--rotate", "0")["points"] == still["points"]


def test_a_bad_turn_is_named(files: dict[str, Path]) -> None:
    out = run("match", files["first"], files["second"], "--rotate", "45")
    assert out.returncode == 2
    assert "'45' is not one of" in out.stderr
    assert out.stderr.count("\n") == 1
