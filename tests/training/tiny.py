"""Settings of trainings that take a second, and what they are compared with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from contextdesc.image import Image
from contextdesc.keypoints import Keypoints
from contextdesc.model import directions, unit_coordinates
from contextdesc.modelfile import ModelSpec
from contextdesc.patches import sample_patches
from contextdesc.rootsift import rootsift
from contextdesc.training.data.pairs import PairConfig
from contextdesc.training.data.scene_pairs import ScenePairConfig
from contextdesc.training.data.scenes import PairRules
from contextdesc.training.networks import VisualConfig
from contextdesc.training.parts import Parts

CHANNELS = 16  # of the grids of the fixture `grids`
PAIRS = PairConfig(keypoints=64, min_corresponding=16, per_photo=1)
SCENE_PAIRS = ScenePairConfig(
    keypoints=64, min_corresponding=16, per_scene=2, rules=PairRules(min_rotation=0, keypoints=64)
)
ENCODER = VisualConfig(grid_widths=(32, 16), fusion_widths=(32, 128), gate=True)


def quiet(line: str) -> None:
    pass


def networks(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The tensors of the parts in a checkpoint, as `local.last.weight`."""
    prefix = "model.parts."
    tensors = load_file(checkpoint).items()
    return {name.removeprefix(prefix): value for name, value in tensors if name.startswith(prefix)}


@torch.no_grad()
def torch_descriptors(
    parts: Parts, spec: ModelSpec, image: Image, keypoints: Keypoints, grid: torch.Tensor | None
) -> NDArray[np.float32]:
    """What a model should say of keypoints, in PyTorch alone: (N, D)."""
    score = None
    if parts.local is not None:
        raw, score = parts.local(torch.from_numpy(sample_patches(image.gray, keypoints, spec.support)))
    else:
        raw = torch.from_numpy(rootsift(image.gray, keypoints))
        if parts.matchability is not None:
            score = parts.matchability(raw)
    xy = torch.from_numpy(unit_coordinates(keypoints, image.size))[None]
    terms = []
    if parts.visual is not None:
        assert grid is not None
        terms.append(parts.visual(grid[None], xy, raw[None]))
    if parts.geometric is not None:
        direction = torch.from_numpy(directions(keypoints))[None]
        terms.append(parts.geometric(xy, None if score is None else score[None], raw[None], direction))
    if parts.aggregation is None:
        return torch.nn.functional.normalize(raw, dim=1).numpy()
    return parts.aggregation(raw.T[None], *terms)[0].T.numpy()
