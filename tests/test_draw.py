from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import cv2
import numpy as np
import PIL.Image
import pytest

import contextdesc as cd
from contextdesc.draw import (
    INLIER,
    OUTLIER,
    Picture,
    compare,
    draw_comparison,
    draw_epipolar,
    draw_keypoints,
    draw_matchability,
    draw_matches,
    draw_overlay,
    draw_warp,
    matchability_map,
)
from contextdesc.draw.picture import Circles, Lines, Text, beside, stacked
from contextdesc.errors import ContextDescError, InputError
from contextdesc.geometry import Verification
from contextdesc.image import Image
from contextdesc.keypoints import Keypoints
from contextdesc.modelfile import ModelSpec, write_spec
from contextdesc.samples import disparity_precision, sample_pair

GRAY = np.full((100, 100), 90, np.uint8)
SVG = "{http://www.w3.org/2000/svg}"


def count(picture: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((picture == colour).all(2).sum())


def result(inliers: int, outliers: int, size: float = 100) -> Verification:
    rng = np.random.default_rng(0)
    points = rng.uniform(0, size, (inliers + outliers, 2, 2)).astype(np.float32)
    return Verification("fundamental", None, points, np.arange(inliers + outliers) < inliers)


@pytest.fixture(scope="module")
def model() -> cd.ContextDesc:
    return cd.load("sift-context", detector=cd.Detector(max_keypoints=200), threads=1)


def homography(matrix: np.ndarray | None) -> Verification:
    return Verification("homography", matrix, np.zeros((0, 2, 2), np.float32), np.zeros(0, np.bool_))


class TestMatches:
    def test_inliers_and_outliers_have_their_colours(self) -> None:
        picture = np.asarray(draw_matches(GRAY, GRAY, result(5, 5)))
        assert picture.shape[0] == 100
        assert count(picture, INLIER) > 20
        assert count(picture, OUTLIER) > 10
        assert count(np.asarray(draw_matches(GRAY, GRAY, result(5, 5), outliers=False)), OUTLIER) == 0
        assert count(np.asarray(draw_matches(GRAY, GRAY, result(0, 0))), INLIER) == 0

    @pytest.mark.parametrize(
        "shapes",
        [((200, 300), (50, 20)), ((1, 1), (10, 10)), ((3000, 20), (100, 5000)), ((200, 200), (20000, 50))],
    )
    def test_images_of_any_sizes_stand_side_by_side(
        self, shapes: tuple[tuple[int, int], tuple[int, int]]
    ) -> None:
        images = [np.full(shape, 90, np.uint8) for shape in shapes]
        width, height = draw_matches(*images, result(3, 3)).size
        assert height <= min(1200, max(shape[0] for shape in shapes))
        assert width <= 2 * 2400 + 12

    def test_lines_end_where_the_points_are(self) -> None:
        gray = np.full((400, 400), 90, np.uint8)
        points = np.float32([[[50, 100], [300, 250]]])
        found = Verification("homography", None, points, np.array([True]))
        picture = np.asarray(draw_matches(gray, gray, found))
        gap = picture.shape[1] - 800
        assert tuple(picture[100, 50]) == INLIER
        assert tuple(picture[250, 400 + gap + 300]) == INLIER

    def test_lines_are_wider_in_larger_pictures(self) -> None:
        def widest(side: int) -> float:
            gray = np.full((side, side), 90, np.uint8)
            return max(s.width for s in draw_matches(gray, gray, result(3, 3)).shapes if isinstance(s, Lines))

        assert widest(200) == 1
        assert widest(1000) == 2
        assert widest(1200) == pytest.approx(2.4)

    def test_at_most_so_many_lines_of_each_kind(self) -> None:
        shapes = draw_matches(GRAY, GRAY, result(400, 300), max_lines=40).shapes
        assert [len(s.ends) for s in shapes if isinstance(s, Lines)] == [40, 40]


def test_overlay_shows_displacements_on_the_first_image() -> None:
    first, second = np.full((400, 400), 90, np.uint8), np.full((200, 200), 90, np.uint8)
    points = np.float32([[[49.5, 99.5], [149.5, 99.5]]])  # the second image is half as large
    found = Verification("homography", None, points, np.array([True]))
    picture = draw_overlay(first, second, found)
    assert picture.size == (400, 400)
    (line,) = [s for s in picture.shapes if isinstance(s, Lines) and len(s.ends)]
    np.testing.assert_allclose(line.ends, [[[49.5, 99.5], [299.5, 199.5]]])
    pixels = np.asarray(picture)
    assert count(pixels[95:106, 45:55], INLIER) > 3
    assert (pixels[200, 300] != pixels[0, 0]).any()


class TestKeypoints:
    def test_circle_of_the_size_and_line_along_the_angle(self) -> None:
        gray = np.full((480, 640), 90, np.uint8)
        picture = draw_keypoints(gray, [[200, 100, 30, 90]])  # 90 degrees: down
        line = next(s for s in picture.shapes if isinstance(s, Lines))
        np.testing.assert_allclose(line.ends, [[[200, 100], [200, 130]]], atol=1e-4)
        pixels = np.asarray(picture).astype(int)
        yellow = (pixels[:, :, 0] > 180) & (pixels[:, :, 2] < 120)
        rows, columns = np.nonzero(yellow)
        assert (rows.min(), rows.max(), columns.min(), columns.max()) == (70, 130, 170, 230)
        assert yellow[115, 200]
        assert not yellow[85, 200]

    def test_the_strongest_are_drawn_and_none_is_fine(self) -> None:
        keypoints = Keypoints(
            np.float32([[10, 10], [60, 60]]), np.float32([5, 5]), np.float32([0, 0]), np.float32([1, 2])
        )
        circles = next(
            s for s in draw_keypoints(GRAY, keypoints, max_keypoints=1).shapes if isinstance(s, Circles)
        )
        assert circles.centres.tolist() == [[60.5 * 4.8 - 0.5] * 2]  # enlarged to 480 pixels
        nothing = np.asarray(draw_keypoints(GRAY, Keypoints.empty()))
        assert (nothing == 90).all()


class TestMatchability:
    def test_map_is_where_patches_are(self, model: cd.ContextDesc, photo: Image) -> None:
        wide = photo.rgb[:256]
        scores = matchability_map(model, wide)
        assert scores.shape == (28, 56)
        x, y = (7 + 0.5) * 512 / 56 - 0.5, (3 + 0.5) * 256 / 28 - 0.5
        _, score = model.raw(wide, [[x, y, 512 / 8 / model.spec.support, 0]])
        assert scores[3, 7] == pytest.approx(score[0], abs=1e-4)

    def test_picture_has_a_colour_bar_with_numbers(self, model: cd.ContextDesc, photo: Image) -> None:
        scores = matchability_map(model, photo)
        picture = draw_matchability(model, photo)
        assert picture.size[1] == 512
        low, high = np.percentile(scores, (2, 98))
        assert [s.text for s in picture.shapes if isinstance(s, Text)] == [f"{high:.1f}", f"{low:.1f}"]
        pixels = np.asarray(picture)
        best, worst = (np.unravel_index(f(scores), scores.shape) for f in (np.argmax, np.argmin))
        cell = 512 / 56
        colours = [
            pixels[round((r + 0.5) * cell), round((c + 0.5) * cell)].astype(int) for r, c in (best, worst)
        ]
        assert colours[0][0] > colours[0][2] + 50  # yellow
        assert colours[1][2] > colours[1][1] + 20  # blue

    def test_of_a_tiny_image(self, model: cd.ContextDesc) -> None:
        assert draw_matchability(model, np.zeros((2, 1), np.uint8)).size[1] == 480

    def test_a_model_without_it_is_an_error(self, tmp_path: Path, photo: Image) -> None:
        write_spec(tmp_path, ModelSpec(name="plain", base="rootsift", files={}))
        with pytest.raises(InputError, match="plain has no matchability to draw"):
            draw_matchability(cd.load(tmp_path), photo)


@pytest.fixture(scope="module")
def results(model: cd.ContextDesc, photo: Image) -> tuple[list, dict]:
    images = [photo.rgb[:400, :400], photo.rgb[60:460, 60:460]]
    features = [model.extract(image) for image in images]
    return images, compare(model, images, features, "homography")


class TestComparison:
    def test_three_descriptors_of_the_same_keypoints(
        self, results: tuple[list, dict], model: cd.ContextDesc
    ) -> None:
        images, found = results
        names = ["SIFT, ratio 0.8", "sift-context, raw", "sift-context, context visual+geometric"]
        assert list(found) == names
        sift = found["SIFT, ratio 0.8"]
        assert sift.inlier_count > 50
        np.testing.assert_allclose(sift.matrix, [[1, 0, -60], [0, 1, -60], [0, 0, 1]], atol=0.5)
        plain = cd.load("sift-context", context="none", detector=model.detector, threads=1)
        first, second = (plain.extract(image) for image in images)
        alone = cd.verify(first, second, cd.match(first, second), "homography")
        assert (alone.points == found[names[1]].points).all()

    def test_sheet_has_a_row_and_its_counts_for_each(self, results: tuple[list, dict]) -> None:
        images, found = results
        sheet = draw_comparison(*images, found)
        texts = [s.text for s in sheet.shapes if isinstance(s, Text)]
        assert len(texts) == 3
        for (name, row), text in zip(found.items(), texts, strict=True):
            assert text.startswith(f"{name}: {len(row.inliers)} matches, {row.inlier_count} inliers (")
        assert sheet.size[1] > 3 * 400
        drawn = [len(s.ends) for s in sheet.shapes if isinstance(s, Lines)]
        assert drawn == [min(500, row.inlier_count) for row in found.values()]

    def test_images_without_keypoints(self, model: cd.ContextDesc) -> None:
        features = [model.extract(GRAY)] * 2
        found = compare(model, [GRAY, GRAY], features)
        assert [len(row.inliers) for row in found.values()] == [0, 0, 0]

    def test_captions_of_tiny_images_fit(self) -> None:
        tiny = np.full((5, 3), 90, np.uint8)
        assert draw_comparison(tiny, tiny, {"SIFT": result(0, 0)}).size[0] > 200


class TestWarp:
    def test_the_true_homography_gives_the_photograph_back(self, photo: Image) -> None:
        matrix = np.array([[1.05, 0.08, -30], [-0.06, 0.98, 20], [1e-4, -5e-5, 1]])
        second = cv2.warpPerspective(photo.rgb, matrix, (450, 400))
        pixels = np.asarray(draw_warp(photo, second, homography(matrix)))
        outline = (np.abs(pixels.astype(int) - INLIER).sum(2) < 150).astype(np.uint8)
        away = cv2.dilate(outline, np.ones((9, 9))) == 0
        error = np.abs(pixels[away].astype(float) - photo.rgb[away])
        assert error.mean() < 3
        wrong = np.asarray(draw_warp(photo, second, homography(np.eye(3))))
        assert np.abs(wrong[away].astype(float) - photo.rgb[away]).mean() > 10

    def test_needs_a_homography(self, photo: Image) -> None:
        with pytest.raises(InputError, match="a warp needs geometry 'homography'"):
            draw_warp(photo, photo, result(3, 3))
        with pytest.raises(ContextDescError, match="no homography was found in 0 matches"):
            draw_warp(photo, photo, homography(None))


class TestEpipolar:
    def test_lines_pass_through_the_partner_in_its_colour(self) -> None:
        """Cameras side by side: the epipolar line of a point is its row."""
        fundamental = np.array([[0, 0, 0], [0, 0, -1], [0, 1, 0]], np.float64)
        points = np.float32([[[20, 100], [60, 100]], [[300, 400], [350, 400]], [[90, 300], [95, 300]]])
        found = Verification("fundamental", fundamental, points, np.array([True, True, False]))
        gray = np.full((500, 500), 90, np.uint8)
        picture = draw_epipolar(gray, gray, found)
        left, right = (s for s in picture.shapes if isinstance(s, Lines))
        for lines, start in ((left, 0), (right, 505)):
            assert lines.ends[:, :, 1].tolist() == [[100, 100], [400, 400]]
            assert sorted(lines.ends[0, :, 0]) == [start, start + 499]
        pixels = np.asarray(picture)
        for row, (x1, x2) in ((100, (20, 60)), (400, (300, 350))):
            point, partner, line = pixels[row, x1], pixels[row, 505 + x2], pixels[row, 505 + 200]
            assert (point == partner).all()
            np.testing.assert_allclose(line, point.astype(int), atol=16)
        assert (pixels[300] == 90).all(1).sum() == 1000  # outliers are not drawn

    def test_slanted_lines_end_at_the_border(self, photo: Image) -> None:
        rng = np.random.default_rng(0)
        to_second = np.array([[1.1, 0.1, -20], [-0.1, 0.9, 30], [0, 0, 1]])
        matrix = np.cross(np.eye(3), [200, 300, 1]).T @ to_second  # every line passes through (200, 300)
        points = rng.uniform(0, 511, (30, 2, 2)).astype(np.float32)
        found = Verification("fundamental", matrix, points, np.ones(30, np.bool_))
        for lines in (s for s in draw_epipolar(photo, photo, found).shapes if isinstance(s, Lines)):
            assert 0 < len(lines.ends) <= 16
            local = lines.ends - [517 if lines.ends[..., 0].min() > 512 else 0, 0]
            at_border = np.isclose(local, 0, atol=1e-6) | np.isclose(local, 511, atol=1e-6)
            assert at_border.any(2).all()

    def test_needs_a_fundamental_matrix(self, photo: Image) -> None:
        with pytest.raises(InputError, match="epipolar lines need geometry 'fundamental'"):
            draw_epipolar(photo, photo, homography(np.eye(3)))
        with pytest.raises(ContextDescError, match="no geometry was found in 6 matches"):
            draw_epipolar(photo, photo, result(3, 3))


class TestPicture:
    picture = Picture(
        np.full((60, 80, 3), 90, np.uint8),
        (
            Lines(np.array([[[10.0, 10.0], [70.0, 10.0]]]), INLIER, 3, 0.5),
            Circles(np.array([[20.0, 40.0]]), 8.0, OUTLIER),
            Circles(np.array([[60.0, 40.0]]), 8.0, [(1, 2, 3)], 2),
            Text("a < b & é", np.array([5.0, 55.0]), 12, (0, 0, 0)),
        ),
    )

    def test_pixels(self) -> None:
        pixels = np.asarray(self.picture)
        assert pixels.shape == (60, 80, 3)
        np.testing.assert_allclose(pixels[10, 40], (np.array(INLIER) + 90) / 2, atol=1)
        assert tuple(pixels[40, 20]) == OUTLIER
        assert tuple(pixels[40, 60]) == (90, 90, 90)
        assert tuple(pixels[40, 68]) == (1, 2, 3)
        assert (pixels[45:56, 5:40] < 60).any()

    def test_small_dots_are_round(self) -> None:
        dot = Picture(np.zeros((21, 21, 3), np.uint8), (Circles(np.array([[10.0, 10.0]]), 4.0, (255,) * 3),))
        lit = np.asarray(dot)[:, :, 0] > 127
        y, x = np.indices(lit.shape)
        distance = np.hypot(x - 10, y - 10)
        assert lit[distance <= 4].all()
        assert not lit[distance > 5].any()

    def test_svg_holds_the_same_shapes_as_vectors(self) -> None:
        root = ElementTree.fromstring(self.picture.svg)
        assert (root.get("width"), root.get("height")) == ("80", "60")
        line = root.find(f".//{SVG}line")
        assert [line.get(k) for k in ("x1", "y1", "x2", "y2")] == ["10.00", "10.00", "70.00", "10.00"]
        assert line.get("stroke") == "#56b4e9"
        filled, ring = root.findall(f".//{SVG}circle")
        assert (filled.get("fill"), filled.get("r")) == ("#d55e00", "8.00")
        assert (ring.get("fill"), ring.get("stroke")) == (None, "#010203")
        assert root.find(f".//{SVG}text").text == "a < b & é"
        (encoded,) = re.findall('data:image/jpeg;base64,([^"]+)', self.picture.svg)
        canvas = np.asarray(PIL.Image.open(io.BytesIO(base64.b64decode(encoded))))
        np.testing.assert_allclose(canvas, self.picture.canvas, atol=3)
        assert self.picture.svg._repr_svg_().startswith("<svg ")

    @pytest.mark.parametrize(("name", "kind"), [("p.png", "PNG"), ("p.jpg", "JPEG"), ("p.JPEG", "JPEG")])
    def test_saving_by_suffix(self, name: str, kind: str, tmp_path: Path) -> None:
        self.picture.save(tmp_path / name)
        opened = PIL.Image.open(tmp_path / name)
        assert (opened.format, opened.size) == (kind, (80, 60))
        self.picture.save(str(tmp_path / "p.svg"))
        assert (tmp_path / "p.svg").read_text().startswith("<svg ")

    def test_saving_to_a_file_and_options(self) -> None:
        small, large = io.BytesIO(), io.BytesIO()
        self.picture.save(small, "JPEG", quality=10)
        self.picture.save(large, "JPEG", quality=95)
        assert len(small.getvalue()) < len(large.getvalue())
        assert self.picture._repr_png_().startswith(b"\x89PNG")

    def test_other_formats_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"p\.gif: pictures are written as \.png, \.jpg or \.svg"):
            self.picture.save(tmp_path / "p.gif")

    def test_arranging_moves_shapes_with_their_canvas(self) -> None:
        both = beside([self.picture, self.picture])
        assert both.size == (80 + 2 + 80, 60)
        pixels = np.asarray(both)
        assert tuple(pixels[40, 82 + 20]) == OUTLIER
        assert tuple(pixels[5, 81]) == (255, 255, 255)
        assert tuple(np.asarray(stacked([both, self.picture]))[60 + 40, 20]) == OUTLIER


