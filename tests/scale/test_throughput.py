"""The measurement of throughput: how rates are counted, and what the cost model reads of it."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "scale_throughput.py"


def test_a_rate_leaves_out_the_start() -> None:
    """Two workers that are ready after a while, then finish an image each every half second."""
    rate = runpy.run_path(str(SCRIPT))["rate"]
    assert rate([20.0, 20.5, 21.0, 21.5], 1) == 2
    assert rate([21.0, 20.5, 20.5, 20.0, 20.0, 21.0], 2) == 4


def test_a_short_measurement(photo_folder: Path, tmp_path: Path) -> None:
    options = ["--photos", photo_folder, "--images", "4", "--repetitions", "1", "--size", "160x120"]
    more = ["--keypoints", "20", "--model", "sift-context", "-o", tmp_path / "found.json"]
    subprocess.run([sys.executable, str(SCRIPT), *map(str, [*options, *more])], check=True)
    found = json.loads((tmp_path / "found.json").read_text())
    rates = found["images_per_second"]
    assert found["efficiency"] == pytest.approx(rates["2"] / (2 * rates["1"]), rel=0.01)
    assert found["image_pixels"] == 160 * 120
    assert 0 < found["keypoints"] <= 20
    assert found["bytes_per_image"] > 20 * 128 * 4
    assert found["machine"]["cores"] >= 2
    model = [sys.executable, str(SCRIPT.with_name("scale_model.py")), "--measurement"]
    out = subprocess.run([*model, str(tmp_path / "found.json")], check=True, capture_output=True, text=True)
    assert f"| 2 workers | {rates['2']:.2f} |" in out.stdout
