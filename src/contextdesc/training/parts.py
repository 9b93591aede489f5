"""The trainable parts of a model, and how they are read from checkpoints and from exported models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import onnx
import torch
from onnx import numpy_helper
from safetensors import safe_open
from torch import Tensor, nn

from contextdesc import modelfile
from contextdesc.config import from_dict
from contextdesc.errors import InputError
from contextdesc.training.config import StageConfig
from contextdesc.training.networks import DESCRIPTOR, LocalNetwork, Matchability, VisualContext
from contextdesc.training.regional import EfficientNetLite0, ResNet50, build_regional
from contextdesc.training.variants import (
    Aggregation,
    CentralSurround,
    ContextNormContext,
    PointNetContext,
    build_geometric,
    build_local,
    build_visual,
    reads,
    start_terms,
)

PREFIX = "model.parts."  # of their names in a checkpoint
NAMES = ("local", "matchability", "visual", "geometric", "aggregation", "regional")
_FILES = {
    "local": modelfile.LOCAL, "matchability": modelfile.MATCHABILITY, "visual": modelfile.VISUAL,
    "geometric": modelfile.GEOMETRIC, "aggregation": modelfile.AGGREGATION, "regional": modelfile.REGIONAL,
}  # fmt: skip


class Parts(nn.Module):
    """Networks of one model; those that it or its stage lacks are None."""

    def __init__(
        self,
        local: LocalNetwork | CentralSurround | None = None,
        matchability: Matchability | None = None,
        visual: VisualContext | None = None,
        geometric: ContextNormContext | PointNetContext | None = None,
        aggregation: Aggregation | None = None,
        regional: EfficientNetLite0 | ResNet50 | None = None,
    ) -> None:
        super().__init__()
        self.local, self.matchability, self.visual = local, matchability, visual
        self.geometric, self.aggregation, self.regional = geometric, aggregation, regional

    @property
    def terms(self) -> tuple[str, ...]:
        """Context terms, in the order of the aggregation."""
        return tuple(name for name in ("visual", "geometric") if getattr(self, name) is not None)


def build_parts(config: StageConfig, base_has_score: bool = False, channels: int | None = None) -> Parts:
    """Fresh networks for a stage.

    Args:
        config: of the stage.
        base_has_score: whether the frozen base tells matchability, so that none is trained.
        channels: of the regional grids; None if the config's network tells.
    """
    if config.stage == "regional":
        return Parts(regional=build_regional(config.regional))
    parts = Parts()
    if config.trains_local:
        parts.local = build_local(config.visual, LocalNetwork(config.local))
    if not config.has_context:
        return parts
    if config.stage == "joint":
        parts.regional = build_regional(config.regional)
    if config.has_visual:
        if channels is None:
            channels = build_regional(config.regional).channels
        encoder = replace(config.visual.encoder, regional_channels=channels)
        parts.visual = build_visual(replace(config.visual, encoder=encoder))
    if config.has_geometric:
        parts.geometric = build_geometric(config.geometric)
        reads_score = reads(config.geometric.inputs, "matchability")
        if reads_score and parts.local is None and not base_has_score:
            parts.matchability = Matchability(DESCRIPTOR)
    parts.aggregation = Aggregation(config.aggregation, len(parts.terms))
    start_terms(config.aggregation, parts.visual, parts.geometric)
    return parts


def load_parts(path: Path, parts: Parts, strict: bool = True) -> set[str]:
    """Load the parts of a checkpoint or of an exported model that `parts` has too.

    Returns:
        Names of the parts loaded. If `strict`, a source that shares no part is an error.
    """
    folder = path if path.is_dir() else modelfile.PACKAGED / str(path)
    loaded = _from_model(folder, parts) if folder.is_dir() else _from_checkpoint(path, parts)
    if strict and not loaded:
        wanted = ", ".join(name for name in NAMES if getattr(parts, name) is not None)
        raise InputError(f"{path}: has none of the parts that are wanted of it ({wanted})")
    return loaded


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file; one clear line if it is damaged."""
    if not path.is_file():
        raise InputError(f"{path}: no such checkpoint")
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    except Exception as error:  # safetensors raises its own type for a damaged header
        raise InputError(f"{path}: damaged checkpoint ({error})") from None


def read_metadata(path: Path) -> dict[str, str]:
    read_tensors(path)
    with safe_open(path, "pt") as file:
        metadata: dict[str, str] = file.metadata() or {}
    if "config" not in metadata:
        raise InputError(f"{path}: not a checkpoint of contextdesc")
    return metadata


