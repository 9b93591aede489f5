from __future__ import annotations

import cv2
import numpy as np
import pytest
import skimage.data

from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.image import Image, read
from contextdesc.keypoints import Keypoints


def rows(keypoints: Keypoints) -> set[tuple[float, ...]]:
    table = np.column_stack([keypoints.xy, keypoints.size, keypoints.angle])
    return {tuple(row) for row in table.round(1).tolist()}


def assert_same(first: Keypoints, second: Keypoints) -> None:
    for name in ("xy", "size", "angle", "response"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), name)


def test_budget_keeps_the_strongest(photo: Image) -> None:
    everything = detect(photo.gray, Detector(max_keypoints=None))
    strongest = detect(photo.gray, Detector(max_keypoints=100))
    assert len(everything) > 500
    assert strongest.response.min() >= np.sort(everything.response)[-100]
    assert (np.diff(strongest.response) <= 0).all()


@pytest.mark.parametrize("name", ["astronaut", "chelsea", "grass"])
@pytest.mark.parametrize("contrast", [0.04, 0.0067])
def test_a_budget_is_the_beginning_of_a_larger_one(name: str, contrast: float) -> None:
    """Also where it cuts between keypoints of one strength, such as orientations of one blob."""
    gray = read(getattr(skimage.data, name)()).gray
    every = detect(gray, Detector(None, contrast=contrast))
    tied = np.flatnonzero(np.diff(every.response) == 0)[:3] + 1
    assert len(tied) == 3
    for budget in (0, 1, *tied, 100, len(every) - 1, len(every), len(every) + 1):
        found = detect(gray, Detector(int(budget), contrast=contrast))
        assert_same(found, every[:budget])


def test_a_budget_is_the_beginning_of_a_larger_one_with_a_mask_and_upright(photo: Image) -> None:
    mask = np.zeros_like(photo.gray)
    mask[:, 200:] = 255
    for upright, allowed in ((False, mask), (True, None), (True, mask)):
        every = detect(photo.gray, Detector(None, upright=upright), allowed)
        for budget in (1, 77, 300):
            assert len(every) > budget
            assert_same(detect(photo.gray, Detector(budget, upright=upright), allowed), every[:budget])


def test_random_budget_follows_its_seed(photo: Image) -> None:
    draws = [detect(photo.gray, Detector(100, "random", seed)) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(draws[0].xy, draws[1].xy)
    assert rows(draws[0]) != rows(draws[2])
    assert rows(draws[0]) <= rows(detect(photo.gray, Detector(None)))


def test_upright_has_no_angles_and_no_duplicates(photo: Image) -> None:
    turned, upright = detect(photo.gray, Detector(None)), detect(photo.gray, Detector(None, upright=True))
    assert (upright.angle == 0).all()
    assert len(upright) == len(np.unique(np.column_stack([turned.xy, turned.size]), axis=0)) < len(turned)


def test_mask_keeps_keypoints_out(photo: Image) -> None:
    mask = np.zeros_like(photo.gray)
    mask[:, :200] = 255
    found = detect(photo.gray, Detector(None), mask)
    assert 0 < len(found) < len(detect(photo.gray, Detector(None)))
    assert (found.xy[:, 0] < 200).all()
    with pytest.raises(InputError, match="mask is 5 x 4 pixels, its image 512 x 512"):
        detect(photo.gray, Detector(), np.ones((4, 5)))


def test_precise_upscale_removes_a_quarter_pixel(photo: Image) -> None:
    """A mirrored image has mirrored keypoints, unless detection is biased to one side."""

    def shift(precise: bool) -> float:
        detector = Detector(None, precise_upscale=precise)
        found = detect(photo.gray, detector)
        mirrored = detect(np.ascontiguousarray(photo.gray[:, ::-1]), detector)
        x = photo.gray.shape[1] - 1 - mirrored.xy
        apart = np.abs(found.xy[:, None, 0] - x[None, :, 0]) + np.abs(
            found.xy[:, None, 1] - mirrored.xy[None, :, 1]
        )
        nearest = apart.argmin(1)
        close = apart.min(1) < 1
        return float(np.median((found.xy[:, 0] - x[nearest, 0])[close]))

    assert abs(shift(True)) < 0.1 < abs(shift(False))


def test_flat_and_tiny_images_have_no_keypoints() -> None:
    assert len(detect(np.full((100, 100), 128, np.uint8))) == 0
    assert len(detect(np.zeros((1, 1), np.uint8))) == 0


@pytest.mark.slow
def test_tiles_find_what_one_pass_finds_on_12_megapixels() -> None:
    from skimage import data

    pictures = [
        cv2.cvtColor(p, cv2.COLOR_RGB2GRAY) for p in (data.astronaut(), data.coffee(), data.chelsea())
    ]
    grown = [cv2.resize(p, (1000, 1000), interpolation=cv2.INTER_CUBIC) for p in (*pictures, data.camera())]
    image = np.vstack([np.hstack([grown[(r + c) % 4] for c in range(4)]) for r in range(3)])
    assert image.shape == (3000, 4000)
    whole = rows(detect(image, Detector(None, contrast=0.02)))
    tiled = rows(detect(image, Detector(None, contrast=0.02, tile_above=1_000_000)))
    assert len(whole) > 10_000
    assert len(whole & tiled) >= 0.995 * len(whole)
    assert len(tiled - whole) <= 0.005 * len(whole)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"max_keypoints": -1}, "max_keypoints is -1"), ({"select": "best"}, "one of response, random")],
)
def test_bad_settings(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Detector(**options)  # type: ignore[arg-type]
