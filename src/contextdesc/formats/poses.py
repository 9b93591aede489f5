"""Tables of localised images: CSV, JSON, and text as the visual localisation benchmark and hloc have it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contextdesc.errors import InputError
from contextdesc.formats.atomic import replacing

if TYPE_CHECKING:
    from contextdesc.localization import Localization

_QUATERNION, _TRANSLATION, _CENTRE = ("qw", "qx", "qy", "qz"), ("tx", "ty", "tz"), ("x", "y", "z")


def row(answer: Localization) -> dict[str, Any]:
    """One line of the table; columns of the pose are None if there is none."""
    pose = answer.pose
    values: dict[str, Any] = {
        "name": answer.name, "localised": pose is not None, "inliers": answer.inliers, "pairs": answer.pairs,
        "error": None if pose is None else pose.error,
    }  # fmt: skip
    for names, attribute in ((_QUATERNION, "quaternion"), (_TRANSLATION, "translation"), (_CENTRE, "centre")):
        numbers = [None] * len(names) if pose is None else getattr(pose, attribute).tolist()
        values |= dict(zip(names, numbers, strict=True))
    return values | {
        "camera": None if pose is None else pose.camera,
        "parameters": None if pose is None else list(pose.parameters),
        "camera_origin": None if pose is None else pose.origin,
        "nearest": answer.nearest,
        "identical": answer.identical,
        "reason": answer.reason,
    }


def to_csv(answers: Sequence[Localization]) -> str:
    stream = StringIO()
    rows = [row(answer) for answer in answers]
    writer = csv.DictWriter(stream, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    for values in rows:
        values["parameters"] = " ".join(map(str, values["parameters"] or ()))
        writer.writerow(values)
    return stream.getvalue()


def to_json(answers: Sequence[Localization]) -> str:
    return json.dumps([row(answer) for answer in answers], indent=2) + "\n"


def to_text(answers: Sequence[Localization]) -> str:
    """`name qw qx qy qz tx ty tz` a line, world to camera, those with a pose alone."""
    lines = []
    for answer in answers:
        if answer.pose is not None:
            numbers = (*answer.pose.quaternion, *answer.pose.translation)
            lines.append(" ".join([answer.name, *(f"{number:.9g}" for number in numbers)]) + "\n")
    return "".join(lines)


_WRITERS: dict[str, Callable[[Sequence[Localization]], str]] = {
    ".csv": to_csv, ".json": to_json, ".txt": to_text,
}  # fmt: skip


def check(path: Path) -> None:
    """Refuse a name that says no format of a table."""
    if path.suffix not in _WRITERS:
        raise InputError(f"{path}: tables are written as {', '.join(_WRITERS)}")


def write(path: Path, answers: Sequence[Localization]) -> None:
    """Write a table in the format that the suffix says."""
    check(path)
    with replacing(path) as temporary:
        temporary.write_text(_WRITERS[path.suffix](answers), encoding="utf-8")
