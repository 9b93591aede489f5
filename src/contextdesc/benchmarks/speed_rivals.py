"""What our stages are timed against: the machine's own limits, PyTorch, kornia, OpenCV and faiss.

Networks of others have random weights: only their speed is of interest.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import onnxruntime

from contextdesc.engine import BATCH
from contextdesc.errors import InputError
from contextdesc.keypoints import SIFT_LAYERS, SIFT_SIGMA
from contextdesc.patches import PATCH, SUPPORT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.detection import Detector

SIDE = 2048  # of the square matrices whose product shows the limit
PRODUCT = 2 * SIDE**3  # its operations
_ALL = 1_000_000  # keypoints of a detector that has to be told a number
COPIED = 2**26  # numbers of 4 bytes that are copied to show the bandwidth of memory


def import_rivals() -> dict[str, str]:
    """Load the libraries that we compare with, so that their threads can be limited; their versions."""
    try:
        import faiss
        import kornia
        import torch
    except ImportError as error:
        raise InputError(
            f"benchmark speed compares with {error.name}: pip install 'contextdesc[benchmark,retrieval]'"
        ) from None
    return {"torch": torch.__version__, "kornia": kornia.__version__, "faiss": faiss.__version__}


def products(threads: int) -> dict[str, Callable[[], object]]:
    """The product of two matrices by every library at hand, each with so many threads."""
    import torch

    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal((SIDE, SIDE), np.float32) for _ in range(2))
    session = _product_session(threads)
    tensors = torch.from_numpy(first), torch.from_numpy(second)
    return {
        "NumPy": lambda: first @ second,
        "ONNX Runtime": lambda: session.run(None, {"first": first, "second": second}),
        "PyTorch": lambda: tensors[0] @ tensors[1],
    }


def _product_session(threads: int) -> onnxruntime.InferenceSession:
    from onnx import TensorProto, helper

    def matrix(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIDE, SIDE])

    node = helper.make_node("MatMul", ["first", "second"], ["product"])
    graph = helper.make_graph([node], "product", [matrix("first"), matrix("second")], [matrix("product")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def memory_copy(threads: int) -> Callable[[], object]:
    """A copy of `COPIED` numbers by so many threads: it reads and writes them once each."""
    source, target = np.ones(COPIED, np.float32), np.ones(COPIED, np.float32)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    pool = ThreadPoolExecutor(threads)
    return lambda: list(pool.map(lambda part: np.copyto(*part), parts))


def eager_local(channels_last: bool = False) -> Callable[[NDArray[np.uint8]], NDArray[np.float32]]:
    """The local network in PyTorch, run as it is defined: patches to raw descriptors."""
    import torch

    from contextdesc.training.networks import LocalNetwork

    network = LocalNetwork().eval()
    if channels_last:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def run(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
        with torch.inference_mode():
            parts = [network(batch)[0] for batch in torch.from_numpy(patches).split(BATCH)]
        return np.asarray(torch.cat(parts).numpy())

    return run


def kornia_features(count: int | None) -> Callable[[NDArray[np.uint8]], NDArray[np.float32]]:
    """Gray image to descriptors, all by kornia: so many SIFT keypoints, patches, HardNet."""
    import torch
    from kornia.feature import HardNet, LAFDescriptor, LocalFeature, SIFTFeature

    describe = LAFDescriptor(HardNet(pretrained=False), PATCH, grayscale_descriptor=True)
    whole = LocalFeature(SIFTFeature(count or _ALL).detector, describe).eval()

    def run(gray: NDArray[np.uint8]) -> NDArray[np.float32]:
        with torch.inference_mode():
            return np.asarray(whole(torch.from_numpy(gray)[None, None].float() / 255)[2][0].numpy())

    return run


def kornia_pipeline(detector: Detector) -> Callable[[NDArray[np.uint8]], NDArray[np.float32]]:
    """Gray image to descriptors: OpenCV's SIFT keypoints as kornia's frames, its patches, its HardNet.

    Patches cover what ours cover; the network reads them in batches, which is faster than all at once.
    """
    import torch
    from kornia.feature import HardNet, extract_patches_from_pyramid, laf_from_center_scale_ori

    network = HardNet(pretrained=False).eval()

    def run(gray: NDArray[np.uint8]) -> NDArray[np.float32]:
        found = plain_sift(detector).detect(gray, None)
        rows = torch.tensor([(*k.pt, k.size, k.angle) for k in found], dtype=torch.float32)[None]
        with torch.inference_mode():
            image = torch.from_numpy(gray)[None, None].float() / 255
            scale = rows[:, :, 2, None, None] * (SUPPORT / 2)
            frames = laf_from_center_scale_ori(rows[:, :, :2], scale, -rows[:, :, 3, None])
            patches = extract_patches_from_pyramid(image, frames, PATCH)[0]
            return np.asarray(torch.cat([network(batch) for batch in patches.split(BATCH)]).numpy())

    return run


def plain_sift(detector: Detector) -> cv2.SIFT:
    """OpenCV's SIFT with the settings of a detector, and its own way to keep the strongest."""
    return cv2.SIFT.create(
        nfeatures=detector.max_keypoints or 0,
        nOctaveLayers=SIFT_LAYERS,
        contrastThreshold=detector.contrast,
        edgeThreshold=detector.edge,
        sigma=SIFT_SIGMA,
        enable_precise_upscale=detector.precise_upscale,
    )


def opencv_mutual(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.int64]:
    """Mutual nearest neighbours (M, 2) by OpenCV's matcher with its cross-check."""
    found = cv2.BFMatcher(cv2.NORM_L2, crossCheck=True).match(first, second)
    return np.array([(match.queryIdx, match.trainIdx) for match in found], np.int64).reshape(-1, 2)


def faiss_mutual(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.int64]:
    """Mutual nearest neighbours (M, 2) by faiss's exact search of inner products, once in each direction."""
    forth, back = _faiss_nearest(first, second), _faiss_nearest(second, first)
    rows = np.flatnonzero(back[forth] == np.arange(len(first)))
    return np.column_stack([rows, forth[rows]])


def _faiss_nearest(queries: NDArray[np.float32], among: NDArray[np.float32]) -> NDArray[np.int64]:
    import faiss

    index = faiss.IndexFlatIP(among.shape[1])
    index.add(among)
    nearest: NDArray[np.int64] = index.search(queries, 1)[1][:, 0]
    return nearest
