"""The index: scores as worked by hand, the same however it came to its images, and never half changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from contextdesc.errors import InputError
from contextdesc.journal import Journal
from contextdesc.retrieval import index as module
from contextdesc.retrieval.index import Index
from contextdesc.retrieval.options import Options
from contextdesc.retrieval.segment import Entry
from tests.retrieval.conftest import plain_vocabulary

PLAIN = Options(pooling="none", features="none")
WORDS = 50


def words(*numbers: int) -> NDArray[np.int32]:
    return np.array(numbers, np.int32)


def weights(*numbers: float) -> NDArray[np.float32]:
    return np.array(numbers, np.float32)


def images(count: int, seed: int = 0) -> list[Entry]:
    """Images with twelve words each, and global descriptors."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        chosen = np.sort(rng.choice(WORDS, 12, replace=False)).astype(np.int32)
        vector = rng.normal(size=8).astype(np.float32)
        counts = rng.integers(1, 5, 12).astype(np.float32)
        found.append(Entry(f"{number:03}.jpg", chosen, counts, vector / np.linalg.norm(vector)))
    return found


def new(folder: Path, entries: list[Entry], options: Options = PLAIN) -> Index:
    index = Index.create(folder, plain_vocabulary(WORDS), options)
    index.add(entries)
    return index


def answers(index: Index) -> list[list[tuple[str, float]]]:
    """Of ten queries, by words, by global descriptor and by both."""
    return [
        index.rank(query.words, query.weights, query.descriptor, 15, by)
        for query in images(10, seed=1)
        for by in ("words", "global", "fused")
    ]


def test_scores_as_worked_by_hand(tmp_path: Path) -> None:
    """Three images; a word that one has weighs ln 4, one that two have ln 2.5."""
    rare, common = np.log(4), np.log(2.5)
    index = Index.create(tmp_path, plain_vocabulary(4), PLAIN)
    index.add([
        ("a", words(0, 1), weights(1, 2), None),
        ("b", words(1, 2), weights(1, 1), None),
        ("c", words(3), weights(5), None),
    ])  # fmt: skip
    length_a, length_b = np.hypot(rare, 2 * common), np.hypot(common, rare)
    (first, first_score), (second, second_score) = index.search(words(1), weights(7), 5)
    assert (first, second) == ("a", "b")  # the query's own weight cancels, c has no such word
    assert first_score == pytest.approx(2 * common / length_a, rel=1e-6)
    assert second_score == pytest.approx(common / length_b, rel=1e-6)
    found = dict(index.search(words(0, 1), weights(1, 2), 5))
    assert found["a"] == pytest.approx(1)
    assert found["b"] == pytest.approx(2 * common * common / length_a / length_b, rel=1e-6)


def test_equal_scores_are_in_order_of_name(tmp_path: Path) -> None:
    index = Index.create(tmp_path, plain_vocabulary(3), PLAIN)
    index.add((name, words(0, 1), weights(1, 1), None) for name in "dbca")
    assert [name for name, _ in index.search(words(1), weights(1), 3)] == ["a", "b", "c"]


def test_nothing_in_common_is_no_answer(tmp_path: Path) -> None:
    index = Index.create(tmp_path, plain_vocabulary(5), PLAIN)
    assert (len(index), index.names, index.search(words(1), weights(1), 5)) == (0, [], [])
    index.add([("a", words(1), weights(1), None), ("blank", words(), weights(), None)])
    assert index.search(words(2), weights(1), 5) == []
    assert index.search(words(), weights(), 5) == []
    assert index.search(words(1), weights(1), 5) == [("a", pytest.approx(1))]
    assert index.names == ["a", "blank"]


def test_a_reopened_index_gives_the_same_answers(tmp_path: Path) -> None:
    index = new(tmp_path, images(40))
    again = Index.open(tmp_path)
    assert answers(again) == answers(index)
    assert again.names == index.names == [f"{number:03}.jpg" for number in range(40)]
    assert isinstance(again.segments[0].files["documents"].opened(tmp_path), np.memmap)


def test_adding_and_removing_equals_a_fresh_build(tmp_path: Path) -> None:
    everything = images(60)
    grown = new(tmp_path / "grown", everything[:20])
    grown.add(everything[20:50])
    grown.remove([entry.name for entry in everything[10:16]])
    assert (len(grown), len(grown.segments)) == (44, 2)
    assert answers(grown) == answers(new(tmp_path / "fresh", everything[:10] + everything[16:50]))
    grown.add(everything[50:])
    grown.add(everything[10:16])
    assert answers(grown) == answers(new(tmp_path / "whole", everything))
    assert answers(Index.open(tmp_path / "grown")) == answers(grown)


def test_segments_are_bounded_and_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = new(tmp_path / "whole", images(60))
    monkeypatch.setattr(module, "POSTINGS", 100)
    parts = new(tmp_path / "parts", images(60))
    assert len(whole.segments) == 1
    assert [segment.postings for segment in parts.segments] == [108] * 6 + [72]
    assert answers(parts) == answers(whole)


