"""ETH, IMW, Aachen and OpenMVG: bytes as their readers expect them, in their coordinates, and back again."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from contextdesc.detection import Detector
from contextdesc.errors import InputError
from contextdesc.extraction import Format, extract_images, read_keypoints
from contextdesc.features import Features
from contextdesc.formats import aachen, eth, imw, openmvg
from contextdesc.image import find_images
from contextdesc.keypoints import Keypoints
from contextdesc.matching import Matches, match_descriptors
from contextdesc.model import ContextDesc, load
from tests.test_features import assert_equal, make

NAME = "db/left 1.jpg"


@pytest.fixture(scope="module")
def model(rootsift_model: Path) -> ContextDesc:
    return load(rootsift_model, detector=Detector(50), context="none")


def corner() -> Features:
    """One keypoint in the middle of the top-left pixel: sigma 3, pointing down."""
    keypoints = Keypoints.from_array([[0, 0, 6, 90]])
    return Features(keypoints, np.eye(1, 128, dtype=np.float32), (100, 80), "model", "0123")


def assert_same_place(found: Keypoints, expected: Keypoints) -> None:
    np.testing.assert_allclose(found.xy, expected.xy, atol=1e-4)
    np.testing.assert_allclose(found.size, expected.size, rtol=1e-6)
    turn = np.deg2rad(found.angle - expected.angle)
    np.testing.assert_allclose(np.sin(turn / 2), 0, atol=1e-5)


@pytest.mark.parametrize("rows", [0, 1, 9])
def test_eth_round_trip(tmp_path: Path, rows: int) -> None:
    features = make(rows)
    eth.write_to(tmp_path, NAME, features)
    assert_same_place(eth.read_keypoints(tmp_path / "keypoints" / f"{NAME}.bin"), features.keypoints)
    stored = eth.read_descriptors(tmp_path / "descriptors" / f"{NAME}.bin")
    np.testing.assert_array_equal(stored, features.descriptors)
    matches = np.array([[0, 3], [2, 1]])
    eth.write_matches(tmp_path, "a.png", "b.png", matches)
    np.testing.assert_array_equal(eth.read_matches(tmp_path, "a.png", "b.png"), matches)
    with pytest.raises(InputError, match="takes no names with slashes"):
        eth.write_matches(tmp_path, NAME, "b.png", matches)


def test_eth_as_its_importer_reads_it(tmp_path: Path) -> None:
    """int32 rows and columns, then float32 in COLMAP's convention: the first pixel's middle is (0.5, 0.5)."""
    eth.write_to(tmp_path, "a.png", corner())
    with (tmp_path / "keypoints" / "a.png.bin").open("rb") as file:
        shape = np.fromfile(file, np.int32, 2)
        keypoints = np.fromfile(file, np.float32).reshape(shape)
    np.testing.assert_allclose(keypoints, [[0.5, 0.5, 3, np.pi / 2]], rtol=1e-6)
    content = (tmp_path / "descriptors" / "a.png.bin").read_bytes()
    assert content[:8] == b"\x01\0\0\0\x80\0\0\0"
    assert len(content) == 8 + 128 * 4


def test_eth_keypoints_can_be_described(tmp_path: Path) -> None:
    features = make(4)
    eth.write_to(tmp_path, "a.png", features)
    assert_same_place(read_keypoints(tmp_path / "keypoints", "a.png"), features.keypoints)


@pytest.mark.parametrize("content", [b"", b"\x01\0\0\0\x02\0\0\0abc", b"\xff\xff\xff\xff\x01\0\0\0"])
def test_damaged_eth_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a.bin: not a matrix of the ETH evaluation"):
        eth.read_keypoints(path)
    with pytest.raises(InputError, match=r"nowhere.bin: cannot be read"):
        eth.read_descriptors(tmp_path / "nowhere.bin")
    eth.write_matrix(path, np.ones((2, 3)), np.float32)
    with pytest.raises(InputError, match=r"a.bin: keypoints of shape"):
        eth.read_keypoints(path)


def test_imw_round_trip(tmp_path: Path) -> None:
    stored = {"db/1.jpg": make(5, matchability=False), "2.jpg": make(0, matchability=False)}
    imw.write(tmp_path, stored)
    with imw.FeatureFolder(tmp_path) as folder:
        assert folder.names == ["2.jpg", "db/1.jpg"]
        for name, features in stored.items():
            assert_equal(folder[name], features)
        with pytest.raises(InputError, match="no image called 3"):
            folder["3"]


def test_imw_as_the_benchmark_reads_it(tmp_path: Path) -> None:
    """A dataset per stem, OpenCV's coordinates, sigma and degrees; strongest first where we detect."""
    imw.write(tmp_path, {"a/1.jpg": corner()})
    expected = {"keypoints": [[0, 0]], "scales": [3], "angles": [90], "scores": [1]}
    for part, values in expected.items():
        with h5py.File(tmp_path / f"{part}.h5") as file:
            assert list(file) == ["1"]
            np.testing.assert_allclose(file["1"], values)
    with h5py.File(tmp_path / "descriptors.h5") as file:
        assert file["1"].shape == (1, 128)
        assert file["1"].dtype == np.float32


