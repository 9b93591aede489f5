"""The vocabulary: descriptors come in, the numbers of the nearest visual words go out.

Flat k-means, trained with faiss on a sample. The words of a large vocabulary lie in cells, k-means of the
words themselves, and only the nearest cells are searched; a file holds the words and the cells, nothing else.
"""

from __future__ import annotations

import hashlib
import zipfile
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.errors import InputError
from contextdesc.formats.atomic import replacing

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT = 1
SAMPLE_PER_WORD = 24  # descriptors that k-means sees per word, at most
FEWEST_PER_WORD = 4  # with fewer, the vocabulary is made smaller
EXACT_UP_TO = 1024  # words that are compared one by one; larger vocabularies have cells
_ITERATIONS = 10
_PROBED = 16  # cells that are searched for the nearest words
_PROBED_IN_TRAINING = 6  # where a word that is nearly the nearest does
_ROWS = 65536  # descriptors that are quantised at once


class Vocabulary:
    """Visual words.

    Args:
        words: (K, D) float32, the centres.
        cells: (C, D) float32, centres of the cells that the words are searched in; none for exact search.
        model: source of the descriptors that it was trained on (`model.source`), or any name for others.
        seed: that it was trained with.
        wanted: number of words that was asked for; there are fewer where descriptors were few.
    """

    def __init__(
        self,
        words: NDArray[np.float32],
        cells: NDArray[np.float32],
        model: str,
        seed: int = 0,
        wanted: int | None = None,
    ) -> None:
        self.words, self.cells, self.model, self.seed = words, cells, model, seed
        self.wanted = len(words) if wanted is None else wanted
        self._searcher: Any = None

    def __len__(self) -> int:
        return len(self.words)

    @property
    def size(self) -> int:
        """D, of a descriptor."""
        return self.words.shape[1]

    @property
    def checksum(self) -> str:
        """Of the words, the cells and the model's name."""
        digest = hashlib.sha256(self.model.encode())
        for array in (self.words, self.cells):
            digest.update(np.ascontiguousarray(array, "<f4").tobytes())
        return digest.hexdigest()[:16]

    @classmethod
    def train(
        cls, descriptors: NDArray[np.float32], size: int, *, seed: int = 0, model: str = "unknown"
    ) -> Vocabulary:
        """Train on descriptors (N, D); at most `SAMPLE_PER_WORD` per word are used, drawn with the seed.

        With fewer than `FEWEST_PER_WORD` descriptors per word the vocabulary gets fewer words than `size`.
        """
        if size < 1:
            raise InputError(f"vocabulary of {size} words: give 1 or more")
        if not len(descriptors):
            raise InputError("no descriptors to train a vocabulary on: no image has keypoints")
        wanted, size = size, min(size, max(1, len(descriptors) // FEWEST_PER_WORD))
        sample = np.ascontiguousarray(_drawn(descriptors, size * SAMPLE_PER_WORD, seed), np.float32)
        if size <= EXACT_UP_TO:
            nowhere = np.zeros((0, sample.shape[1]), np.float32)
            return cls(_k_means(sample, size, seed), nowhere, model, seed, wanted)
        # Cells of the descriptors serve while the words move, cells of the words from then on.
        count = round(np.sqrt(size))
        first = _k_means(_drawn(sample, count * SAMPLE_PER_WORD, seed), count, seed)
        words = _k_means(sample, size, seed, _searcher(sample[:0], first, _PROBED_IN_TRAINING))
        return cls(words, _k_means(words, count, seed), model, seed, wanted)

    def quantise(
        self, descriptors: NDArray[np.float32], neighbours: int = 1
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The nearest words of descriptors (N, D).

        Returns:
            words (N, k) int32, nearest first, and Euclidean distances (N, k) float32. Where a search finds
            fewer than k, the word is -1 and the distance infinite.
        """
        if descriptors.ndim != 2 or descriptors.shape[1] != self.size:
            raise InputError(f"descriptors of shape {descriptors.shape}: the words are (K, {self.size})")
        if self._searcher is None:
            self._searcher = _searcher(self.words, self.cells)
        words = np.full((len(descriptors), neighbours), -1, np.int32)
        distances = np.full((len(descriptors), neighbours), np.inf, np.float32)
        for start in range(0, len(descriptors), _ROWS):
            rows = slice(start, start + _ROWS)
            squared, found = self._searcher.search(
                np.ascontiguousarray(descriptors[rows], np.float32), neighbours
            )
            words[rows] = found
            distances[rows] = np.where(found < 0, np.inf, np.sqrt(np.maximum(squared, 0)))
        return words, distances

    def save(self, path: str | Path) -> None:
        """Write a file: NumPy archive of the words, the cells, where they come from, and their checksum."""
        stream = BytesIO()
        np.savez(
            stream, format=np.array(FORMAT), words=self.words, cells=self.cells, model=np.array(self.model),
            training=np.array([self.seed, self.wanted]), checksum=np.array(self.checksum),
        )  # fmt: skip
        with replacing(Path(path)) as temporary:
            temporary.write_bytes(stream.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read what `save` wrote; a file that is damaged or something else is refused."""
        path = Path(path)
        try:
            with np.load(path, allow_pickle=False) as arrays:
                version, checksum = int(arrays["format"]), str(arrays["checksum"])
                if version != FORMAT:
                    raise InputError(f"{path}: vocabulary format {version}, this version reads {FORMAT}")
                seed, wanted = map(int, arrays["training"])
                found = cls(arrays["words"], arrays["cells"], str(arrays["model"]), seed, wanted)
        except FileNotFoundError:
            raise InputError(f"{path}: no such vocabulary") from None
        except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path}: damaged, or no vocabulary of contextdesc ({error})") from None
        if found.checksum != checksum:
            raise InputError(f"{path}: damaged (checksum {found.checksum}, expected {checksum})")
        return found


def import_faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise InputError("retrieval needs an extra: pip install 'contextdesc[retrieval]'") from None
    return faiss


def _drawn(rows: NDArray[np.float32], most: int, seed: int) -> NDArray[np.float32]:
    """At most so many of the rows, in their order."""
    if len(rows) <= most:
        return rows
    return rows[np.sort(np.random.default_rng(seed).choice(len(rows), most, replace=False))]


def _k_means(rows: NDArray[np.float32], count: int, seed: int, searcher: Any = None) -> NDArray[np.float32]:
    """(count, D) centres of rows; `searcher` assigns rows to centres, exactly if there is none."""
    faiss = import_faiss()
    if count >= len(rows):
        return rows.copy()
    clustering = faiss.Clustering(rows.shape[1], count)
    clustering.niter, clustering.seed = _ITERATIONS, seed + 1  # faiss takes 0 for a random one
    clustering.min_points_per_centroid = 1
    clustering.max_points_per_centroid = len(rows)
    clustering.train(rows, searcher or faiss.IndexFlatL2(rows.shape[1]))
    return faiss.vector_to_array(clustering.centroids).reshape(count, -1).astype(np.float32)


def _searcher(words: NDArray[np.float32], cells: NDArray[np.float32], probed: int = _PROBED) -> Any:
    faiss = import_faiss()
    size = words.shape[1]
    searcher = faiss.IndexFlatL2(size)
    if len(cells):
        coarse = faiss.IndexFlatL2(size)
        coarse.add(np.ascontiguousarray(cells, np.float32))
        searcher = faiss.IndexIVFFlat(coarse, size, len(cells))
        searcher.nprobe = min(probed, len(cells))
    if len(words):
        searcher.add(np.ascontiguousarray(words, np.float32))
    return searcher
