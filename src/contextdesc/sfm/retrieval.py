"""Global descriptors of many images, for pairs of similar ones; resumes where it stopped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contextdesc.journal import Journal
from contextdesc.progress import progress
from contextdesc.retrieval.pooling import mean

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.model import ContextDesc


def image_descriptors(
    model: ContextDesc, images: Mapping[str, Path], journal_path: Path, quiet: bool = False
) -> NDArray[np.float32]:
    """(N, C) unit vectors, in the order of `images`; resumes where it stopped."""
    journal = Journal(journal_path, {"model": model.source, "pooling": "mean"})
    with progress("retrieve", len(images), sum(name in journal for name in images), quiet) as advance:
        for name, path in images.items():
            if name not in journal:
                journal.append(name, {"descriptor": mean(model.regional(path))})
                advance()
    found = np.stack([journal[name]["descriptor"] for name in images])
    journal.close()
    return found