def test_many_small_additions_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SMALL_SEGMENTS", 3)
    index = new(tmp_path / "grown", images(4))
    for entry in images(12)[4:]:
        index.add([entry])
        assert len(index.segments) <= 3 + 1
    assert answers(index) == answers(new(tmp_path / "fresh", images(12)))
    assert index.names == [entry.name for entry in images(12)]


def test_much_that_is_removed_is_written_anew(tmp_path: Path) -> None:
    index = new(tmp_path / "index", images(40))
    index.remove([f"{number:03}.jpg" for number in range(4)])
    assert (index.postings, len(index)) == (40 * 12, 36)
    index.remove([f"{number:03}.jpg" for number in range(4, 20)])
    assert (index.postings, len(index)) == (20 * 12, 20)
    index.remove(index.names)
    assert (len(index), len(Index.open(tmp_path / "index")), index.segments) == (0, 0, [])


def test_a_search_reads_the_lists_of_its_words_only(tmp_path: Path) -> None:
    """Lists of other words are overwritten with nonsense on the disk: nobody notices."""
    index = new(tmp_path, images(40))
    query = images(1, seed=1)[0]
    before = index.search(query.words, query.weights, 10)
    segment = index.segments[0]
    offsets = segment.array("offsets")
    stored = np.memmap(tmp_path / segment.files["documents"].name, "<u4", "r+")
    for word in set(range(WORDS)) - set(query.words.tolist()):
        stored[offsets[word] : offsets[word + 1]] = 2**32 - 1
    stored.flush()
    assert Index.open(tmp_path, check=False).search(query.words, query.weights, 10) == before


def test_names_are_unique_and_a_refused_change_never_happened(tmp_path: Path) -> None:
    index = new(tmp_path, images(10))
    before = (answers(index), sorted(path.name for path in tmp_path.rglob("*")))
    with pytest.raises(InputError, match=r"003.jpg: is in the index already"):
        index.add([images(11)[10], images(4)[3]])
    with pytest.raises(InputError, match=r"twice.jpg: is in the index already"):
        index.add([images(1)[0]._replace(name="twice.jpg")] * 2)
    with pytest.raises(InputError, match="no image called nobody"):
        index.remove(["001.jpg", "nobody"])
    assert answers(index) == answers(Index.open(tmp_path)) == before[0]
    index.add([])
    index.compact()
    assert len(index) == 10


def test_a_change_that_is_cut_off_never_happened(tmp_path: Path) -> None:
    index = new(tmp_path, images(10))
    before = answers(index)

    def broken() -> Iterator[Entry]:
        yield from images(30)[10:]
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        index.add(broken())
    assert answers(index) == answers(Index.open(tmp_path)) == before
    index.add(images(12)[10:])
    files = {file.name for segment in index.segments for file in segment.files.values()}
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("segments/*/*")} == files


def test_bad_entries_are_refused(tmp_path: Path) -> None:
    index = Index.create(tmp_path, plain_vocabulary(3), PLAIN)
    with pytest.raises(InputError, match="words beyond the vocabulary's 3"):
        index.add([("a", words(3), weights(1), None)])
    with pytest.raises(InputError, match="do not agree"):
        index.add([("a", words(1), weights(1, 2), None)])
    with pytest.raises(InputError, match="either all images of an index have a global descriptor, or none"):
        index.add([("a", words(1), weights(1), None), ("b", words(1), weights(1), weights(1, 0))])
    assert len(Index.open(tmp_path)) == 0
    index.add([("a", words(1), weights(1), None)])
    with pytest.raises(
        InputError, match="b: either all images of an index have a global descriptor, or none"
    ):
        index.add([("b", words(1), weights(1), weights(1, 0))])


def test_global_descriptors_rank_by_cosine(tmp_path: Path) -> None:
    index = Index.create(tmp_path, plain_vocabulary(3), PLAIN)
    angles = {"right": 0.0, "up": np.pi / 2, "left": np.pi}
    index.add((n, words(0), weights(1), weights(np.cos(a), np.sin(a))) for n, a in angles.items())
    found = index.rank(words(), weights(), weights(np.cos(0.1), np.sin(0.1)), 3, "global")
    assert [name for name, _ in found] == ["right", "up", "left"]
    np.testing.assert_allclose(
        [score for _, score in found], np.cos([0.1, np.pi / 2 - 0.1, np.pi - 0.1]), atol=2e-3
    )
    index.remove(["up"])
    assert [name for name, _ in index.rank(words(), weights(), weights(1, 0), 3, "global")] == [
        "right",
        "left",
    ]


