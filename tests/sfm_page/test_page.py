"""The page's file: what is embedded, that names cannot break it, and that its size is bounded."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from contextdesc.errors import InputError
from contextdesc.sfm_page import write_page
from contextdesc.sfm_page.writer import Limits
from tests.sfm_page.scene import (
    FOCAL,
    HEIGHT,
    HOSTILE,
    LEFT_OUT,
    NAMES,
    WIDTH,
    WITHOUT,
    KnownScene,
    write_scene,
)


class Parsed(HTMLParser):
    """A page as a browser reads it: elements, rows of the table, and the data that it embeds."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.rows: list[list[str]] = []
        self._data = ""
        self._inside = ""
        self.feed(path.read_text(encoding="utf-8"))
        self.data: dict[str, Any] = json.loads(self._data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if ("id", "data") in attrs:
            self._inside = "data"
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self._inside = "cell"
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "td", "th"):
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "data":
            self._data += data
        elif self._inside == "cell":
            self.rows[-1][-1] += data.strip()

    def array(self, name: str, dtype: str, image: int | None = None) -> np.ndarray:
        holder = self.data if image is None else self.data["images"][image]
        return np.frombuffer(base64.b64decode(holder[name]), dtype)


@pytest.fixture(scope="module")
def page(scene: KnownScene, tmp_path_factory: pytest.TempPathFactory) -> Parsed:
    path = tmp_path_factory.mktemp("page") / "page.html"
    write_page(scene.directory, scene.images, path)
    return Parsed(path)


def position(page: Parsed, name: str) -> int:
    return [image["name"] for image in page.data["images"]].index(name)


def test_points_are_embedded_up_to_place_and_scale(page: Parsed, scene: KnownScene) -> None:
    xyz = page.array("xyz", "<f4").reshape(-1, 3)
    assert xyz.shape == scene.xyz.shape
    here, there = xyz - xyz[0], scene.xyz - scene.xyz[0]
    scale = np.linalg.norm(there) / np.linalg.norm(here)
    np.testing.assert_allclose(here * scale, there, atol=1e-5)
    np.testing.assert_array_equal(page.array("rgb", "u1").reshape(-1, 3), scene.rgb)
    np.testing.assert_array_equal(page.array("track", "<u2"), scene.visible.sum(0))


def test_errors_are_those_of_the_observations(page: Parsed, scene: KnownScene) -> None:
    per_image = 0.5 * np.arange(1, len(NAMES) + 1)  # pixels: the scene's keypoints are off by this much
    expected = (scene.visible * per_image[:, None]).sum(0) / scene.visible.sum(0)
    np.testing.assert_allclose(page.array("error", "<f4"), expected, atol=1e-4)
    for name, error in zip(NAMES, per_image, strict=True):
        assert page.data["images"][position(page, name)]["error"] == pytest.approx(error, abs=1e-3)


def test_keypoints_with_a_point_come_first_and_name_it(page: Parsed, scene: KnownScene) -> None:
    row = NAMES.index("003.jpg")
    image = page.data["images"][position(page, "003.jpg")]
    seen = int(scene.visible[row].sum())
    assert (image["total"], image["seen"]) == (seen + WITHOUT, seen)
    points = page.array("points", "<u4", position(page, "003.jpg"))
    np.testing.assert_array_equal(points, np.flatnonzero(scene.visible[row]))

    xyz = page.array("xyz", "<f4").reshape(-1, 3)[points]
    corners = np.array(image["pose"]["corners"])
    ahead, right, down = corners.mean(0), corners[1] - corners[0], corners[3] - corners[0]
    rays = xyz - image["pose"]["centre"]
    across = np.stack([rays @ right, rays @ down], 1) / (rays @ ahead)[:, None]
    expected = across / [right @ right, down @ down] + 0.5  # in parts of width and height
    keypoints = page.array("keypoints", "<u2", position(page, "003.jpg")).reshape(-1, 2) / 0xFFFF
    off = (keypoints[:seen] - expected) * [WIDTH, HEIGHT]
    inside = ((expected > 0.02) & (expected < 0.98)).all(1)
    assert inside.sum() > 100
    np.testing.assert_allclose(np.linalg.norm(off[inside], axis=1), 0.5 * (row + 1), atol=0.02)


def test_poses_are_in_the_frame_of_the_points(page: Parsed, scene: KnownScene) -> None:
    xyz = page.array("xyz", "<f4").reshape(-1, 3)
    for name, centre in zip(NAMES, scene.centres, strict=True):
        pose = page.data["images"][position(page, name)]["pose"]
        away = np.linalg.norm(xyz - pose["centre"], axis=1)
        expected = np.linalg.norm(scene.xyz - centre, axis=1)
        np.testing.assert_allclose(away / away[0], expected / expected[0], rtol=1e-4)
        assert pose["focal"] == FOCAL


def test_the_table_needs_no_script(page: Parsed, scene: KnownScene) -> None:
    rows = {row[0]: row[1:] for row in page.rows}
    seen = scene.visible[3].sum()
    track = scene.visible.sum(0)[scene.visible[3]].mean()
    assert rows[NAMES[3]] == ["yes", str(seen + WITHOUT), str(seen), "2.00", f"{track:.2f}"]
    assert rows[LEFT_OUT] == ["no", "3", "0", "none", "none"]


