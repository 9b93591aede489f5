from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from contextdesc.benchmarks import heinly
from contextdesc.benchmarks.methods import build_method, build_methods
from contextdesc.benchmarks.protocol import Request
from contextdesc.benchmarks.sequences import OXFORD, find_sequences, recall
from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.image import Image
from contextdesc.keypoints import Keypoints
from contextdesc.model import load


def test_recall_by_hand() -> None:
    """Image 2 is image 1 moved by 10 pixels to the right.

    Keypoint 0 has its partner and finds it; 1 has its partner, finds another; 2 has none within 2.5
    pixels (it is 3 away), and finds it: neither correct nor a correspondence; 3 has none. Recall 1 / 2.
    """
    homography = np.array([[1, 0, 10], [0, 1, 0], [0, 0, 1]], float)
    first = Keypoints.from_array([[0, 0], [50, 0], [100, 0], [200, 0]])
    second = Keypoints.from_array([[10, 2], [60, 0], [113, 0]])
    axes = np.eye(4, dtype=np.float32)
    first_descriptors = axes[[0, 0, 2, 2]]
    second_descriptors = axes[[0, 1, 2]]
    assert recall(first, second, first_descriptors, second_descriptors, homography) == 0.5
    nothing = Keypoints.empty()
    assert recall(first, nothing, first_descriptors, axes[:0], homography) == 0


def test_a_shifted_image_is_easy(scene: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heinly, "KEYPOINTS", 300)
    report = heinly.run(Request(scene.parent, build_methods("sift,rootsift"), seeds=(0, 1)))
    table = report.numbers["recall"]
    assert table["sift"]["shift"] > 60
    assert table["rootsift"]["mean"] == table["rootsift"]["shift"] > 60
    pairs = np.array(report.numbers["pairs"]["sift"]["shift"])
    assert pairs.shape == (2, 5)
    assert pairs.mean() == pytest.approx(table["sift"]["shift"])
    assert not np.array_equal(pairs[0], pairs[1])  # another draw of keypoints


def test_means_intervals_and_differences_by_hand() -> None:
    """Two scenes of blur with two pairs, one seed, and one of an unknown kind."""
    recalls = {
        "a": {
            "bikes": np.array([[10.0, 30]]),
            "trees": np.array([[40.0, 40]]),
            "new": np.array([[90.0, 90]]),
        },
        "b": {
            "bikes": np.array([[11.0, 33]]),
            "trees": np.array([[40.0, 44]]),
            "new": np.array([[90.0, 90]]),
        },
    }
    request = Request(Path(), dict.fromkeys("ab", build_method("sift")), (0,), baseline="a")
    report = heinly.report(request, recalls, heinly.OXFORD_SCENES, {})
    found = report.numbers
    assert found["recall"]["a"] == {"bikes": 20, "trees": 40, "new": 90, "mean": 50}
    assert found["intervals"]["a"]["bikes"] == {"mean": 20, "low": 10, "high": 30}  # of its two pairs
    assert found["intervals"]["a"]["blur (bikes, trees)"]["mean"] == 30
    assert found["intervals"]["a"]["mean"]["low"] == 20  # of scenes: thrice the worst
    assert list(found["difference"]) == ["b"]
    assert found["difference"]["b"]["bikes"] == {"mean": 2, "low": 1, "high": 3}
    assert found["difference"]["b"]["mean"]["mean"] == pytest.approx(4 / 3)
    assert "| trees (blur) | 40.0 | 42.0 (40.0 to 44.0) |" in report.markdown
    assert "**Difference from a, paired, with 95 % intervals**" in report.markdown
    assert "| bikes (blur) | +2.0 (+1.0 to +3.0) |" in report.markdown


