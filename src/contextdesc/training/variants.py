"""The other rows of the paper's table 1: encoders and aggregations that its final networks won against.

Keypoint features travel as (B, C, N), grids as (B, C, h, w), as in `networks.py`, which holds the
regional visual encoder, the context-norm encoder with pre-activation, and the sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contextdesc.errors import InputError
from contextdesc.training.networks import (
    DESCRIPTOR,
    ContextNorm,
    Gate,
    GeometricConfig,
    GeometricContext,
    LocalNetwork,
    VisualConfig,
    VisualContext,
    _mlp,
    _zero,
    aggregate,
)

# Beside the layout: nothing, raw descriptors, matchability (the paper's choice), which way keypoints point
Inputs = Literal[
    "xy",
    "xy+raw",
    "xy+matchability",
    "xy+raw+matchability",
    "xy+angle+matchability",
    "xy+angle+raw+matchability",
]


@dataclass(frozen=True)
class VisualVariant:
    """Visual context: the left columns of table 1."""

    strategy: Literal["none", "central-surround", "global", "regional", "regional+cn"] = "regional+cn"
    encoder: VisualConfig = field(default_factory=lambda: VisualConfig(gate=True))  # its CN: see strategy


@dataclass(frozen=True)
class GeometricStart:
    """Weights, beside the raw descriptor, of inputs that enter the geometric term past its units too.

    A linear map of theirs is fitted with the visual term's (`start.py`); inputs of weight 0 have none.
    """

    xy: float = 0.0
    angle: float = 0.0
    matchability: float = 0.0

    @property
    def weights(self) -> dict[str, float]:
        """Those above 0, in the order of the map's channels, two each."""
        return {name: weight for name, weight in asdict(self).items() if weight > 0}


@dataclass(frozen=True)
class GeometricVariant:
    """Geometric context: the middle columns of table 1."""

    encoder: Literal["none", "pointnet", "cn-post", "cn-pre"] = "cn-pre"
    inputs: Inputs = "xy+matchability"
    width: int = 128  # of the residual units
    units: int = 4
    point_widths: tuple[int, ...] = (64, 64)  # pointnet: before the features that it keeps per keypoint
    pooled_widths: tuple[int, ...] = (64, 128, 1024)  # pointnet: before max pooling
    fusion_widths: tuple[int, ...] = (512, 256)  # pointnet: before its last, linear layer
    start: GeometricStart = field(default_factory=GeometricStart)
    gate: bool = False


@dataclass(frozen=True)
class AggregationVariant:
    """How raw descriptor and context terms become one (section 3.5)."""

    kind: Literal["sum", "concat", "learned"] = "sum"  # concat: 384-d with both terms


def build_visual(config: VisualVariant) -> VisualContext | None:
    """The visual encoder; None for the strategies without a term (see `build_local`)."""
    if config.strategy in ("none", "central-surround"):
        return None
    if config.strategy == "global":
        return GlobalContext(config.encoder)
    return VisualContext(replace(config.encoder, grid_context_norm=config.strategy == "regional+cn"))


def build_local(config: VisualVariant, network: LocalNetwork) -> LocalNetwork | CentralSurround:
    """The network that describes patches: the one given, or central-surround on top of it."""
    return CentralSurround(network) if config.strategy == "central-surround" else network


def build_geometric(config: GeometricVariant) -> ContextNormContext | PointNetContext | None:
    if config.encoder == "none":
        return None
    return PointNetContext(config) if config.encoder == "pointnet" else ContextNormContext(config)


def start_terms(how: AggregationVariant, *encoders: nn.Module | None) -> None:
    """Give fresh encoders a start that their aggregation learns from, in place.

    A sum starts from terms that are 0, as built. Side by side, a term of one image meets only the same
    term of the other: where both are 0 the gradient is 0 too, for ever. So before `concat`, gates start at
    0.1 and zero layers at small random values.
    """
    if how.kind != "concat":
        return
    for encoder in encoders:
        for module in encoder.modules() if encoder is not None else ():
            if isinstance(module, Gate):
                nn.init.constant_(module.factor, 0.1)
            elif isinstance(module, nn.Conv1d) and not module.weight.any():
                nn.init.xavier_normal_(module.weight, gain=0.1)


class CentralSurround(nn.Module):
    """The local network on two domain sizes, side by side in one descriptor of twice the size.

    The patch is the surround; its centre has half its side (Zagoruyko and Komodakis, CVPR 2015; Tian et
    al., CVPR 2017). One network describes both, as the base network is fixed in table 1. Either half has
    unit norm, so that both weigh the same.

    Shape:
        patches (N, 32, 32), centres (N, 32, 32) sampled at half the patches' support -> descriptor
        (N, 256), score (N,) of the patches. Without centres, the middle 16x16 of the patches is enlarged.
    """

    def __init__(self, network: LocalNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, patches: Tensor, centres: Tensor | None = None) -> tuple[Tensor, Tensor]:
        surround, score = self.network(patches)
        centre, _ = self.network(enlarged_middle(patches) if centres is None else centres)
        return torch.cat([F.normalize(surround, dim=1), F.normalize(centre, dim=1)], 1), score