def test_fused_scores_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index.create(tmp_path, plain_vocabulary(3), PLAIN)
    index.add([
        ("a", words(0), weights(1), weights(0, 1)),
        ("b", words(0, 1), weights(2, 1), weights(0.6, 0.8)),
        ("c", words(0, 1), weights(1, 2), weights(1, 0)),
        ("d", words(2), weights(1), weights(1, 0)),
    ])  # fmt: skip
    query = (words(0), weights(1), weights(1, 0))
    by_words, by_global = (dict(index.rank(*query, 4, by)) for by in ("words", "global"))
    assert list(by_words) == ["a", "b", "c"]
    fused = dict(index.rank(*query, 4, "fused"))
    assert fused == {
        name: pytest.approx(by_words[name] + module.GLOBAL_WEIGHT * by_global[name]) for name in "abc"
    }
    assert list(fused) == sorted(fused, key=lambda name: -fused[name])
    monkeypatch.setattr(module, "FUSED", 2)
    assert set(dict(index.rank(*query, 4, "fused"))) == {"a", "b"}
    assert index.rank(words(), weights(), weights(1, 0), 4, "fused") == []


def test_an_index_without_global_descriptors_says_so(tmp_path: Path) -> None:
    index = Index.create(tmp_path, plain_vocabulary(3), PLAIN)
    index.add([("a", words(0), weights(1), None)])
    with pytest.raises(InputError, match="has no global descriptors; rank by words"):
        index.rank(words(0), weights(1), weights(1, 0), 3, "fused")
    with pytest.raises(InputError, match="keeps no local features"):
        index.features("a")


def test_a_folder_that_is_no_index(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: no index, it has no index.json"):
        Index.open(tmp_path / "nowhere")
    (tmp_path / "index.json").write_text('{"format": 99}')
    with pytest.raises(InputError, match="index format 99, this version of contextdesc reads 1"):
        Index.open(tmp_path)
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(InputError, match=r"index.json: damaged .* build the index again"):
        Index.open(tmp_path)
    (tmp_path / "index.json").write_text('{"format": 1, "segments": []}')
    with pytest.raises(InputError, match=r"index.json: damaged \(no vocabulary, extraction, "):
        Index.open(tmp_path)
    (tmp_path / "index.json").unlink()
    Index.create(tmp_path, plain_vocabulary(3))
    with pytest.raises(InputError, match="holds an index already"):
        Index.create(tmp_path, plain_vocabulary(3))


@pytest.mark.parametrize("column", ["documents", "weights", "offsets", "text", "keys", "norms", "globals"])
def test_damage_is_found_and_named(tmp_path: Path, column: str) -> None:
    index = new(tmp_path, images(10))
    path = tmp_path / index.segments[0].files[column].name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(InputError, match=rf"{path.name}: \d+ bytes instead of {len(whole)}; .* rebuild"):
        Index.open(tmp_path)
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(InputError, match=rf"{path.name}: damaged \(its checksum differs\); .* rebuild"):
        Index.open(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=rf"{path.name}: missing; .* rebuild"):
        Index.open(tmp_path)


def test_large_files_are_compared_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = new(tmp_path, images(10))
    path = tmp_path / index.segments[0].files["weights"].name
    whole = path.read_bytes()
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    monkeypatch.setattr(module, "CHECKED_UP_TO", 10)
    assert Index.open(tmp_path).damaged() == [f"{path}: damaged (its checksum differs)"]


def test_one_change_at_a_time(tmp_path: Path) -> None:
    index = new(tmp_path, images(3))
    other = Index.open(tmp_path)
    running = Journal(tmp_path / ".changing", {})
    with pytest.raises(InputError, match="another run is writing it"):
        index.remove(["000.jpg"])
    running.delete()
    index.remove(["000.jpg"])
    other.remove(["001.jpg"])  # opened before, and yet on what is there now
    assert other.names == Index.open(tmp_path).names == ["002.jpg"]


def test_the_manifest_names_every_file(tmp_path: Path) -> None:
    new(tmp_path, images(10))
    manifest = json.loads((tmp_path / "index.json").read_text())
    files = [file for segment in manifest["segments"] for file in segment["files"].values()]
    named = {file["name"] for file in [*files, manifest["frequency"]]} | {"index.json", "vocabulary.npz"}
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == named


@pytest.mark.parametrize("change", [{"name": "../../secret"}, {"name": "/etc/passwd"}, {"dtype": "|O"}])
def test_a_manifest_leads_nowhere_else(tmp_path: Path, change: dict[str, str]) -> None:
    """An index may come from somebody else."""
    new(tmp_path, images(3))
    path = tmp_path / "index.json"
    manifest = json.loads(path.read_text())
    manifest["segments"][0]["files"]["keys"] |= change
    path.write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="is no file of an index"):
        Index.open(tmp_path)
    manifest["segments"][0]["name"] = "../000001"
    path.write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="segments of odd names"):
        Index.open(tmp_path)


def test_odd_names_come_back(tmp_path: Path) -> None:
    odd = ["größe 1/ä.jpg", "with\ttab.png", "\udcff.jpg"]
    index = Index.create(tmp_path, plain_vocabulary(3), PLAIN)
    index.add((name, words(0), weights(1), None, f"/somewhere/{name}") for name in odd)
    again = Index.open(tmp_path)
    assert again.names == odd
    assert [again.path(name) for name in odd] == [f"/somewhere/{name}" for name in odd]
    assert "other" not in again
