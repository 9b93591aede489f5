"""Building: all images are in, a bad one is named, a kill loses nothing, and nothing of two kinds mixes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from contextdesc.detection import Detector
from contextdesc.errors import InputError
from contextdesc.image import find_images
from contextdesc.model import ContextDesc, load
from contextdesc.retrieval.building import add_images, build_index
from contextdesc.retrieval.extraction import describe
from contextdesc.retrieval.index import Index
from contextdesc.retrieval.options import Options
from contextdesc.retrieval.vocabulary import Vocabulary
from tests.retrieval.conftest import same_picture
from tests.test_extraction import run_and_kill


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of an index."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_all_images_are_there(built: Index, photo_folder: Path, model: ContextDesc) -> None:
    images = find_images([photo_folder])
    assert built.names == list(images)
    assert built.extraction.source == built.vocabulary.model == model.source
    assert built.path("a/03.png") == str(images["a/03.png"].resolve())
    for entry in built.entries():
        best = [name for name, _ in built.search(entry.words, entry.weights, 3)]
        assert best[0] == entry.name
        assert all(same_picture(entry.name, name) for name in best)


def test_kept_features_are_those_extracted_up_to_rounding(
    built: Index, photo_folder: Path, model: ContextDesc
) -> None:
    kept, extracted = built.features("b/09.png"), model.extract(photo_folder / "b" / "09.png")
    np.testing.assert_array_equal(kept.keypoints.xy, extracted.keypoints.xy)
    np.testing.assert_array_equal(kept.keypoints.angle, extracted.keypoints.angle)
    assert ((kept.descriptors * extracted.descriptors).sum(1) > 0.9995).all()
    assert (kept.source, kept.image_size, kept.ratio) == (
        extracted.source, extracted.image_size, extracted.ratio,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["float16", "none"])
def test_features_are_kept_as_asked(
    kind: str, model: ContextDesc, photo_folder: Path, tmp_path: Path
) -> None:
    images = dict(list(find_images([photo_folder / "a"]).items())[:2])
    options = Options(features=kind, pooling="mac")  # type: ignore[arg-type]
    build_index(model, images, tmp_path / "index", options, words=50, quiet=True)
    index = Index.open(tmp_path / "index")
    assert index.keeps_features == (kind == "float16")
    if kind == "float16":
        kept, extracted = index.features("00.png"), model.extract(images["00.png"])
        np.testing.assert_allclose(kept.descriptors, extracted.descriptors, atol=5e-4)
    described = describe(model, images["01.png"], options)
    assert described.descriptor is not None
    nothing = np.zeros(0, np.int32), np.zeros(0, np.float32)
    (best,) = index.rank(*nothing, described.descriptor, 1, "global")
    assert best == ("01.png", pytest.approx(1, abs=1e-3))


def test_images_are_added_and_known_ones_left_alone(
    model: ContextDesc, finished: Path, photo_folder: Path, tmp_path: Path
) -> None:
    """Half of the images, then all: the same as with that vocabulary at once, whatever the way."""
    images, vocabulary = find_images([photo_folder]), Vocabulary.load(finished / "vocabulary.npz")
    half = dict(list(images.items())[:6])
    build_index(model, half, tmp_path / "index", vocabulary=vocabulary, quiet=True)
    index = Index.open(tmp_path / "index")
    report = add_images(model, images, index, quiet=True)
    assert (len(report.done), report.before, index.names) == (6, 6, list(images))
    whole = Index.open(finished)
    for entry in whole.entries():
        assert index.search(entry.words, entry.weights, 5) == whole.search(entry.words, entry.weights, 5)
    again = build_index(model, images, tmp_path / "index", vocabulary=vocabulary, quiet=True)
    assert (again.done, again.before) == ([], 12)


def test_bad_images_are_named_and_the_rest_is_indexed(
    model: ContextDesc, photo_folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(photo_folder / "a", tmp_path / "photos"))
    (folder / "02.png").write_bytes((folder / "02.png").read_bytes()[:5000])
    (folder / "empty.jpg").write_bytes(b"")
    cv2.imwrite(str(folder / "black.png"), np.zeros((100, 100), np.uint8))
    images = find_images([folder])
    report = build_index(model, images, tmp_path / "index", words=50, quiet=True)
    assert set(report.failed) == {"02.png", "empty.jpg"}
    index = Index.open(tmp_path / "index")
    assert index.names == ["00.png", "01.png", "03.png", "04.png", "05.png", "black.png"]
    assert len(index.features("black.png")) == 0
    with pytest.raises(InputError, match=r"empty.jpg"):
        build_index(model, {"e": folder / "empty.jpg"}, tmp_path / "strict", strict=True, quiet=True)
    assert not (tmp_path / "strict" / "index.json").exists()


def test_nothing_to_learn_words_from(model: ContextDesc, tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "black.png"), np.zeros((100, 100), np.uint8))
    with pytest.raises(InputError, match="no descriptors to train a vocabulary on: no image has keypoints"):
        build_index(model, find_images([tmp_path]), tmp_path / "index", quiet=True)
    with pytest.raises(InputError, match="its build is unfinished; run the same command again"):
        Index.open(tmp_path / "index")


def test_settings_do_not_mix(
    model: ContextDesc, built: Index, rootsift_model: Path, photo_folder: Path, tmp_path: Path
) -> None:
    images = find_images([photo_folder])
    with pytest.raises(InputError, match=r"other settings \(neighbours\); choose another folder"):
        build_index(model, images, built.folder, Options(neighbours=3), words=400, quiet=True)
    with pytest.raises(InputError, match=r"other settings \(words\)"):
        build_index(model, images, built.folder, words=300, quiet=True)
    other = load(rootsift_model)
    with pytest.raises(InputError, match=r"an index of sift-context \(.*, not of rootsift \("):
        add_images(other, images, built, quiet=True)
    with pytest.raises(InputError, match=r"a vocabulary of sift-context \(.*, not of rootsift \("):
        build_index(other, images, tmp_path / "new", Options(pooling="none"), vocabulary=built.vocabulary)
    with pytest.raises(InputError, match="has no regional network; give pooling none"):
        build_index(other, images, tmp_path / "new", quiet=True)
    fewer = load("sift-context", context="none", detector=Detector(100), threads=1)
    with pytest.raises(InputError, match="extracted with other settings"):
        add_images(fewer, images, built, quiet=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; an index is a folder"):
        build_index(model, images, tmp_path / "file", quiet=True)


def test_a_killed_build_goes_on_and_ends_the_same(
    rootsift_model: Path, photo_folder: Path, tmp_path: Path
) -> None:
    """SIGKILL in the middle, on the real command line: every file of the index is as if undisturbed."""
    command = ["retrieve", "build", str(photo_folder), "-q", "--model", str(rootsift_model), "--words", "100"]
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    journal = disturbed / "images.journal"
    assert run_and_kill([*command, "-o", str(disturbed)], journal, 200_000)
    assert journal.exists()
    assert not (disturbed / "index.json").exists()
    for folder in (disturbed, undisturbed):
        subprocess.run([sys.executable, "-m", "contextdesc", *command, "-o", str(folder)], check=True)
    assert contents(disturbed) == contents(undisturbed)
    assert len(Index.open(disturbed)) == 12


def test_a_kill_after_the_vocabulary_is_healed(
    model: ContextDesc, photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped when the index was created and before it had images."""
    images = dict(list(find_images([photo_folder]).items())[:4])
    build_index(model, images, tmp_path / "undisturbed", words=50, quiet=True)

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Index, "add", stopped)
        with pytest.raises(KeyboardInterrupt):
            build_index(model, images, tmp_path / "disturbed", words=50, quiet=True)
    assert len(Index.open(tmp_path / "disturbed")) == 0
    report = build_index(model, images, tmp_path / "disturbed", words=50, quiet=True)
    assert (report.done, report.before) == ([], 4)
    assert contents(tmp_path / "disturbed") == contents(tmp_path / "undisturbed")
