"""Export: trained networks in, a model folder out.

Weights are rounded to half precision first, stored as such, and every ONNX file is compared with its
PyTorch module on real inputs. A model that disagrees is not written.
"""

from __future__ import annotations

import copy
import inspect
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
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
from contextdesc.errors import ContextDescError, InputError
from contextdesc.image import Image
from contextdesc.modelfile import ModelSpec
from contextdesc.patches import sample_patches
from contextdesc.rootsift import rootsift
from contextdesc.training.networks import LAST_MAP
from contextdesc.training.parts import Parts, folded_batch_norms
from contextdesc.training.variants import (
    ContextNormContext,
    GlobalContext,
    PointNetContext,
    arguments,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Carried = Iterable[Path]

PARITY = 1e-4  # largest difference of L2-normalised outputs, ONNX Runtime against PyTorch
OPSET = 18
_HALF_ABOVE = 256  # elements: smaller tensors stay in single precision


def export_model(
    parts: Parts, spec: ModelSpec, folder: Path, image: Image, carried: Carried = ()
) -> ModelSpec:
    """Write a model folder.

    Args:
        parts: the trained parts of the model.
        spec: everything of `model.json` but its files.
        folder: where the model goes; replaced only when all parts passed.
        image: a photograph whose patches and keypoints the parity check runs on.
        carried: ONNX files of another model that this one takes over as they are.

    Returns:
        The spec as written, with checksums.
    """
    check_output(folder)
    modules = _wrapped(parts)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as temporary:
        draft = Path(temporary) / "model"
        draft.mkdir()
        for file in carried:
            shutil.copyfile(file, draft / file.name)
        inputs = _real_inputs(parts, spec, image, draft)
        for name, module in modules.items():
            read = {key: inputs[key] for key in _inputs(module)}
            _export(module, read, draft / name)
            check_parity(module, read, draft / name)
        spec = replace(spec, files={p.name: modelfile.sha256(p) for p in sorted(draft.iterdir())})
        modelfile.write_spec(draft, spec)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(draft, folder)
    return spec


def check_output(folder: Path) -> None:
    """Refuse a folder that holds something else than a model: it would be deleted."""
    if not folder.exists() or (folder / "model.json").is_file():
        return
    if folder.is_file() or any(folder.iterdir()):
        raise InputError(f"{folder}: exists and is no model; write to a new folder")


def export_regional(network: nn.Module, path: Path) -> None:
    """Write the ONNX file of a regional network alone, in full precision."""
    pixels = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(0)) * 255
    folded = copy.deepcopy(network).eval()
    _fold_batch_norm(folded)
    _export(_Regional(folded).eval(), {"image": pixels}, path, modelfile.REGIONAL)


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