def test_imw_of_other_extractors_opens(tmp_path: Path) -> None:
    for part, rows in {"keypoints": np.ones((3, 2)), "descriptors": np.ones((3, 64))}.items():
        with h5py.File(tmp_path / f"{part}.h5", "w") as file:
            file["1"] = rows
    with imw.FeatureFolder(tmp_path) as folder:
        features = folder["1"]
    assert (len(features), features.model) == (3, "unknown")
    (tmp_path / "descriptors.h5").unlink()
    with pytest.raises(InputError, match=r"descriptors.h5: no such file"):
        imw.FeatureFolder(tmp_path)


def test_imw_matches_are_named_with_the_later_image_first(tmp_path: Path) -> None:
    matches = Matches(np.array([[0, 4], [2, 1]]), np.ones(2, np.float32))
    imw.write_matches(tmp_path, [("x/1.jpg", "2.jpg", matches), ("4.jpg", "3.jpg", matches)])
    with h5py.File(tmp_path / "matches.h5") as file:
        np.testing.assert_array_equal(file["2-1"], [[4, 1], [0, 2]])
        np.testing.assert_array_equal(file["4-3"], [[0, 2], [4, 1]])
    for pair in (("1.jpg", "2.jpg"), ("4.jpg", "3.jpg")):
        np.testing.assert_array_equal(imw.read_matches(tmp_path, *pair).indices, matches.indices)
    turned = imw.read_matches(tmp_path, "2.jpg", "1.jpg").indices
    np.testing.assert_array_equal(turned, [[1, 2], [4, 0]])
    with pytest.raises(InputError, match="no pair 1 3"):
        imw.read_matches(tmp_path, "1", "3")


@pytest.mark.parametrize("rows", [0, 1, 9])
def test_aachen_round_trip(tmp_path: Path, rows: int) -> None:
    features = make(rows)
    aachen.write_to(tmp_path, NAME, features)
    keypoints, descriptors = aachen.read(tmp_path / f"{NAME}.model")
    np.testing.assert_allclose(keypoints.xy, features.keypoints.xy, atol=1e-4)
    np.testing.assert_array_equal(keypoints.response, features.keypoints.response)
    np.testing.assert_array_equal(descriptors, features.descriptors)
    assert aachen.written_by(tmp_path, NAME, "model") == features.source
    assert aachen.written_by(tmp_path, NAME, "other") is None


def test_aachen_as_the_benchmark_reads_it(tmp_path: Path) -> None:
    """An npz without that suffix, beside the image and named by method; COLMAP's coordinates."""
    aachen.write_to(tmp_path, "db/1.jpg", corner())
    arrays = np.load(tmp_path / "db" / "1.jpg.model")
    np.testing.assert_allclose(arrays["keypoints"], [[0.5, 0.5]])
    assert arrays["descriptors"].shape == (1, 128)
    (tmp_path / "db" / "1.jpg.model").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"1.jpg.model: not local features"):
        aachen.read(tmp_path / "db" / "1.jpg.model")
    with pytest.raises(InputError, match="no such file"):
        aachen.read(tmp_path / "nowhere")


@pytest.mark.parametrize("rows", [0, 1, 9])
def test_openmvg_round_trip(tmp_path: Path, rows: int) -> None:
    features = make(rows)
    openmvg.write_to(tmp_path, NAME, features)
    keypoints, descriptors = openmvg.read(tmp_path, NAME)
    assert_same_place(keypoints, features.keypoints)
    np.testing.assert_array_equal(descriptors, openmvg.quantise(features.descriptors))


def test_openmvg_as_its_loader_reads_it(tmp_path: Path) -> None:
    """Text x y scale orientation with the corner pixel's middle at (0, 0); count as uint64, then bytes."""
    openmvg.write_to(tmp_path, "db/1.jpg", corner())
    values = [float(word) for word in (tmp_path / "1.feat").read_text().split()]
    np.testing.assert_allclose(values, [0, 0, 3, np.pi / 2], rtol=1e-6)
    content = (tmp_path / "1.desc").read_bytes()
    assert content[:8] == (1).to_bytes(8, "little")
    assert list(content[8:]) == [255] + [128] * 127


def test_bytes_for_openmvg_match_as_floats_do(photo_descriptors: tuple[np.ndarray, np.ndarray]) -> None:
    first, second = photo_descriptors
    floats = {tuple(row) for row in match_descriptors(first, second, 0.8).indices.tolist()}
    rounded = [openmvg.quantise(rows).astype(np.float32) - 128 for rows in photo_descriptors]
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in rounded]
    bytes_ = {tuple(row) for row in match_descriptors(*unit, 0.8).indices.tolist()}
    assert len(floats) > 50
    assert len(floats & bytes_) >= 0.97 * len(floats)


