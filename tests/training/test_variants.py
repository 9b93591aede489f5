"""Every row of the paper's table 1: its shapes, its symmetries, a training step, and its export."""

from __future__ import annotations

import itertools
import logging
import warnings
from dataclasses import replace
from pathlib import Path

import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contextdesc.detection import Detector, detect
from contextdesc.image import Image
from contextdesc.patches import sample_patches
from contextdesc.training.export import OPSET, PARITY
from contextdesc.training.losses import n_pair
from contextdesc.training.networks import (
    GeometricContext,
    LocalNetwork,
    VisualConfig,
    VisualContext,
    aggregate,
    count_parameters,
)
from contextdesc.training.variants import (
    Aggregation,
    AggregationVariant,
    CentralSurround,
    ContextNormContext,
    GeometricStart,
    GeometricVariant,
    GlobalContext,
    PointNetContext,
    VisualVariant,
    build_geometric,
    build_local,
    build_visual,
    enlarged_middle,
    start_terms,
)

ENCODER = VisualConfig(16, (32, 16), fusion_widths=(64, 128), gate=True)
VISUAL = [
    *(VisualVariant(strategy, ENCODER) for strategy in ("global", "regional", "regional+cn")),  # type: ignore[arg-type]
    VisualVariant("global", VisualConfig(16, (), fusion_widths=(128,), final_relu=False)),
]
SMALL = {"width": 32, "units": 2, "point_widths": (16,), "pooled_widths": (16, 64), "fusion_widths": (32,)}
GEOMETRIC = [
    GeometricVariant(encoder, inputs, gate=gate, **SMALL)  # type: ignore[arg-type]
    for (encoder, inputs), gate in zip(
        [
            *itertools.product(("pointnet", "cn-post", "cn-pre"), ("xy", "xy+raw", "xy+matchability")),
            ("pointnet", "xy+raw+matchability"),
            ("cn-pre", "xy+raw+matchability"),
            ("cn-pre", "xy+angle+matchability"),
            ("pointnet", "xy+angle+raw+matchability"),
        ],
        itertools.cycle((False, True)),
        strict=False,
    )
]
STARTED = [
    replace(config, start=GeometricStart(**dict.fromkeys(config.inputs.split("+"), 0.1)))
    for config in GEOMETRIC
    if config.encoder != "pointnet" and "raw" not in config.inputs
]
AGGREGATION = [AggregationVariant(kind) for kind in ("sum", "concat", "learned")]  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def visual(config: VisualVariant) -> VisualContext:
    network = build_visual(config)
    assert network is not None
    return network


def geometric(config: GeometricVariant) -> ContextNormContext | PointNetContext:
    network = build_geometric(config)
    assert network is not None
    return network


