"""A segment: a batch of images with the inverted lists of their words, sorted once and never changed.

Of each word the images that have it, in `documents` and `weights` from `offsets[word]` to
`offsets[word + 1]`; beside them the images' names, global descriptors and local features.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from contextdesc.errors import InputError
from contextdesc.retrieval.arrays import ArrayFile, ArrayWriter, write_array
from contextdesc.retrieval.keeping import CODES, KeptFeatures

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.retrieval.options import Options

POSTINGS = 4_000_000  # of a segment, at most, unless one image has more: about 150 MB while they are sorted
FOLDER = "segments"
MIXED = "either all images of an index have a global descriptor, or none; and so with local features"
_BETWEEN = "\0"  # an image's name and its path


class Entry(NamedTuple):
    """An image for an index; any tuple that begins like this will do.

    Attributes:
        name: unique in the index.
        words, weights: as `words_of` returns them.
        descriptor: global, (C,), or None for an index without.
        path: of the image's file.
        features: local ones, for an index that keeps them.
    """

    name: str
    words: NDArray[np.int32]
    weights: NDArray[np.float32]
    descriptor: NDArray[np.float32] | None = None
    path: str = ""
    features: KeptFeatures | None = None


@dataclass(frozen=True, eq=False)
class Segment:
    """A segment on disk.

    Attributes:
        folder: of the index.
        name: of the segment's own folder.
        files: its arrays by name. `norms` and `removed` are of the state of the index, and replaced with it.
    """

    folder: Path
    name: str
    files: Mapping[str, ArrayFile]

    def __len__(self) -> int:
        """Images, removed ones too."""
        return self.files["keys"].shape[0]

    @property
    def postings(self) -> int:
        return self.files["documents"].shape[0]

    def array(self, name: str) -> NDArray[Any]:
        """One of its arrays, mapped, as a plain view: slices of it cost little."""
        return np.asarray(self._mapped(name))

    @cached_property
    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {}

    def _mapped(self, name: str) -> NDArray[Any]:
        if name not in self._arrays:
            self._arrays[name] = self.files[name].opened(self.folder)
        return self._arrays[name]

    @property
    def removed(self) -> NDArray[np.bool_]:
        """(n,) bool."""
        if "removed" not in self.files:
            return np.zeros(len(self), np.bool_)
        return self.array("removed").astype(np.bool_)

    def rows_of(self, key: int) -> NDArray[np.int64]:
        """Rows of the images whose name has this key; nearly always one or none."""
        return np.flatnonzero(self.array("keys") == np.uint64(key))

    def image(self, row: int) -> tuple[str, str]:
        """Name and path of an image."""
        ends = self.array("text_ends")
        start = int(ends[row - 1]) if row else 0
        text = self.array("text")[start : int(ends[row])].tobytes().decode("utf-8", "surrogateescape")
        name, _, path = text.partition(_BETWEEN)
        return name, path

    def features(self, row: int) -> KeptFeatures:
        ends = self.array("feature_ends")
        rows = slice(int(ends[row - 1]) if row else 0, int(ends[row]))
        keypoints, codes, scales = (
            np.array(self.array(name)[rows]) for name in ("keypoints", "codes", "scales")
        )
        return KeptFeatures(keypoints, codes, scales, np.array(self.array("image_sizes")[row]))

    def posting_words(self) -> NDArray[np.int32]:
        """(P,) int32: the word of each posting."""
        lengths = np.diff(self.array("offsets"))
        return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)

    def entries(self, with_features: bool) -> Iterator[Entry]:
        """The images that are not removed, as they were added."""
        documents, removed = self.array("documents"), self.removed
        order = np.argsort(documents, kind="stable")
        words, weights = self.posting_words()[order], self.array("weights")[order].astype(np.float32)
        ends = np.cumsum(np.bincount(documents, minlength=len(self)))
        for row in np.flatnonzero(~removed).tolist():
            rows = slice(int(ends[row - 1]) if row else 0, int(ends[row]))
            name, path = self.image(row)
            descriptor = self.array("globals")[row].astype(np.float32) if "globals" in self.files else None
            kept = self.features(row) if with_features and "codes" in self.files else None
            yield Entry(name, words[rows], weights[rows], descriptor, path, kept)


class SegmentWriter:
    """Collects images until they fill a segment; local features go to the disk at once.

    Args:
        folder: of the index.
        name: of the segment.
        vocabulary: number of words.
        options: of the index.
    """

    def __init__(self, folder: Path, name: str, vocabulary: int, options: Options) -> None:
        self.folder, self.name, self.vocabulary, self.options = folder, name, vocabulary, options
        self.postings = 0
        self._text: list[bytes] = []
        self._keys: list[int] = []
        self._words: list[NDArray[np.int32]] = []
        self._weights: list[NDArray[np.float16]] = []
        self._globals: list[NDArray[np.float16]] = []
        self._feature_rows: list[int] = []
        self._streams: dict[str, ArrayWriter] = {}

    def __len__(self) -> int:
        return len(self._text)

    def add(self, entry: Entry) -> None:
        words = np.asarray(entry.words, np.int32)
        weights = np.asarray(entry.weights, np.float16)
        if words.ndim != 1 or words.shape != weights.shape:
            raise InputError(f"{entry.name}: words {words.shape} and weights {weights.shape} do not agree")
        if len(words) and not 0 <= words.min() <= words.max() < self.vocabulary:
            raise InputError(f"{entry.name}: words beyond the vocabulary's {self.vocabulary}")
        self._keys.append(key_of(entry.name))
        self._text.append(f"{entry.name}{_BETWEEN}{entry.path}".encode("utf-8", "surrogateescape"))
        self._words.append(words)
        self._weights.append(weights)
        self.postings += len(words)
        if entry.descriptor is not None:
            self._globals.append(np.asarray(entry.descriptor, np.float16))
        if self.options.features != "none" and entry.features is not None:
            self._stream(entry.features)
        for column in (self._globals, self._feature_rows):
            if column and len(column) != len(self):
                raise InputError(f"{entry.name}: {MIXED}")

    def _stream(self, kept: KeptFeatures) -> None:
        if not self._streams:
            code = CODES[self.options.features]
            kinds = {
                "keypoints": ("<f4", (4,)), "codes": (code, kept.codes.shape[1:]), "scales": ("<f4", ()),
                "image_sizes": ("<i4", (2,)),
            }  # fmt: skip
            self._streams = {
                name: ArrayWriter(self.folder, self._file(name), dtype, columns)
                for name, (dtype, columns) in kinds.items()
            }
        for name in ("keypoints", "codes", "scales"):
            self._streams[name].append(getattr(kept, name))
        self._streams["image_sizes"].append(kept.image_size[None])
        self._feature_rows.append(len(kept.keypoints))

    def close(self) -> Segment:
        """Sort the postings and write the rest."""
        lengths = np.array([len(words) for words in self._words])
        words = np.concatenate(self._words)
        order = np.argsort(words, kind="stable")
        documents = np.repeat(np.arange(len(self), dtype=np.uint32), lengths)
        counts = np.bincount(words, minlength=self.vocabulary)
        columns: dict[str, tuple[NDArray[Any], str]] = {
            "keys": (np.array(self._keys, np.uint64), "<u8"),
            "text": (np.frombuffer(b"".join(self._text), np.uint8), "<u1"),
            "text_ends": (np.cumsum([len(text) for text in self._text]), "<i8"),
            "offsets": (np.concatenate([[0], np.cumsum(counts)]), "<i8"),
            "documents": (documents[order], "<u4"),
            "weights": (np.concatenate(self._weights)[order], "<f2"),
        }
        if self._globals:
            columns["globals"] = (np.stack(self._globals), "<f2")
        if self._feature_rows:
            columns["feature_ends"] = (np.cumsum(self._feature_rows), "<i8")
        files = {name: stream.close() for name, stream in self._streams.items()}
        for name, (array, dtype) in columns.items():
            files[name] = write_array(self.folder, self._file(name), array, dtype)
        return Segment(self.folder, self.name, files)

    def _file(self, column: str) -> str:
        return f"{FOLDER}/{self.name}/{column}.bin"


def key_of(name: str) -> int:
    """64 bits that stand for an image's name."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
