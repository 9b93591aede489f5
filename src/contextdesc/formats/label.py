"""A label for folders in formats that cannot say which model wrote them: `contextdesc.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from contextdesc.formats.atomic import replacing

if TYPE_CHECKING:
    from contextdesc.features import Features

NAME = "contextdesc.json"


def write(folder: Path, features: Features) -> None:
    """Say which model wrote the folder; it is only written once."""
    if not (folder / NAME).exists():
        with replacing(folder / NAME) as temporary:
            temporary.write_text(json.dumps({"source": features.source}) + "\n", encoding="utf-8")


def read(folder: Path) -> str:
    """The source of a folder's features; `unknown` if contextdesc did not write them."""
    try:
        return str(json.loads((folder / NAME).read_text(encoding="utf-8"))["source"])
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"
