"""What a reconstruction's folder was made with: settings and outputs of each stage, and what changed."""

from __future__ import annotations

import hashlib
import json
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contextdesc.errors import InputError
from contextdesc.formats.atomic import replacing
from contextdesc.image import find_images

if TYPE_CHECKING:
    from contextdesc.model import ContextDesc

FILE = "settings.json"
# The stages in their order, and what each leaves in the folder
OUTPUTS = {
    "features": ("features.h5", "features.h5.journal", ".features.h5.tmp"),
    "pairs": ("pairs.txt", ".retrieval.journal", ".pairs.txt.tmp"),
    "matches": ("matches.h5", "matches.h5.journal", ".matches.h5.tmp"),
    "database": tuple(
        name + suffix
        for name in ("database.db", ".database.db.part", "..database.db.part.new")
        for suffix in ("", "-wal", "-shm")
    ),
    "mapping": ("sparse", ".mapping", ".sparse.new", "points.ply", "summary.json", "index.html"),
}
_ENDS = 1 << 16  # bytes at a file's beginning and end that its fingerprint reads

Stages = Mapping[str, Mapping[str, Any]]


def prepare(folder: Path, wanted: Stages, *, restart: bool = False, update: bool = False) -> None:
    """Make sure that what a folder holds was made with the settings that are wanted, and note these.

    Args:
        wanted: settings by stage, as JSON values.
        restart: forget all that was done.
        update: forget what was done from the first stage on whose settings changed.
    """
    path = folder / FILE
    wanted = json.loads(json.dumps(wanted))
    stored = _read(path)
    if restart:
        _forget(folder, list(OUTPUTS))
    elif stored is not None:
        changed = {stage: _differences(stored.get(stage, {}), wanted[stage]) for stage in OUTPUTS}
        first = next((stage for stage in OUTPUTS if changed[stage]), None)
        if first is not None:
            if not update:
                told = "; ".join(text for texts in changed.values() for text in texts[:3])
                raise InputError(
                    f"{folder}: was made with other settings ({told}); go on with those, choose another "
                    "folder, or redo what they touch with --update"
                )
            stages = list(OUTPUTS)[list(OUTPUTS).index(first) :]
            _forget(folder, stages[1:] if _only_more_images(stored, wanted) else stages)
    elif any((folder / name).exists() for names in OUTPUTS.values() for name in names):
        raise InputError(
            f"{folder}: holds files that were not made by contextdesc sfm; choose another folder"
        )
    with replacing(path) as temporary:
        noted = {stage: {"hash": digest(wanted[stage]), "settings": wanted[stage]} for stage in OUTPUTS}
        temporary.write_text(json.dumps({"format": 1, "stages": noted}, indent=1), encoding="utf-8")


def forget_after(folder: Path, stage: str) -> None:
    """Remove what the stages after one have written."""
    _forget(folder, list(OUTPUTS)[list(OUTPUTS).index(stage) + 1 :])


def feature_settings(model: ContextDesc, images: Mapping[str, Path], masks: Path | None) -> dict[str, Any]:
    """What the features of images depend on."""
    return {
        "images": fingerprints(images), "masks": fingerprints(find_images([masks])) if masks else {},
        "model": model.source, "detector": asdict(model.detector), "max_side": model.max_side,
    }  # fmt: skip


def digest(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def fingerprints(files: Mapping[str, Path]) -> dict[str, str]:
    return {name: fingerprint(path) for name, path in files.items()}


def fingerprint(path: Path) -> str:
    """Changes with a file's length, beginning and end; not with its place or date."""
    try:
        with path.open("rb") as file:
            head = file.read(_ENDS)
            length = file.seek(0, 2)
            file.seek(max(0, length - _ENDS))
            return f"{length}-{zlib.crc32(file.read(), zlib.crc32(head)):08x}"
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        stages = json.loads(path.read_text(encoding="utf-8"))["stages"]
        stored = {stage: stages[stage]["settings"] for stage in OUTPUTS}
        if any(digest(stored[stage]) != stages[stage]["hash"] for stage in OUTPUTS):
            raise ValueError("edited")
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path}: damaged; start again with --restart, or choose another folder") from None
    return stored


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What changed, in words."""
    texts = []
    for key in {**old, **new}:
        before, now = old.get(key), new.get(key)
        if before == now:
            continue
        if isinstance(before, dict) and isinstance(now, dict):
            names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
            texts.append(f"{key}: {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}")
        else:
            texts.append(f"{key}: was {before}, now {now}")
    return texts


def _only_more_images(old: Stages, new: Stages) -> bool:
    """Whether all that changed of the features is that there are more photographs."""
    before, now = dict(old["features"]), dict(new["features"])
    first, second = before.pop("images", {}), now.pop("images", {})
    return before == now and first != second and all(second.get(name) == mark for name, mark in first.items())


def _forget(folder: Path, stages: list[str]) -> None:
    for name in (name for stage in stages for name in OUTPUTS[stage]):
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
