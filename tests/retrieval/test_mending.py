"""Mending: whatever file is damaged, the rebuilt index answers as before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from contextdesc.errors import InputError
from contextdesc.image import find_images
from contextdesc.model import ContextDesc
from contextdesc.retrieval.building import build_index
from contextdesc.retrieval.index import Index, Ranked
from contextdesc.retrieval.manifest import VOCABULARY
from contextdesc.retrieval.mending import mend
from contextdesc.retrieval.options import Options


def answers(index: Index) -> list[Ranked]:
    return [
        index.rank(entry.words, entry.weights, entry.descriptor, 5, index.best_rank)
        for entry in index.entries()
    ]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def no_model(_: Index) -> ContextDesc:
    raise AssertionError("no image needs to be described")


def test_a_whole_index_is_left_alone(built: Index) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in built.folder.rglob("*"))
    assert mend(built.folder, no_model, {}, quiet=True).damaged == []
    assert sorted((path, path.stat().st_mtime_ns) for path in built.folder.rglob("*")) == before


@pytest.mark.parametrize("column", ["documents", "weights", "offsets", "norms"])
def test_lists_are_made_again_from_the_features(built: Index, column: str) -> None:
    before = answers(built)
    path = built.folder / built.segments[0].files[column].name
    truncate(path)
    mended = mend(built.folder, no_model, {}, quiet=True)
    assert [problem.split(":")[0] for problem in mended.damaged] == [str(path)]
    index = Index.open(built.folder)
    assert answers(index) == before
    assert index.damaged() == []
    assert [p.name for p in built.folder.parent.iterdir()] == ["index"]


def test_features_are_extracted_again(built: Index, model: ContextDesc) -> None:
    before = answers(built)
    truncate(built.folder / built.segments[0].files["codes"].name)
    mended = mend(built.folder, lambda _: model, {}, quiet=True)
    assert (mended.again, mended.failed) == (12, {})
    assert answers(Index.open(built.folder)) == before


def test_a_lost_vocabulary_is_trained_again(built: Index) -> None:
    before = answers(built)
    (built.folder / VOCABULARY).write_bytes(b"")
    with pytest.raises(InputError, match=r"vocabulary.npz: damaged.*rebuild"):
        Index.open(built.folder)
    mended = mend(built.folder, no_model, {}, quiet=True)
    assert len(mended.damaged) == 1
    assert answers(Index.open(built.folder)) == before


def test_lost_names_come_from_the_images(built: Index, model: ContextDesc, photo_folder: Path) -> None:
    before = answers(built)
    truncate(built.folder / built.segments[0].files["text"].name)
    mended = mend(built.folder, lambda _: model, find_images([photo_folder]), quiet=True)
    assert mended.notes == ["names of 12 images of segment 000001 are lost"]
    assert answers(Index.open(built.folder)) == before


def test_removed_images_stay_removed(built: Index) -> None:
    built.remove(["a/01.png"])
    before = answers(built)
    truncate(built.folder / built.segments[0].files["documents"].name)
    mend(built.folder, no_model, {}, quiet=True)
    assert answers(Index.open(built.folder)) == before


def test_images_that_are_gone_are_named(model: ContextDesc, photo_folder: Path, tmp_path: Path) -> None:
    photos = Path(shutil.copytree(photo_folder / "a", tmp_path / "photos"))
    options = Options(features="none", pooling="none")
    build_index(model, find_images([photos]), tmp_path / "index", options, words=50, quiet=True)
    index = Index.open(tmp_path / "index")
    truncate(index.folder / index.segments[0].files["weights"].name)
    (photos / "03.png").unlink()
    mended = mend(index.folder, lambda _: model, {}, quiet=True)
    assert list(mended.failed) == ["03.png"]
    assert mended.again == 5
    assert "03.png" not in Index.open(index.folder)
