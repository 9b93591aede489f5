"""Small tasks whose processes can be watched and made to die, and a driver to be killed.

python -m tests.scale.tasks FOLDER NOTES
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from contextdesc.errors import InputError
from contextdesc.extraction import ExtractTask
from contextdesc.features import Features
from contextdesc.formats.manifest import Manifest, read_finished
from contextdesc.modelfile import sha256
from contextdesc.report import Report
from contextdesc.scale.run import Workers, run

NUMBERS = {f"item{number:02}": number for number in range(40)}


@dataclass(frozen=True)
class Square:
    """Squares of numbers; negative ones fail.

    Attributes:
        notes: folder in which every process leaves a file, named by its id, with the items it began.
        seconds: that an item takes.
        deadly: items on which the process dies, and how often (then it does not).
        fatal: die when the task is opened.
    """

    notes: Path
    seconds: float = 0.0
    deadly: Mapping[str, int] = field(default_factory=dict)
    fatal: bool = False

    def open(self) -> Callable[[str, int], Any]:
        note = self.notes / str(os.getpid())
        note.touch()
        if self.fatal:
            os.abort()

        def square(name: str, number: int) -> Any:
            with note.open("a") as file:
                file.write(f"{name}\n")
            if began(self.notes).count(name) <= self.deadly.get(name, 0):
                os.abort()
            time.sleep(self.seconds)
            if number < 0:
                raise InputError(f"{number} is negative")
            return np.array(number * number)

        return square

    def write(self, file: h5py.File, name: str, result: Any) -> None:
        file[name] = result


@dataclass(frozen=True)
class Unopenable(Square):
    def open(self) -> Callable[[str, int], Any]:
        raise InputError("no such model")


@dataclass(frozen=True)
class PoisonedExtract(ExtractTask):
    """Extraction whose decoder crashes on one image."""

    poison: str = ""

    def open(self) -> Callable[[str, Any], Features]:
        extract = super().open()

        def crash_or_extract(name: str, image: Any) -> Features:
            if name == self.poison:
                os.abort()
            return extract(name, image)

        return crash_or_extract


def began(notes: Path) -> list[str]:
    """The items that processes began, as often as they did."""
    return [name for note in notes.iterdir() for name in note.read_text().split()]


def processes(notes: Path) -> list[int]:
    return sorted(int(note.name) for note in notes.iterdir())


def square_all(
    folder: Path, task: Square, workers: Workers, items: Mapping[str, int] = NUMBERS, **options: Any
) -> Report:
    task.notes.mkdir(exist_ok=True)
    options = {"shard_size": 4, "settings": {"power": 2}, "quiet": True} | options
    return run(task, items, folder, workers, kind="words", **options)


def prove(folder: Path, items: Mapping[str, int] = NUMBERS) -> Manifest:
    """By its manifest, a folder has everything that was asked for, once or failed, and nothing else."""
    manifest = read_finished(folder, "words")
    members = [name for shard in manifest.shards for name in shard.members]
    assert sorted(members) == sorted(items)
    for shard in manifest.shards:
        path = folder / shard.file
        assert sha256(path) == shard.sha256
        assert path.stat().st_size == shard.bytes
        with h5py.File(path) as file:
            found = {name: int(file[name][()]) for name in file}
        assert found == {name: items[name] ** 2 for name in shard.names}
    files = {shard.file for shard in manifest.shards} | {"manifest.json"}
    assert {path.name for path in folder.iterdir()} == files
    return manifest


if __name__ == "__main__":
    square_all(Path(sys.argv[1]), Square(Path(sys.argv[2]), seconds=0.1), Workers(2))
