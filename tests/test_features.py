from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from contextdesc.errors import InputError
from contextdesc.features import Features
from contextdesc.formats import hloc
from contextdesc.keypoints import Keypoints
from contextdesc.matching import Matches


def make(rows: int, seed: int = 0, matchability: bool = True) -> Features:
    rng = np.random.default_rng(seed)
    keypoints = Keypoints(
        rng.uniform(0, 100, (rows, 2)).astype(np.float32), rng.uniform(1, 9, rows).astype(np.float32),
        rng.uniform(0, 360, rows).astype(np.float32), rng.random(rows).astype(np.float32),
    )  # fmt: skip
    descriptors = rng.normal(size=(rows, 128)).astype(np.float32)
    score = rng.random(rows).astype(np.float32) if matchability else None
    return Features(keypoints, descriptors, (100, 80), "model", "0123", "geometric", 0.8, score)


def assert_equal(first: Features, second: Features) -> None:
    for name in ("xy", "size", "angle", "response"):
        np.testing.assert_array_equal(getattr(first.keypoints, name), getattr(second.keypoints, name))
    np.testing.assert_array_equal(first.descriptors, second.descriptors)
    assert first.descriptors.dtype == second.descriptors.dtype
    assert (first.source, first.image_size, first.ratio) == (second.source, second.image_size, second.ratio)
    if first.matchability is None:
        assert second.matchability is None
    else:
        np.testing.assert_array_equal(first.matchability, second.matchability)


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
@pytest.mark.parametrize("rows", [0, 1, 7])
@pytest.mark.parametrize("matchability", [True, False])
def test_saving_and_loading_changes_nothing(
    tmp_path: Path, suffix: str, rows: int, matchability: bool
) -> None:
    features = make(rows, matchability=matchability)
    path = tmp_path / f"f{suffix}"
    features.save(path)
    assert_equal(features, Features.load(path))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]  # no temporary file is left


def test_hloc_layout(tmp_path: Path) -> None:
    """As hloc reads it: (N, 2) keypoints with an uncertainty, (D, N) descriptors, sigma, degrees."""
    features = make(5)
    path = tmp_path / "features.h5"
    hloc.write(path, {"db/1.jpg": features, "query/2.jpg": make(0)})
    with h5py.File(path) as file:
        group = file["db/1.jpg"]
        assert group["keypoints"].shape == (5, 2)
        assert group["keypoints"].attrs["uncertainty"] == 1.0
        assert group["descriptors"].shape == (128, 5)
        np.testing.assert_array_equal(group["image_size"], [100, 80])
        np.testing.assert_allclose(group["scales"], features.keypoints.size / 2)
        assert group["scores"].shape == group["oris"].shape == (5,)
    with hloc.FeatureFile(path) as opened:
        assert sorted(opened.names) == ["db/1.jpg", "query/2.jpg"]
        assert_equal(opened["db/1.jpg"], features)


def test_features_of_other_extractors_open(tmp_path: Path) -> None:
    path = tmp_path / "other.h5"
    with h5py.File(path, "w") as file:
        group = file.create_group("a.jpg")
        group["keypoints"] = np.ones((3, 2), np.float16)
        group["descriptors"] = np.ones((256, 3), np.float16)
        group["image_size"] = np.array([10, 20])
    features = Features.load(path)
    assert features.descriptors.shape == (3, 256)
    assert features.model == "unknown"


def test_hloc_matches_round_trip(tmp_path: Path) -> None:
    matches = Matches(np.array([[0, 4], [2, 1]]), np.float32([0.5, 1.0]))
    path = tmp_path / "matches.h5"
    hloc.write_matches(path, [("db/1.jpg", "q/2.jpg", 4, matches)])
    with h5py.File(path) as file:
        group = file["db-1.jpg"]["q-2.jpg"]
        np.testing.assert_array_equal(group["matches0"], [4, -1, 1, -1])
        np.testing.assert_allclose(group["matching_scores0"], [0.75, 0, 1, 0])
    read = hloc.read_matches(path, "db/1.jpg", "q/2.jpg")
    np.testing.assert_array_equal(read.indices, matches.indices)
    np.testing.assert_allclose(read.similarity, matches.similarity, atol=1e-3)
    with pytest.raises(InputError, match="no pair x y"):
        hloc.read_matches(path, "x", "y")


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"saved as .npz or .h5"):
        make(1).save(tmp_path / "f.txt")
    for suffix in (".npz", ".h5"):
        path = tmp_path / f"cut{suffix}"
        make(50).save(path)
        path.write_bytes(path.read_bytes()[:2000])
        with pytest.raises(InputError, match=f"cut{suffix}"):
            Features.load(path)
        with pytest.raises(InputError, match="no such file"):
            Features.load(tmp_path / f"nowhere{suffix}")
    hloc.write(tmp_path / "two.h5", {"a": make(1), "b": make(1)})
    with pytest.raises(InputError, match="holds 2 images; say which one"):
        Features.load(tmp_path / "two.h5")
    with pytest.raises(InputError, match="no image called c"):
        Features.load(tmp_path / "two.h5", "c")


def test_rows_belong_together() -> None:
    features = make(3)
    with pytest.raises(InputError, match="differing numbers of rows"):
        Features(features.keypoints, features.descriptors[:2], (1, 1), "m", "c")
