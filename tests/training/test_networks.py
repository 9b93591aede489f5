"""Networks as section 3 and the release describe them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.image import Image
from contextdesc.patches import sample_patches
from contextdesc.training.networks import (
    ContextNorm,
    GeometricConfig,
    GeometricContext,
    LocalConfig,
    LocalNetwork,
    VisualConfig,
    VisualContext,
    aggregate,
    count_parameters,
    interpolate,
    standardise,
)
from contextdesc.training.regional import (
    EfficientNetLite0,
    RegionalConfig,
    ResNet50,
    build_regional,
    registry_weights,
)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_parameters_of_the_release_configuration() -> None:
    """The counts of the paper's cost table."""
    assert count_parameters(LocalNetwork()) == pytest.approx(2.39e6, rel=0.002)
    assert count_parameters(VisualContext(VisualConfig(regional_channels=2048))) == pytest.approx(
        3.11e6, rel=0.002
    )
    assert count_parameters(GeometricContext()) == pytest.approx(0.083e6, rel=0.002)


@pytest.mark.parametrize("matchability", ["map", "raw"])
def test_local_network_on_real_patches(photo: Image, matchability: str) -> None:
    patches = torch.from_numpy(sample_patches(photo.gray, detect(photo.gray, Detector(8))))
    raw, score = LocalNetwork(LocalConfig(matchability)).eval()(patches)  # type: ignore[arg-type]
    assert raw.shape == (8, 128)
    assert score.shape == (8,)
    torch.testing.assert_close(raw.norm(dim=1), torch.ones(8))  # context terms meet unit vectors
    assert score.std() > 0


def test_patches_are_standardised() -> None:
    patches = torch.randint(0, 256, (5, 32, 32)).float() * 0.2 + 100
    out = standardise(patches)
    assert out.mean((2, 3)).abs().max() < 1e-4
    assert (out.var((2, 3), unbiased=False) - 1).abs().max() < 1e-3
    torch.testing.assert_close(standardise(2 * patches + 30), out, atol=1e-3, rtol=0)
    assert standardise(torch.full((1, 32, 32), 7.0)).abs().max() == 0  # a flat patch is no division by zero


def test_context_norm_is_per_image_and_channel() -> None:
    x = torch.randn(2, 3, 50) * 5 + 7
    out = ContextNorm()(x)
    expected = (x - x.mean(2, keepdim=True)) / (x.var(2, unbiased=False, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(out, expected)
    assert ContextNorm()(torch.randn(1, 3, 1)).abs().max() == 0  # one keypoint


def trained(network: torch.nn.Module) -> torch.nn.Module:
    """Random weights everywhere, also where training starts with zeros."""
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return network.eval()


@pytest.mark.parametrize("gate", [True, False])
def test_geometric_context(gate: bool) -> None:
    network = GeometricContext(GeometricConfig(gate=gate))
    xy, score = torch.rand(2, 20, 2) * 2 - 1, torch.randn(2, 20)
    assert network(xy, score).abs().max() == 0  # a fresh term leaves the raw descriptor alone
    trained(network)
    out = network(xy, score)
    assert out.shape == (2, 128, 20)
    order = torch.randperm(20)
    torch.testing.assert_close(network(xy[:, order], score[:, order]), out[:, :, order], atol=1e-3, rtol=1e-3)
    moved = xy.clone()
    moved[0, 0] += 0.5
    changed = (network(moved, score) - out).abs().amax(1)
    assert changed[0, 1:].min() > 0  # every keypoint knows of every other of its image
    assert changed[1].max() == 0  # but not of another image


VARIANTS = [
    VisualConfig(16, (32, 16), interpolation=mode, interpolate=order)  # type: ignore[arg-type]
    for mode, order in itertools.product(("mean3", "idw3", "bilinear"), ("after", "before"))
] + [
    VisualConfig(16, (32, 16), fusion_widths=(64, 128)),
    VisualConfig(16, (32, 16), fusion_context_norm=True),
    VisualConfig(16, (32, 16), grid_context_norm=False),
    VisualConfig(16, (32, 16), final_relu=False),
    VisualConfig(16, (32, 16), gate=True),
    VisualConfig(16, (32, 16), final_relu=False, gate=True, fusion_context_norm=True),
    VisualConfig(16, (), fusion_widths=(128,), final_relu=False, unit=True),
    VisualConfig(16, (), interpolate="before", unit=True),
]


@pytest.mark.parametrize("config", VARIANTS, ids=str)
def test_every_visual_variant(config: VisualConfig) -> None:
    network = VisualContext(config)
    grid, xy, raw = torch.randn(2, 16, 5, 7), torch.rand(2, 20, 2) * 2 - 1, torch.randn(2, 20, 128)
    if config.gate or not config.final_relu:
        assert network(grid, xy, raw).abs().max() == 0
    trained(network)
    out = network(grid, xy, raw)
    assert out.shape == (2, 128, 20)
    assert out.isfinite().all()
    if config.final_relu and not config.gate:
        assert (out >= 0).all()
    elif not config.final_relu:
        assert (out < 0).any()


# No layers of its own before the fusion: what it reads are the features of the grid.
READ = VisualConfig(16, (), fusion_widths=(128,), interpolation="bilinear", final_relu=False)


@pytest.mark.parametrize("options", [{}, {"unit": True}, {"grid_context_norm": False}], ids=str)
def test_the_fusion_reads_regional_features_beside_raw(options: dict[str, bool]) -> None:
    config = replace(READ, **options)  # type: ignore[arg-type]
    network = VisualContext(config)
    grid, xy, raw = torch.randn(2, 16, 5, 7) + 1, torch.rand(2, 20, 2) * 2 - 1, torch.randn(2, 20, 128)
    feature = interpolate(ContextNorm()(grid) if config.grid_context_norm else grid, xy, "bilinear")
    if config.unit:
        feature = feature / feature.norm(dim=1, keepdim=True)
    inputs = network.inputs(grid, xy, raw)
    torch.testing.assert_close(inputs, torch.cat([feature, raw.transpose(1, 2)], 1))
    torch.testing.assert_close(network.inputs(list(grid), xy, raw), inputs, atol=1e-5, rtol=1e-5)
    trained(network)
    torch.testing.assert_close(network(grid, xy, raw), network.fusion(inputs))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"fusion_widths": (64, 128)}, "false and 2"),
        ({"fusion_widths": (64, 128), "final_relu": True}, "true and 2"),
        ({"final_relu": True}, "true and 1"),
    ],
    ids=str,
)
def test_a_start_needs_one_linear_layer(change: dict[str, object], told: str) -> None:
    config = replace(READ, start=0.5)
    with pytest.raises(InputError, match=f"^start is 0.5: it needs final_relu = false and .*, not {told}$"):
        VisualContext(replace(config, **change))  # type: ignore[arg-type]
    VisualContext(replace(config, regional_channels=300, fusion_context_norm=True))  # which it drops


