"""Parts: which a stage has, how they come back from checkpoints and models, and models put together."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from contextdesc import modelfile
from contextdesc.detection import Detector, detect
from contextdesc.engine import Engine
from contextdesc.errors import InputError
from contextdesc.image import Image
from contextdesc.model import load, regional_image
from contextdesc.modelfile import ModelSpec
from contextdesc.patches import sample_patches
from contextdesc.training.assembly import assemble
from contextdesc.training.config import StageConfig
from contextdesc.training.data.pairs import PairConfig
from contextdesc.training.data.scene_pairs import ScenePairConfig
from contextdesc.training.export import _fold_batch_norm, export_model
from contextdesc.training.networks import LocalConfig, LocalNetwork, Matchability, VisualConfig, VisualContext
from contextdesc.training.parts import (
    NAMES,
    PREFIX,
    Parts,
    _unfolded,
    build_parts,
    load_parts,
    read_config,
)
from contextdesc.training.regional import EfficientNetLite0, RegionalConfig, ResNet50
from contextdesc.training.variants import (
    Aggregation,
    AggregationVariant,
    CentralSurround,
    ContextNormContext,
    GeometricVariant,
    GlobalContext,
    PointNetContext,
    VisualVariant,
)

SMALL = VisualConfig(regional_channels=320, grid_widths=(64, 32), fusion_widths=(64, 128))  # of small_model
GATED = VisualConfig(16, (32, 16), fusion_widths=(32, 128), final_relu=False, gate=True)
LEARNED = AggregationVariant("learned")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(3)


def stage(name: str, **options: Any) -> StageConfig:
    encoder = VisualConfig(grid_widths=(32, 16), fusion_widths=(32, 128))
    options = {"visual": VisualVariant(encoder=encoder), "base": "rootsift", **options}
    return StageConfig(stage=name, steps=1, **options)  # type: ignore[arg-type]


NO_VISUAL, NO_GEOMETRIC = VisualVariant("none"), GeometricVariant("none")


@pytest.mark.parametrize(
    ("config", "base_has_score", "expected"),
    [
        (stage("local"), False, "local"),
        (stage("context"), False, "matchability visual geometric aggregation"),
        (stage("context"), True, "visual geometric aggregation"),
        (stage("context", visual=NO_VISUAL), False, "matchability geometric aggregation"),
        (stage("context", visual=NO_VISUAL), True, "geometric aggregation"),
        (stage("context", geometric=NO_GEOMETRIC), False, "visual aggregation"),
        (stage("context", geometric=GeometricVariant(inputs="xy")), False, "visual geometric aggregation"),
        (stage("end-to-end"), False, "local visual geometric aggregation"),
        (stage("end-to-end", visual=NO_VISUAL), False, "local geometric aggregation"),
        (stage("end-to-end", geometric=NO_GEOMETRIC), False, "local visual aggregation"),
        (stage("joint"), False, "local visual geometric aggregation regional"),
        (stage("regional"), False, "regional"),
    ],
    ids=lambda value: value.stage if isinstance(value, StageConfig) else str(value),
)
def test_a_stage_has_its_parts(config: StageConfig, base_has_score: bool, expected: str) -> None:
    parts = build_parts(config, base_has_score)
    assert [name for name in NAMES if getattr(parts, name) is not None] == expected.split()
    assert parts.terms == tuple(name for name in ("visual", "geometric") if name in expected)
    if parts.aggregation is not None:
        assert parts.aggregation.terms == len(parts.terms)


def test_parts_are_of_the_config() -> None:
    assert isinstance(
        build_parts(stage("local", visual=VisualVariant("central-surround"))).local, CentralSurround
    )
    local = build_parts(stage("local", local=LocalConfig("raw"))).local
    assert isinstance(local, LocalNetwork)
    assert local.config.matchability == "raw"
    pointnet = build_parts(stage("context", geometric=GeometricVariant("pointnet"))).geometric
    assert isinstance(pointnet, PointNetContext)
    whole = build_parts(stage("context", visual=VisualVariant("global", SMALL)), channels=7).visual
    assert isinstance(whole, GlobalContext)
    assert whole.config.regional_channels == 7  # the grids', not the config's
    headless = stage("context", regional=RegionalConfig(head=False))
    visual = build_parts(headless).visual
    assert visual is not None
    assert visual.config.regional_channels == 320
    precomputed = stage("context", regional=RegionalConfig("precomputed"))
    visual = build_parts(precomputed, channels=9).visual
    assert visual is not None
    assert visual.config.regional_channels == 9
    concat = build_parts(
        stage("context", aggregation=AggregationVariant("concat"), visual=VisualVariant(encoder=SMALL))
    )
    assert concat.geometric is not None
    assert concat.geometric.last.weight.any()  # see `start_terms`


@pytest.fixture(scope="module")
def patches(photo: Image) -> np.ndarray:
    return sample_patches(photo.gray, detect(photo.gray, Detector(100)))


def fresh_parts() -> Parts:
    """Every part but the regional network."""
    return Parts(
        LocalNetwork(LocalConfig("raw")),
        Matchability(),
        VisualContext(GATED),
        ContextNormContext(GeometricVariant(gate=True)),
        Aggregation(LEARNED),
    )


@pytest.fixture(scope="module")
def trained(patches: np.ndarray) -> Parts:
    """Every part but the regional network, with random weights and batch norms that have seen data."""
    torch.manual_seed(0)
    parts = fresh_parts()
    with torch.no_grad():
        for name in ("visual", "geometric"):
            getattr(parts, name).gate.factor.fill_(0.5)
        parts.aggregation.factors.weight.normal_(std=0.1)
        for _ in range(30):
            raw, score = parts.local(torch.from_numpy(patches))
            parts.matchability(raw)
            xy = torch.rand(1, len(raw), 2) * 2 - 1
            parts.visual(torch.randn(1, 16, 6, 8), xy, raw[None])
            parts.geometric(xy, score[None])
    return parts.eval()


@pytest.fixture(scope="module")
def exported(trained: Parts, photo: Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts") / "model"
    export_model(trained, ModelSpec("m", "local", {}, regional_channels=16), folder, photo)
    return folder


def scrambled(parts: Parts) -> Parts:
    """Networks that loading has to overwrite entirely, or they say something else."""
    with torch.no_grad():
        for name, value in parts.state_dict().items():
            if value.is_floating_point():
                value.uniform_(0.5, 2) if "running_var" in name else value.normal_()
    return parts.eval()


def assert_same(got: Tensor, expected: np.ndarray, axis: int = 1) -> None:
    """Equal to a thousandth: descriptors as unit vectors along `axis`, scores over the largest."""
    reference = torch.from_numpy(expected)
    assert got.shape == reference.shape
    assert reference.std() > 0
    if got.dim() == 1:
        assert (got - reference).abs().max() < 1e-3 * reference.abs().max()
        return
    assert reference.norm(dim=axis).min() > 0
    assert (F.normalize(got, dim=axis) - F.normalize(reference, dim=axis)).norm(dim=axis).max() < 1e-3
    np.testing.assert_allclose(got.norm(dim=axis), reference.norm(dim=axis), rtol=1e-2)


def context_inputs(channels: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    grid = torch.randn(channels, 4, 7, generator=generator)
    xy = torch.rand(50, 2, generator=generator) * 2 - 1
    raw, score = torch.randn(50, 128, generator=generator), torch.randn(50, generator=generator)
    return grid, xy, raw, score


@torch.no_grad()
def assert_context_agrees(parts: Parts, folder: Path, channels: int) -> None:
    grid, xy, raw, score = context_inputs(channels)
    inputs = {"grid": grid.numpy(), "xy": xy.numpy(), "raw": raw.numpy(), "score": score.numpy()}
    visual = Engine(folder / modelfile.VISUAL).run_named(**inputs)[0]
    assert_same(parts.visual(grid[None], xy[None], raw[None])[0].T, visual)
    geometric = Engine(folder / modelfile.GEOMETRIC).run_named(**inputs)[0]
    assert_same(parts.geometric(xy[None], score[None])[0].T, geometric)


@torch.no_grad()
def test_parts_come_back_from_a_model(exported: Path, patches: np.ndarray) -> None:
    parts = fresh_parts()
    loaded = load_parts(exported, scrambled(parts))
    assert loaded == {"local", "matchability", "visual", "geometric", "aggregation"}
    raw, score = parts.local(torch.from_numpy(patches))
    expected, expected_score = Engine(exported / modelfile.LOCAL).run(patches=patches)
    assert_same(raw, expected)
    assert_same(score, expected_score)
    (alone,) = Engine(exported / modelfile.MATCHABILITY).run(raw=expected)
    assert_same(parts.matchability(torch.from_numpy(expected)), alone)
    assert_context_agrees(parts, exported, 16)
    _, _, raw, _ = context_inputs(16)
    visual, geometric = raw.roll(1, 0), raw.roll(2, 0)
    terms = {"raw": raw.numpy(), "visual": visual.numpy(), "geometric": geometric.numpy()}
    (descriptor,) = Engine(exported / modelfile.AGGREGATION).run(**terms)
    assert_same(parts.aggregation(*(x.T[None] for x in (raw, visual, geometric)))[0].T, descriptor)


@torch.no_grad()
def test_parts_come_back_from_a_model_with_fresh_biases(small_model: Path, photo: Image) -> None:
    """Biases of 0 and batch norms without data, which the exporter drops; a visual term that ends in ReLU."""
    parts = Parts(
        LocalNetwork(), None, VisualContext(SMALL), ContextNormContext(), None, EfficientNetLite0(head=False)
    )
    assert load_parts(small_model, scrambled(parts)) == {"local", "visual", "geometric", "regional"}
    assert_context_agrees(parts, small_model, 320)
    image = regional_image(photo, 192)
    (grid,) = Engine(small_model / modelfile.REGIONAL).run(image=image)
    assert_same(parts.regional(torch.from_numpy(image))[0], grid, axis=0)


@torch.no_grad()
def test_resnet_unfolds_too() -> None:
    """Its norms stand beside the convolutions, and its constants are no weights."""
    network, fresh = ResNet50().eval(), ResNet50().eval()
    for name, value in network.state_dict().items():
        if "bn" in name and value.is_floating_point():
            value.uniform_(0.8, 1.2) if name.endswith(("var", "weight")) else value.normal_(std=0.1)
    folded = copy.deepcopy(network)
    _fold_batch_norm(folded)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    image = torch.rand(1, 3, 64, 64) * 255
    expected = network(image)
    torch.testing.assert_close(folded(image), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
    weights = {**folded.state_dict(), "mean": network.get_buffer("mean"), "std": network.get_buffer("std")}
    fresh.load_state_dict(_unfolded(fresh, weights, Path("regional.onnx")))
    torch.testing.assert_close(fresh(image), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def checkpoint(path: Path, parts: Parts, config: StageConfig, **metadata: str) -> Path:
    """As the training loop writes it."""
    tensors = {f"model.parts.{name}": value.contiguous() for name, value in parts.state_dict().items()}
    tensors["model.temperature.alpha"] = torch.tensor(20.0)
    save_file(tensors, path, {"config": json.dumps(dataclasses.asdict(config)), "step": "1", **metadata})
    return path


def said(action: Any, *arguments: Any) -> str:
    with pytest.raises(InputError) as raised:
        action(*arguments)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_parts_come_back_from_a_checkpoint(trained: Parts, tmp_path: Path) -> None:
    assert PREFIX == "model.parts."
    path = checkpoint(tmp_path / "c.safetensors", trained, stage("context"))
    parts = Parts(matchability=Matchability(), visual=VisualContext(GATED))
    assert load_parts(path, scrambled(parts)) == {"matchability", "visual"}
    for name in ("matchability", "visual"):
        expected = getattr(trained, name).state_dict()
        for key, value in getattr(parts, name).state_dict().items():
            assert torch.equal(value, expected[key]), key


def test_sources_that_do_not_fit_are_named(trained: Parts, exported: Path, tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "c.safetensors", trained, stage("context"))
    wide = Parts(visual=VisualContext(dataclasses.replace(GATED, regional_channels=17)))
    message = said(load_parts, path, wide)
    assert message.startswith(
        f"{path}: its visual network has another shape: size mismatch for grid_mlp.0.weight"
    )
    message = said(load_parts, exported, wide)
    assert message == f"{exported / 'visual.onnx'}: its grid_mlp.0.weight does not fit the config's network"
    ungated = Parts(visual=VisualContext(dataclasses.replace(GATED, gate=False)))
    assert said(load_parts, path, ungated).startswith(
        f"{path}: its visual network has another shape: Unexpected"
    )
    assert said(load_parts, exported, ungated).startswith(f"{exported / 'visual.onnx'}: its gate.factor does")
    deeper = Parts(geometric=ContextNormContext(GeometricVariant(gate=True, units=5)))
    assert said(load_parts, path, deeper).startswith(
        f"{path}: its geometric network has another shape: Missing"
    )
    assert said(load_parts, exported, deeper) == (
        f"{exported / 'geometric.onnx'}: has no units.4.3.weight, which the config's network has"
    )
    other = Parts(regional=EfficientNetLite0(), aggregation=None)
    for source in (path, exported):
        assert said(load_parts, source, other) == (
            f"{source}: has none of the parts that are wanted of it (regional)"
        )
        assert load_parts(source, other, strict=False) == set()


def test_damaged_and_foreign_files_are_named(trained: Parts, tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "c.safetensors", trained, stage("context", seed=7))
    config = read_config(path)
    assert config == stage("context", seed=7)
    content = path.read_bytes()
    parts = Parts(matchability=Matchability())
    for cut in (content[:5], content[:2000], content[:-1], b""):
        path.write_bytes(cut)
        for message in (said(load_parts, path, parts), said(read_config, path)):
            assert message.startswith(f"{path}: damaged checkpoint (")
    missing = tmp_path / "none.safetensors"
    assert said(read_config, missing) == said(load_parts, missing, parts) == f"{missing}: no such checkpoint"
    save_file({"weight": torch.zeros(3)}, path)
    assert said(read_config, path) == f"{path}: not a checkpoint of contextdesc"
    assert "has none of the parts that are wanted of it (matchability)" in said(load_parts, path, parts)
    save_file({"weight": torch.zeros(3)}, path, {"config": '{"stage": "local", "steps": 1, "sede": 2}'})
    assert said(read_config, path) == f"{path}: unknown key 'sede'; did you mean 'seed'?"


def test_the_local_network_of_a_base_is_carried_over(small_model: Path, photo: Image, tmp_path: Path) -> None:
    config = stage("context", base=str(small_model), visual=NO_VISUAL)
    parts = build_parts(config, base_has_score=True)
    assert parts.geometric is not None
    nn.init.normal_(parts.geometric.last.weight, std=0.02)
    path = checkpoint(tmp_path / "c.safetensors", parts, config)
    assembly = assemble([path], "carried")
    assert assembly.carried == (small_model / modelfile.LOCAL,)
    assert (assembly.spec.base, assembly.spec.matchability) == ("local", "map")
    assert assembly.parts.local is None
    assert assembly.parts.matchability is None
    spec = export_model(assembly.parts, assembly.spec, tmp_path / "m", photo, assembly.carried)
    assert spec.files.keys() == {modelfile.LOCAL, modelfile.GEOMETRIC}
    own = modelfile.sha256(small_model / modelfile.LOCAL)
    assert spec.files[modelfile.LOCAL] == modelfile.sha256(tmp_path / "m" / modelfile.LOCAL) == own
    model, base = (load(folder, detector=Detector(50)) for folder in (tmp_path / "m", small_model))
    np.testing.assert_array_equal(model.extract(photo).matchability, base.extract(photo).matchability)
    assert assemble([path], "other", base="contextdesc").carried == (
        modelfile.PACKAGED / "contextdesc" / "local.onnx",
    )


def test_a_model_takes_after_what_it_is_trained_on(trained: Parts, tmp_path: Path) -> None:
    local = Parts(local=trained.local)
    shared: dict[str, Any] = {
        "local": LocalConfig("raw"),
        "pairs": PairConfig(support=12.0),
        "scene_pairs": ScenePairConfig(support=14.0),
    }
    photos = checkpoint(tmp_path / "p.safetensors", local, stage("local", photos="photos", **shared))
    scenes = checkpoint(tmp_path / "s.safetensors", local, stage("local", scenes="scenes", **shared))
    assert assemble([photos], "m").spec.support == 12
    assert assemble([scenes], "m").spec.support == 14
    assert assemble([scenes], "m").spec.matchability == "raw"
    with pytest.raises(
        InputError, match=r"support is 12.0 of pairs and 14.0 of scene_pairs: a model has one"
    ):
        stage("local", photos="photos", scenes="scenes", **shared).check()
    config = stage("context", visual=NO_VISUAL)
    context = checkpoint(tmp_path / "c.safetensors", build_parts(config), config)
    assembly = assemble([context], "m")
    assert (assembly.spec.base, assembly.carried) == ("rootsift", ())
    assert assembly.parts.matchability is not None
    both = assemble([photos, context], "m")  # context goes with the base that it was trained on, no other
    assert (both.spec.base, both.parts.local) == ("rootsift", None)
    assert both.parts.terms == ("geometric",)


def test_models_that_cannot_be_put_together_are_named(tmp_path: Path) -> None:
    assert said(assemble, [], "m") == "no checkpoint to export"
    config = stage("regional", regional=RegionalConfig(head=False))
    path = checkpoint(tmp_path / "r.safetensors", build_parts(config), config)
    assert said(assemble, [path], "m") == f"{path}: regional network alone; add checkpoints of other stages"