def keypoints(count: int = 20, batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """xy, score and raw descriptors."""
    raw = F.normalize(torch.randn(batch, count, 128), dim=2)
    return torch.rand(batch, count, 2) * 2 - 1, torch.randn(batch, count), raw


def pointing(raw: Tensor) -> Tensor:
    """Directions (B, N, 2), any that belong to these keypoints."""
    return F.normalize(raw[..., :2], dim=2)


def awake(network: nn.Module) -> nn.Module:
    """Random values where training starts with zeros."""
    for parameter in network.parameters():
        if parameter.abs().max() == 0:
            nn.init.normal_(parameter, std=0.3)
    return network.eval()


def name(config: object) -> str:
    return str(config)[:70]


@pytest.mark.parametrize("config", VISUAL, ids=name)
def test_visual_variant(config: VisualVariant) -> None:
    network, grid, (xy, _, raw) = visual(config), torch.randn(2, 16, 5, 7), keypoints()
    assert network(grid, xy, raw).abs().max() == 0  # a fresh term leaves the raw descriptor alone
    awake(network)
    out = network(grid, xy, raw)
    assert out.shape == (2, 128, 20)
    order = torch.randperm(20)
    torch.testing.assert_close(network(grid, xy[:, order], raw[:, order]), out[:, :, order])
    other = grid.clone()
    other[0] += torch.randn(16, 5, 7)
    changed = (network(other, xy, raw) - out).abs().amax((1, 2))
    assert changed[0] > 0
    assert changed[1] == 0  # an image knows nothing of another


@pytest.mark.parametrize("config", [*GEOMETRIC, *STARTED], ids=name)
def test_geometric_variant(config: GeometricVariant) -> None:
    network, (xy, score, raw) = geometric(config), keypoints()
    direction = pointing(raw)
    assert network(xy, score, raw, direction).abs().max() == 0
    awake(network)
    out = network(xy, score, raw, direction)
    assert out.shape == (2, 128, 20)
    order = torch.randperm(20)
    permuted = network(xy[:, order], score[:, order], raw[:, order], direction[:, order])
    torch.testing.assert_close(permuted, out[:, :, order], atol=1e-4, rtol=1e-3)
    moved = xy.clone()
    moved[0, 0] += 3
    changed = (network(moved, score, raw, direction) - out).abs().amax(1)
    assert changed[0, 1:].min() > 0  # every keypoint knows of every other of its image
    assert changed[1].max() == 0  # but not of another image
    reads = {
        "matchability": not torch.equal(network(xy, score + 1, raw, direction), out),
        "raw": not torch.equal(network(xy, score, raw.flip(2), direction), out),
        "angle": not torch.equal(network(xy, score, raw, direction.flip(2)), out),
    }
    assert reads == {what: what in config.inputs for what in reads}
    if "raw" in config.inputs:
        with pytest.raises(ValueError, match="wants the raw descriptors too"):
            network(xy, score, None, direction)
    else:
        assert torch.equal(network(xy, score, None, direction), out)
    if "angle" in config.inputs:
        with pytest.raises(ValueError, match="wants the directions too"):
            network(xy, score, raw)
    else:
        assert torch.equal(network(xy, score, raw), out)


def test_default_is_the_network_of_the_paper() -> None:
    paper, variant = GeometricContext(), geometric(GeometricVariant())
    assert isinstance(variant, ContextNormContext)
    awake(paper)
    variant.load_state_dict(paper.state_dict())
    xy, score, _ = keypoints()
    assert torch.equal(variant.eval()(xy, score), paper(xy, score))
    regional = visual(VisualVariant(encoder=VisualConfig(16)))
    assert type(regional) is VisualContext
    assert regional.config == VisualConfig(16)
    assert build_visual(VisualVariant("none")) is None
    assert build_geometric(GeometricVariant("none")) is None
    assert not visual(VisualVariant("regional", ENCODER)).config.grid_context_norm


def test_post_activation_units_add_nothing_negative() -> None:
    x = torch.randn(1, 32, 50)
    for encoder, negative in (("cn-post", False), ("cn-pre", True)):
        network = geometric(GeometricVariant(encoder, **SMALL))  # type: ignore[arg-type]
        assert isinstance(network, ContextNormContext)
        assert bool((network.units[0](x) < 0).any()) == negative


def test_pointnet_has_the_widths_of_its_paper() -> None:
    network = PointNetContext(GeometricVariant("pointnet", "xy"))
    weights = [tuple(p.shape[:2]) for p in network.parameters() if p.dim() == 3]
    assert weights == [
        (64, 2),
        (64, 64),
        (64, 64),
        (128, 64),
        (1024, 128),
        (512, 1088),
        (256, 512),
        (128, 256),
    ]


def test_global_feature_knows_what_but_not_where() -> None:
    network, (xy, _, raw) = GlobalContext(ENCODER), keypoints()
    awake(network)
    grid = torch.randn(2, 16, 5, 7)
    out = network(grid, xy, raw)
    assert torch.equal(network(grid, -xy, raw), out)
    shuffled = grid.flatten(2)[:, :, torch.randperm(35)].reshape(2, 16, 7, 5)
    assert torch.equal(network(shuffled, xy, raw), out)
    torch.testing.assert_close(network(3 * grid, xy, raw), out)  # the brightness of the features is no cue


def test_central_surround_describes_two_domain_sizes(photo: Image) -> None:
    found = detect(photo.gray, Detector(16))
    patches = torch.from_numpy(sample_patches(photo.gray, found))
    local = LocalNetwork().eval()
    network = build_local(VisualVariant("central-surround"), local)
    assert isinstance(network, CentralSurround)
    assert build_local(VisualVariant("regional"), local) is local
    with torch.no_grad():
        out, score = network(patches)
        raw, expected_score = local(patches)
        twice, _ = network(patches, patches)
    assert out.shape == (16, 256)
    torch.testing.assert_close(out[:, :128], F.normalize(raw, dim=1))
    assert torch.equal(score, expected_score)
    torch.testing.assert_close(out.norm(dim=1), torch.full((16,), 2**0.5))
    torch.testing.assert_close(twice[:, 128:], twice[:, :128])
    assert (out[:, 128:] - out[:, :128]).norm(dim=1).min() > 0.01
    assert count_parameters(network) == count_parameters(local)


def test_middle_of_a_patch_is_enlarged_about_its_centre() -> None:
    ramp = torch.arange(32.0).expand(1, 32, 32)
    middle = enlarged_middle(ramp)
    assert middle.shape == (1, 32, 32)
    columns = (torch.arange(32.0) - 15.5) / 2 + 15.5
    torch.testing.assert_close(middle[0, 5, 1:-1], columns[1:-1])  # the border repeats the last pixel


@pytest.mark.parametrize("config", AGGREGATION, ids=name)
def test_aggregation(config: AggregationVariant) -> None:
    network, raw = Aggregation(config), keypoints()[2].transpose(1, 2)
    terms, nothing = [torch.randn(2, 128, 20) for _ in range(2)], torch.zeros(2, 128, 20)
    fresh = network(raw, nothing, nothing)
    torch.testing.assert_close(fresh[:, :128], raw)  # terms that are 0 change nothing
    assert fresh[:, 128:].abs().sum() == 0
    if config.kind != "concat":
        torch.testing.assert_close(network(raw, *terms), aggregate(raw, *terms))  # learned starts as the sum
    awake(network)
    out = network(raw, *terms)
    assert out.shape == (2, 384 if config.kind == "concat" else 128, 20)
    torch.testing.assert_close(out.norm(dim=1), torch.ones(2, 20))
    order = torch.randperm(20)
    permuted = network(raw[..., order], *(term[..., order] for term in terms))
    torch.testing.assert_close(permuted, out[..., order])
    if config.kind == "learned":
        with pytest.raises(ValueError, match="learned aggregation of 2 terms: got 1"):
            network(raw, terms[0])


@pytest.mark.parametrize("kind", ["sum", "learned"])
def test_central_surround_does_not_sum(kind: str) -> None:
    network = Aggregation(AggregationVariant(kind), 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=rf"aggregation {kind}: the raw descriptor has 256 values"):
        network(torch.randn(1, 256, 5), torch.randn(1, 128, 5))


@pytest.mark.parametrize("config", [*VISUAL, *GEOMETRIC], ids=name)
def test_concat_starts_small_but_not_at_zero(config: VisualVariant | GeometricVariant) -> None:
    network = visual(config) if isinstance(config, VisualVariant) else geometric(config)
    xy, score, raw = keypoints()
    grid = torch.randn(2, 16, 5, 7)
    inputs = (grid, xy, raw) if isinstance(config, VisualVariant) else (xy, score, raw, pointing(raw))
    start_terms(AggregationVariant("sum"), network, None)
    assert network(*inputs).abs().max() == 0
    start_terms(AggregationVariant("concat"), network, None)
    assert 0 < network(*inputs).norm(dim=1).mean() < 2


class Described(nn.Module):
    """Terms and their aggregation: (B, D, N) L2-normalised descriptors."""

    def __init__(self, visual: VisualVariant, geometric: GeometricVariant, how: AggregationVariant) -> None:
        super().__init__()
        self.visual, self.geometric = build_visual(visual), build_geometric(geometric)
        self.aggregation = Aggregation(how)
        start_terms(how, self.visual, self.geometric)

    def forward(self, grid: Tensor, xy: Tensor, score: Tensor, raw: Tensor) -> Tensor:
        terms = []
        if self.visual is not None:
            terms.append(self.visual(grid, xy, raw))
        if self.geometric is not None:
            terms.append(self.geometric(xy, score, raw, pointing(raw)))
        return self.aggregation(raw.transpose(1, 2), *terms)


OFF = VisualVariant("none"), GeometricVariant("none")
TRAINED = [
    *((config, OFF[1], AggregationVariant()) for config in VISUAL),
    *((OFF[0], config, AggregationVariant()) for config in GEOMETRIC),
    *((VISUAL[0], GEOMETRIC[0], how) for how in AGGREGATION),
]


@pytest.mark.parametrize("configs", TRAINED, ids=lambda c: " ".join(map(name, c))[:150])
def test_a_few_steps_lower_the_loss(
    configs: tuple[VisualVariant, GeometricVariant, AggregationVariant],
) -> None:
    network = Described(*configs).train()
    xy, score, raw = keypoints(64)
    raw[1] = F.normalize(raw[0] + 1.5 * raw[1], dim=1)
    xy[1], score[1] = xy[0] + 0.02 * xy[1], score[0]
    grid = torch.randn(1, 16, 4, 4) + 0.1 * torch.randn(2, 16, 4, 4)
    optimiser = torch.optim.AdamW(network.parameters(), 3e-3)
    losses = []
    for _ in range(12):
        optimiser.zero_grad()
        first, second = network(grid, xy, score, raw).transpose(1, 2)
        loss = n_pair(first[None], second[None], 20.0)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(float(loss.detach()))
    assert min(losses[-3:]) < losses[0]
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all()
        if not key.endswith("bias"):  # those before a norm do nothing
            assert parameter.grad.abs().max() > 0, key


def test_central_surround_trains() -> None:
    network = CentralSurround(LocalNetwork()).train()
    patches = torch.randn(8, 32, 32)
    others = patches + 2 * torch.randn(8, 32, 32)
    optimiser = torch.optim.SGD(network.parameters(), 0.01)
    losses = []
    for _ in range(3):
        optimiser.zero_grad()
        first, score = network(patches)
        second, _ = network(others)
        loss = n_pair(F.normalize(first)[None], F.normalize(second)[None], 5.0)
        (loss + score.square().mean()).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    for parameter in network.parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().max() > 0


def exported(
    module: nn.Module, inputs: dict[str, Tensor], axes: dict[str, dict[int, str]], path: Path
) -> onnxruntime.InferenceSession:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module, kwargs=inputs, input_names=list(inputs), dynamic_shapes=axes, opset_version=OPSET,
            dynamo=True, verbose=False,
        )  # fmt: skip
    assert program is not None
    program.save(str(path))
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def difference(session: onnxruntime.InferenceSession, module: nn.Module, inputs: dict[str, Tensor]) -> float:
    """Largest difference of outputs that are L2-normalised along their channels (dimension 1)."""
    read = {i.name for i in session.get_inputs()}
    got = session.run(None, {key: value.numpy() for key, value in inputs.items() if key in read})
    with torch.no_grad():
        expected = module(**inputs)
    expected = expected[0] if isinstance(expected, tuple) else expected
    answer = torch.from_numpy(got[0])
    assert answer.shape == expected.shape
    return float((F.normalize(answer, dim=1) - F.normalize(expected, dim=1)).abs().max())


