"""The vocabulary: words where descriptors are, the same again with the same seed, safe in its file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from contextdesc.errors import InputError
from contextdesc.retrieval import vocabulary as module
from contextdesc.retrieval.vocabulary import Vocabulary


def unit(rows: NDArray[np.float64]) -> NDArray[np.float32]:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def centres() -> NDArray[np.float32]:
    return unit(np.random.default_rng(0).normal(size=(40, 32)))


@pytest.fixture(scope="module")
def descriptors(centres: NDArray[np.float32]) -> NDArray[np.float32]:
    """Twenty around each centre."""
    rng = np.random.default_rng(1)
    return unit(np.repeat(centres, 20, 0) + 0.03 * rng.normal(size=(800, 32)))


@pytest.fixture(scope="module")
def trained(descriptors: NDArray[np.float32]) -> Vocabulary:
    return Vocabulary.train(descriptors, 40, seed=3, model="some model")


def test_words_lie_where_descriptors_are(trained: Vocabulary, descriptors: NDArray[np.float32]) -> None:
    words, distances = trained.quantise(descriptors)
    assert (words.shape, words.dtype, distances.dtype) == ((800, 1), np.int32, np.float32)
    together = [len(set(group)) for group in words.reshape(40, 20).tolist()]
    assert np.mean(np.array(together) == 1) > 0.8  # k-means splits a few and joins others
    exact = np.linalg.norm(descriptors - trained.words[words[:, 0]], axis=1)
    np.testing.assert_allclose(distances[:, 0], exact, atol=1e-3)


def test_the_same_seed_gives_the_same_words(trained: Vocabulary, descriptors: NDArray[np.float32]) -> None:
    again = Vocabulary.train(descriptors, 40, seed=3, model="some model")
    assert again.checksum == trained.checksum
    assert Vocabulary.train(descriptors, 40, seed=4, model="some model").checksum != trained.checksum
    assert Vocabulary.train(descriptors, 40, seed=3, model="another").checksum != trained.checksum


def test_cells_find_nearly_always_the_nearest_word() -> None:
    rng = np.random.default_rng(2)
    rows = unit(rng.normal(size=(6000, 16)))
    vocabulary = Vocabulary.train(rows, module.EXACT_UP_TO + 100)
    assert (len(vocabulary), len(vocabulary.cells)) == (module.EXACT_UP_TO + 100, 34)
    queries = rows[:500]
    words, distances = vocabulary.quantise(queries, 3)
    between = np.linalg.norm(queries[:, None] - vocabulary.words, axis=2)
    assert (words[:, 0] == between.argmin(1)).mean() > 0.97
    assert (np.diff(distances, axis=1) >= 0).all()


def test_a_file_brings_everything_back(
    trained: Vocabulary, descriptors: NDArray[np.float32], tmp_path: Path
) -> None:
    path = tmp_path / "vocabulary.npz"
    trained.save(path)
    loaded = Vocabulary.load(path)
    assert (loaded.checksum, loaded.model, loaded.seed, loaded.wanted) == (
        trained.checksum, "some model", 3, 40,
    )  # fmt: skip
    np.testing.assert_array_equal(loaded.quantise(descriptors, 2)[0], trained.quantise(descriptors, 2)[0])


def test_damaged_files_are_refused(trained: Vocabulary, tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.npz"
    trained.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"vocabulary.npz: damaged, or no vocabulary"):
        Vocabulary.load(path)
    place = whole.index(trained.words.tobytes()[:16])
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(InputError, match=r"vocabulary.npz: damaged"):
        Vocabulary.load(path)
    path.write_text("words, many of them")
    with pytest.raises(InputError, match="no vocabulary of contextdesc"):
        Vocabulary.load(path)
    with pytest.raises(InputError, match="no such vocabulary"):
        Vocabulary.load(tmp_path / "nowhere.npz")


def test_few_descriptors_make_few_words(descriptors: NDArray[np.float32]) -> None:
    few = Vocabulary.train(descriptors[:40], 1000)
    assert (len(few), few.wanted) == (40 // module.FEWEST_PER_WORD, 1000)
    assert len(Vocabulary.train(descriptors[:1], 1000)) == 1
    with pytest.raises(InputError, match="no image has keypoints"):
        Vocabulary.train(descriptors[:0], 1000)
    with pytest.raises(InputError, match="0 words: give 1 or more"):
        Vocabulary.train(descriptors, 0)


def test_descriptors_of_another_size_are_refused(trained: Vocabulary) -> None:
    with pytest.raises(InputError, match=r"shape \(5, 128\): the words are \(K, 32\)"):
        trained.quantise(np.zeros((5, 128), np.float32))
    words, distances = trained.quantise(np.zeros((0, 32), np.float32), 2)
    assert words.shape == distances.shape == (0, 2)
