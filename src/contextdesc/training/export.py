"""Export: trained networks in, a model folder out.

Weights are rounded to half precision first, stored as such, and every ONNX file is compared with its
PyTorch module on real inputs. A model that disagrees is not written.
"""

from __future__ import annotations

import copy
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from contextdesc import modelfile
from contextdesc.detection import Detector, detect
from contextdesc.engine import Engine
from contextdesc.errors import ContextDescError
from contextdesc.image import Image
from contextdesc.modelfile import ModelSpec
from contextdesc.patches import sample_patches
from contextdesc.rootsift import rootsift
from contextdesc.training.networks import GeometricContext, LocalNetwork, Matchability, VisualContext

if TYPE_CHECKING:
    from numpy.typing import NDArray

PARITY = 1e-4  # largest difference of L2-normalised outputs, ONNX Runtime against PyTorch
OPSET = 18
_HALF_ABOVE = 256  # elements: smaller tensors stay in single precision


@dataclass
class Networks:
    """The trained parts of a model; those it lacks are None."""

    local: LocalNetwork | None = None
    matchability: Matchability | None = None
    geometric: GeometricContext | None = None
    visual: VisualContext | None = None
    regional: nn.Module | None = None


def export_model(networks: Networks, spec: ModelSpec, folder: Path, image: Image) -> ModelSpec:
    """Write a model folder.

    Args:
        networks: the parts of the model.
        spec: everything of `model.json` but its files.
        folder: where the model goes; replaced only when all parts passed.
        image: a photograph whose patches and keypoints the parity check runs on.

    Returns:
        The spec as written, with checksums.
    """
    parts = _wrapped(networks)
    inputs = _real_inputs(networks, spec, image)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as temporary:
        draft = Path(temporary) / "model"
        draft.mkdir()
        files = {}
        for name, module in parts.items():
            _export(module, inputs[name], draft / name)
            check_parity(module, inputs[name], draft / name)
            files[name] = modelfile.sha256(draft / name)
        spec = replace(spec, files=files)
        modelfile.write_spec(draft, spec)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(draft, folder)
    return spec


