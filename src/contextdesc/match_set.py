"""Matches of many pairs of a set of features, in hloc's layout; resumes where it stopped."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.errors import InputError
from contextdesc.formats import hloc
from contextdesc.formats.manifest import pair_name
from contextdesc.formats.shards import FeatureSet, open_features, stamp
from contextdesc.geometry import Geometry, verify
from contextdesc.journal import Journal
from contextdesc.matching import Matches, match
from contextdesc.progress import progress
from contextdesc.report import Report

if TYPE_CHECKING:
    import h5py

    from contextdesc.features import Features
    from contextdesc.scale.run import Workers

PAIRS_A_SHARD = 512

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
    workers: Workers | None = None,
    shard_size: int = PAIRS_A_SHARD,
) -> Report:
    """Match pairs of images of a set of features.

    Args:
        features: a feature file, or a folder of shards.
        output: `.h5` file; with `workers` a folder.
        geometry: keep only matches that agree with a homography or fundamental matrix.
        workers: other processes that do it, here or on a cluster; the output is a folder of shards, each
            of `shard_size` pairs.
    """
    task = MatchTask(features.resolve(), ratio, mutual, geometry, force)
    with open_features(features) as file:
        for name in {name for pair in pairs for name in pair}:
            if name not in file:
                raise InputError(f"{features}: no image called {name}, which the pair list names")
        settings = {"features": stamp(features), "ratio": ratio, "mutual": mutual, "geometry": geometry}
        if workers is not None:
            return _match_to_shards(task, pairs, output, settings, restart, quiet, workers, shard_size)
        if output.is_dir():
            raise InputError(
                f"{output}: is a folder; name a file, or write shards with --workers or --cluster"
            )
        journal_path = output.with_name(output.name + ".journal")
        if restart:
            journal_path.unlink(missing_ok=True)
        journal = Journal(journal_path, settings)
        keys = {pair: f"{pair[0]}\n{pair[1]}" for pair in pairs}
        report = Report(before=sum(key in journal for key in keys.values()))
        recent = _Recent(file)
        with progress("match", len(keys), report.before, quiet) as advance:
            for pair, key in keys.items():
                if key in journal:
                    continue
                rows, matches = task.match(recent, pair)
                journal.append(key, {
                    "indices": matches.indices.astype(np.int32), "similarity": matches.similarity,
                    "rows": np.array(rows),
                })  # fmt: skip
                report.done.append(key)
                advance()
    hloc.write_matches(output, _finished(journal, keys))
    journal.delete()
    return report


@dataclass(frozen=True)
class MatchTask:
    """Matching, here or in other processes; see `match_pairs`."""

    features: Path
    ratio: float | None
    mutual: bool
    geometry: Geometry | None
    force: bool

    def match(self, features: _Recent, pair: tuple[str, str]) -> tuple[int, Matches]:
        """The number of keypoints of the first image, and the matches."""
        first, second = (features[name] for name in pair)
        matches = match(first, second, self.ratio, self.mutual, self.force)
        if self.geometry is not None:
            inliers = verify(first, second, matches, self.geometry).inliers
            matches = Matches(matches.indices[inliers], matches.similarity[inliers])
        return len(first), matches

    def open(self) -> Callable[[str, tuple[str, str]], tuple[str, str, int, Matches]]:
        recent = _Recent(open_features(self.features))
        return lambda _, pair: (*pair, *self.match(recent, pair))

    def write(self, file: h5py.File, name: str, result: tuple[str, str, int, Matches]) -> None:
        hloc.write_pair(file, *result)


def _match_to_shards(
    task: MatchTask, pairs: list[tuple[str, str]], output: Path, settings: dict[str, Any], restart: bool,
    quiet: bool, workers: Workers, shard_size: int,
) -> Report:  # fmt: skip
    from contextdesc.scale.run import run

    return run(
        task, {pair_name(*pair): pair for pair in pairs}, output, workers, kind="matches",
        settings=settings, shard_size=shard_size, restart=restart, quiet=quiet, title="match",
    )  # fmt: skip


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

    def __init__(self, file: FeatureSet) -> None:
        self._file = file
        self._kept: OrderedDict[str, Features] = OrderedDict()

    def __getitem__(self, name: str) -> Features:
        if name not in self._kept:
            self._kept[name] = self._file[name]
            if len(self._kept) > _CACHED:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        return self._kept[name]
