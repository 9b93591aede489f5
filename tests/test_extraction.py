"""Many images: one bad one does not stop the rest, and a kill loses nothing."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from contextdesc.detection import Detector
from contextdesc.errors import InputError
from contextdesc.extraction import extract_images
from contextdesc.features import Features
from contextdesc.formats import hloc
from contextdesc.image import find_images
from contextdesc.match_set import all_pairs, match_pairs, read_pairs
from contextdesc.model import ContextDesc, load
from tests.test_features import assert_equal


@pytest.fixture(scope="module")
def model(rootsift_model: Path) -> ContextDesc:
    return load(rootsift_model, detector=Detector(200))


def test_all_images_are_there_and_equal_single_extraction(
    model: ContextDesc, photo_folder: Path, tmp_path: Path
) -> None:
    images = find_images([photo_folder])
    report = extract_images(model, images, tmp_path / "f.h5", quiet=True)
    assert report.done == list(images)
    assert [p.name for p in tmp_path.iterdir()] == ["f.h5"]
    with hloc.FeatureFile(tmp_path / "f.h5") as file:
        assert file.names == list(images)
        assert_equal(file["a/03.png"], model.extract(images["a/03.png"]))


def test_npz_writes_a_file_per_image_and_resumes(
    model: ContextDesc, photo_folder: Path, tmp_path: Path
) -> None:
    images = find_images([photo_folder])
    extract_images(model, dict(list(images.items())[:5]), tmp_path, format="npz", quiet=True)
    report = extract_images(model, images, tmp_path, format="npz", quiet=True)
    assert (len(report.done), report.before) == (7, 5)
    assert_equal(Features.load(tmp_path / "a" / "03.png.npz"), model.extract(images["a/03.png"]))


def test_more_images_are_added_to_an_existing_file(
    model: ContextDesc, photo_folder: Path, tmp_path: Path
) -> None:
    images = find_images([photo_folder])
    path = tmp_path / "f.h5"
    extract_images(model, dict(list(images.items())[8:]), path, quiet=True)
    report = extract_images(model, images, path, quiet=True)
    assert (len(report.done), report.before) == (8, 4)
    with hloc.FeatureFile(path) as file:
        assert file.names == list(images)
    before = path.read_bytes()
    again = extract_images(model, images, path, quiet=True)
    assert (len(again.done), again.before) == (0, 12)
    assert path.read_bytes() == before


def test_a_bad_image_is_listed_and_the_rest_finishes(
    model: ContextDesc, photo_folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(photo_folder, tmp_path / "photos"))
    (folder / "a" / "02.png").write_bytes((folder / "a" / "02.png").read_bytes()[:5000])
    (folder / "b" / "black.jpg").write_bytes(b"")
    images = find_images([folder])
    report = extract_images(model, images, tmp_path / "f.h5", quiet=True)
    assert set(report.failed) == {"a/02.png", "b/black.jpg"}
    assert "02.png" in report.failed["a/02.png"]
    assert len(report.done) == 11
    with pytest.raises(InputError, match=r"black.jpg"):
        extract_images(
            model, {"b/black.jpg": images["b/black.jpg"]}, tmp_path / "g.h5", strict=True, quiet=True
        )
    assert not (tmp_path / "g.h5").exists()


def test_masks_and_given_keypoints(model: ContextDesc, photo_folder: Path, tmp_path: Path) -> None:
    import cv2

    images = {"a/00.png": photo_folder / "a" / "00.png"}
    mask = np.zeros((250, 320), np.uint8)
    mask[:, :160] = 255
    (tmp_path / "masks" / "a").mkdir(parents=True)
    cv2.imwrite(str(tmp_path / "masks" / "a" / "00.png.png"), mask)
    extract_images(model, images, tmp_path / "m.h5", masks=tmp_path / "masks", quiet=True)
    assert (Features.load(tmp_path / "m.h5").keypoints.xy[:, 0] <= 160).all()

    (tmp_path / "points" / "a").mkdir(parents=True)
    text = tmp_path / "points" / "a" / "00.png.txt"
    text.write_text("100 50 8 30\n20 30 4 0\n")
    extract_images(model, images, tmp_path / "k.h5", keypoints=tmp_path / "points", quiet=True)
    np.testing.assert_allclose(Features.load(tmp_path / "k.h5").keypoints.xy, [[100, 50], [20, 30]])
    text.write_text("100 fifty\n")
    report = extract_images(model, images, tmp_path / "x.h5", keypoints=tmp_path / "points", quiet=True)
    assert "00.png.txt: not keypoints" in report.failed["a/00.png"]


def test_features_of_another_model_are_not_mixed_in(
    model: ContextDesc, rootsift_model: Path, photo_folder: Path, tmp_path: Path
) -> None:
    images = {"a/00.png": photo_folder / "a" / "00.png"}
    extract_images(model, images, tmp_path / "f.h5", quiet=True)
    other = load(rootsift_model, context="none")
    with pytest.raises(InputError, match=r"holds features of rootsift .* choose another output"):
        extract_images(other, find_images([photo_folder]), tmp_path / "f.h5", quiet=True)


def run_and_kill(arguments: list[str], journal: Path, enough: int) -> bool:
    """Start the command line and kill it once its journal has grown; whether it was still running."""
    process = subprocess.Popen([sys.executable, "-m", "contextdesc", *arguments], stderr=subprocess.DEVNULL)
    while process.poll() is None:
        if journal.exists() and journal.stat().st_size > enough:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.005)
    return process.wait() == -signal.SIGKILL


def arrays_equal(first: Path, second: Path, names: list[str]) -> None:
    with hloc.FeatureFile(first) as one, hloc.FeatureFile(second) as two:
        assert one.names == two.names == names
        for name in names:
            assert_equal(one[name], two[name])


def test_a_killed_run_goes_on_and_ends_the_same(
    rootsift_model: Path, photo_folder: Path, tmp_path: Path
) -> None:
    """SIGKILL in the middle of extract and of match-set, on the real command line."""
    names = list(find_images([photo_folder]))
    base = ["--model", str(rootsift_model), "--max-keypoints", "300"]
    undisturbed, disturbed = tmp_path / "undisturbed.h5", tmp_path / "disturbed.h5"
    extract = ["extract", str(photo_folder), "-q", *base, "-o"]
    assert run_and_kill([*extract, str(disturbed)], tmp_path / "disturbed.h5.journal", 500_000)
    assert not disturbed.exists()
    for path in (disturbed, undisturbed):
        subprocess.run([sys.executable, "-m", "contextdesc", *extract, str(path)], check=True)
    arrays_equal(disturbed, undisturbed, names)

    match = ["match-set", str(undisturbed), "-q", "-o"]
    matches = [tmp_path / "m1.h5", tmp_path / "m2.h5"]
    assert run_and_kill([*match, str(matches[0])], tmp_path / "m1.h5.journal", 20_000)
    for path in matches:
        subprocess.run([sys.executable, "-m", "contextdesc", *match, str(path)], check=True)
    for first, second in all_pairs(names):
        one, two = (hloc.read_matches(path, first, second) for path in matches)
        np.testing.assert_array_equal(one.indices, two.indices)
        np.testing.assert_array_equal(one.similarity, two.similarity)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["disturbed.h5", "m1.h5", "m2.h5", "undisturbed.h5"]


def test_ctrl_c_keeps_what_is_finished(rootsift_model: Path, photo_folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "f.h5"
    command = [
        sys.executable,
        "-m",
        "contextdesc",
        "extract",
        str(photo_folder),
        "--model",
        str(rootsift_model),
    ]
    process = subprocess.Popen([*command, "-q", "-o", str(output)], stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "f.h5.journal"
    while process.poll() is None and not (journal.exists() and journal.stat().st_size > 100_000):
        time.sleep(0.005)  # one image of twelve: early, so that a busy machine does not finish first
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 130
    assert message == "error: stopped; what was finished is kept, the same command goes on\n"
    again = subprocess.run([*command, "-o", str(output)], capture_output=True, text=True, check=True)
    assert "were finished before" in again.stdout
    with hloc.FeatureFile(output) as file:
        assert len(file.names) == 12


@pytest.mark.slow
@pytest.mark.data
def test_100_photographs_killed_halfway(data: Path, tmp_path: Path) -> None:
    """The packaged model on 100 photographs, killed halfway: 100 images, arrays as if undisturbed."""
    (tmp_path / "photos").mkdir()
    for path in sorted((data / "train" / "photos").iterdir())[:100]:
        (tmp_path / "photos" / path.name).symlink_to(path.resolve())
    names = list(find_images([tmp_path / "photos"]))
    assert len(names) == 100
    base = ["extract", str(tmp_path / "photos"), "-q", "--max-keypoints", "256", "-o"]
    size = 256 * (128 + 6) * 4 * 50
    assert run_and_kill([*base, str(tmp_path / "d.h5")], tmp_path / "d.h5.journal", size)
    for name in ("d.h5", "u.h5"):
        subprocess.run([sys.executable, "-m", "contextdesc", *base, str(tmp_path / name)], check=True)
    arrays_equal(tmp_path / "d.h5", tmp_path / "u.h5", names)


def test_pair_lists(tmp_path: Path) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text("# comment\na.jpg b.jpg\n\na.jpg b.jpg\nwith space.jpg\tc.jpg\n")
    assert read_pairs(path) == [("a.jpg", "b.jpg"), ("with space.jpg", "c.jpg")]
    path.write_text("lonely.jpg\n")
    with pytest.raises(InputError, match=r"line 1: expected two image names, got 'lonely.jpg'"):
        read_pairs(path)
    path.write_text("")
    with pytest.raises(InputError, match="no pairs in it"):
        read_pairs(path)
    with pytest.raises(InputError, match="no such file"):
        read_pairs(tmp_path / "nowhere.txt")


def test_pairs_of_unknown_images_are_refused_before_work_starts(
    model: ContextDesc, photo_folder: Path, tmp_path: Path
) -> None:
    images = {"a/00.png": photo_folder / "a" / "00.png"}
    extract_images(model, images, tmp_path / "f.h5", quiet=True)
    with pytest.raises(InputError, match=r"no image called x.png, which the pair list names"):
        match_pairs(tmp_path / "f.h5", [("a/00.png", "x.png")], tmp_path / "m.h5", quiet=True)
    assert not (tmp_path / "m.h5").exists()


def test_verified_matches_are_a_subset(model: ContextDesc, photo_folder: Path, tmp_path: Path) -> None:
    names = ["a/00.png", "a/04.png"]  # two crops of one picture
    extract_images(model, {n: photo_folder / n for n in names}, tmp_path / "f.h5", quiet=True)
    pair = [(names[0], names[1])]
    match_pairs(tmp_path / "f.h5", pair, tmp_path / "all.h5", ratio=1, quiet=True)
    match_pairs(tmp_path / "f.h5", pair, tmp_path / "ok.h5", ratio=1, geometry="homography", quiet=True)
    everything, kept = (
        {tuple(row) for row in hloc.read_matches(tmp_path / name, *names).indices.tolist()}
        for name in ("all.h5", "ok.h5")
    )
    assert 10 <= len(kept) < len(everything)
    assert kept <= everything
