"""Panoramas of views that were cut from one photograph by known homographies."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

import contextdesc as cd
from contextdesc.errors import InputError
from contextdesc.image import Image
from contextdesc.samples import sample_pair
from contextdesc.stitching import Link, Panorama, _canvas, _largest_group, _placed, _refined, project, stitch

SIZE = (360, 330)  # of a view
PLACES = [(20, 20, 0.85), (360, 140, 1.1), (200, 60, 1.0), (360, 20, 0.9), (30, 150, 1.0)]  # left, top, gain


def cut(photo: np.ndarray, left: float, top: float, gain: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A view and the homography from its pixels to the photograph's."""
    frame = np.float32([[0, 0], [SIZE[0], 0], SIZE, [0, SIZE[1]]])
    jitter = np.random.default_rng(seed).uniform(-18, 18, (4, 2))
    matrix = cv2.getPerspectiveTransform(frame, np.float32(frame + jitter + (left, top))).astype(np.float64)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    view = cv2.warpPerspective(photo, matrix, SIZE, flags=flags, borderMode=cv2.BORDER_REFLECT)
    return np.uint8(np.clip(view * gain, 0, 255)), matrix


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    return sample_pair()[0].rgb


@pytest.fixture(scope="module")
def model() -> cd.ContextDesc:
    return cd.load("sift-context", context="none", detector=cd.Detector(max_keypoints=600), threads=1)


@pytest.fixture(scope="module")
def stitched(photo: np.ndarray, model: cd.ContextDesc) -> tuple[Panorama, list[np.ndarray], list[np.ndarray]]:
    """Five views in no order, and among them an image of something else and one that is damaged."""
    from skimage.data import coffee

    views, truth = zip(*(cut(photo, *place, seed) for seed, place in enumerate(PLACES)), strict=True)
    return stitch([*views, coffee(), b"no image"], model), list(views), list(truth)


def to_photo(panorama: Panorama, truth: list[np.ndarray]) -> np.ndarray:
    root = next(iter(panorama.homographies))
    return truth[root] @ np.linalg.inv(panorama.homographies[root])


Stitched = tuple[Panorama, list[np.ndarray], list[np.ndarray]]


def test_every_view_lies_where_it_was_cut(stitched: Stitched) -> None:
    panorama, _, truth = stitched
    assert sorted(panorama.homographies) == [0, 1, 2, 3, 4]
    back = to_photo(panorama, truth)
    grid = np.stack(np.meshgrid(np.linspace(20, 340, 5), np.linspace(20, 310, 5)), -1).reshape(-1, 2)
    for number, matrix in panorama.homographies.items():
        error = np.linalg.norm(project(back @ matrix, grid) - project(truth[number], grid), axis=1)
        assert error.mean() < 0.5
        assert error.max() < 2


def test_the_panorama_is_the_photograph(stitched: Stitched, photo: np.ndarray) -> None:
    """Exposure included, though views were up to 15 % darker or 10 % lighter."""
    panorama, _, truth = stitched
    back = to_photo(panorama, truth)
    size = photo.shape[1::-1]
    seen = cv2.warpPerspective(panorama.rgb, back, size).astype(float)
    covered = cv2.warpPerspective(panorama.covered.astype(np.uint8), back, size, flags=cv2.INTER_NEAREST)
    inside = cv2.erode(covered, np.ones((9, 9))) > 0
    assert inside.mean() > 0.75
    assert np.abs(seen - photo)[inside].mean() < 9
    blurred, expected = (cv2.GaussianBlur(p.astype(float), (0, 0), 12) for p in (seen, photo))
    deep = cv2.erode(covered, np.ones((61, 61))) > 0
    ratio = blurred[deep].sum(1) / expected[deep].sum(1)
    assert ratio.min() > 0.93
    assert ratio.max() < 1.07
    assert not (panorama.rgb[panorama.covered].sum(1) == 0).mean() > 0.01  # no holes between views
    assert (panorama.rgb[~panorama.covered] == 0).all()


