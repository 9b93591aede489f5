"""Patch perturbation (section 4.1): the patch of a keypoint turned, scaled, stretched and moved a little.

Keypoints of our pairs are detected in both images, so their patches differ by the detector's own errors
already; perturbation adds more, and turns both patches of a pair together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from contextdesc.keypoints import Keypoints

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class PerturbationConfig:
    """Ranges, uniform around 0. The release's: 90, 5, 0.3, 0.2, 0; the paper moves patches too."""

    shared_rotation: float = 0.0  # degrees, the same for both patches of a correspondence
    rotation: float = 0.0  # degrees, of each patch
    scale: float = 0.0  # log2
    anisotropy: float = 0.0  # log2 of the stretch along one axis, and of the shrinking along the other
    translation: float = 0.0  # over the keypoint's size


def perturb(
    sides: tuple[Keypoints, Keypoints], rng: np.random.Generator, config: PerturbationConfig
) -> tuple[tuple[Keypoints, Keypoints], tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Keypoints of both sides, row i corresponding, as their patches are to be cut.

    Returns:
        Keypoints moved, turned and scaled, and (N, 2) factors on the two axes of each patch.
    """
    shared = rng.uniform(-config.shared_rotation, config.shared_rotation, len(sides[0]))
    keypoints, stretches = [], []
    for side in sides:
        n = len(side)
        turn = shared + rng.uniform(-config.rotation, config.rotation, n)
        move = rng.uniform(-config.translation, config.translation, (n, 2)) * side.size[:, None]
        stretch = 2 ** rng.uniform(-config.anisotropy, config.anisotropy, n)
        zoom = 2 ** rng.uniform(-config.scale, config.scale, n)
        keypoints.append(
            Keypoints(
                (side.xy + move).astype(np.float32),
                (side.size * zoom).astype(np.float32),
                ((side.angle + turn) % 360).astype(np.float32),
                side.response,
            )
        )
        stretches.append(np.column_stack([stretch, 1 / stretch]).astype(np.float32))
    return (keypoints[0], keypoints[1]), (stretches[0], stretches[1])