def check_parity(module: nn.Module, inputs: dict[str, Tensor], path: Path) -> float:
    """Largest difference between a module and its ONNX file; raises if it is above `PARITY`."""
    with torch.no_grad():
        expected = module(**inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    got = Engine(path).run(**{name: value.numpy() for name, value in inputs.items()})
    worst = 0.0
    for reference, answer in zip(expected, got, strict=True):
        difference = _comparable(reference) - _comparable(torch.from_numpy(answer))
        worst = max(worst, float(difference.abs().max()))
    if not worst < PARITY:
        raise ContextDescError(
            f"{path.name}: ONNX Runtime and PyTorch differ by {worst:.2g}, allowed is {PARITY:g}; not written"
        )
    return worst


def _comparable(output: Tensor) -> Tensor:
    """Descriptors compare as unit vectors along their channels; scores relative to their spread."""
    if output.dim() == 1:
        return output / output.abs().max().clamp_min(1)
    return F.normalize(output, dim=0 if output.dim() == 3 else 1)  # grid (C, h, w), terms (N, C)


class _Local(nn.Module):
    def __init__(self, network: LocalNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, patches: Tensor) -> tuple[Tensor, Tensor]:
        raw, score = self.network(patches)
        return raw, score


class _Matchability(nn.Module):
    def __init__(self, network: Matchability) -> None:
        super().__init__()
        self.network = network

    def forward(self, raw: Tensor) -> Tensor:
        return self.network(raw)


class _Geometric(nn.Module):
    def __init__(self, network: GeometricContext) -> None:
        super().__init__()
        self.network = network

    def forward(self, xy: Tensor, score: Tensor) -> Tensor:
        return self.network(xy.unsqueeze(0), score.unsqueeze(0)).squeeze(0).transpose(0, 1)


class _Visual(nn.Module):
    def __init__(self, network: VisualContext) -> None:
        super().__init__()
        self.network = network

    def forward(self, grid: Tensor, xy: Tensor, raw: Tensor) -> Tensor:
        term = self.network(grid.unsqueeze(0), xy.unsqueeze(0), raw.unsqueeze(0))
        return term.squeeze(0).transpose(0, 1)


class _Regional(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Tensor) -> Tensor:
        return self.network(image).squeeze(0)


# ONNX file -> (names of its outputs, dynamic axes of its inputs)
_SIGNATURES: dict[str, tuple[list[str], dict[str, dict[int, str]]]] = {
    modelfile.LOCAL: (["raw", "score"], {"patches": {0: "n"}}),
    modelfile.MATCHABILITY: (["score"], {"raw": {0: "n"}}),
    modelfile.GEOMETRIC: (["term"], {"xy": {0: "n"}, "score": {0: "n"}}),
    modelfile.VISUAL: (["term"], {"grid": {1: "h", 2: "w"}, "xy": {0: "n"}, "raw": {0: "n"}}),
    modelfile.REGIONAL: (["grid"], {"image": {2: "height", 3: "width"}}),
}


def _wrapped(networks: Networks) -> dict[str, nn.Module]:
    """Each part with the signature of its file, batch norms folded, weights rounded to half precision."""
    wrappers = {
        modelfile.LOCAL: (_Local, networks.local),
        modelfile.MATCHABILITY: (_Matchability, networks.matchability),
        modelfile.GEOMETRIC: (_Geometric, networks.geometric),
        modelfile.VISUAL: (_Visual, networks.visual),
        modelfile.REGIONAL: (_Regional, networks.regional),
    }
    parts: dict[str, nn.Module] = {}
    for name, (wrapper, network) in wrappers.items():
        if network is not None:
            folded = copy.deepcopy(network).eval()
            _fold_batch_norm(folded)
            with torch.no_grad():
                for parameter in folded.parameters():
                    if parameter.numel() > _HALF_ABOVE:
                        parameter.copy_(parameter.half().float())
            parts[name] = wrapper(folded).eval()
    return parts


def _fold_batch_norm(module: nn.Module) -> None:
    """Fold every batch norm that follows a convolution into it, in place."""
    for child in module.children():
        _fold_batch_norm(child)
    if isinstance(module, nn.Sequential):
        for index in range(len(module) - 1):
            layer, norm = module[index], module[index + 1]
            if isinstance(layer, (nn.Conv1d, nn.Conv2d)) and isinstance(
                norm, (nn.BatchNorm1d, nn.BatchNorm2d)
            ):
                module[index] = fuse_conv_bn_eval(layer, norm)
                module[index + 1] = nn.Identity()


def _real_inputs(networks: Networks, spec: ModelSpec, image: Image) -> dict[str, dict[str, Tensor]]:
    from contextdesc.model import regional_image, unit_coordinates

    keypoints = detect(image.gray, Detector(max_keypoints=500))
    if len(keypoints) < 3:
        raise ContextDescError(f"{image.name}: too few keypoints to check an export on; give a richer image")
    patches = torch.from_numpy(sample_patches(image.gray, keypoints, spec.support))
    xy = torch.from_numpy(unit_coordinates(keypoints, image.size))
    with torch.no_grad():
        if networks.local is not None:
            raw, score = networks.local.eval()(patches)
        else:
            raw = torch.from_numpy(rootsift(image.gray, keypoints))
            score = networks.matchability.eval()(raw) if networks.matchability else torch.zeros(len(raw))
        inputs: dict[str, dict[str, Tensor]] = {
            modelfile.LOCAL: {"patches": patches},
            modelfile.MATCHABILITY: {"raw": raw},
            modelfile.GEOMETRIC: {"xy": xy, "score": score},
        }
        if networks.regional is not None:
            pixels = torch.from_numpy(regional_image(image, min(spec.regional_max_side, 320)))
            inputs[modelfile.REGIONAL] = {"image": pixels}
            grid = networks.regional.eval()(pixels).squeeze(0)
            inputs[modelfile.VISUAL] = {"grid": grid, "xy": xy, "raw": raw}
        elif networks.visual is not None:  # the caller brings the grid: any numbers of its size will do
            channels = networks.visual.config.regional_channels
            grid = torch.rand(channels, 6, 8, generator=torch.Generator().manual_seed(0))
            inputs[modelfile.VISUAL] = {"grid": grid, "xy": xy, "raw": raw}
    return inputs


def _export(module: nn.Module, inputs: dict[str, Tensor], path: Path) -> None:
    outputs, axes = _SIGNATURES[path.name]
    with _quiet():
        program = torch.onnx.export(
            module,
            kwargs=inputs,
            input_names=list(inputs),
            output_names=outputs,
            dynamic_shapes=axes,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    if program is None:
        raise ContextDescError(f"{path.name}: PyTorch exported nothing")
    proto = program.model_proto
    _store_half(proto)
    _forget_paths(proto)
    onnx.checker.check_model(proto)
    onnx.save(proto, str(path))


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter tells of every optional package that it did not find."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _store_half(proto: Any) -> None:
    """Keep large weights as half precision and cast them when the session loads (it folds the cast)."""
    graph = proto.graph
    casts = []
    for tensor in list(graph.initializer):
        array: NDArray[Any] = numpy_helper.to_array(tensor)
        if array.dtype != np.float32 or array.size <= _HALF_ABOVE:
            continue
        with np.errstate(over="ignore"):
            half = array.astype(np.float16)
        if (half.astype(np.float32) != array).any():
            continue
        stored = numpy_helper.from_array(half, f"{tensor.name}.half")
        casts.append(helper.make_node("Cast", [stored.name], [tensor.name], to=TensorProto.FLOAT))
        graph.initializer.remove(tensor)
        graph.initializer.append(stored)
    for node in reversed(casts):
        graph.node.insert(0, node)


def _forget_paths(proto: Any) -> None:
    """Drop the exporter's notes, which hold stack traces with paths of the machine."""
    del proto.metadata_props[:]
    for item in (
        proto.graph,
        *proto.graph.node,
        *proto.graph.value_info,
        *proto.graph.input,
        *proto.graph.output,
    ):
        if hasattr(item, "metadata_props"):
            del item.metadata_props[:]
        if hasattr(item, "doc_string"):
            item.doc_string = ""