@pytest.fixture(scope="module")
def photo_descriptors(photo_folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Of two crops of one picture, by the packaged model."""
    packaged = load(detector=Detector(400), context="none")
    first, second = (packaged.extract(photo_folder / "a" / name).descriptors for name in ("00.png", "04.png"))
    return first, second


def test_openmvg_files_that_disagree(tmp_path: Path) -> None:
    openmvg.write_to(tmp_path, "1.jpg", make(3))
    (tmp_path / "1.feat").write_text("1 2 3 4\n")
    with pytest.raises(InputError, match="1 keypoints and 3 descriptors"):
        openmvg.read(tmp_path, "1.jpg")
    with pytest.raises(InputError, match=r"2.feat: no such file"):
        openmvg.read(tmp_path, "2.jpg")
    wide = make(1)
    wide = Features(wide.keypoints, np.ones((1, 256), np.float32), (9, 9), "m", "c")
    with pytest.raises(InputError, match="descriptors of 256 values"):
        openmvg.write_to(tmp_path, "3.jpg", wide)


FILES = {
    "eth": {"contextdesc.json", "keypoints/a/00.png.bin", "descriptors/a/00.png.bin"},
    "imw": {"keypoints.h5", "descriptors.h5", "scales.h5", "angles.h5", "scores.h5"},
    "aachen": {"a/00.png.rootsift"},
    "openmvg": {"contextdesc.json", "00.feat", "00.desc"},
}


@pytest.mark.parametrize("format", FILES)
def test_extract_writes_resumes_and_refuses_another_model(
    format: Format, model: ContextDesc, rootsift_model: Path, photo_folder: Path, tmp_path: Path
) -> None:
    images = find_images([photo_folder])
    names = ["a/00.png", "b/07.png"]
    extract_images(model, {names[0]: images[names[0]]}, tmp_path, format=format, quiet=True)
    assert {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()} == FILES[format]
    report = extract_images(model, {n: images[n] for n in names}, tmp_path, format=format, quiet=True)
    assert (report.done, report.before) == (["b/07.png"], 1)
    for name in names:
        assert_stored(format, tmp_path, name, model.extract(images[name]))
    other = load(rootsift_model, detector=Detector(50))
    with pytest.raises(InputError, match=r"holds features of rootsift .* not of rootsift .*geometric"):
        extract_images(other, {names[0]: images[names[0]]}, tmp_path, format=format, quiet=True)


def assert_stored(format: Format, folder: Path, name: str, features: Features) -> None:
    if format == "imw":
        with imw.FeatureFolder(folder) as file:
            stored = file[name].keypoints, file[name].descriptors
    elif format == "eth":
        stored = (
            eth.read_keypoints(folder / "keypoints" / f"{name}.bin"),
            eth.read_descriptors(folder / "descriptors" / f"{name}.bin"),
        )
    elif format == "aachen":
        stored = aachen.read(folder / f"{name}.rootsift")
    else:
        stored = openmvg.read(folder, name)
    np.testing.assert_allclose(stored[0].xy, features.keypoints.xy, atol=1e-4)
    expected = openmvg.quantise(features.descriptors) if format == "openmvg" else features.descriptors
    np.testing.assert_array_equal(stored[1], expected)


@pytest.mark.parametrize("format", ["imw", "openmvg"])
def test_images_of_one_stem_are_refused(format: Format, model: ContextDesc, tmp_path: Path) -> None:
    images = {"a/1.jpg": tmp_path / "1.jpg", "b/1.png": tmp_path / "1.png"}
    with pytest.raises(InputError, match=r"a/1.jpg and b/1.png: .* tells images by their stem"):
        extract_images(model, images, tmp_path, format=format, quiet=True)


@pytest.mark.parametrize("format", ["eth", "openmvg"])
def test_files_of_others_are_not_taken_for_finished_work(
    format: Format, model: ContextDesc, photo_folder: Path, tmp_path: Path
) -> None:
    images = {"a/00.png": photo_folder / "a" / "00.png"}
    foreign = tmp_path / {"eth": "descriptors/a/00.png.bin", "openmvg": "00.desc"}[format]
    foreign.parent.mkdir(parents=True, exist_ok=True)
    foreign.write_bytes(b"")
    with pytest.raises(InputError, match="holds features of unknown"):
        extract_images(model, images, tmp_path, format=format, quiet=True)
    assert foreign.read_bytes() == b""
    with pytest.raises(InputError, match=rf"is a file; format {format} writes a folder"):
        extract_images(model, images, foreign, format=format, quiet=True)
