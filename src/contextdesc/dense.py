"""Matchability as a detector: an image in, the places that the model expects to find again out (A.6).

The local network runs over the whole image, with about a twentieth of the operations that patches at the same
places would take. Two things differ from patches: the image is standardised in wider windows, and neighbours
instead of zeros lie beyond a window's border. Its strides leave a score for every fourth pixel in both
directions; keypoints are placed between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from contextdesc import modelfile
from contextdesc.engine import Engine
from contextdesc.errors import InputError
from contextdesc.image import Source, read
from contextdesc.keypoints import Keypoints
from contextdesc.patches import PATCH

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.model import ContextDesc

STRIDE = 4  # pixels between scores
RADIUS = 4  # pixels to each side of a keypoint without a higher score
MAX_SIDE = 2048  # pixels; larger images are downscaled, since the first layers take 256 bytes a pixel
_WINDOW = 128  # pixels, sides of the window in which the image is standardised
_LEAST_SPREAD = 5.0  # gray values, added to the spread, so that flat places stay flat


class MatchabilityDetector:
    """A model's matchability, run densely.

    Args:
        model: with a patch network.
        threads: of ONNX Runtime; 0 for all cores.
    """

    def __init__(self, model: ContextDesc, threads: int = 0) -> None:
        if modelfile.LOCAL not in model.spec.files:
            raise InputError(
                f"{model.spec.name} has no patch network to run over an image; its base is {model.spec.base}"
            )
        self.size = PATCH / model.spec.support  # of a keypoint whose patch has the image's own pixels
        with TemporaryDirectory() as folder:
            path = Path(folder) / "dense.onnx"
            path.write_bytes(_dense_graph(model.folder / modelfile.LOCAL))
            self._engine = Engine(path, threads=threads)

    def response(self, image: Source) -> NDArray[np.float32]:
        """Scores (h, w), one for every `STRIDE` pixels in both directions, the first at (-0.5, -0.5)."""
        return self._response(read(image, MAX_SIDE).gray)

    def detect(self, image: Source, count: int | None = 2048) -> Keypoints:
        """The places of the highest scores, highest first: upright, of one size, at least `RADIUS` apart."""
        picture = read(image, MAX_SIDE)
        keypoints = peaks(self._response(picture.gray), STRIDE, RADIUS, self.size)[:count]
        return keypoints.scaled(picture.scale)

    def _response(self, gray: NDArray[np.uint8]) -> NDArray[np.float32]:
        standard = _standardised(gray.astype(np.float32))
        rows, columns = (-(-side // STRIDE) for side in gray.shape)
        before, below, right = PATCH // 2, STRIDE * rows - gray.shape[0], STRIDE * columns - gray.shape[1]
        after = PATCH // 2 - STRIDE  # the last window begins a stride before the end
        padded = cv2.copyMakeBorder(
            standard, before, after + below, before, after + right, cv2.BORDER_REPLICATE
        )
        return self._engine.run(image=padded[None, None])[0][0, 0]


def _standardised(gray: NDArray[np.float32]) -> NDArray[np.float32]:
    window = (_WINDOW, _WINDOW)
    mean = cv2.blur(gray, window)
    spread = np.sqrt(np.maximum(cv2.blur(gray * gray, window) - mean * mean, 0))
    return np.asarray((gray - mean) / (spread + _LEAST_SPREAD), np.float32)


def peaks(response: NDArray[np.float32], step: int, radius: float, size: float) -> Keypoints:
    """Local maxima of a response map as keypoints, highest first.

    Args:
        response: (h, w), a score for every `step`th pixel. Score (0, 0) is of the point (-0.5, -0.5), the
            centre of a window of even sides.
        radius: pixels to each side of a maximum in which no score is higher.
        size: of the keypoints, pixels.

    Places are refined to a fraction of a step by a parabola in each direction.
    """
    reach = max(1, round(radius / step))
    window = np.ones((2 * reach + 1, 2 * reach + 1), np.uint8)
    highest, lowest = cv2.dilate(response, window), cv2.erode(response, window)
    row, column = np.nonzero((response == highest) & (response > lowest))
    order = np.argsort(-response[row, column], kind="stable")
    row, column = row[order], column[order]
    around = np.pad(response, 1, mode="edge")
    centre = around[row + 1, column + 1]
    dx = _vertex(around[row + 1, column], centre, around[row + 1, column + 2])
    dy = _vertex(around[row, column + 1], centre, around[row + 2, column + 1])
    xy = np.column_stack([column + dx, row + dy]) * step - 0.5
    sizes, angles = np.full(len(xy), size, np.float32), np.zeros(len(xy), np.float32)
    return Keypoints(xy.astype(np.float32), sizes, angles, centre)


def _vertex(
    before: NDArray[np.float32], centre: NDArray[np.float32], after: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Where parabolas through values at -1, 0, 1, highest at 0, have their vertex: within half a step."""
    curvature = before - 2 * centre + after
    slope = (before - after) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        offset = np.where(curvature < 0, slope / curvature, 0)
    return np.asarray(np.clip(offset, -0.5, 0.5), np.float32)


