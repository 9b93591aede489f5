"""Mending: an index with damaged files comes in, a whole one of the same images takes its place.

Local features that are whole are used again; images whose features are not, or were not kept, are read and
described anew. A run that was killed goes on where it stopped.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contextdesc.errors import InputError
from contextdesc.overlap import FAILURES
from contextdesc.progress import progress
from contextdesc.retrieval.building import add_from, create_from, open_journal, to_arrays
from contextdesc.retrieval.extraction import Described, describe
from contextdesc.retrieval.index import Index
from contextdesc.retrieval.manifest import MANIFEST, VOCABULARY, read_manifest
from contextdesc.retrieval.vocabulary import Vocabulary

if TYPE_CHECKING:
    from contextdesc.model import ContextDesc
    from contextdesc.retrieval.segment import Segment

_DERIVED = {"norms"}  # arrays that follow from the lists
_NAMING = {"keys", "text", "text_ends"}
_FEATURES = {"feature_ends", "keypoints", "codes", "scales", "image_sizes"}


@dataclass
class Mended:
    """What was done.

    Attributes:
        damaged: files, with what was wrong with them.
        again: images that were described anew.
        failed: images that could not be, with the reason; they are no longer in the index.
        notes: what else is lost.
    """

    damaged: list[str]
    again: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def mend(
    folder: Path, load: Callable[[Index], ContextDesc], images: Mapping[str, Path], quiet: bool = False
) -> Mended:
    """Check every file of an index, and rebuild it if one is damaged.

    Args:
        load: gives the model that the index was made with, if images must be described anew.
        images: by name, where they are now; else they are read from where they were when they were added.
    """
    manifest = read_manifest(folder)
    vocabulary, problem = _whole_vocabulary(folder, manifest["vocabulary"]["checksum"])
    index = Index(folder, vocabulary or _nothing(manifest["vocabulary"]["words"]), manifest)
    mended = Mended(([] if problem is None else [problem]) + index.damaged())
    if not mended.damaged:
        return mended
    bad = {segment.name: _damaged_columns(segment) for segment in index.segments}
    if vocabulary is not None and set().union(*bad.values()) <= _DERIVED:
        index.weigh()
        return mended
    target = folder.with_name(f"{folder.name}.rebuilt")
    journal = open_journal(target, index.extraction, index.options)
    paths: dict[str, Path] = {}
    model: ContextDesc | None = None
    with progress("rebuild", sum(map(len, index.segments)), 0, quiet) as advance:
        for name, path, described in _images(index.segments, bad, images, mended):
            if name not in journal and described is None:
                try:
                    model = model or load(index)
                    described = describe(model, path, index.options)
                    mended.again += 1
                except FAILURES as error:
                    mended.failed[name] = str(error)
                    advance(f"{name}: {error}", failed=True)
                    continue
            if name not in journal and described is not None:
                journal.append(name, to_arrays(described))
            paths[name] = path
            advance()
    if not (target / MANIFEST).exists():
        wanted, seed = (manifest["vocabulary"][key] for key in ("wanted", "seed"))
        create_from(journal, list(paths), target, index.extraction, index.options, wanted, seed, vocabulary)
    add_from(journal, paths, Index.open(target), quiet)
    del index  # and its maps of the old files
    aside = folder.with_name(f"{folder.name}.damaged")
    folder.rename(aside)
    target.rename(folder)
    shutil.rmtree(aside)
    return mended


def _images(
    segments: list[Segment], bad: Mapping[str, set[str]], images: Mapping[str, Path], mended: Mended
) -> Iterator[tuple[str, Path, Described | None]]:
    """Name and path of all images, with what is known of them if it is whole."""
    seen = set()
    for segment in segments:
        columns = bad[segment.name]
        if columns & _NAMING:
            mended.notes.append(f"names of {len(segment)} images of segment {segment.name} are lost")
            continue
        if "removed" in columns:
            mended.notes.append(f"images of segment {segment.name} that were removed are back")
        removed = np.zeros(len(segment), np.bool_) if "removed" in columns else segment.removed
        whole = "codes" in segment.files and not columns & (_FEATURES | {"globals"})
        for row in np.flatnonzero(~removed).tolist():
            name, path = segment.image(row)
            seen.add(name)
            described = None
            if whole:
                pooled = (
                    segment.array("globals")[row].astype(np.float32) if "globals" in segment.files else None
                )
                described = Described(segment.features(row), pooled)
            yield name, images.get(name, Path(path)), described
    if any(columns & _NAMING for columns in bad.values()):
        yield from ((name, path, None) for name, path in images.items() if name not in seen)


def _whole_vocabulary(folder: Path, checksum: str) -> tuple[Vocabulary | None, str | None]:
    """The vocabulary, or None and what is wrong with it."""
    try:
        vocabulary = Vocabulary.load(folder / VOCABULARY)
    except InputError as error:
        return None, str(error)
    if vocabulary.checksum != checksum:
        return None, f"{folder / VOCABULARY}: another vocabulary than the index's"
    return vocabulary, None


def _nothing(words: int) -> Vocabulary:
    """In the place of a vocabulary that cannot be read, where only its size matters."""
    return Vocabulary(np.zeros((words, 1), np.float32), np.zeros((0, 1), np.float32), "unknown")


def _damaged_columns(segment: Segment) -> set[str]:
    return {name for name, file in segment.files.items() if file.check(segment.folder, True) is not None}