@pytest.mark.parametrize(
    "draw",
    [
        lambda image: draw_overlay(image, image, result(3, 3, 200)),
        lambda image: draw_keypoints(image, [[9000, 150, 100, 45]]),
        lambda image: draw_warp(image, image, homography(np.eye(3))),
        lambda image: draw_comparison(image, image, {"SIFT": result(3, 3, 200)}),
    ],
    ids=["overlay", "keypoints", "warp", "comparison"],
)
def test_pictures_of_huge_images_are_bounded(draw: Callable[[np.ndarray], Picture]) -> None:
    width, height = draw(np.full((200, 20_000), 90, np.uint8)).size
    assert 2400 <= width <= 2 * 2400 + 12
    assert 20 < height <= 1200


def test_results_show_themselves_in_notebooks(model: cd.ContextDesc, photo: Image) -> None:
    features = model.extract(photo)
    matches = cd.match(features, features)
    found = cd.verify(features, features, matches, "homography")
    assert '<td style="text-align: left">200 x 128</td>' in features._repr_html_()
    assert f">{len(matches)}</td>" in matches._repr_html_()
    assert f">{found.inlier_count} (" in found._repr_html_()
    nothing = model.describe(photo, np.zeros((0, 2)))
    assert ">0 x 128<" in nothing._repr_html_()
    assert ">0</td>" in cd.match(nothing, nothing)._repr_html_()


def test_disparity_tells_right_from_wrong() -> None:
    _, _, disparity = sample_pair()
    rows, columns = np.nonzero(np.isfinite(disparity[100:400, 300:600]))
    left = np.column_stack([columns[::500] + 300, rows[::500] + 100]).astype(np.float32)
    shift = disparity[left[:, 1].astype(int), left[:, 0].astype(int)]
    right = left - np.column_stack([shift, np.zeros_like(shift)])
    assert disparity_precision(np.stack([left, right], 1), disparity) == 1
    assert disparity_precision(np.stack([left, right + 5], 1), disparity) == 0
