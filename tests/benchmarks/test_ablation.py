"""The ablation: numbers worked out by hand, and trainings of a moment that stop, go on and are kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, get_args

import pytest

from contextdesc.benchmarks import ablation
from contextdesc.benchmarks.ablation import Result, report
from contextdesc.benchmarks.ablation_variants import TEMPERED, VARIANTS, config_of
from contextdesc.benchmarks.protocol import Request
from contextdesc.errors import InputError
from contextdesc.training.config import StageConfig
from contextdesc.training.variants import GeometricVariant, VisualVariant


def test_numbers_worked_out_by_hand() -> None:
    """Recalls 60 and 80, base 50 and 60: +15; in the paper 63.98 - 59.46 = +4.52, 73.63 - 71.24 = +2.39.
    Losses: 20 and 30 against 40 and 70: -30; in the paper 32.2 - 59.7 = -27.5 and 48.5 - 72.6 = -24.1."""
    names = ("regional-cn", TEMPERED, "plain-n-pair")
    results = {
        "regional-cn": Result({"scenes": [60, 80]}, {"scenes": [50, 60]}, 7),
        TEMPERED: Result({"scenes": [40, 70]}, {"scenes": [40, 70]}, 8),
        "plain-n-pair": Result({"scenes": [20, 30]}, {"scenes": [20, 30]}, 9),
    }
    found = report(Request(Path(), {}), {name: VARIANTS[name] for name in names}, results, {}, {})
    variants = found.numbers["variants"]
    assert variants["regional-cn"]["recall"]["scenes"]["mean"] == 70
    assert variants["regional-cn"]["difference"]["scenes"]["mean"] == 15
    assert variants["plain-n-pair"]["difference"]["scenes"]["mean"] == -30
    assert "difference" not in variants[TEMPERED]
    first, second = (table.markdown for table in found.tables)
    assert "| base: rootsift |  | 55.0 (50.0 to 60.0) |  | 59.46 / 71.24 (GeoDesc) |  |" in first
    assert "| +15.0 (+10.0 to +20.0) | 63.98 / 73.63 | +4.52 / +2.39 |" in first
    assert "| -30.0 (-40.0 to -20.0) | 32.2 / 48.5 | -27.50 / -24.10 |" in second
    assert json.loads(found.json)["base_recall"]["scenes"]["mean"] == 55


def test_every_row_of_tables_1_and_2_is_a_valid_training() -> None:
    """Strategies, encoders, inputs and losses of the tables, each in a config that `check` accepts."""
    common = StageConfig("context", 1, 10.0, photos="photos", base="rootsift")
    configs = [config_of(variant, common, 384) for variant in VARIANTS.values()]
    for config in configs:
        config.check()
        assert config.minutes == 10
        assert config.photos == "photos"

    def choices(variant: type, field: str) -> set[Any]:
        from contextdesc.training import variants

        return set(get_args(eval(variant.__annotations__[field], variants.__dict__)))

    assert {c.visual.strategy for c in configs} == choices(VisualVariant, "strategy")
    assert {c.geometric.encoder for c in configs} == choices(GeometricVariant, "encoder")
    with_geometric = {c.geometric.inputs for c in configs if c.has_geometric}
    beyond = {"xy+raw+matchability", "xy+angle+matchability", "xy+angle+raw+matchability"}  # no rows
    assert with_geometric == choices(GeometricVariant, "inputs") - beyond
    assert {c.loss for c in configs if c.stage == "local"} == {TEMPERED, "plain-n-pair", "scale-aware"}


@pytest.fixture
def photographs(tmp_path: Path, photo_folder: Path) -> Path:
    """A folder with photos/ of three photographs."""
    folder = tmp_path / "data" / "photos"
    folder.mkdir(parents=True)
    for number in (0, 1, 4):
        shutil.copy(photo_folder / "a" / f"{number:02}.png", folder)
    return folder.parent


def asked(data: Path, work: Path, **settings: Any) -> Request:
    small = {"work": str(work), "minutes": 0.003, "keypoints": 48, "held-out": 1}
    return Request(data, {}, seeds=(0,), settings={**small, **settings})


def test_a_moment_of_training_is_kept(photographs: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    request = asked(photographs, work, variants=f"pre-xy-matchability,{TEMPERED},central-surround")
    first = ablation.run(request).numbers
    of, alone, wide = first["variants"].values()
    assert first["pairs"] == {"photographs": 1}
    assert 0 < of["recall"]["photographs"]["mean"] <= 100
    assert of["steps"] >= 1
    gain = of["recall"]["photographs"]["mean"] - first["base_recall"]["photographs"]["mean"]
    assert of["difference"]["photographs"]["mean"] == pytest.approx(gain)
    gain = wide["recall"]["photographs"]["mean"] - alone["recall"]["photographs"]["mean"]
    assert wide["difference"]["photographs"]["mean"] == pytest.approx(gain)

    checkpoints = sorted(work.glob("*/run/checkpoint.safetensors"))
    assert len(checkpoints) == 3
    before = [path.stat().st_mtime_ns for path in checkpoints]
    assert ablation.run(request).numbers == first
    assert [path.stat().st_mtime_ns for path in checkpoints] == before  # not trained again
    with pytest.raises(InputError, match=r"of a run with other settings \(minutes\)"):
        ablation.run(asked(photographs, work, minutes=1.0, variants="pre-xy-matchability"))


@pytest.mark.slow
def test_variants_are_evaluated_on_sequences(photographs: Path, scene: Path, tmp_path: Path) -> None:
    settings = {"variants": "pre-xy-matchability", "evaluate": str(scene.parent)}
    found = ablation.run(asked(photographs, tmp_path / "work", **settings))
    assert found.numbers["evaluated_on"] == "scenes"
    assert found.numbers["base_evaluated"]["mean"] > 50
    assert found.numbers["variants"]["pre-xy-matchability"]["evaluated"]["mean"] > 30
    assert "| recall, scenes |" in found.markdown


def test_requests_that_cannot_be_met(photographs: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give --set work=DIR"):
        ablation.run(Request(photographs, {}))
    with pytest.raises(InputError, match="better is none of global, regional"):
        ablation.run(asked(photographs, tmp_path / "work", variants="better"))
    with pytest.raises(InputError, match="neither photos/ nor scenes/"):
        ablation.run(asked(tmp_path, tmp_path / "work"))
    with pytest.raises(InputError, match="minutes=-1: more than 0"):
        ablation.run(asked(photographs, tmp_path / "work", minutes=-1.0))
