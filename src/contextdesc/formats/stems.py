"""Formats that know images by the stem of their file name alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from contextdesc.errors import InputError


def check_stems(names: Iterable[str], format: str) -> None:
    """Refuse images that would overwrite each other."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(Path(name).stem, name)
        if other != name:
            raise InputError(
                f"{other} and {name}: the {format} format tells images by their stem; rename one"
            )