def enlarged_middle(patches: Tensor) -> Tensor:
    """The middle half of each side at full size, bilinear: (N, 32, 32) -> (N, 32, 32) float."""
    middle = patches[:, 8:24, 8:24].float().unsqueeze(1)
    return F.interpolate(middle, size=(32, 32), mode="bilinear", align_corners=False).squeeze(1)


class GlobalContext(VisualContext):
    """One feature of the whole image beside each raw descriptor, as in PPFNet (Deng et al., CVPR 2018).

    The image's feature is its MAC, the largest response per channel of the regional grid (Tolias et al.,
    ICLR 2016), L2-normalised. Its layers have no norm: there is but one point per image, and a norm over
    it leaves nothing. `grid_context_norm` and the interpolation options of the config are not read.

    Shape:
        grid (B, C, h, w) or B grids (C, h, w), xy (B, N, 2), not read but for N, raw (B, N, 128)
        -> (B, 128, N).
    """

    def __init__(self, config: VisualConfig | None = None) -> None:
        super().__init__(config)
        layers: list[nn.Module] = []
        channels = self.config.regional_channels
        for width in self.config.grid_widths:
            layers += [nn.Conv1d(channels, width, 1), nn.ReLU()]
            channels = width
        self.grid_mlp = nn.Sequential(*layers)

    def inputs(self, grid: Tensor | Sequence[Tensor], xy: Tensor, raw: Tensor) -> Tensor:
        largest = (
            grid.amax((2, 3)) if isinstance(grid, Tensor) else torch.stack([g.amax((1, 2)) for g in grid])
        )
        mac = F.normalize(largest, dim=1)  # (B, C)
        image = self.grid_mlp(mac.unsqueeze(2)).expand(-1, -1, xy.shape[1])
        return torch.cat([image, raw.transpose(1, 2)], 1)


class ContextNormContext(GeometricContext):
    """The geometric encoder with a choice of inputs and of residual units.

    `cn-pre` with `xy+matchability` and no start is `GeometricContext`, parameter by parameter. `cn-post`
    has the units of Yi et al. (CVPR 2018), [1x1, context norm, batch norm, ReLU] before the addition, so
    that what a unit adds is never negative (figure `context_norm`, a). Inputs that have a start also enter
    the term by a linear map of their own, past the units, which `start.py` fits.

    Shape:
        xy (B, N, 2) in [-1, 1], score (B, N), raw (B, N, 128), direction (B, N, 2), cosine and sine of the
        keypoints' angles; all but the first are read where the inputs name them -> (B, 128, N).
    """

    def __init__(self, config: GeometricVariant | None = None) -> None:
        config = config or GeometricVariant()
        super().__init__(GeometricConfig(config.width, config.units, config.gate))
        self.variant = config
        if not reads(config.inputs, "matchability"):
            del self.squash
        self.first = nn.Conv1d(_channels(config.inputs), config.width, 1)
        if config.start.weights:
            self.direct = nn.Conv1d(2 * len(config.start.weights), DESCRIPTOR, 1, bias=False)
            _zero(self.direct)
        if config.encoder == "cn-post":
            self.units = nn.ModuleList(
                _mlp(config.width, (config.width,), context_norm=True, bias=False)
                for _ in range(config.units)
            )

    def forward(
        self,
        xy: Tensor,
        score: Tensor | None = None,
        raw: Tensor | None = None,
        direction: Tensor | None = None,
    ) -> Tensor:
        x = self.first(_points(self, self.variant.inputs, xy, score, raw, direction))
        for unit in self.units:
            x = x + unit(x)
        term = self.last(x)
        if self.variant.start.weights:
            term = term + self.direct(self.direct_inputs(xy, score, direction))
        return self.gate(term)

    def direct_inputs(self, xy: Tensor, score: Tensor | None, direction: Tensor | None) -> Tensor:
        """Inputs that have a start, (B, 2 of each, N): places and scores relative to the image's others.

        A score becomes a point on half a circle. Distances along it tell near scores apart as a linear map
        of the score alone cannot without far ones outweighing all else.
        """
        channels: list[Tensor] = []
        for name in self.variant.start.weights:
            if name == "xy":
                channels.append(ContextNorm()(xy.transpose(1, 2)))
            elif name == "angle":
                assert direction is not None  # the inputs name it: checked with the config
                channels.append(direction.transpose(1, 2))
            else:
                assert score is not None
                arc = math.pi / 2 * torch.tanh(ContextNorm()(score.unsqueeze(1)))
                channels += [arc.cos(), arc.sin()]
        return torch.cat(channels, 1)