def by_loops(grid: Tensor, xy: Tensor, mode: str) -> Tensor:
    """(C, h, w), (N, 2) -> (C, N), written out."""
    _, height, width = grid.shape
    points = [
        (2 * c / max(width - 1, 1) - 1, 2 * r / max(height - 1, 1) - 1, grid[:, r, c])
        for r in range(height) for c in range(width)
    ]  # fmt: skip
    columns = []
    for x, y in xy.tolist():
        if mode == "bilinear":
            value = torch.zeros(len(grid))
            for px, py, feature in points:
                weight_x = max(0, 1 - abs(x - px) * (width - 1) / 2)
                weight_y = max(0, 1 - abs(y - py) * (height - 1) / 2)
                value += weight_x * weight_y * feature
        else:
            nearest = sorted(points, key=lambda p: (p[0] - x) ** 2 + (p[1] - y) ** 2)[:3]
            weights = [
                1.0 if mode == "mean3" else 1 / max(np.hypot(p[0] - x, p[1] - y), 1e-5) for p in nearest
            ]
            value = sum(w * p[2] for w, p in zip(weights, nearest, strict=True)) / sum(weights)
        columns.append(value)
    return torch.stack(columns, 1)


@pytest.mark.parametrize("mode", ["mean3", "idw3", "bilinear"])
@pytest.mark.parametrize("size", [(5, 7), (2, 9), (1, 2), (1, 1)])
def test_interpolation_agrees_with_plain_loops(mode: str, size: tuple[int, int]) -> None:
    grid, xy = torch.randn(2, 4, *size), torch.rand(2, 30, 2) * 1.98 - 0.99
    out = interpolate(grid, xy, mode)
    for image in range(2):
        torch.testing.assert_close(out[image], by_loops(grid[image], xy[image], mode), atol=1e-4, rtol=1e-4)


def test_aggregation_is_the_normalised_sum() -> None:
    raw, visual, geometric = (torch.randn(1, 128, 6) for _ in range(3))
    total = raw + visual + geometric
    torch.testing.assert_close(aggregate(raw, visual, geometric), total / total.norm(dim=1, keepdim=True))
    torch.testing.assert_close(aggregate(raw), raw / raw.norm(dim=1, keepdim=True))


def test_efficientnet_with_registry_weights_sees_a_cat() -> None:
    """Our definition is the published network: with its weights and classifier it names ImageNet's cats."""
    import cv2
    from skimage.data import chelsea

    weights = registry_weights()
    network = EfficientNetLite0()
    network.load_registry_weights(weights)
    crop = cv2.resize(chelsea()[:, 75:375], (224, 224), interpolation=cv2.INTER_AREA)
    with torch.no_grad():
        feature = network.eval()(torch.from_numpy(crop).permute(2, 0, 1)[None].float()).mean((2, 3))
        scores = feature @ weights["_fc.weight"].T + weights["_fc.bias"]
    assert set(scores.topk(3).indices[0].tolist()) == {281, 282, 285}  # tabby, tiger cat, Egyptian cat


@pytest.mark.parametrize(
    ("config", "channels"),
    [
        (RegionalConfig(), 1280),
        (RegionalConfig(head=False), 320),
        (RegionalConfig("resnet50"), 2048),
        (RegionalConfig("resnet50", final_relu=True), 2048),
    ],
)
def test_regional_grids_have_stride_32(config: RegionalConfig, channels: int) -> None:
    network = build_regional(config).eval()
    with torch.no_grad():
        grid = network(torch.rand(1, 3, 96, 160) * 255)
    assert grid.shape == (1, channels, 3, 5)
    if config.network == "resnet50":
        assert (grid.min() >= 0) == config.final_relu


def test_resnet_has_torchvision_s_key_names() -> None:
    network = ResNet50()
    state = network.state_dict()
    assert len(state) == 318  # torchvision's 320 without its classifier
    assert state["layer3.5.bn2.running_var"].shape == (256,)
    assert state["layer4.0.downsample.0.weight"].shape == (2048, 1024, 1, 1)
    full = {**state, "fc.weight": torch.zeros(1000, 2048), "fc.bias": torch.zeros(1000)}
    full["conv1.weight"] = torch.full_like(state["conv1.weight"], 0.5)
    network.load_torchvision_weights(full)
    assert (network.conv1.weight == 0.5).all()
    del full["layer1.0.conv1.weight"]
    with pytest.raises(ValueError, match=r"not ResNet-50 weights in torchvision's layout.*layer1.0.conv1"):
        network.load_torchvision_weights(full)
