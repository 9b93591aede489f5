"""A global descriptor per image: the generalised mean (Radenovic et al., 2018) of the regional grid."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contextdesc.journal import Journal
from contextdesc.progress import progress

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.model import ContextDesc

_POWER = 3.0  # of the mean; the usual choice
_SMALLEST = 1e-6  # value of the grid


def image_descriptors(
    model: ContextDesc, images: Mapping[str, Path], journal_path: Path, quiet: bool = False
) -> NDArray[np.float32]:
    """(N, C) unit vectors, in the order of `images`; resumes where it stopped."""
    journal = Journal(journal_path, {"model": model.source})
    with progress("retrieve", len(images), sum(name in journal for name in images), quiet) as advance:
        for name, path in images.items():
            if name not in journal:
                journal.append(name, {"descriptor": generalised_mean(model.regional(path))})
                advance()
    found = np.stack([journal[name]["descriptor"] for name in images])
    journal.close()
    return found


def generalised_mean(grid: NDArray[np.float32]) -> NDArray[np.float32]:
    """(C, h, w) to a unit vector (C,)."""
    values = np.maximum(grid, _SMALLEST).astype(np.float64)
    pooled = np.power(np.power(values, _POWER).mean((1, 2)), 1 / _POWER)
    return np.asarray(pooled / np.linalg.norm(pooled), np.float32)
