"""Matches of many pairs of a feature file, in hloc's layout; resumes where it stopped."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contextdesc.errors import InputError
from contextdesc.extraction import Report
from contextdesc.formats import hloc
from contextdesc.geometry import Geometry, verify
from contextdesc.journal import Journal
from contextdesc.matching import Matches, match
from contextdesc.progress import progress

if TYPE_CHECKING:
    from contextdesc.features import Features

_CACHED = 64  # images whose features stay in memory; pair lists tend to repeat the first image


def match_pairs(
    features: Path,
    pairs: list[tuple[str, str]],
    output: Path,
    *,
    ratio: float | None = None,
    mutual: bool = True,
    geometry: Geometry | None = None,
    force: bool = False,
    restart: bool = False,
    quiet: bool = False,
) -> Report:
    """Match pairs of images of a feature file.

    Args:
        geometry: keep only matches that agree with a homography or fundamental matrix.
    """
    journal_path = output.with_name(output.name + ".journal")
    if restart:
        journal_path.unlink(missing_ok=True)
    with hloc.FeatureFile(features) as file:
        for name in {name for pair in pairs for name in pair}:
            if name not in file:
                raise InputError(f"{features}: no image called {name}, which the pair list names")
        stat = features.stat()
        settings = {
            "features": [stat.st_size, stat.st_mtime_ns],
            "ratio": ratio, "mutual": mutual, "geometry": geometry,
        }  # fmt: skip
        journal = Journal(journal_path, settings)
        keys = {pair: f"{pair[0]}\n{pair[1]}" for pair in pairs}
        report = Report(before=sum(key in journal for key in keys.values()))
        recent = _Recent(file)
        with progress("match", len(keys), report.before, quiet) as advance:
            for pair, key in keys.items():
                if key in journal:
                    continue
                first, second = (recent[name] for name in pair)
                matches = match(first, second, ratio, mutual, force)
                if geometry is not None:
                    inliers = verify(first, second, matches, geometry).inliers
                    matches = Matches(matches.indices[inliers], matches.similarity[inliers])
                journal.append(key, {
                    "indices": matches.indices.astype(np.int32), "similarity": matches.similarity,
                    "rows": np.array(len(first)),
                })  # fmt: skip
                report.done.append(key)
                advance()
    hloc.write_matches(output, _finished(journal, keys))
    journal.delete()
    return report


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """A pair list: two image names a line, separated by a space or tab; repeats are dropped."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a readable text file ({error})") from None
    pairs: dict[tuple[str, str], None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        names = line.split("\t") if "\t" in line else line.split()
        if not names or line.startswith("#"):
            continue
        if len(names) < 2:
            raise InputError(f"{path}, line {number}: expected two image names, got {line!r}")
        pairs[names[0], names[1]] = None
    if not pairs:
        raise InputError(f"{path}: no pairs in it")
    return list(pairs)


def all_pairs(names: list[str]) -> list[tuple[str, str]]:
    return [(first, second) for i, first in enumerate(names) for second in names[i + 1 :]]


def _finished(journal: Journal, keys: dict[tuple[str, str], str]) -> Iterator[tuple[str, str, int, Matches]]:
    for (first, second), key in keys.items():
        arrays = journal[key]
        matches = Matches(arrays["indices"].astype(np.int64), arrays["similarity"])
        yield first, second, int(arrays["rows"]), matches


class _Recent:
    """The features read last."""

    def __init__(self, file: hloc.FeatureFile) -> None:
        self._file = file
        self._kept: OrderedDict[str, Features] = OrderedDict()

    def __getitem__(self, name: str) -> Features:
        if name not in self._kept:
            self._kept[name] = self._file[name]
            if len(self._kept) > _CACHED:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        return self._kept[name]