def test_an_image_that_was_not_registered_has_its_keypoints(page: Parsed) -> None:
    index = position(page, LEFT_OUT)
    assert "pose" not in page.data["images"][index]
    keypoints = page.array("keypoints", "<u2", index).reshape(-1, 2) / 0xFFFF
    np.testing.assert_allclose(keypoints, [[0, 0], [0.5, 0.5], [1, 1]], atol=1e-4)


def test_names_cannot_break_the_page(page: Parsed) -> None:
    assert "b" not in page.tags
    assert page.tags.count("script") == 2
    assert {row[0] for row in page.rows[1:]} == {*NAMES, LEFT_OUT}
    assert {image["name"] for image in page.data["images"]} == {*NAMES, LEFT_OUT}
    assert page.data["images"][position(page, HOSTILE)]["picture"]


def test_the_page_loads_nothing(page: Parsed) -> None:
    named = [value for name, value in page.attributes if name in ("src", "href", "action", "style")]
    assert named == []
    policy = next(value for name, value in page.attributes if name == "content" and value)
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in policy


def test_pictures_are_the_photographs(page: Parsed, scene: KnownScene) -> None:
    picture = cv2.imdecode(page.array("picture", "u1", position(page, "004.jpg")), cv2.IMREAD_COLOR)
    original = cv2.imread(str(scene.images / "004.jpg"))
    assert picture.shape == original.shape
    assert np.abs(picture.astype(int) - original).mean() < 4


def test_large_reconstructions_are_thinned_and_say_so(scene: KnownScene, tmp_path: Path) -> None:
    limits = Limits(points=100, keypoints=500, thumbnails=20_000)
    write_page(scene.directory, scene.images, tmp_path / "page.html", limits)
    page = Parsed(tmp_path / "page.html")
    assert page.data["points"] == 400
    assert len(page.array("xyz", "<f4")) == 300
    assert len(page.array("error", "<f4")) == len(page.array("track", "<u2")) == 100
    images = page.data["images"]
    drawn = [len(page.array("keypoints", "<u2", i)) // 2 for i in range(len(images))]
    assert 500 <= sum(drawn) <= 500 + 2 * len(images)  # each part is rounded up
    points = np.concatenate([page.array("points", "<u4", i) for i in range(len(images))])
    assert set(points[points != 0xFFFFFFFF]) <= set(range(100))
    pictures = [base64.b64decode(image["picture"]) for image in images if image["picture"]]
    assert len(pictures) == len(images)
    assert sum(map(len, pictures)) <= 20_000


def test_it_is_said_why_images_were_left_out(tmp_path: Path) -> None:
    known = write_scene(tmp_path / "scene", points=30)
    (known.images / "copy.jpg").write_bytes((known.images / "001.jpg").read_bytes())
    (known.images / "damaged.jpg").write_bytes(b"no photograph")
    summary = {"failed": {"damaged.jpg": "not an image"}, "copies": {"copy.jpg": "001.jpg"}}
    (known.directory / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    write_page(known.directory, known.images, tmp_path / "page.html")
    reasons = {
        i["name"]: i["reason"] for i in Parsed(tmp_path / "page.html").data["images"] if "pose" not in i
    }
    assert reasons == {"damaged.jpg": "not an image", "copy.jpg": "a copy of 001.jpg", LEFT_OUT: ""}
    (known.directory / "summary.json").write_text("[]", encoding="utf-8")
    with pytest.raises(InputError, match=r"summary\.json: not a summary"):
        write_page(known.directory, known.images, tmp_path / "page.html")


def test_photographs_without_room_or_damaged_are_left_out(tmp_path: Path) -> None:
    known = write_scene(tmp_path / "scene", points=30)
    (known.images / "002.jpg").write_bytes(b"no photograph")
    (known.images / "003.jpg").unlink()
    write_page(known.directory, known.images, tmp_path / "page.html")
    page = Parsed(tmp_path / "page.html")
    without = {image["name"] for image in page.data["images"] if image["picture"] is None}
    assert without == {"002.jpg", "003.jpg"}
    write_page(known.directory, known.images, tmp_path / "page.html", Limits(thumbnails=900))
    assert all(image["picture"] is None for image in Parsed(tmp_path / "page.html").data["images"])


def test_a_reconstruction_without_features_or_points(tmp_path: Path) -> None:
    known = write_scene(tmp_path / "scene", points=0)
    (known.directory / "features.h5").unlink()
    write_page(known.directory, known.images, tmp_path / "page.html")
    page = Parsed(tmp_path / "page.html")
    assert page.data["points"] == 0
    assert np.isfinite([image["pose"]["centre"] for image in page.data["images"] if "pose" in image]).all()
    assert {row[0]: row[1:] for row in page.rows}[LEFT_OUT] == ["no", "0", "0", "none", "none"]


def test_no_reconstruction_is_a_clear_error(scene: KnownScene, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(f"{tmp_path / 'sparse'}: no reconstruction here")):
        write_page(tmp_path, scene.images, tmp_path / "page.html")
    (tmp_path / "sparse").mkdir()
    (tmp_path / "sparse" / "cameras.bin").write_bytes(b"1234")
    with pytest.raises(InputError, match="not a COLMAP model"):
        write_page(tmp_path, scene.images, tmp_path / "page.html")
    with pytest.raises(InputError, match="no such file or folder"):
        write_page(scene.directory, tmp_path / "nowhere", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
