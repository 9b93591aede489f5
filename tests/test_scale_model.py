"""The model on paper of docs/scale.md: its arithmetic, and that the page says what the script prints."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def model() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scale_model", ROOT / "scripts" / "scale_model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scale_model"] = module
    spec.loader.exec_module(module)
    return module


MEASURED: dict[str, Any] = {
    "images_per_second": {"1": 2.5, "2": 4.0}, "efficiency": 0.8, "bytes_per_image": 500_000,
    "repetitions": {"1": [2.4, 2.5, 2.6], "2": [4.1, 3.9, 4.0]}, "model": "contextdesc", "keypoints": 2000,
    "images": 40, "image_pixels": 480_000, "engine": "processes",
    "machine": {"processor": "some", "cores": 2, "system": "Linux"},
}  # fmt: skip


def test_a_case_worked_out_by_hand(model: ModuleType) -> None:
    """2.5 images a second, of which 0.8 and half remain: one a second and core; 3.6 million in ten hours."""
    assumed = model.Assumptions(
        cluster_efficiency=0.5, input_mb=1, machine_cores=50, shard_size=1000,
        core_hour_price=0.05, gb_month_price=0.02, gb_transfer_price=0.01,
    )  # fmt: skip
    found = model.estimate(3_600_000, 10, MEASURED, assumed)
    expected = {
        "core_hours": 1000, "cores": 100, "machine_hours": 20, "input_gb": 3600, "output_gb": 1800,
        "input_gbit_per_second": 0.8, "output_gbit_per_second": 0.4, "shards": 3600,
        "computing_price": 50, "transfer_price": 36, "month_price": 36, "price": 122,
    }  # fmt: skip
    assert {name: getattr(found, name) for name in expected} == pytest.approx(expected)
    assert model.estimate(3_600_001, 10, MEASURED, assumed).cores == 101
    assert model.estimate(3_600_001, 10, MEASURED, assumed).shards == 3601


def test_options_are_the_assumptions(
    model: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "measurement.json"
    file.write_text(json.dumps(MEASURED))
    model.main(["--measurement", str(file), "--cluster-efficiency", "0.5", "--million-hours", "100"])
    text = capsys.readouterr().out
    # A million images at one a second and core: 277.8 core-hours.
    assert "| core-hours | 278 | 277,778 |" in text
    assert "| cores to be done in that time | 3 | 386 |" in text
    assert "| `--cluster-efficiency` | 0.5 |" in text
    assert "| 2 workers | 4.00 | 3.90 to 4.10 |" in text


def test_filling_a_document(model: ModuleType) -> None:
    page = "a\n<!-- one -->\nold\nlines\n<!-- end of one -->\nb\n"
    assert model.filled(page, {"one": "new \\1"}) == "a\n<!-- one -->\nnew \\1\n<!-- end of one -->\nb\n"
    with pytest.raises(SystemExit, match="no <!-- two -->"):
        model.filled(page, {"two": "new"})


def test_the_page_says_what_the_script_prints(model: ModuleType) -> None:
    """After a new measurement: python scripts/scale_model.py --write"""
    measured = json.loads(model.MEASUREMENT.read_text(encoding="utf-8"))
    page = model.DOCUMENT.read_text(encoding="utf-8")
    texts = {
        "measured": model.measured_text(measured),
        "modelled": model.modelled_text(measured, model.Assumptions()),
    }
    assert model.filled(page, texts) == page
    assert all(text in page for text in texts.values())
