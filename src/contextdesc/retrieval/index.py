"""The index: a folder with a vocabulary and segments of inverted lists; words come in, ranked images go out.

`index.json` names every file with its checksum and is replaced as the last step of a change, so that a change
that was cut off never happened. Scores are cosines of tf-idf vectors: a word that n of N images have weighs
ln(1 + N / n). A search reads the lists of its words and nothing else.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from contextdesc.config import from_dict
from contextdesc.errors import InputError
from contextdesc.journal import Journal
from contextdesc.retrieval.arrays import ArrayFile, write_array
from contextdesc.retrieval.extraction import Extraction
from contextdesc.retrieval.manifest import FORMAT, MANIFEST, VOCABULARY, read_manifest, write_manifest
from contextdesc.retrieval.options import Options
from contextdesc.retrieval.scoring import frequency_in, norms_of, rarity_of, shared, similarity
from contextdesc.retrieval.segment import FOLDER, MIXED, POSTINGS, Entry, Segment, SegmentWriter, key_of
from contextdesc.retrieval.vocabulary import Vocabulary

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.features import Features
    from contextdesc.retrieval.options import Rank

CHECKED_UP_TO = 64_000_000  # bytes of a file whose checksum is compared whenever the index is opened
_SMALL_SEGMENTS = 16  # of less than half a full one, before segments are merged
_REMOVED = 0.25  # share of removed images at which the rest is written anew
FUSED = 1000  # images that rank best by words, among which global descriptors count, too
GLOBAL_WEIGHT = 0.3  # of the cosine of global descriptors, beside the score of words

Ranked: TypeAlias = list[tuple[str, float]]


class Index:
    """An index on disk; see `create` and `open`."""

    def __init__(self, folder: Path, vocabulary: Vocabulary, manifest: dict[str, Any]) -> None:
        self.folder, self.vocabulary = folder, vocabulary
        self._load(manifest)

    @classmethod
    def create(
        cls,
        folder: str | Path,
        vocabulary: Vocabulary,
        options: Options | None = None,
        extraction: Extraction | None = None,
    ) -> Index:
        """Create an empty index.

        Args:
            folder: new or without an index.
            extraction: model and settings that its images are described with, for queries to do the same.
        """
        folder = Path(folder)
        if (folder / MANIFEST).exists():
            raise InputError(f"{folder}: holds an index already; add to it, or choose another folder")
        vocabulary.save(folder / VOCABULARY)
        manifest = {
            "format": FORMAT,
            "vocabulary": {
                "words": len(vocabulary),
                "wanted": vocabulary.wanted,
                "seed": vocabulary.seed,
                "checksum": vocabulary.checksum,
            },
            "extraction": asdict(extraction or Extraction()),
            "options": asdict(options or Options()),
            "generation": 0,
            "segments": [],
            "frequency": None,
        }
        write_manifest(folder, manifest)
        return cls(folder, vocabulary, manifest)

    @classmethod
    def open(cls, folder: str | Path, *, check: bool = True) -> Index:
        """Open an index.

        Args:
            check: refuse damaged files, by size, and up to `CHECKED_UP_TO` bytes by checksum.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        try:
            vocabulary = Vocabulary.load(folder / VOCABULARY)
            if vocabulary.checksum != manifest["vocabulary"]["checksum"]:
                raise InputError(f"{folder / VOCABULARY}: another vocabulary than the index's")
        except InputError as error:
            raise InputError(f"{error}; {_mend(folder)}") from None
        index = cls(folder, vocabulary, manifest)
        damaged = index.damaged(thorough=False) if check else []
        if damaged:
            raise InputError(f"{damaged[0]}; {_mend(folder)}")
        return index

    def _load(self, manifest: dict[str, Any]) -> None:
        where = str(self.folder / MANIFEST)
        self._manifest = manifest
        self.options = from_dict(Options, manifest["options"], where)
        self.extraction = from_dict(Extraction, manifest["extraction"], where)
        self.segments = [
            Segment(
                self.folder,
                segment["name"],
                {column: from_dict(ArrayFile, file, where) for column, file in segment["files"].items()},
            )
            for segment in manifest["segments"]
        ]
        for name in ("_images", "_frequency", "_rarity"):
            self.__dict__.pop(name, None)

    def __len__(self) -> int:
        return self._images

    @cached_property
    def _images(self) -> int:
        return sum(int((~segment.removed).sum()) for segment in self.segments)

    @property
    def postings(self) -> int:
        """Of all segments, removed images included."""
        return sum(segment.postings for segment in self.segments)

    @property
    def names(self) -> list[str]:
        """Of the images, in the order they were added."""
        return [
            segment.image(row)[0]
            for segment in self.segments
            for row in np.flatnonzero(~segment.removed).tolist()
        ]

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def path(self, name: str) -> str:
        """Where an image's file was when it was added; empty if nobody said."""
        segment, row = self._place(name)
        return segment.image(row)[1]

    def features(self, name: str) -> Features:
        """The local features of an image."""
        segment, row = self._place(name)
        if "codes" not in segment.files:
            raise InputError(f"{self.folder}: keeps no local features; build it with --features int8")
        return segment.features(row).features(self.extraction)

    @property
    def keeps_features(self) -> bool:
        """Whether images can be verified."""
        return all("codes" in segment.files for segment in self.segments)

    @property
    def keeps_globals(self) -> bool:
        return all("globals" in segment.files for segment in self.segments)

    def entries(self, with_features: bool = False) -> Iterator[Entry]:
        """The images as they were added, in that order; a segment at a time is in memory."""
        for segment in self.segments:
            yield from segment.entries(with_features)

    # Searching

    @property
    def best_rank(self) -> Rank:
        """What to rank by if nobody says: `fused`, of best mAP on scenes held out from training."""
        return "fused" if self.keeps_globals else "words"

    def rank(
        self,
        words: NDArray[np.int32],
        weights: NDArray[np.float32],
        descriptor: NDArray[np.float32] | None,
        top: int,
        by: Rank,
    ) -> Ranked:
        """The best `top` images, best first, by their words, their global descriptor, or both.

        For `fused`, the best `FUSED` by words are ranked by the sum of that score and `GLOBAL_WEIGHT`
        times the cosine of global descriptors.
        """
        if by == "words":
            return self.search(words, weights, top)
        if descriptor is None or not self.keeps_globals:
            raise InputError(f"{self.folder}: has no global descriptors; rank by words")
        vector = np.asarray(descriptor, np.float16).astype(np.float32)
        if by == "global":
            return self._best([similarity(s, np.arange(len(s)), vector) for s in self.segments], -np.inf, top)
        found = self._word_scores(words, weights)
        if not found:
            return []
        every = np.concatenate(found)
        low = np.partition(every, -FUSED)[-FUSED] if len(every) > FUSED else 0.0
        for segment, scores in zip(self.segments, found, strict=True):
            rows = np.flatnonzero((scores >= low) & (scores > 0))
            fused = scores[rows] + GLOBAL_WEIGHT * similarity(segment, rows, vector)
            scores[:] = -np.inf
            scores[rows] = fused
        return self._best(found, -np.inf, top)

    def search(self, words: NDArray[np.int32], weights: NDArray[np.float32], top: int) -> Ranked:
        """The best `top` images by their words: name and score, 0 to 1, best first.

        Images that share no word with the query are not among them. Equal scores are in order of name.

        Args:
            words, weights: of the query, as `words_of` returns them.
        """
        return self._best(self._word_scores(words, weights), 0.0, top)

    def _word_scores(
        self, words: NDArray[np.int32], weights: NDArray[np.float32]
    ) -> list[NDArray[np.float64]]:
        """Scores of all images, by segment; 0 for removed ones, and no list at all for a query of nothing."""
        rarity = self._rarity[words]
        query = np.asarray(weights, np.float64) * rarity
        norm = np.linalg.norm(query)
        if not norm:
            return []
        query = query * rarity / norm
        found = []
        for segment in self.segments:
            scores = shared(segment, words, query)
            scores /= np.maximum(segment.array("norms"), 1e-12)
            scores[segment.removed] = 0
            found.append(scores)
        return found

    def _best(self, found: Sequence[NDArray[np.float64]], above: float, top: int) -> Ranked:
        """The best images of all segments, given the scores of each; those not `above` are left out."""
        best: list[tuple[float, str]] = []
        for segment, scores in zip(self.segments if found else [], found, strict=True):
            low = np.partition(scores, -top)[-top] if len(scores) > top else -np.inf
            rows = np.flatnonzero((scores >= low) & (scores > above))
            best += [(-float(scores[row]), segment.image(row)[0]) for row in rows.tolist()]
        return [(name, -negative) for negative, name in sorted(best)[:top]]

    @cached_property
    def _rarity(self) -> NDArray[np.float64]:
        """(K,): weight of each word; 0 for words that no image has."""
        return rarity_of(self._frequency, len(self))

    @cached_property
    def _frequency(self) -> NDArray[np.int64]:
        """(K,): number of images that have each word."""
        stored = self._manifest["frequency"]
        if stored is None:
            return np.zeros(len(self.vocabulary), np.int64)
        return np.array(from_dict(ArrayFile, stored, MANIFEST).opened(self.folder), np.int64)

    # Changing

    def add(self, entries: Iterable[Entry | tuple[Any, ...]]) -> None:
        """Add images: tuples (name, words, weights, global descriptor or None), or `Entry`.

        All of them, or none if one is refused or the process dies. Memory holds one segment at a time.
        """
        with self._alone():
            added = list(self._written(map(_entry, entries), self.segments))
            self._commit([*self.segments, *added])
            small = sum(segment.postings < POSTINGS / 2 for segment in self.segments)
            if small > _SMALL_SEGMENTS:
                self._compact()

    def remove(self, names: Iterable[str]) -> None:
        """Remove images by name; names that are unknown are refused, and then nothing is removed."""
        with self._alone():
            rows: dict[str, list[int]] = {}
            for name in dict.fromkeys(names):
                segment, row = self._place(name)
                rows.setdefault(segment.name, []).append(row)
            changed = []
            for segment in self.segments:
                if segment.name in rows:
                    removed = segment.removed
                    removed[rows[segment.name]] = True
                    file = write_array(self.folder, self._state_file(segment, "removed"), removed, "<u1")
                    segment = replace(segment, files={**segment.files, "removed": file})
                if not segment.removed.all():
                    changed.append(segment)
            self._commit(changed)
            total = sum(map(len, self.segments))
            if total - len(self) > _REMOVED * total:
                self._compact()

    def compact(self) -> None:
        """Write the index anew: full segments, and nothing of images that were removed."""
        with self._alone():
            self._compact()

    def weigh(self) -> None:
        """Count again what the index derives from its lists: how rare words are, and the images' norms."""
        with self._alone():
            self._commit(self.segments)

    def _compact(self) -> None:
        self._commit(list(self._written(self.entries(with_features=True), [])))

    def damaged(self, thorough: bool = True) -> list[str]:
        """What is wrong with the index's files, by name; thorough reads all of them."""
        files = [file for segment in self.segments for file in segment.files.values()]
        if self._manifest["frequency"] is not None:
            files.append(from_dict(ArrayFile, self._manifest["frequency"], MANIFEST))
        problems = (file.check(self.folder, thorough or file.bytes <= CHECKED_UP_TO) for file in files)
        return [problem for problem in problems if problem is not None]

    @property
    def disk_bytes(self) -> int:
        """Of all files together."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def _written(self, entries: Iterable[Entry], known: Sequence[Segment]) -> Iterator[Segment]:
        """New segments of images whose names the known segments do not have."""
        before = [segment.array("keys")[~segment.removed] for segment in known]
        number = max([int(segment.name) for segment in self.segments], default=0)
        writer: SegmentWriter | None = None
        for entry in entries:
            if writer is None:
                number += 1
                writer = SegmentWriter(self.folder, f"{number:06}", len(self.vocabulary), self.options)
            writer.add(entry)
            if writer.postings >= POSTINGS:
                yield _closed(writer, known, before)
                writer = None
        if writer is not None:
            yield _closed(writer, known, before)

    def _commit(self, segments: Sequence[Segment]) -> None:
        """Weigh the words anew, make these segments the index, and delete what is no longer of it."""
        self._manifest["generation"] += 1
        frequency = np.zeros(len(self.vocabulary), np.int64)
        for segment in segments:
            frequency += frequency_in(segment, len(self.vocabulary))
        images = sum(int((~segment.removed).sum()) for segment in segments)
        rarity = rarity_of(frequency, images)
        weighed = []
        for segment in segments:
            norms = norms_of(segment, rarity)
            file = write_array(self.folder, self._state_file(segment, "norms"), norms, "<f4")
            weighed.append(replace(segment, files={**segment.files, "norms": file}))
        name = f"frequency-{self._manifest['generation']}.bin"
        manifest = {
            **self._manifest,
            "segments": [
                {"name": s.name, "files": {column: asdict(file) for column, file in s.files.items()}}
                for s in weighed
            ],
            "frequency": asdict(write_array(self.folder, name, frequency, "<i8")),
        }
        write_manifest(self.folder, manifest)
        self._load(manifest)
        self._delete_others()

    def _state_file(self, segment: Segment, column: str) -> str:
        return f"{FOLDER}/{segment.name}/{column}-{self._manifest['generation']}.bin"

    def _delete_others(self) -> None:
        """Files of states before this one, and of changes that were cut off."""
        known = {file.name for segment in self.segments for file in segment.files.values()}
        known.add(self._manifest["frequency"]["name"])
        names = {segment.name for segment in self.segments}
        for folder in (self.folder / FOLDER).glob("*"):
            if folder.name not in names:
                shutil.rmtree(folder, ignore_errors=True)
        for path in [*(self.folder / FOLDER).glob("*/*.bin"), *self.folder.glob("frequency-*.bin")]:
            if path.relative_to(self.folder).as_posix() not in known:
                path.unlink(missing_ok=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One change at a time, on the state that the folder has now."""
        running = Journal(self.folder / ".changing", {})
        try:
            self._load(read_manifest(self.folder))
            yield
        finally:
            running.delete()

    def _find(self, name: str) -> tuple[Segment, int] | None:
        key = key_of(name)
        for segment in self.segments:
            for row in segment.rows_of(key).tolist():
                if not segment.removed[row] and segment.image(row)[0] == name:
                    return segment, row
        return None

    def _place(self, name: str) -> tuple[Segment, int]:
        found = self._find(name)
        if found is None:
            raise InputError(f"{self.folder}: no image called {name}")
        return found


def _mend(folder: Path) -> str:
    return f"`contextdesc retrieve rebuild {folder}` mends it"


def _entry(item: Entry | tuple[Any, ...]) -> Entry:
    return Entry(*item)


def _closed(writer: SegmentWriter, known: Sequence[Segment], before: list[NDArray[np.uint64]]) -> Segment:
    """The writer's segment; names that were there before are refused, and remembered from now on."""
    segment = writer.close()
    for column in ("globals", "codes"):
        if any((column in segment.files) != (column in other.files) for other in known):
            name, _ = segment.image(0)
            raise InputError(f"{name}: {MIXED}")
    keys = segment.array("keys")
    _, first = np.unique(keys, return_index=True)
    again = np.ones(len(keys), np.bool_)
    again[first] = False
    for others in before:
        again |= np.isin(keys, others)
    if again.any():
        name, _ = segment.image(int(np.flatnonzero(again)[0]))
        raise InputError(f"{name}: is in the index already; remove it first, or leave it out")
    before.append(keys)
    return segment
