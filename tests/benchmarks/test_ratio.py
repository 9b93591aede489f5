from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from contextdesc.benchmarks import ratio
from contextdesc.benchmarks.methods import build_method, build_methods
from contextdesc.benchmarks.protocol import Request
from contextdesc.benchmarks.ratio import (
    Candidates,
    Counts,
    candidates,
    equal_precision,
    mutual_with_ratio,
    photo_views,
    thresholds,
)
from contextdesc.benchmarks.ratio_views import Truth, held_out
from contextdesc.errors import InputError
from contextdesc.image import find_images
from contextdesc.keypoints import Keypoints
from contextdesc.modelfile import DEFAULT, PACKAGED


def test_equal_precision_by_hand() -> None:
    """SIFT at 0.80 keeps four matches, three of them right: 75 %. So does the other descriptor up to 0.89; at
    0.90 it keeps a wrong fifth."""
    sift = Candidates(np.float32([0.5, 0.6, 0.7, 0.8, 0.9]), np.array([True, True, False, True, False]))
    other = Candidates(np.float32([0.55, 0.65, 0.75, 0.85, 0.9]), np.array([True, True, False, True, False]))
    assert sift.precision(0.80) == 0.75
    assert equal_precision(sift, other) == 0.89
    with pytest.raises(InputError, match="no matches to choose a ratio on"):
        equal_precision(sift, Candidates(np.zeros(0, np.float32), np.zeros(0, bool)))


def test_ratios_by_hand() -> None:
    """Squared, (0.6, 0.8) is at 0.4 from (0, 1) and at 0.8 from the next, which (0, 1) has at 2. And (1, 0)
    is at 0.4 from (0.8, 0.6) and at 2 from the next, but there it is the other side that has one at 0.8."""
    second = np.float32([[1, 0], [0, 1], [-1, 0]])
    first = np.float32([[1, 0], [0.6, 0.8]])
    rows, partner, ratio = mutual_with_ratio(first, second)
    assert rows.tolist() == [0, 1]
    assert partner.tolist() == [0, 1]
    np.testing.assert_allclose(ratio, [0, np.sqrt(0.4 / 0.8)], rtol=1e-5)
    rows, partner, ratio = mutual_with_ratio(second, np.float32([[0.8, 0.6], [0, -1]]))
    assert (rows.tolist(), partner.tolist()) == ([0], [0])
    np.testing.assert_allclose(ratio, [np.sqrt(0.4 / 0.8)], rtol=1e-5)


def test_precision_falls_with_the_threshold_on_real_views(photo_folder: Path) -> None:
    photos = list(find_images([photo_folder]).values())
    found = candidates(photo_views(photos), {"sift": build_method("sift")})["sift"]
    assert len(found.ratio) > 150
    assert found.precision(0.7) > found.precision(1.0) > 0.1
    assert equal_precision(found, found) >= 0.80


def test_curves_by_hand() -> None:
    """Two pairs of views. At 0.80 the first keeps two matches, one of them right, the second two right ones:
    3 of 4. Of five possible matches three are found; at 1.00 a wrong fifth is kept, too."""
    first = Candidates(np.float32([0.7, 0.79]), np.array([True, False]))
    second = Candidates(np.float32([0.6, 0.75, 0.95]), np.array([True, True, False]))
    counts = Counts.of([(first, 3), (second, 2)])
    precision = counts.precision(np.ones((1, 2), np.int64))[0]
    assert precision[[0, 30, 50]].tolist() == [1.0, 0.75, 0.6]
    assert counts.recall()[[0, 30, 50]].tolist() == [0.0, 0.6, 0.6]
    assert thresholds(counts, counts).mean == 0.94
    assert equal_precision(_all(first, second), _all(first, second)) == 0.94


def _all(*parts: Candidates) -> Candidates:
    return Candidates(np.concatenate([p.ratio for p in parts]), np.concatenate([p.right for p in parts]))


def test_what_is_right_and_possible() -> None:
    """On a plane that moves by 10, the first keypoint has a partner at 2 pixels, the second none. Of a camera
    that moves sideways, rows stay: only the distance of rows counts, and any keypoint may have a partner."""
    one, two = (Keypoints.from_array(np.float32(xy)) for xy in ([[0, 0], [50, 50]], [[12, 0], [0, 30]]))
    plane = Truth(np.array([[1, 0, 10], [0, 1, 0], [0, 0, 1.0]]), planar=True)
    assert plane.errors(one.xy[:1], two.xy[:1]).tolist() == [2]
    assert plane.possible(one, two) == 1
    sideways = Truth(np.array([[0, 0, 0], [0, 0, -1], [0, 1.0, 0]]), planar=False)
    assert sideways.errors(one.xy, two.xy).tolist() == [0, 20]
    assert sideways.possible(one, two) == 2


def test_the_protocol_finds_the_ratio_that_export_chooses(photo_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").symlink_to(photo_folder / "a")
    photos = list(find_images([photo_folder / "a"]).values())
    report = ratio.run(Request(tmp_path, build_methods("rootsift")))
    found = report.numbers["methods"]["photographs"]
    assert list(found) == ["sift", "rootsift"]  # what others are compared with is always there
    assert found["rootsift"]["pairs"] == len(photos)
    both = candidates(photo_views(photos), build_methods("sift,rootsift"))
    assert found["rootsift"]["equal_precision"]["mean"] == equal_precision(both["sift"], both["rootsift"])
    assert found["sift"]["at_own"]["precision"] == pytest.approx(100 * both["sift"].precision(0.80))
    assert found["rootsift"]["recall"][-1] >= found["rootsift"]["recall"][0] >= 0
    assert [curves.name for curves in report.curves] == ["precision", "recall", "precision-recall"]
    assert "| rootsift | 6 of photographs | 0." in report.markdown


def test_sequences_have_a_ratio_too(scene: Path) -> None:
    found = ratio.run(Request(scene.parent, build_methods("sift"))).numbers["methods"]
    assert found["sequences"]["sift"]["pairs"] == 5
    assert found["sequences"]["sift"]["at_own"]["precision"] > 90
    with pytest.raises(InputError, match="no sequences in the Oxford affine layout"):
        ratio.run(Request(scene, build_methods("sift")))


def test_only_what_no_model_was_trained_on(photo_folder: Path, tmp_path: Path) -> None:
    """The packaged models held out the last 30 photographs; of this copy, all but the last two were seen."""
    (tmp_path / "photos").symlink_to(photo_folder / "a")
    seen = tmp_path / "model"
    shutil.copytree(PACKAGED / DEFAULT, seen)
    told = json.loads((seen / "model.json").read_text())
    told["training"] |= {"held_out": 2}
    (seen / "model.json").write_text(json.dumps(told))

    def photos(*methods: str) -> list[str]:
        return [path.name for path in held_out(tmp_path, map(build_method, methods))[0]]

    assert len(photos("sift")) == len(photos("sift", f"{DEFAULT}:none")) == 6
    assert photos("sift", DEFAULT, str(seen)) == ["04.png", "05.png"]
    assert photos(f"{seen}:none") == ["04.png", "05.png"]
    told["training"] = {}
    (seen / "model.json").write_text(json.dumps(told))
    with pytest.raises(InputError, match="that every model was not trained on"):
        photos(str(seen))