def read_config(path: Path) -> StageConfig:
    """The config that a checkpoint was trained with."""
    return from_dict(StageConfig, json.loads(read_metadata(path)["config"]), str(path))


def _from_checkpoint(path: Path, parts: Parts) -> set[str]:
    tensors = read_tensors(path)
    loaded = set()
    for name in NAMES:
        network, prefix = getattr(parts, name), f"{PREFIX}{name}."
        own = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        if network is not None and own:
            _load(network, own, path, name)
            loaded.add(name)
    return loaded


def _load(network: nn.Module, tensors: Mapping[str, Tensor], path: Path, name: str) -> None:
    try:
        network.load_state_dict(dict(tensors))
    except RuntimeError as error:
        reason = " ".join(str(error).split()[6:])[:160]
        raise InputError(f"{path}: its {name} network has another shape: {reason}") from None


def _from_model(folder: Path, parts: Parts) -> set[str]:
    """Undo an export: a batch norm that was folded comes back with variance 1, its mean from the bias."""
    spec, _ = modelfile.read_spec(folder)
    loaded = set()
    for name, file in _FILES.items():
        network = getattr(parts, name)
        if network is not None and file in spec.files:
            _load(network, _unfolded(network, _weights(folder / file), folder / file), folder / file, name)
            loaded.add(name)
    return loaded


def _weights(path: Path) -> dict[str, Tensor]:
    tensors = {}
    for tensor in onnx.load(str(path)).graph.initializer:
        name = tensor.name.removesuffix(".half")
        if name.startswith("network."):
            tensors[name.removeprefix("network.")] = torch.from_numpy(numpy_helper.to_array(tensor).copy())
    return tensors


def _fits(stored: Tensor, wanted: Tensor) -> bool:
    """Whether a weight has the shape that is wanted, or that of such a kernel as a matrix (see `export`)."""
    return stored.shape == wanted.shape or (wanted.dim() == 4 and stored.shape == wanted.flatten(1).shape)


def _unfolded(network: nn.Module, weights: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """A state dict for `network` out of the weights of its folded ONNX file."""
    state = {name: value.clone() for name, value in network.state_dict().items()}
    missing = {name for name in state if not name.endswith("num_batches_tracked")}
    for conv, norm in folded_batch_norms(network):
        like = state[f"{norm}.running_mean"]
        bias = weights.pop(f"{conv}.bias", torch.zeros_like(like)).float()
        unfolded = {
            f"{conv}.bias": torch.zeros_like(like),
            f"{norm}.running_mean": -bias,
            f"{norm}.running_var": torch.full_like(like, 1 - _eps(network, norm)),
            f"{norm}.weight": torch.ones_like(like),
            f"{norm}.bias": torch.zeros_like(like),
        }
        state.update({name: value for name, value in unfolded.items() if name in state})
        missing -= unfolded.keys()
    constants = {name for name, _ in network.named_buffers()} - state.keys()
    for name, value in weights.items():
        if name in constants:
            continue
        if name not in state or not _fits(value, state[name]):
            raise InputError(f"{path}: its {name} does not fit the config's network")
        state[name] = value.float().reshape(state[name].shape)
    for name in sorted(missing - weights.keys()):
        # The exporter leaves out biases of 0, and all but one of tensors that equal each other: start values.
        start = {"bias": 0.0, "running_mean": 0.0, "running_var": 1.0}.get(name.rpartition(".")[2])
        if start is None:
            raise InputError(f"{path}: has no {name}, which the config's network has")
        state[name] = torch.full_like(state[name], start)
    return state


def folded_batch_norms(network: nn.Module) -> list[tuple[str, str]]:
    """Names of convolutions and the batch norms right behind them, which an export folds into them."""
    modules = dict(network.named_modules())
    pairs = []
    for prefix, module in modules.items():
        names = [name for name, _ in module.named_children()]
        if not isinstance(module, nn.Sequential):  # ResNet: conv1 and bn1, conv2 and bn2, ...
            names = [name for conv in names for name in (conv, conv.replace("conv", "bn"))]
        for first, second in pairwise(f"{prefix}.{name}" if prefix else name for name in names):
            folds = isinstance(modules.get(first), (nn.Conv1d, nn.Conv2d))
            if folds and isinstance(modules.get(second), (nn.BatchNorm1d, nn.BatchNorm2d)):
                pairs.append((first, second))
    return pairs


def _eps(network: nn.Module, norm: str) -> float:
    return float(network.get_submodule(norm).eps)  # type: ignore[arg-type]  # a batch norm
