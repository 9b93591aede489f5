"""Our feature and match files, read the way hloc's own code reads them."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from contextdesc.formats import hloc
from contextdesc.match_set import match_pairs
from contextdesc.matching import Matches
from tests.conftest import CI
from tests.test_features import make

NAMES = ["db/street/1.jpg", "query/night/2.jpg", "empty.jpg"]


def hloc_names(path: Path) -> list[str]:
    """hloc finds images as the parents of datasets."""
    names: list[str] = []

    def visit(_: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            names.append(item.parent.name.strip("/"))

    with h5py.File(path, "r") as file:
        file.visititems(visit)
    return sorted(set(names))


def hloc_matches(path: Path, first: str, second: str) -> tuple[NDArray, NDArray]:
    """hloc looks a pair up by its names with dashes, in either order; -1 is no match."""

    def key(*names: str) -> str:
        return "/".join(name.replace("/", "-") for name in names)

    with h5py.File(path, "r") as file:
        turned = key(first, second) not in file
        group = file[key(second, first) if turned else key(first, second)]
        partner, scores = group["matches0"].__array__(), group["matching_scores0"].__array__()
    rows = np.where(partner != -1)[0]
    matches = np.stack([rows, partner[rows]], -1)
    return matches[:, ::-1] if turned else matches, scores[rows]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Features of three images, two of them equal, and the matches that match-set finds between them."""
    folder = tmp_path_factory.mktemp("hloc")
    hloc.write(folder / "features.h5", {NAMES[0]: make(6), NAMES[1]: make(6), NAMES[2]: make(0)})
    pairs = [(NAMES[0], NAMES[1]), (NAMES[2], NAMES[0])]
    match_pairs(folder / "features.h5", pairs, folder / "matches.h5", ratio=1, quiet=True)
    return folder / "features.h5", folder / "matches.h5"


def test_hloc_lists_the_images(files: tuple[Path, Path]) -> None:
    assert hloc_names(files[0]) == sorted(NAMES)


def test_hloc_imports_keypoints(files: tuple[Path, Path]) -> None:
    """It reads them, adds 0.5 for COLMAP in place, and takes their uncertainty."""
    with h5py.File(files[0], "r") as file:
        stored = file[NAMES[0]]["keypoints"]
        keypoints = stored.__array__()
        keypoints += 0.5
        assert stored.attrs.get("uncertainty") == 1.0
    np.testing.assert_allclose(keypoints, make(6).keypoints.to_colmap()[:, :2], rtol=1e-6)


def test_hloc_matches_our_features(files: tuple[Path, Path]) -> None:
    """Its matchers get every dataset of a group as a float tensor, and descriptors as (D, N)."""
    torch = __import__("torch") if CI else pytest.importorskip("torch")
    for name, rows in zip(NAMES, (6, 6, 0), strict=True):
        with h5py.File(files[0], "r") as file:
            group = file[name]
            data = {key: torch.from_numpy(value.__array__()).float() for key, value in group.items()}
            blank = torch.empty((1, *tuple(group["image_size"])[::-1]))
        assert blank.shape == (1, 80, 100)
        assert data["keypoints"].shape == (rows, 2)
        assert data["descriptors"].shape == (128, rows)
        assert data["scores"].shape == data["scales"].shape == data["oris"].shape == (rows,)


def test_hloc_reads_our_matches_in_either_order(files: tuple[Path, Path]) -> None:
    matches, scores = hloc_matches(files[1], NAMES[0], NAMES[1])
    np.testing.assert_array_equal(matches, np.column_stack([np.arange(6)] * 2))
    assert (scores > 0.99).all()
    turned, _ = hloc_matches(files[1], NAMES[0], NAMES[2])
    assert turned.shape == (0, 2)


def test_matches_are_read_back_in_either_order(tmp_path: Path) -> None:
    path = tmp_path / "m.h5"
    matches = Matches(np.array([[0, 4], [2, 1]]), np.float32([0.5, 1.0]))
    hloc.write_matches(path, [("db/1.jpg", "q/2.jpg", 4, matches)])
    turned = hloc.read_matches(path, "q/2.jpg", "db/1.jpg")
    np.testing.assert_array_equal(turned.indices, [[1, 2], [4, 0]])
    np.testing.assert_allclose(turned.similarity, [1.0, 0.5], atol=1e-3)


def test_matches_of_other_matchers(tmp_path: Path) -> None:
    """hloc writes int16, and some matchers no scores."""
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file["a.jpg/b.jpg/matches0"] = np.array([-1, 3, 0], np.int16)
    matches = hloc.read_matches(tmp_path / "m.h5", "a.jpg", "b.jpg")
    np.testing.assert_array_equal(matches.indices, [[1, 3], [2, 0]])
    np.testing.assert_array_equal(matches.similarity, [1, 1])
