"""`index.json`: what an index consists of, every file with its checksum; and the names of its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from contextdesc.errors import InputError
from contextdesc.formats.atomic import replacing

FORMAT = 1
MANIFEST, VOCABULARY, JOURNAL = "index.json", "vocabulary.npz", "images.journal"
_KEYS = ("vocabulary", "extraction", "options", "generation", "segments", "frequency")


def read_manifest(folder: Path) -> dict[str, Any]:
    """What `index.json` says."""
    path = folder / MANIFEST
    if not path.is_file():
        if (folder / JOURNAL).is_file():
            raise InputError(f"{folder}: its build is unfinished; run the same command again")
        raise InputError(f"{folder}: no index, it has no {MANIFEST}; contextdesc retrieve build makes one")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = manifest["format"]
        if version != FORMAT:
            raise InputError(f"{path}: index format {version}, this version of contextdesc reads {FORMAT}")
        missing = [key for key in _KEYS if key not in manifest]
        if missing or not all(segment["name"].isdecimal() for segment in manifest["segments"]):
            raise ValueError(f"no {', '.join(missing)}" if missing else "segments of odd names")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: damaged ({error}); delete {folder} and build the index again") from None
    return manifest


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    with replacing(folder / MANIFEST) as temporary:
        temporary.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