def test_images_that_do_not_belong_are_named(stitched: Stitched) -> None:
    panorama, *_ = stitched
    assert panorama.left_out.keys() == {5, 6}
    assert panorama.left_out[5] == "connects with no image of the panorama"
    assert "bytes: not an image" in panorama.left_out[6]


def test_the_same_images_give_the_same_panorama(stitched: Stitched, model: cd.ContextDesc) -> None:
    panorama, views, _ = stitched
    again = stitch(views, model)
    assert (again.rgb == panorama.rgb).all()


def test_an_image_with_itself(photo: np.ndarray, model: cd.ContextDesc) -> None:
    crop = photo[100:400, 200:600]
    panorama = stitch([crop, crop], model)
    assert panorama.rgb.shape == crop.shape
    assert np.abs(panorama.rgb.astype(int) - crop).mean() < 1


def test_nothing_connects(photo: np.ndarray, model: cd.ContextDesc) -> None:
    from skimage.data import coffee

    with pytest.raises(InputError, match=r"no two of the 3 images overlap \(at most \d+ inliers"):
        stitch([photo[:, :300], coffee(), np.zeros((50, 40), np.uint8)], model)
    with pytest.raises(InputError, match=r"a panorama needs two images or more; nowhere\.jpg: no such"):
        stitch([photo, Path("nowhere.jpg")], model)


def link(first: int, second: int, shift: float, inliers: int, noise: float = 0.0) -> Link:
    """A link between images that are `shift` pixels apart in x; noise misplaces it."""
    points = np.random.default_rng(first * 10 + second).uniform(0, 100, (inliers, 2))
    matrix = np.array([[1, 0, -shift - noise], [0, 1, 0], [0, 0, 1.0]])
    return Link(first, second, matrix, np.stack([points, points - [shift + noise, 0]], 1))


def test_the_tree_follows_the_most_inliers_from_the_best_connected() -> None:
    links = [link(0, 1, 50, 30), link(1, 2, 50, 90), link(0, 2, 100, 20, noise=9), link(4, 5, 10, 200)]
    group = _largest_group(links)
    assert group == {0, 1, 2}
    root, placed = _placed(links, group)
    assert root == 1
    assert placed[0][0, 2] == pytest.approx(-50)
    assert placed[2][0, 2] == pytest.approx(50)


def test_refinement_spreads_the_error_of_a_loop() -> None:
    """Around a loop whose last link disagrees by 4 pixels, no link keeps all of the error."""
    links = [link(0, 1, 50, 100), link(1, 2, 50, 100), link(2, 3, 50, 90), link(0, 3, 150, 80, noise=4)]
    root, placed = _placed(links, {0, 1, 2, 3})
    refined = _refined(placed, root, links)

    def worst(homographies: dict[int, np.ndarray]) -> float:
        gaps = [
            project(homographies[k.first], k.points[:, 0]) - project(homographies[k.second], k.points[:, 1])
            for k in links
        ]
        return max(np.linalg.norm(gap, axis=1).mean() for gap in gaps)

    assert worst(placed) == pytest.approx(4, abs=0.01)
    assert worst(refined) < 2


def test_homographies_that_explode_are_an_error_and_large_panoramas_are_bounded() -> None:
    image = Image(np.zeros((100, 100, 3), np.uint8), (100, 100), "a.jpg")
    images = {0: image, 1: Image(image.rgb, (100, 100), "b.jpg")}
    beyond = np.array([[1, 0, 50], [0, 1, 0], [-0.02, 0, 1.0]])
    for matrix in (beyond, np.diag([9.0, 9.0, 1.0])):
        with pytest.raises(InputError, match=r"b\.jpg: turned too far from a\.jpg for a flat panorama"):
            _canvas(images, {0: np.eye(3), 1: matrix}, 0)
    far = np.array([[1, 0, 90_000], [0, 1, 90_000], [0, 0, 1.0]])
    (width, height), placed = _canvas(images, {0: np.eye(3), 1: far}, 0)
    assert width * height <= 60_000_000 * 1.001
    np.testing.assert_allclose(
        project(placed[1], np.array([[99.5, 99.5]])), [[width - 0.5, height - 0.5]], atol=1
    )
