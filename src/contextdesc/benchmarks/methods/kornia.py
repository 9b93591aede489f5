"""Patch networks of kornia, with weights from a file: `kornia:HardNet=FILE`.

Patches come from our own sampler, the same for every network and for our models, so that networks are
compared and not samplers. Networks that were trained on larger patches are given them by a factor on the
side: `kornia:HardNet=FILE@1.13` cuts them 12 times as wide as the keypoint, as some pipelines do.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from contextdesc.benchmarks.methods.method import Method, PatchRoute, Steps, checked, resized
from contextdesc.errors import InputError
from contextdesc.modelfile import sha256
from contextdesc.patches import PATCH, SUPPORT, sample_patches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.image import Image
    from contextdesc.keypoints import Keypoints

NETWORKS = ("HardNet", "SOSNet", "HyNet")
_BATCH = 512  # patches


def build(name: str, rest: str, threads: int) -> Method:
    network, _, path = rest.partition("=")
    if network not in NETWORKS or not path:
        raise InputError(
            f"method {name!r}: kornia:NETWORK=FILE with one of {', '.join(NETWORKS)} and a file of weights"
        )
    try:
        import kornia
        import torch
    except ImportError:
        raise InputError(f"method {name!r} needs an extra: pip install 'contextdesc[benchmark]'") from None
    if threads:
        torch.set_num_threads(threads)
    module = getattr(kornia.feature, network)(pretrained=False)
    _load(module, Path(path))
    module.eval()

    def describe_patches(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
        parts = [np.zeros((0, 128), np.float32)]
        with torch.inference_mode():
            for start in range(0, len(patches), _BATCH):
                batch = torch.from_numpy(patches[start : start + _BATCH, None].astype(np.float32) / 255)
                parts.append(module(batch).numpy())
        return checked(np.concatenate(parts), len(patches), name)

    def describe(image: Image, keypoints: Keypoints, precise: bool) -> NDArray[np.float32]:
        return describe_patches(sample_patches(image.gray, keypoints))

    identity = (
        f"{network}, weights {sha256(Path(path))}, support {SUPPORT}, {threads} threads, kornia "
        f"{kornia.__version__}, PyTorch {torch.__version__}, OpenCV {cv2.__version__}"
    )
    route = PatchRoute(name, lambda patches: describe_patches(resized(patches, PATCH)))
    steps = Steps.without_context(describe)
    return Method(name, describe, identity, threads=threads, patches=route, steps=steps)


def _load(module: Any, path: Path) -> None:
    """Weights from .safetensors, or from PyTorch's own format without running anything in it."""
    import torch

    if not path.is_file():
        raise InputError(f"{path}: no such file of weights")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            weights = load_file(path)
        else:
            weights = torch.load(path, map_location="cpu", weights_only=True)
        module.load_state_dict(weights.get("state_dict", weights))
    except Exception as error:  # of many types, all of them long
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path}: no weights of {type(module).__name__} ({reason})") from None