class PointNetContext(nn.Module):
    """PointNet's segmentation network without its classifier (Qi et al., CVPR 2017), on 2D keypoints.

    A shared MLP describes each keypoint, a wider one followed by max pooling all of them together; both
    are concatenated and fused. The learned input and feature transforms of PointNet are left out. The
    last layer is linear, so that the term may have either sign.

    Shape:
        xy (B, N, 2) in [-1, 1], score (B, N), raw (B, N, 128), direction (B, N, 2), cosine and sine of the
        keypoints' angles; all but the first are read where the inputs name them -> (B, 128, N).
    """

    def __init__(self, config: GeometricVariant | None = None) -> None:
        super().__init__()
        self.variant = config = config or GeometricVariant("pointnet")
        if reads(config.inputs, "matchability"):
            self.squash = nn.Conv1d(1, 1, 1)
            nn.init.ones_(self.squash.weight)
            nn.init.zeros_(self.squash.bias)  # type: ignore[arg-type]  # it has a bias
        inputs = _channels(config.inputs)
        self.points = _mlp(inputs, config.point_widths, context_norm=False, bias=False)
        kept = config.point_widths[-1] if config.point_widths else inputs
        self.pooled = _mlp(kept, config.pooled_widths, context_norm=False, bias=False)
        pooled = config.pooled_widths[-1] if config.pooled_widths else kept
        self.fusion = _mlp(kept + pooled, config.fusion_widths, context_norm=False, bias=False)
        fused = config.fusion_widths[-1] if config.fusion_widths else kept + pooled
        self.last = nn.Conv1d(fused, DESCRIPTOR, 1)
        if not config.gate:
            _zero(self.last)
        self.gate = Gate() if config.gate else nn.Identity()

    def forward(
        self,
        xy: Tensor,
        score: Tensor | None = None,
        raw: Tensor | None = None,
        direction: Tensor | None = None,
    ) -> Tensor:
        points = self.points(_points(self, self.variant.inputs, xy, score, raw, direction))  # (B, 64, N)
        pooled = self.pooled(points).amax(2, keepdim=True).expand(-1, -1, xy.shape[1])  # (B, 1024, N)
        return self.gate(self.last(self.fusion(torch.cat([points, pooled], 1))))


class Aggregation(nn.Module):
    """Raw descriptor and context terms to one L2-normalised descriptor.

    `sum` is the paper's. `concat` sets all side by side (see `start_terms`): terms that are 0 change no
    distance. `learned` adds each term times a factor per keypoint and channel between 0 and 2, read from
    raw and all terms by one 1x1 layer; it starts at 1, as the sum.

    Shape:
        raw (B, 128, N), each term (B, 128, N) -> (B, 128, N), for concat (B, 128 (1 + terms), N).
    """

    def __init__(self, config: AggregationVariant | None = None, terms: int = 2) -> None:
        super().__init__()
        self.config, self.terms = config or AggregationVariant(), terms
        if self.config.kind == "learned":
            self.factors = nn.Conv1d((1 + terms) * DESCRIPTOR, terms * DESCRIPTOR, 1)
            _zero(self.factors)

    def forward(self, raw: Tensor, *terms: Tensor) -> Tensor:
        if self.config.kind == "concat":
            return F.normalize(torch.cat([raw, *terms], 1), dim=1)
        if raw.shape[1] != DESCRIPTOR:
            raise InputError(
                f"aggregation {self.config.kind}: the raw descriptor has {raw.shape[1]} values, the terms "
                f"{DESCRIPTOR}; use concat, or another strategy than central-surround"
            )
        if self.config.kind == "sum":
            return aggregate(raw, *terms)
        if len(terms) != self.terms:
            raise InputError(f"learned aggregation of {self.terms} terms: got {len(terms)}")
        factors = 2 * torch.sigmoid(self.factors(torch.cat([raw, *terms], 1)))
        weighted = [t * f for t, f in zip(terms, factors.split(DESCRIPTOR, 1), strict=True)]
        return aggregate(raw, *weighted)


def _channels(inputs: Inputs) -> int:
    angle, matchability, raw = (reads(inputs, what) for what in ("angle", "matchability", "raw"))
    return 2 + 2 * angle + matchability + DESCRIPTOR * raw


def reads(inputs: Inputs, what: str) -> bool:
    """Whether a geometric encoder with these inputs reads xy, raw, matchability or angle."""
    return what in inputs.split("+")


def arguments(inputs: Inputs) -> list[str]:
    """Which arguments of its `forward` a geometric encoder with these inputs reads."""
    names = {"angle": "direction", "matchability": "score"}
    return [names.get(what, what) for what in inputs.split("+")]


def _points(
    encoder: ContextNormContext | PointNetContext,
    inputs: Inputs,
    xy: Tensor,
    score: Tensor | None,
    raw: Tensor | None,
    direction: Tensor | None,
) -> Tensor:
    """What an encoder reads of each keypoint, (B, C, N), in the order of `GeometricContext`."""
    points = [xy.transpose(1, 2)]
    if reads(inputs, "angle"):
        if direction is None:
            raise InputError(f"a geometric encoder with inputs {inputs} wants the directions too")
        points.append(direction.transpose(1, 2))
    if reads(inputs, "matchability"):
        if score is None:
            raise InputError(f"a geometric encoder with inputs {inputs} wants the scores too")
        points.insert(0, torch.tanh(encoder.squash(score.unsqueeze(1))))
    if reads(inputs, "raw"):
        if raw is None:
            raise InputError(f"a geometric encoder with inputs {inputs} wants the raw descriptors too")
        points.insert(0, raw.transpose(1, 2))
    return torch.cat(points, 1)