AXES = {"grid": {2: "h", 3: "w"}, **{name: {1: "n"} for name in ("xy", "score", "raw", "direction")}}
SIZES = ((33, 4, 9), (1, 1, 1), (2, 1, 2), (500, 20, 12))


def with_statistics(network: nn.Module, *inputs: Tensor) -> nn.Module:
    """Batch norms that have seen data, no zeros, and ready for use."""
    awake(network).train()
    with torch.no_grad():
        for _ in range(20):
            network(*inputs)
    return network.eval()


@pytest.mark.parametrize("config", VISUAL, ids=name)
def test_visual_variant_exports(config: VisualVariant, tmp_path: Path) -> None:
    def inputs(count: int, height: int, width: int) -> dict[str, Tensor]:
        xy, _, raw = keypoints(count, batch=1)
        return {"grid": torch.randn(1, 16, height, width), "xy": xy, "raw": raw}

    network = with_statistics(visual(config), *inputs(50, 6, 8).values())
    axes = {k: AXES[k] for k in ("grid", "xy", "raw")}
    session = exported(network, inputs(50, 6, 8), axes, tmp_path / "v.onnx")
    for size in SIZES:
        assert difference(session, network, inputs(*size)) < PARITY


@pytest.mark.parametrize("config", [*GEOMETRIC, *STARTED], ids=name)
def test_geometric_variant_exports(config: GeometricVariant, tmp_path: Path) -> None:
    def inputs(count: int) -> dict[str, Tensor]:
        xy, score, raw = keypoints(count, batch=1)
        return {"xy": xy, "score": score, "raw": raw, "direction": pointing(raw)}

    network = with_statistics(geometric(config), *inputs(50).values())
    axes = {k: AXES[k] for k in ("xy", "score", "raw", "direction")}
    session = exported(network, inputs(50), axes, tmp_path / "g.onnx")
    for count, *_ in SIZES:
        assert difference(session, network, inputs(count)) < PARITY