def _dense_graph(path: Path) -> bytes:
    """The part of a local network from its first convolution to the score, for images of any size."""
    try:
        import onnx
    except ImportError:
        raise InputError(
            "matchability as a detector needs an extra: pip install 'contextdesc[benchmark]'"
        ) from None

    network = onnx.load(path)
    graph = network.graph
    maker: dict[str, Any] = {output: node for node in graph.node for output in node.output}
    image = next(node for node in graph.node if node.op_type == "Conv").input[0]
    score = maker["score"].input[0]  # before it is flattened
    wanted, waiting = set[str](), [score]
    while waiting:
        name = waiting.pop()
        if name in maker and name != image and name not in wanted:
            wanted.add(name)
            waiting += maker[name].input
    shapes = {tensor.name: tensor.dims for tensor in graph.initializer}
    renamed, nodes = {image: "image"}, []
    for node in graph.node:
        if not wanted & set(node.output):
            continue
        node.input[:] = [renamed.get(name, name) for name in node.input]
        if node.op_type == "Reshape":  # between the last map and the matrix products that read all of it
            renamed[node.output[0]] = node.input[0]
        elif node.op_type == "Gemm":
            nodes += _as_convolution(node, shapes[_stored(node.input[1], maker)])
        else:
            nodes.append(node)
    score = renamed.get(score, score)
    read_names = {name for node in nodes for name in node.input}
    floats, make = onnx.TensorProto.FLOAT, onnx.helper
    dense = make.make_graph(
        nodes,
        "dense",
        [make.make_tensor_value_info("image", floats, [1, 1, "height", "width"])],
        [make.make_tensor_value_info(score, floats, [1, 1, "rows", "columns"])],
        [tensor for tensor in graph.initializer if tensor.name in read_names],
    )
    versions = {"opset_imports": network.opset_import, "ir_version": network.ir_version}
    return bytes(make.make_model(dense, **versions).SerializeToString())


def _stored(name: str, maker: dict[str, Any]) -> str:
    """Name of the initializer that a weight is cast from, or its own."""
    return str(maker[name].input[0]) if name in maker else name


def _as_convolution(product: Any, shape: Sequence[int]) -> list[Any]:
    """A matrix product over the whole last map of a patch, as the convolution that it stands for."""
    from onnx import helper, numpy_helper

    side = PATCH // STRIDE
    kernel, sizes = f"{product.output[0]}.kernel", f"{product.output[0]}.sizes"
    whole = np.array([shape[0], shape[1] // side**2, side, side], np.int64)
    return [
        helper.make_node("Constant", [], [sizes], value=numpy_helper.from_array(whole)),
        helper.make_node("Reshape", [product.input[1], sizes], [kernel]),
        helper.make_node("Conv", [product.input[0], kernel, *product.input[2:]], product.output),
    ]
