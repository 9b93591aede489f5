"""A model that every worker loads for itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from contextdesc.errors import InputError

if TYPE_CHECKING:
    from contextdesc.model import ContextDesc


@dataclass(frozen=True)
class Loading:
    """How another process loads the same model.

    Attributes:
        folder, name, checksum: of the model; where the folder is missing, a packaged one of that name does.
        options: of `contextdesc.load`.
    """

    folder: Path
    name: str
    checksum: str
    options: Mapping[str, Any]

    @classmethod
    def of(cls, model: ContextDesc, threads: int) -> Self:
        """Of a loaded model, with so many threads."""
        options = model.options | {"threads": threads}
        return cls(model.folder.absolute(), model.spec.name, model.checksum, options)

    def load(self) -> ContextDesc:
        from contextdesc.model import load

        model = load(self.folder if self.folder.is_dir() else self.name, **self.options)
        if model.checksum != self.checksum:
            raise InputError(
                f"{model.folder}: checksum {model.checksum}, where the run was started {self.checksum}; "
                "install the same version on all nodes"
            )
        return model
