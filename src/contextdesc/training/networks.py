"""The networks of section 3: the one definition of each, from patch to context-aware descriptor.

Widths, order and normalisation are the release's, which are the ones that the paper's cost table counts;
where paper and release differ, both are named options of the configs below. Keypoint features travel as
(B, C, N), grids as (B, C, h, w). Regional networks stand in `regional.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contextdesc.errors import InputError

EPS = 1e-5
DESCRIPTOR = 128
LAST_MAP = 8  # side of the last map of a patch, 32 pixels after two strides


@dataclass(frozen=True)
class LocalConfig:
    """Local network and matchability predictor."""

    matchability: Literal["map", "raw"] = "map"  # reads the 8x8 map (release) or the raw feature (paper)


@dataclass(frozen=True)
class GeometricConfig:
    """Geometric context encoder."""

    width: int = 128
    units: int = 4
    gate: bool = False  # a learned factor on the term, starting at 0


@dataclass(frozen=True)
class VisualConfig:
    """Visual context encoder."""

    regional_channels: int = (
        1280  # of the grid: EfficientNet-Lite0 with head 1280, without 320; ResNet-50 2048
    )
    grid_widths: tuple[int, ...] = (1024, 512)  # none: the grid itself is read, after its context norm
    grid_context_norm: bool = True
    fusion_widths: tuple[int, ...] = (512, 256, DESCRIPTOR)  # release: 3 layers; (256, 128): 2
    fusion_context_norm: bool = False
    interpolation: Literal["mean3", "idw3", "bilinear"] = "mean3"  # release: mean3; paper: idw3
    interpolate: Literal["after", "before"] = "after"  # the grid MLP (release) or before it (paper)
    unit: bool = False  # L2-normalise what is read at a keypoint
    final_relu: bool = True  # False: the last layer is linear, and the term may be negative
    start: float = 0.0  # weight of the regional feature beside raw, fitted (`start.py`); 0: from nothing
    gate: bool = False


class ContextNorm(nn.Module):
    """Zero mean and unit variance per channel over all points of one image. (B, C, ...) -> same."""

    def forward(self, x: Tensor) -> Tensor:
        points = tuple(range(2, x.dim()))
        centred = x - x.mean(points, keepdim=True)
        variance = centred.square().mean(points, keepdim=True)
        return centred * torch.rsqrt(variance + EPS)


class Gate(nn.Module):
    """A learned factor that starts at 0, so that a fresh term does not drown the raw descriptor."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class LocalNetwork(nn.Module):
    """Patches to raw descriptors and matchability scores (L2-Net's trunk, section 3.1).

    Shape:
        patches (N, 32, 32), any scale of gray values -> raw (N, 128), L2-normalised, so that context terms
        are learned at one scale whatever the network's; score (N,), the value that the quad loss ranks.
    """

    WIDTHS = ((32, 1), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1))  # channels, stride

    def __init__(self, config: LocalConfig | None = None) -> None:
        super().__init__()
        self.config = config or LocalConfig()
        layers: list[nn.Module] = []
        channels = 1
        for width, stride in self.WIDTHS:
            if stride == 2:  # TensorFlow's SAME padding of an even side
                layers += [nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(channels, width, 3, 2, bias=False)]
            else:
                layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(width, EPS, affine=False), nn.ReLU(inplace=True)]
            channels = width
        self.trunk = nn.Sequential(*layers)
        self.last = nn.Conv2d(channels, DESCRIPTOR, LAST_MAP, bias=False)
        reads_map = self.config.matchability == "map"
        self.matchability = Matchability(channels if reads_map else DESCRIPTOR, LAST_MAP if reads_map else 1)

    def forward(self, patches: Tensor) -> tuple[Tensor, Tensor]:
        feature_map = self.trunk(standardise(patches))  # (N, 128, 8, 8)
        raw = self.last(feature_map)  # (N, 128, 1, 1)
        read = feature_map if self.config.matchability == "map" else raw
        # The ranking loss trains the predictor, not the descriptor that it reads.
        return F.normalize(raw.flatten(1).float(), dim=1), self.matchability(read.detach())


def standardise(patches: Tensor) -> Tensor:
    """Zero mean and unit variance per patch: (N, 32, 32) -> (N, 1, 32, 32) float."""
    x = patches.float().unsqueeze(1)
    centred = x - x.mean((2, 3), keepdim=True)
    return centred * torch.rsqrt(centred.square().mean((2, 3), keepdim=True) + EPS)