@pytest.mark.parametrize("how", AGGREGATION, ids=name)
def test_aggregation_exports_with_its_terms(how: AggregationVariant, tmp_path: Path) -> None:
    def inputs(count: int, height: int, width: int) -> dict[str, Tensor]:
        xy, score, raw = keypoints(count, batch=1)
        return {"grid": torch.randn(1, 16, height, width), "xy": xy, "score": score, "raw": raw}

    network = with_statistics(Described(VISUAL[0], GEOMETRIC[-1], how), *inputs(50, 6, 8).values())
    axes = {k: AXES[k] for k in inputs(1, 1, 1)}
    session = exported(network, inputs(50, 6, 8), axes, tmp_path / "a.onnx")
    for size in SIZES:
        assert difference(session, network, inputs(*size)) < PARITY


@pytest.mark.parametrize("centres", [True, False])
def test_central_surround_exports(centres: bool, tmp_path: Path) -> None:
    def inputs(count: int) -> dict[str, Tensor]:
        names = ("patches", "centres") if centres else ("patches",)
        return {key: torch.rand(count, 32, 32) * 255 for key in names}

    network = with_statistics(CentralSurround(LocalNetwork()), *inputs(16).values())
    axes = {key: {0: "n"} for key in inputs(1)}
    session = exported(network, inputs(16), axes, tmp_path / "c.onnx")
    for count in (1, 5, 40):
        assert difference(session, network, inputs(count)) < PARITY
