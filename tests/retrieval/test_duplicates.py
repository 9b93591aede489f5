"""Near-duplicates: one picture resized, compressed again or cropped a little; nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from contextdesc.errors import InputError
from contextdesc.image import Image, find_images
from contextdesc.model import ContextDesc
from contextdesc.retrieval.building import build_index
from contextdesc.retrieval.duplicates import duplicates, grouped, same_picture
from contextdesc.retrieval.index import Index

Pixels = NDArray[np.uint8]


def resized(rgb: Pixels) -> Pixels:
    return np.asarray(cv2.resize(rgb, (300, 300), interpolation=cv2.INTER_AREA), np.uint8)


def compressed(rgb: Pixels) -> Pixels:
    return np.asarray(cv2.imdecode(cv2.imencode(".jpg", rgb, [cv2.IMWRITE_JPEG_QUALITY, 35])[1], 1), np.uint8)


def cropped(rgb: Pixels) -> Pixels:
    return rgb[20:-25, 30:-15]


def darker(rgb: Pixels) -> Pixels:
    return (rgb * 0.7).astype(np.uint8)


def half(rgb: Pixels) -> Pixels:
    return rgb[:, :300]


def turned(rgb: Pixels) -> Pixels:
    matrix = cv2.getRotationMatrix2D((256, 256), 12, 1)
    return np.asarray(cv2.warpAffine(rgb, matrix, (512, 512), borderMode=cv2.BORDER_REFLECT), np.uint8)


def slanted(rgb: Pixels) -> Pixels:
    corners = np.array([[0, 0], [511, 0], [511, 511], [0, 511]], np.float32)
    moved = corners + np.array([[0, 0], [0, 50], [0, -50], [0, 0]], np.float32)
    return np.asarray(
        cv2.warpPerspective(rgb, cv2.getPerspectiveTransform(corners, moved), (512, 512)), np.uint8
    )


@pytest.mark.parametrize("change", [resized, compressed, cropped, darker])
def test_changes_that_leave_the_picture(
    change: Callable[[Pixels], Pixels], model: ContextDesc, photo: Image
) -> None:
    assert same_picture(model.extract(photo), model.extract(change(photo.rgb)))
    assert same_picture(model.extract(change(photo.rgb)), model.extract(photo))


@pytest.mark.parametrize("change", [half, turned, slanted])
def test_changes_that_do_not(change: Callable[[Pixels], Pixels], model: ContextDesc, photo: Image) -> None:
    assert not same_picture(model.extract(photo), model.extract(change(photo.rgb)))


def test_two_views_of_a_scene_are_no_duplicates(model: ContextDesc) -> None:
    from contextdesc.samples import sample_pair

    left, right, _ = sample_pair()
    assert not same_picture(model.extract(left), model.extract(right))


def test_groups_are_connected() -> None:
    assert grouped([("b", "c"), ("a", "b"), ("x", "y"), ("d", "c")]) == [["a", "b", "c", "d"], ["x", "y"]]
    assert grouped([("a", "b"), ("c", "d"), ("b", "c")]) == [["a", "b", "c", "d"]]
    assert grouped([]) == []


def test_copies_are_found_among_others(
    model: ContextDesc, photo: Image, photo_folder: Path, tmp_path: Path
) -> None:
    changes = {"original.png": photo.rgb, "small.png": resized(photo.rgb), "again.jpg": compressed(photo.rgb)}
    for name, rgb in changes.items():
        cv2.imwrite(str(tmp_path / name), rgb[:, :, ::-1])
    images = find_images([tmp_path, photo_folder / "b"])
    build_index(model, images, tmp_path / "index", words=200, quiet=True)
    index = Index.open(tmp_path / "index")
    assert sorted(changes) in duplicates(index, quiet=True)
    index.remove(index.names)
    assert duplicates(index, quiet=True) == []


def test_features_are_needed(built: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Index, "keeps_features", False)
    with pytest.raises(InputError, match="keeps no local features to compare"):
        duplicates(built, quiet=True)