class Matchability(nn.Module):
    """How likely a keypoint is found again: (N, C, s, s) or (N, C) -> score (N,)."""

    def __init__(self, channels: int = DESCRIPTOR, side: int = 1) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width, kernel in ((128, side), (32, 1), (32, 1)):
            layers += [nn.Conv2d(channels, width, kernel, bias=False)]
            layers += [nn.BatchNorm2d(width, EPS, affine=False), nn.ReLU(inplace=True)]
            channels = width
        last = nn.Conv2d(channels, 1, 1)
        # With a small last layer all scores are equal, a saddle point of the quad loss.
        nn.init.normal_(last.weight)
        self.layers = nn.Sequential(*layers, last)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 2:
            x = x[:, :, None, None]
        return self.layers(x).flatten()


class GeometricContext(nn.Module):
    """The layout of an image's keypoints to one term per keypoint (section 3.3).

    Four residual units, each [context norm, batch norm, ReLU, 1x1] before its addition.

    Shape:
        xy (B, N, 2) in [-1, 1] per axis, score (B, N) -> (B, 128, N).
    """

    def __init__(self, config: GeometricConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or GeometricConfig()
        self.squash = nn.Conv1d(1, 1, 1)
        nn.init.ones_(self.squash.weight)
        nn.init.zeros_(self.squash.bias)  # type: ignore[arg-type]  # it has a bias
        self.first = nn.Conv1d(3, config.width, 1)
        self.units = nn.ModuleList(
            nn.Sequential(
                ContextNorm(),
                nn.BatchNorm1d(config.width, EPS, affine=False),
                nn.ReLU(),
                nn.Conv1d(config.width, config.width, 1),
            )
            for _ in range(config.units)
        )
        self.last = nn.Conv1d(config.width, DESCRIPTOR, 1)
        if not config.gate:
            _zero(self.last)
        self.gate = Gate() if config.gate else nn.Identity()

    def forward(self, xy: Tensor, score: Tensor) -> Tensor:
        matchability = torch.tanh(self.squash(score.unsqueeze(1)))  # (B, 1, N)
        x = self.first(torch.cat([matchability, xy.transpose(1, 2)], 1))
        for unit in self.units:
            x = x + unit(x)
        return self.gate(self.last(x))


class VisualContext(nn.Module):
    """What the image looks like around each keypoint, as one term per keypoint (section 3.2).

    Shape:
        grid (B, C, h, w) of the regional network, or B grids (C, h, w) of different sizes; xy (B, N, 2)
        in [-1, 1]; raw (B, N, 128) -> (B, 128, N).
    """

    def __init__(self, config: VisualConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or VisualConfig()
        self.grid_mlp = _mlp(
            config.regional_channels, config.grid_widths, config.grid_context_norm, bias=True
        )
        if not config.grid_widths and config.grid_context_norm:
            self.grid_mlp.append(ContextNorm())
        regional = config.grid_widths[-1] if config.grid_widths else config.regional_channels
        self.fusion = _mlp(
            regional + DESCRIPTOR, config.fusion_widths, config.fusion_context_norm, bias=False
        )
        if not config.final_relu:  # leave the last layer linear
            kept = list(self.fusion)[: -3 if config.fusion_context_norm else -2]
            self.fusion = nn.Sequential(*kept)
            if not config.gate:
                _zero(self.fusion[-1])
        if config.start > 0 and len(self.fusion) != 1:
            raise InputError(
                f"start is {config.start:g}: it needs final_relu = false and one layer of fusion, "
                f"not {str(config.final_relu).lower()} and {len(config.fusion_widths)}"
            )
        self.gate = Gate() if config.gate else nn.Identity()

    def forward(self, grid: Tensor | Sequence[Tensor], xy: Tensor, raw: Tensor) -> Tensor:
        return self.gate(self.fusion(self.inputs(grid, xy, raw)))

    def inputs(self, grid: Tensor | Sequence[Tensor], xy: Tensor, raw: Tensor) -> Tensor:
        """What the fusion layers read: the regional feature, then the raw descriptor, (B, C + 128, N)."""
        regional = self._regional(grid, xy) if isinstance(grid, Tensor) else self._regional_of_each(grid, xy)
        if self.config.unit:
            regional = F.normalize(regional, dim=1)
        return torch.cat([regional, raw.transpose(1, 2)], 1)

    def _regional(self, grid: Tensor, xy: Tensor) -> Tensor:
        if self.config.interpolate == "before":
            return self.grid_mlp(interpolate(grid, xy, self.config.interpolation))
        batch, _, height, width = grid.shape
        grid = self.grid_mlp(grid.flatten(2)).reshape(batch, -1, height, width)
        return interpolate(grid, xy, self.config.interpolation)

    def _regional_of_each(self, grids: Sequence[Tensor], xy: Tensor) -> Tensor:
        """Grids (C, h, w) of different sizes; batch norms see the points of all of them together."""
        mode = self.config.interpolation
        if self.config.interpolate == "before":
            read = [interpolate(g[None], xy[i : i + 1], mode) for i, g in enumerate(grids)]
            return self.grid_mlp(torch.cat(read))
        points = [grid.flatten(1)[None] for grid in grids]  # (1, C, h w) each
        for layer in self.grid_mlp:
            if isinstance(layer, ContextNorm):
                points = [layer(p) for p in points]
            else:
                points = list(layer(torch.cat(points, 2)).split([p.shape[2] for p in points], 2))
        encoded = [p.reshape(1, -1, *g.shape[1:]) for p, g in zip(points, grids, strict=True)]
        return torch.cat([interpolate(e, xy[i : i + 1], mode) for i, e in enumerate(encoded)])


def interpolate(grid: Tensor, xy: Tensor, mode: str) -> Tensor:
    """Read a grid at keypoints: (B, C, h, w), (B, N, 2) -> (B, C, N).

    Grid points lie at linspace(-1, 1) of both axes. `mean3` is the mean of the three nearest (as
    released), `idw3` weights them by inverse distance (as published), `bilinear` reads the cell.
    """
    batch, channels, height, width = grid.shape
    index, weight = (_cell if mode == "bilinear" else _three_nearest)(xy, height, width, mode)  # (B, N, k)
    first_of_image = torch.arange(batch, device=grid.device)[:, None, None] * (height * width)
    points = grid.flatten(2).transpose(1, 2).reshape(-1, channels)  # (B h w, C)
    neighbours = points[index + first_of_image]  # (B, N, k, C)
    return (neighbours * weight.unsqueeze(3)).sum(2).transpose(1, 2)


def _three_nearest(xy: Tensor, height: int, width: int, mode: str) -> tuple[Tensor, Tensor]:
    if mode not in ("mean3", "idw3"):
        raise ValueError(f"interpolation {mode!r}: one of mean3, idw3, bilinear")
    x, y = _linspace(width, xy), _linspace(height, xy)
    across, down = (xy[:, :, :1] - x).square(), (xy[:, :, 1:] - y).square()  # (B, N, w), (B, N, h)
    distance = (down.unsqueeze(3) + across.unsqueeze(2)).flatten(2)  # (B, N, h w)
    # Two points out of reach make up three where the grid has fewer; they weigh nothing.
    padded = F.pad(distance, (0, 2), value=1e6)
    nearest, index = padded.topk(3, dim=2, largest=False)
    exists = index < height * width
    weight = exists.to(xy.dtype) if mode == "mean3" else exists / nearest.clamp_min(1e-10).sqrt()
    return torch.where(exists, index, 0), weight / weight.sum(2, keepdim=True)


def _linspace(points: int, like: Tensor) -> Tensor:
    """linspace(-1, 1, points) that exports with a dynamic number of points; a single one lies at -1."""
    steps = torch.arange(points, dtype=like.dtype, device=like.device)
    return steps * 2 / steps[-1:].clamp_min(1) - 1


def _cell(xy: Tensor, height: int, width: int, mode: str) -> tuple[Tensor, Tensor]:
    """The four corners of the grid cell around each keypoint; beyond the border its nearest point."""
    index, weight = [], []
    x, y = (xy[..., 0] + 1) / 2 * (width - 1), (xy[..., 1] + 1) / 2 * (height - 1)
    x, y = x.clamp(0, width - 1), y.clamp(0, height - 1)
    for down in (0, 1):
        for right in (0, 1):
            column, row = x.floor() + right, y.floor() + down
            weight.append((1 - (x - column).abs()) * (1 - (y - row).abs()))
            index.append(row.clamp(max=height - 1).long() * width + column.clamp(max=width - 1).long())
    return torch.stack(index, 2), torch.stack(weight, 2)


def aggregate(raw: Tensor, *terms: Tensor) -> Tensor:
    """L2-normalised sum of the raw descriptor and any context terms, all (B, 128, N)."""
    total = raw
    for term in terms:
        total = total + term
    return F.normalize(total, dim=1)


def count_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _mlp(channels: int, widths: tuple[int, ...], context_norm: bool, bias: bool) -> nn.Sequential:
    """Layers of [1x1, context norm?, batch norm, ReLU] over (B, C, N)."""
    layers: list[nn.Module] = []
    for width in widths:
        layers.append(nn.Conv1d(channels, width, 1, bias=bias))
        if context_norm:
            layers.append(ContextNorm())
        layers += [nn.BatchNorm1d(width, EPS, affine=False), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers)


def _zero(layer: nn.Module) -> None:
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