class _Part(nn.Module):
    """A network with the signature of its ONNX file: one image, keypoints in rows."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network


class _Local(_Part):
    def forward(self, patches: Tensor) -> tuple[Tensor, Tensor]:
        raw, score = self.network(patches)
        return raw, score


class _Matchability(_Part):
    def forward(self, raw: Tensor) -> Tensor:
        return self.network(raw)


class _Geometric(_Part):
    network: ContextNormContext | PointNetContext

    def forward(
        self,
        xy: Tensor,
        score: Tensor | None = None,
        raw: Tensor | None = None,
        direction: Tensor | None = None,
    ) -> Tensor:
        read = (None if x is None else x[None] for x in (score, raw, direction))
        return _rows(self.network(xy[None], *read))


class _Visual(_Part):
    def forward(self, grid: Tensor, xy: Tensor, raw: Tensor) -> Tensor:
        return _rows(self.network(grid[None], xy[None], raw[None]))


class _GlobalVisual(_Part):
    def forward(self, grid: Tensor, raw: Tensor) -> Tensor:
        return _rows(self.network(grid[None], raw[None], raw[None]))  # of the second it reads the length


class _Regional(_Part):
    def forward(self, image: Tensor) -> Tensor:
        return self.network(image).squeeze(0)


class _AggregationOfTwo(_Part):
    def forward(self, raw: Tensor, visual: Tensor, geometric: Tensor) -> Tensor:
        return _rows(self.network(*(x.transpose(0, 1)[None] for x in (raw, visual, geometric))))


class _AggregationOfVisual(_Part):
    def forward(self, raw: Tensor, visual: Tensor) -> Tensor:
        return _rows(self.network(raw.transpose(0, 1)[None], visual.transpose(0, 1)[None]))


class _AggregationOfGeometric(_Part):
    def forward(self, raw: Tensor, geometric: Tensor) -> Tensor:
        return _rows(self.network(raw.transpose(0, 1)[None], geometric.transpose(0, 1)[None]))


def _rows(output: Tensor) -> Tensor:
    return output.squeeze(0).transpose(0, 1)  # (1, C, N) -> (N, C)


_AGGREGATION = {
    ("visual", "geometric"): _AggregationOfTwo,
    ("visual",): _AggregationOfVisual,
    ("geometric",): _AggregationOfGeometric,
}
_OUTPUTS = {
    modelfile.LOCAL: ["raw", "score"],
    modelfile.MATCHABILITY: ["score"],
    modelfile.GEOMETRIC: ["term"],
    modelfile.VISUAL: ["term"],
    modelfile.REGIONAL: ["grid"],
    modelfile.AGGREGATION: ["descriptor"],
}
_DYNAMIC = {
    **{name: {0: "n"} for name in ("patches", "raw", "score", "xy", "direction", "visual", "geometric")},
    "grid": {1: "h", 2: "w"},
    "image": {2: "height", 3: "width"},
}


def _inputs(module: nn.Module) -> list[str]:
    """Names of the inputs of a part."""
    if isinstance(module, _Geometric):
        return arguments(module.network.variant.inputs)
    return list(inspect.signature(module.forward).parameters)


def _wrapped(parts: Parts) -> dict[str, nn.Module]:
    """Each part with the signature of its file, batch norms folded, weights rounded to half precision."""
    wrappers: dict[str, tuple[Callable[[nn.Module], nn.Module], nn.Module | None]] = {
        modelfile.LOCAL: (_Local, parts.local),
        modelfile.MATCHABILITY: (_Matchability, parts.matchability),
        modelfile.VISUAL: (
            _GlobalVisual if isinstance(parts.visual, GlobalContext) else _Visual,
            parts.visual,
        ),
        modelfile.REGIONAL: (_Regional, parts.regional),
    }
    if parts.geometric is not None:
        wrappers[modelfile.GEOMETRIC] = (_Geometric, parts.geometric)
    if parts.aggregation is not None and parts.aggregation.config.kind == "learned":
        wrappers[modelfile.AGGREGATION] = (_AGGREGATION[parts.terms], parts.aggregation)
    modules: dict[str, nn.Module] = {}
    for name, (wrapper, network) in wrappers.items():
        if network is not None:
            folded = copy.deepcopy(network).eval()
            _fold_batch_norm(folded)
            _flatten_whole_maps(folded)
            with torch.no_grad():
                for parameter in folded.parameters():
                    if parameter.numel() > _HALF_ABOVE:
                        parameter.copy_(parameter.half().float())
            modules[name] = wrapper(folded).eval()
    return modules


def _fold_batch_norm(module: nn.Module) -> None:
    """Fold every batch norm that follows a convolution into it, in place."""
    for conv, norm in folded_batch_norms(module):
        fused = fuse_conv_bn_eval(module.get_submodule(conv), module.get_submodule(norm))  # type: ignore[type-var, arg-type]  # checked by name
        module.set_submodule(conv, fused)
        module.set_submodule(norm, nn.Identity())


class _WholeMap(nn.Module):
    """A convolution whose kernel covers its whole input, as one matrix product over the batch.

    (N, C, s, s) -> (N, D, 1, 1). As a convolution, ONNX Runtime takes ten times as long for it.
    """

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(convolution.weight.detach().flatten(1)), convolution.bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.flatten(1), self.weight, self.bias).unflatten(1, (-1, 1, 1))


def _flatten_whole_maps(module: nn.Module) -> None:
    """Replace, in place, the convolutions of a local network that read its whole last map."""
    for name, layer in list(module.named_modules()):
        if isinstance(layer, nn.Conv2d) and layer.kernel_size == (LAST_MAP, LAST_MAP):
            module.set_submodule(name, _WholeMap(layer))


def _real_inputs(parts: Parts, spec: ModelSpec, image: Image, carried: Path) -> dict[str, Tensor]:
    """What the parts read of a photograph, by the names of the inputs."""
    from contextdesc.model import directions, regional_image, unit_coordinates

    keypoints = detect(image.gray, Detector(max_keypoints=500))
    if len(keypoints) < 3:
        raise ContextDescError(f"{image.name}: too few keypoints to check an export on; give a richer image")
    inputs = {
        "patches": torch.from_numpy(sample_patches(image.gray, keypoints, spec.support)),
        "xy": torch.from_numpy(unit_coordinates(keypoints, image.size)),
        "direction": torch.from_numpy(directions(keypoints)),
        "image": torch.from_numpy(regional_image(image, min(spec.regional_max_side, 320))),
    }
    parts.eval()
    with torch.no_grad():
        if parts.local is not None:
            inputs["raw"], inputs["score"] = parts.local(inputs["patches"])
        elif (carried / modelfile.LOCAL).exists():
            outputs = Engine(carried / modelfile.LOCAL).run_batched(patches=inputs["patches"].numpy())
            inputs["raw"], inputs["score"] = map(torch.from_numpy, outputs)
        else:
            inputs["raw"] = torch.from_numpy(rootsift(image.gray, keypoints))
            score = None if parts.matchability is None else parts.matchability(inputs["raw"])
            inputs["score"] = torch.zeros(len(keypoints)) if score is None else score
        if parts.regional is not None:
            inputs["grid"] = parts.regional(inputs["image"]).squeeze(0)
        elif parts.visual is not None:  # the caller brings the grid: any numbers of its size will do
            channels = parts.visual.config.regional_channels
            inputs["grid"] = torch.rand(channels, 6, 8, generator=torch.Generator().manual_seed(0))
        if parts.visual is not None:
            term = parts.visual(*(inputs[name][None] for name in ("grid", "xy", "raw")))
            inputs["visual"] = _rows(term)
        if parts.geometric is not None:
            read = (inputs[name][None] for name in ("xy", "score", "raw", "direction"))
            inputs["geometric"] = _rows(parts.geometric(*read))
    return inputs


def _export(module: nn.Module, inputs: dict[str, Tensor], path: Path, kind: str | None = None) -> None:
    with _quiet():
        program = torch.onnx.export(
            module,
            kwargs=inputs,
            input_names=list(inputs),
            output_names=_OUTPUTS[kind or path.name],
            dynamic_shapes={name: _DYNAMIC[name] for name in inputs},
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
