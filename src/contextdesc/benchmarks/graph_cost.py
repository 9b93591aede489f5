"""What a network costs: an ONNX file and the shapes of its inputs in, operations and parameters out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from contextdesc.errors import InputError

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    Shapes = Mapping[str, Sequence[int]]

_FLOAT = 4  # bytes


@dataclass(frozen=True)
class GraphCost:
    """Cost of one run of a network.

    Attributes:
        flops: two per multiplication and addition of convolutions and matrix products; nothing else counts.
        parameters: numbers in its floating-point weights, batch norm statistics among them.
        bytes: that convolutions and matrix products have to move at least, in single precision: what they
            read and their weights, once, and what they write.
    """

    flops: int
    parameters: int
    bytes: int

    def __add__(self, other: GraphCost) -> GraphCost:
        sums = [mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)]
        return GraphCost(*sums)


def graph_cost(path: Path, **inputs: Sequence[int]) -> GraphCost:
    """Cost of a network on inputs of these shapes, by name; inputs that it does not read are ignored."""
    try:
        import onnx
    except ImportError:
        raise InputError("counting operations needs an extra: pip install 'contextdesc[benchmark]'") from None

    model = onnx.load(str(path))
    shapes = _shapes(model, inputs)
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
    work = [(node, count) for node in model.graph.node if (count := _products(node, shapes, path))]
    moved = [prod(shapes[name]) for node, _ in work for name in (*node.input[:2], node.output[0])]
    return GraphCost(
        sum(2 * count for _, count in work),
        sum(prod(t.dims) for t in model.graph.initializer if t.data_type in floats and len(t.dims)),
        _FLOAT * sum(moved),
    )


def _shapes(model: ModelProto, inputs: Shapes) -> dict[str, tuple[int, ...]]:
    """Shapes of all values of a graph, with those of its inputs given."""
    from onnx import shape_inference

    graph = model.graph
    for value in graph.input:
        for size, given in zip(value.type.tensor_type.shape.dim, inputs[value.name], strict=True):
            size.dim_value = given
    del graph.value_info[:]  # of an export, with names for sizes
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    graph = shape_inference.infer_shapes(model, data_prop=True).graph
    values = [*graph.input, *graph.value_info, *graph.output]
    found = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in values}
    return found | {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}


def _products(node: NodeProto, shapes: Mapping[str, tuple[int, ...]], path: Path) -> int:
    """Multiplications (each with an addition) of a convolution or a matrix product; 0 of other nodes."""
    if node.op_type not in ("Conv", "Gemm", "MatMul"):
        return 0
    output = shapes.get(node.output[0], ())
    if not output or 0 in output:
        raise InputError(
            f"{path}: the shape of {node.output[0]} is unknown, so {node.op_type} cannot be counted"
        )
    weight = shapes[node.input[1]]
    if node.op_type == "Conv":
        return prod(output) * prod(weight[1:])
    transposed = node.op_type == "Gemm" and any(a.name == "transB" and a.i for a in node.attribute)
    return prod(output) * weight[-1 if transposed else -2]
