"""Which model and which settings an index was made with, so that queries are described the same way."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from contextdesc.errors import InputError
from contextdesc.features import source_of
from contextdesc.image import read
from contextdesc.retrieval.keeping import KeptFeatures, keep
from contextdesc.retrieval.pooling import pooled

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from contextdesc.image import Source
    from contextdesc.model import ContextDesc
    from contextdesc.retrieval.options import Options


@dataclass(frozen=True)
class Extraction:
    """A model and the settings of its extraction.

    Attributes:
        model, checksum, context, ratio: as features have them.
        detector: settings of `Detector` by name.
        max_side: pixels, or None.
    """

    model: str = "unknown"
    checksum: str = "unknown"
    context: str = "none"
    ratio: float = 1.0
    detector: dict[str, Any] = field(default_factory=dict)
    max_side: int | None = None

    @classmethod
    def of(cls, model: ContextDesc) -> Extraction:
        spec = model.spec
        detector = asdict(model.detector)
        return cls(spec.name, model.checksum, model.context, spec.ratio, detector, model.max_side)

    @property
    def source(self) -> str:
        """As features and models name theirs."""
        return source_of(self.model, self.checksum, self.context)

    def check(self, model: ContextDesc, where: Path) -> None:
        """Refuse a model that is not the one that made this."""
        if model.source != self.source:
            raise InputError(
                f"{where}: an index of {self.source}, not of {model.source}; give that model, or build "
                "another index"
            )


@dataclass(frozen=True, eq=False)
class Described:
    """What retrieval needs of one image: its local features, and its global descriptor (C,) or None."""

    features: KeptFeatures
    descriptor: NDArray[np.float32] | None


def describe(model: ContextDesc, image: Source, options: Options) -> Described:
    """Extract what an index with these options holds of an image, or compares a query by."""
    picture = read(image, model.max_side, model.max_pixels)
    kind: Literal["int8", "float16"] = "int8" if options.features == "int8" else "float16"
    features = keep(model.extract(picture), kind)
    if options.pooling == "none":
        return Described(features, None)
    return Described(features, pooled(model.regional(picture), options.pooling))
