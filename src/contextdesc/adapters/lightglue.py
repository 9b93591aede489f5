"""An extractor as LightGlue's are called: `extract(image)` gives a dictionary with a batch dimension.

Tensors come back where a tensor went in, on its device; a path or a NumPy array gives NumPy arrays, so that
PyTorch is needed only by those who have it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.errors import InputError
from contextdesc.image import read
from contextdesc.model import ContextDesc, load
from contextdesc.modelfile import DEFAULT

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Extractor:
    """Extracts features of one image a call.

    Args:
        model: a loaded model, or what `contextdesc.load` takes, with its options.
    """

    def __init__(self, model: ContextDesc | str | Path = DEFAULT, **options: Any) -> None:
        self.model = model if isinstance(model, ContextDesc) else load(model, **options)

    def extract(self, image: Any, resize: int | None = None) -> dict[str, Any]:
        """Features of one image.

        Args:
            image: a path, an array as `contextdesc.read` takes it, a tensor (3, H, W) or (1, 3, H, W) of 0 to
                1 (also with one channel), or a dictionary that holds any of these as `image`.
            resize: longer side to downscale to; keypoints come back in pixels of what was given.

        Returns:
            Float32: `keypoints` (1, N, 2) in pixels, OpenCV convention, `descriptors` (1, N, 128),
            `keypoint_scores` (1, N), `scales` (1, N) sigma, `oris` (1, N) radians, `image_size` (1, 2).
        """
        source = image["image"] if isinstance(image, Mapping) else image
        is_tensor = not isinstance(source, (str, os.PathLike, bytes, np.ndarray)) and hasattr(
            source, "detach"
        )
        features = self.model.extract(read(tensor_image(source) if is_tensor else source, resize))
        keypoints = features.keypoints
        answer: dict[str, Any] = {
            "keypoints": keypoints.xy,
            "descriptors": features.descriptors,
            "keypoint_scores": keypoints.response,
            "scales": keypoints.size / np.float32(2),
            "oris": np.deg2rad(keypoints.angle),
            "image_size": np.array(features.image_size, np.float32),
        }
        batched = {key: np.ascontiguousarray(value[None], np.float32) for key, value in answer.items()}
        return {key: to_tensor(value, source) for key, value in batched.items()} if is_tensor else batched

    __call__ = extract

    def eval(self) -> Extractor:
        """Nothing to do; for code that treats extractors as PyTorch modules, as `to` is."""
        return self

    def to(self, *_: Any, **__: Any) -> Extractor:
        """Nothing to do: ONNX Runtime runs where `device` of the model's options says."""
        return self


def tensor_image(tensor: Any) -> NDArray[np.uint8]:
    """(H, W, C) uint8 of a tensor (C, H, W) or (1, C, H, W) of 0 to 1, with 1 or 3 channels."""
    shape = tuple(tensor.shape)
    if len(shape) == 3:
        shape = (1, *shape)
    if len(shape) != 4 or shape[0] != 1 or shape[1] not in (1, 3):
        raise InputError(f"image tensor of shape {tuple(tensor.shape)}: expected one image, (1, 3, H, W)")
    values = tensor.detach().cpu().float().numpy().reshape(shape[1:]).transpose(1, 2, 0)
    if not (np.isfinite(values).all() and values.min(initial=0) >= 0 and values.max(initial=0) <= 1 + 1e-4):
        raise InputError("image tensor with values outside of 0 to 1: divide 8-bit images by 255")
    return np.rint(np.minimum(values, 1) * 255).astype(np.uint8)


def to_tensor(array: NDArray[np.float32], like: Any) -> Any:
    """A float32 tensor on the device of another one, made by that tensor's own library."""
    return like[..., :0].float().new_tensor(array)