def test_what_cannot_be_used_is_named_and_the_rest_counts(scene: Path) -> None:
    for name in ("bark", "graf"):
        shutil.copytree(scene, scene.parent / name)
    (scene.parent / "graf" / "img3.png").unlink()
    (scene / "H1to2p").write_text("1 2 3")
    (scene.parent / "not-a-scene").mkdir()
    report = heinly.run(Request(scene.parent, build_methods("sift"), seeds=(0, 1)))
    assert list(report.numbers["recall"]["sift"]) == ["bark", "mean"]
    assert "graf/img3: missing (any of .jpg," in report.skipped["graf"]
    assert "H1to2p: not a 3 x 3 homography" in report.skipped["shift"]
    missing = [scene for scene, reason in report.skipped.items() if reason.endswith("missing")]
    assert missing == ["bikes", "boat", "leuven", "trees", "ubc", "wall"]
    assert "skipped: " in report.markdown


def test_heinly_s_release_calls_graf_graffiti(scene: Path) -> None:
    scene.rename(scene.parent / "graffiti")
    shutil.copytree(scene.parent / "graffiti", scene.parent / "wall")
    report = heinly.run(Request(scene.parent, build_methods("sift"), seeds=(0,)))
    assert "planar (graffiti, wall)" in report.numbers["intervals"]["sift"]
    assert "graf" not in report.skipped
    assert len(report.skipped) == 6


def test_nothing_that_can_be_used_is_an_error(scene: Path) -> None:
    (scene / "img3.png").unlink()
    with pytest.raises(InputError, match=r"no scenes could be used; the first: .*img3: missing"):
        heinly.run(Request(scene.parent, build_methods("sift")))
    with pytest.raises(InputError, match="no sequences in the Oxford affine layout"):
        find_sequences(scene, OXFORD)


def test_heinly_s_own_sequences_may_be_longer_and_shorter(scene: Path) -> None:
    for name in ("ceiling", "venice", "semper"):
        shutil.copytree(scene, scene.parent / name)
    (scene.parent / "ceiling" / "img7.png").symlink_to(scene / "img6.png")
    (scene.parent / "ceiling" / "H1to7p").symlink_to(scene / "H1to6p")
    for name in ("img5.png", "img6.png", "H1to5p", "H1to6p"):
        (scene.parent / "venice" / name).unlink()
    (scene.parent / "semper" / "H1to3p").unlink()  # a gap is no end
    told = {"transformations": "shift:motion"}
    report = heinly.run(Request(scene.parent, build_methods("sift"), (0,), settings=told))
    rows = list(report.numbers["intervals"]["sift"])
    kinds = ["rotation (ceiling)", "motion (shift)", "scale (venice)"]
    assert rows == ["ceiling", "shift", "venice", *kinds, "mean"]
    pairs = report.numbers["pairs"]["sift"]
    six, seven, four = (pairs[name][0] for name in ("shift", "ceiling", "venice"))
    assert seven == [*six, six[-1]]
    assert four == six[:3]
    assert "H1to3p: missing" in report.skipped["semper"]
    with pytest.raises(InputError, match="NAME:WORD,NAME:WORD"):
        heinly.run(Request(scene.parent, {}, settings={"transformations": "shift"}))


@pytest.mark.parametrize("context", ["none", "visual", "geometric", "both"])
def test_a_model_s_method_is_its_own_description(context: str, small_model: Path, photo: Image) -> None:
    keypoints = detect(photo.gray, Detector(100))
    build_method(f"{small_model}:visual")(photo, keypoints, True)  # leaves what contexts share behind
    got = build_method(f"{small_model}:{context}")(photo, keypoints, True)
    expected = load(small_model, context=context).describe(photo, keypoints).descriptors  # type: ignore[arg-type]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.slow
@pytest.mark.data
def test_rootsift_and_the_packaged_model_on_oxford_affine(data: Path) -> None:
    """One of the five seeds of the committed numbers; the model is at most 3 points below RootSIFT."""
    methods = build_methods("rootsift,contextdesc")
    table = heinly.run(Request(data / "eval" / "oxford-affine", methods, (0,))).numbers["recall"]
    assert table["rootsift"]["mean"] == pytest.approx(46.2, abs=0.3)
    assert table["contextdesc"]["mean"] > table["rootsift"]["mean"] - 3
