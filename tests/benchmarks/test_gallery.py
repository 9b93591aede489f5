"""The gallery of failures: which are found, by hand, and that sheets and page show them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import PIL.Image
import pytest

from contextdesc.benchmarks import gallery, gallery_page
from contextdesc.benchmarks.gallery import FailedPair, Failure, Place, find_failures
from contextdesc.benchmarks.methods import Described, build_methods
from contextdesc.benchmarks.protocol import Request
from contextdesc.errors import InputError
from contextdesc.image import Image
from contextdesc.keypoints import Keypoints
from tests.cli.test_cli import run

SHIFT = np.array([[1, 0, 10], [0, 1, 0], [0, 0, 1]], float)


def test_failures_by_hand() -> None:
    """Image 2 is image 1 moved by 10 pixels to the right.

    Keypoint 0 finds its partner. 1 chooses a keypoint 100 pixels off with similarity 1, while its own partner
    has 0.6. 2 has no partner. 3 chooses nearby, 4 pixels off, and 4 elsewhere, with similarity 0.8.
    """
    first = Keypoints.from_array([[0, 0], [100, 0], [300, 0], [400, 0], [500, 50]])
    second = Keypoints.from_array([[10, 0], [110, 1], [210, 0], [410, 0], [414, 0], [510, 50]])
    axes = np.eye(8, dtype=np.float32)
    partner_of_1 = 0.6 * axes[1] + 0.8 * axes[7]
    similar = 0.8 * axes[1] + 0.6 * axes[5]
    one = Described(first, np.stack([axes[0], axes[1], axes[2], axes[3], similar]))
    two = Described(second, np.stack([axes[0], partner_of_1, axes[1], axes[4], axes[3], axes[6]]))
    counts, failures = find_failures(one, two, SHIFT)
    assert counts == (1, 1, 2)
    assert [(f.query.x, f.chosen.x, f.true.x) for f in failures] == [(100, 210, 110), (500, 210, 510)]
    assert [round(f.similarity, 3) for f in failures] == [1, 0.8]
    assert [round(f.true_similarity, 3) for f in failures] == [0.6, 0]
    assert failures[0].distance == pytest.approx(100)
    assert find_failures(one, two, SHIFT, shown=1)[1] == failures[:1]
    nothing = Described(Keypoints.empty(), axes[:0])
    assert find_failures(one, nothing, SHIFT) == ((0, 0, 0), [])
    assert FailedPair("graf", 2, ("a", "b"), *counts, failures).share == 25


def test_failures_of_one_place_are_shown_once() -> None:
    first = Keypoints.from_array([[0, 0], [5, 0], [300, 0]])
    second = Keypoints.from_array([[10, 0], [15, 0], [310, 0], [900, 0]])
    axes = np.eye(5, dtype=np.float32)
    one, two = Described(first, axes[[3, 3, 3]]), Described(second, axes[:4])
    counts, failures = find_failures(one, two, SHIFT)
    assert counts == (0, 0, 3)
    assert [f.query.x for f in failures] == [0, 300]


def test_a_crop_is_turned_with_its_keypoint() -> None:
    """Red is right of the keypoint; of a keypoint that points down, what is below it comes to the right."""
    rgb = np.zeros((200, 200, 3), np.uint8)
    rgb[:, 110:] = (255, 0, 0)
    rgb[110:] = (0, 255, 0)
    image = Image(rgb, (200, 200))
    place = Place(100, 100, 4.0, 0.0)  # 85 pixels of the image, so the crop enlarges
    side = gallery_page.SIDE
    upright = gallery_page.crop(image, place, (1, 1, 1))
    assert upright.shape == (side, side, 3)
    assert upright[10, -10].tolist() == [255, 0, 0]
    assert upright[-10, side // 2].tolist() == [0, 255, 0]
    turned = gallery_page.crop(image, replace(place, angle=90.0), (1, 1, 1))
    assert turned[side // 2 - 10, -10].tolist() == [0, 255, 0]
    far = gallery_page.crop(image, replace(place, size=20.0), (1, 1, 1))  # shrinks, beyond the border
    assert far[10, 10].tolist() == [0, 0, 0]


def test_sheet_and_page_show_what_was_found(scene: Path, tmp_path: Path) -> None:
    pictures = (str(scene / "img1.png"), str(scene / "img2.png"))
    failure = Failure(Place(50, 50, 5, 30), Place(90, 80, 5, 10), Place(46, 50, 5, 30), 0.93, 0.71, 54.2)
    pairs = {"opencv:ORB<1>": [FailedPair("shift", 2, pictures, 30, 4, 6, [failure] * 4)]}
    written = gallery_page.write(tmp_path / "out", pairs, {"bad": "bad: not readable"}, "contextdesc ...")
    assert [path.name for path in written] == ["opencv-ORB-1.png", "gallery.html"]
    sheet = PIL.Image.open(written[0])
    assert sheet.width > 3 * 3 * gallery_page.SIDE  # three failures across, the fourth below
    assert sheet.height > 2 * gallery_page.SIDE
    orange = np.abs(np.asarray(sheet.convert("RGB"), int) - (213, 94, 0)).max(2) < 10
    assert orange.sum() > 4 * 4 * gallery_page.SIDE
    page = written[1].read_text()
    assert "<h2>opencv:ORB&lt;1&gt;</h2>" in page
    assert "shift, image 1 to 2: 75.0 % right of 40 keypoints with a partner; 6 chose elsewhere" in page
    assert page.count("<small>0.93, 54 px off</small>") == page.count("<small>true: 0.71</small>") == 4
    assert "bad: not readable" in page
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert len(links) == 3 * 4
    assert all(link.startswith("data:image/jpeg;base64,") for link in links)


@pytest.mark.parametrize("layout", ["oxford", "hpatches"])
def test_worst_pairs_come_first_in_both_layouts(layout: str, scene: Path, tmp_path: Path) -> None:
    """The last image is noise, so its pair is the worst."""
    noise = np.random.default_rng(0).integers(0, 256, (75, 75, 3), np.uint8)
    cv2.imwrite(str(scene / "img6.png"), cv2.resize(noise, (300, 300), interpolation=cv2.INTER_CUBIC))
    if layout == "hpatches":
        for path in list(scene.iterdir()):
            path.rename(path.with_name(re.sub(r"H1to(\d)p", r"H_1_\1", path.name).removeprefix("img")))
    pairs, skipped = gallery.run(Request(scene.parent, build_methods("rootsift")))
    assert skipped == {}
    assert pairs["rootsift"][0].index == 6
    assert pairs["rootsift"][0].failures[0].distance > gallery.ELSEWHERE
    assert [pair.share for pair in pairs["rootsift"]] == sorted(pair.share for pair in pairs["rootsift"])
    assert all(pair.failures for pair in pairs["rootsift"])


def test_the_command_and_its_errors(scene: Path, tmp_path: Path) -> None:
    out = run(
        "benchmark", "gallery", "--data", scene.parent, "--methods", "sift", "-o", tmp_path / "out", "-q",
        "--pairs", "1", "--workers", "1",
    )  # fmt: skip
    assert out.returncode == 0, out.stderr
    assert out.stdout.splitlines() == [str(tmp_path / "out" / name) for name in ("sift.png", "gallery.html")]
    assert (tmp_path / "out" / "gallery.html").read_text().count("<h3>") == 1
    with pytest.raises(InputError, match=r"Oxford affine layout .* or the layout of HPatches"):
        gallery.run(Request(tmp_path / "out", {}))
    with pytest.raises(InputError, match="nowhere: no such folder"):
        gallery.run(Request(tmp_path / "nowhere", {}))
