"""Every row of the paper's tables 1 and 2 as a TOML file: trained, exported, and the same in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from contextdesc.config import from_toml
from contextdesc.detection import Detector, detect
from contextdesc.image import Image
from contextdesc.model import load
from contextdesc.training.assembly import Assembly, assemble
from contextdesc.training.config import StageConfig
from contextdesc.training.data.cache import Cache
from contextdesc.training.data.scenes import Scene
from contextdesc.training.export import export_model
from contextdesc.training.logs import read_log
from contextdesc.training.loop import train
from contextdesc.training.losses import LossName
from tests.training.test_scenes import made, rendered  # noqa: F401  # fixtures
from tests.training.tiny import CHANNELS, quiet, torch_descriptors

COMMON = """
steps = 1
held_out = 1
keypoints = 32
warmup = 1
optimiser = "adamw"
learning_rate = 0.05
[pairs]
keypoints = 64
min_corresponding = 16
per_photo = 1
[scene_pairs]
keypoints = 64
min_corresponding = 16
per_scene = 2
rules = { min_rotation = 0, keypoints = 64 }
[regional]
network = "precomputed"
grids = "GRIDS"
[visual]
strategy = "VISUAL"
encoder = { grid_widths = [32, 16], fusion_widths = [32, 128], gate = true }
[geometric]
encoder = "GEOMETRIC"
inputs = "INPUTS"
width = 32
units = 2
point_widths = [16]
pooled_widths = [16, 32]
fusion_widths = [32]
[aggregation]
kind = "AGGREGATION"
"""
Row = tuple[str, str, str, str, str]  # stage, visual, geometric, inputs, aggregation
FAST: list[Row] = [
    ("context", "regional+cn", "none", "xy", "sum"),
    ("context", "none", "cn-pre", "xy+matchability", "sum"),
    ("context", "regional", "cn-post", "xy+raw", "learned"),
    ("context", "none", "cn-pre", "xy+angle+matchability", "sum"),
]
SLOW: list[Row] = [
    ("local", "none", "none", "xy", "sum"),
    ("local", "central-surround", "none", "xy", "sum"),
    ("end-to-end", "central-surround", "cn-pre", "xy+matchability", "concat"),
    ("end-to-end", "regional+cn", "cn-pre", "xy+matchability", "sum"),
    ("context", "global", "none", "xy", "sum"),
    ("context", "regional", "none", "xy", "concat"),
    *(
        ("context", "none", encoder, inputs, "sum")
        for encoder in ("pointnet", "cn-post", "cn-pre")
        for inputs in ("xy", "xy+raw", "xy+matchability")
        if (encoder, inputs) != ("cn-pre", "xy+matchability")
    ),
    ("context", "global", "pointnet", "xy+matchability", "learned"),
    ("context", "regional+cn", "cn-pre", "xy+matchability", "concat"),
    ("context", "regional+cn", "none", "xy", "learned"),
    ("context", "none", "pointnet", "xy+raw", "learned"),
    ("context", "none", "cn-pre", "xy+matchability", "concat"),
    ("context", "none", "cn-pre", "xy+raw+matchability", "sum"),
    ("context", "none", "cn-pre", "xy+angle+raw+matchability", "sum"),
]


def toml(folder: Path, row: Row, grids: Path, more: str) -> StageConfig:
    """The config of a row, by way of a file."""
    stage, visual, geometric, inputs, aggregation = row
    text = f'stage = "{stage}"\nbase = "rootsift"\n{more}\n' + COMMON
    for name, value in (("GRIDS", str(grids)), ("VISUAL", visual), ("GEOMETRIC", geometric),
                        ("INPUTS", inputs), ("AGGREGATION", aggregation)):  # fmt: skip
        text = text.replace(f'"{name}"', f'"{value}"')
    path = folder / "config.toml"
    path.write_text(text)
    return from_toml(StageConfig, path)


def trained(config: StageConfig, folder: Path, cache: Path) -> Assembly:
    return assemble([train(config, folder / "run", Cache(cache), log=quiet)], "tiny")


@pytest.mark.parametrize(
    "row", [*FAST, *(pytest.param(row, marks=pytest.mark.slow) for row in SLOW)], ids=str
)
def test_a_row_of_table_1_becomes_a_model(
    row: Row, few_photos: Path, grids: Path, cache_folder: Path, photo: Image, tmp_path: Path
) -> None:
    config = toml(tmp_path, row, grids, f'photos = "{few_photos}"')
    model = trained(config, tmp_path, cache_folder)
    spec = export_model(model.parts, model.spec, tmp_path / "model", photo)
    _, visual, geometric, _, aggregation = row
    has_visual = visual in ("global", "regional", "regional+cn")
    terms = ("visual",) * has_visual + ("geometric",) * (geometric != "none")
    assert spec.terms == terms
    raw_size = 256 if visual == "central-surround" else 128
    assert spec.raw_size == raw_size
    assert spec.descriptor_size == raw_size + 128 * len(terms) * (aggregation == "concat")

    keypoints = detect(photo.gray, Detector(60))
    grid = np.random.default_rng(1).normal(size=(CHANNELS, 3, 5)).astype(np.float32)
    loaded, without = load(tmp_path / "model"), load(tmp_path / "model", context="none")
    if has_visual:  # the grid is the user's
        raw, score = loaded.raw(photo, keypoints)
        got = loaded.augment(raw, keypoints, photo.size, regional=grid, matchability=score)
    else:
        got = loaded.describe(photo, keypoints).descriptors
    assert got.shape == (60, spec.descriptor_size)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-5)
    expected = torch_descriptors(model.parts, spec, photo, keypoints, torch.from_numpy(grid))
    np.testing.assert_allclose(got, expected, atol=1e-3)
    assert (np.abs(got - without.describe(photo, keypoints).descriptors).max() > 5e-4) == bool(terms)


def test_the_rows_cover_the_config() -> None:
    from contextdesc.training import variants

    def choices(variant: Any, name: str) -> set[str]:
        hint = variants.__dict__[variant].__annotations__[name]
        return set(get_args(eval(hint, variants.__dict__)))

    _, visual, geometric, inputs, aggregation = (set(column) for column in zip(*FAST, *SLOW, strict=True))
    assert visual == choices("VisualVariant", "strategy")
    assert geometric == choices("GeometricVariant", "encoder")
    assert inputs == choices("GeometricVariant", "inputs")
    assert aggregation == choices("AggregationVariant", "kind")


@pytest.mark.parametrize("loss", get_args(LossName))
def test_a_row_of_table_2_becomes_a_model(
    loss: str,
    photo: Image,
    made: Scene,  # noqa: F811
    grids: Path,
    cache_folder: Path,
    tmp_path: Path,
) -> None:
    made.save(tmp_path / "scenes" / "one")
    row = ("context", "none", "cn-pre", "xy+matchability", "sum")
    config = toml(tmp_path, row, grids, f'scenes = "{tmp_path / "scenes"}"\nloss = "{loss}"')
    model = trained(config, tmp_path, cache_folder)
    (line,) = (line for line in read_log(tmp_path / "run" / "log.jsonl") if "loss" in line)
    assert 0 < line["n_pair"] < 10
    tempered = loss in ("n-pair", "n-pair-distance")
    assert (abs(line["temperature"] - 20) > 0.01) == tempered
    assert model.parts.geometric is not None
    assert model.parts.geometric.last.weight.abs().max().item() == pytest.approx(0.05, abs=1e-3)  # it moved
    spec = export_model(model.parts, model.spec, tmp_path / "model", photo)
    assert spec.terms == ("geometric",)
    assert len(load(tmp_path / "model").describe(photo, detect(photo.gray, Detector(20)))) == 20
