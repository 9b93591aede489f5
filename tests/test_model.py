from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pytest

from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.image import Image
from contextdesc.keypoints import Keypoints
from contextdesc.model import directions, load, regional_image, unit_coordinates

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOOSE = {"atol": 2e-5, "rtol": 0}  # other batches, other rounding


def test_features_are_complete(small_model: Path, photo: Image) -> None:
    features = load(small_model, detector=Detector(300)).extract(photo)
    assert len(features) == 300
    assert features.descriptors.shape == (300, 128)
    assert features.descriptors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(features.descriptors, axis=1), 1, rtol=1e-5)
    assert features.matchability is not None
    assert (np.abs(features.matchability) <= 1).all()
    assert features.image_size == (512, 512)
    assert features.context == "visual+geometric"


def test_same_input_same_bits(small_model: Path, photo: Image) -> None:
    first, second = (load(small_model).extract(photo) for _ in range(2))
    np.testing.assert_array_equal(first.descriptors, second.descriptors)


def test_the_regional_network_runs_beside_detection(
    small_model: Path, photo: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is a core for both; with one thread, after it, to the same end."""
    model, alone = (load(small_model, detector=Detector(100), threads=threads) for threads in (2, 1))
    begun = Event()
    regional = model.regional

    def detect_once_the_other_runs(*arguments: Any) -> Keypoints:
        assert begun.wait(60)
        return detect(*arguments)

    def announced(image: Image) -> NDArray[np.float32]:
        begun.set()
        return regional(image)

    expected = alone.extract(photo).descriptors
    monkeypatch.setattr(model, "regional", announced)
    monkeypatch.setattr("contextdesc.model.detect", detect_once_the_other_runs)
    np.testing.assert_allclose(model.extract(photo).descriptors, expected, **LOOSE)


def test_permuting_keypoints_permutes_descriptors(small_model: Path, photo: Image) -> None:
    model = load(small_model)
    keypoints = detect(photo.gray, Detector(700))
    order = np.random.default_rng(0).permutation(len(keypoints))
    straight = model.describe(photo, keypoints).descriptors
    shuffled = model.describe(photo, keypoints[order]).descriptors
    np.testing.assert_allclose(shuffled, straight[order], **LOOSE)


def test_every_term_changes_the_descriptor_and_leaving_it_out_restores_it(
    small_model: Path, photo: Image
) -> None:
    keypoints = detect(photo.gray, Detector(100))
    by_context = {
        context: load(small_model, context=context).describe(photo, keypoints).descriptors
        for context in ("all", "both", "visual", "geometric", "none")
    }
    np.testing.assert_array_equal(by_context["all"], by_context["both"])
    for context in ("visual", "geometric", "none"):
        assert np.abs(by_context[context] - by_context["both"]).max() > 1e-3
    model = load(small_model, context="none")
    raw, _ = model.raw(photo, keypoints)
    np.testing.assert_allclose(by_context["none"], raw / np.linalg.norm(raw, axis=1, keepdims=True), **LOOSE)


def test_without_the_visual_term_regional_features_do_not_matter(small_model: Path, photo: Image) -> None:
    model = load(small_model, context="geometric")
    keypoints = detect(photo.gray, Detector(100))
    raw, score = model.raw(photo, keypoints)
    without = model.augment(raw, keypoints, photo.size, matchability=score)
    grid = np.random.default_rng(0).normal(size=(320, 4, 4)).astype(np.float32)
    np.testing.assert_array_equal(without, model.augment(raw, keypoints, photo.size, None, grid, score))
    np.testing.assert_allclose(without, model.describe(photo, keypoints).descriptors, **LOOSE)


def test_augment_repeats_describe_from_its_parts(small_model: Path, photo: Image) -> None:
    model = load(small_model)
    keypoints = detect(photo.gray, Detector(100))
    raw, score = model.raw(photo, keypoints)
    whole = model.describe(photo, keypoints).descriptors
    by_image = model.augment(raw, keypoints, photo.size, image=photo, matchability=score)
    by_grid = model.augment(raw, keypoints, photo.size, regional=model.regional(photo), matchability=score)
    np.testing.assert_allclose(by_image, whole, **LOOSE)
    np.testing.assert_array_equal(by_image, by_grid)


@pytest.mark.parametrize("count", [0, 1, pytest.param(20_000, marks=pytest.mark.slow)])
def test_any_number_of_keypoints(small_model: Path, photo: Image, count: int) -> None:
    rng = np.random.default_rng(0)
    place, size, angle = (
        rng.uniform(0, 511, (count, 2)),
        rng.uniform(1, 30, count),
        rng.uniform(0, 360, count),
    )
    features = load(small_model).describe(photo, np.column_stack([place, size, angle]))
    assert features.descriptors.shape == (count, 128)
    assert np.isfinite(features.descriptors).all()
    np.testing.assert_allclose(np.linalg.norm(features.descriptors, axis=1), 1, rtol=1e-5)


def test_an_image_without_keypoints(small_model: Path, tmp_path: Path) -> None:
    features = load(small_model).extract(np.full((80, 60), 7, np.uint8))
    assert features.descriptors.shape == (0, 128)
    assert features.matchability is not None
    assert features.matchability.shape == (0,)


@pytest.mark.parametrize("shape", [(313, 471), (1, 1), (20000, 50), (50, 20000)])
def test_odd_sizes(small_model: Path, shape: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    image = cv2.GaussianBlur(image, (0, 0), 2)
    features = load(small_model, detector=Detector(50, contrast=0.0)).extract(image)
    assert features.image_size == shape[::-1]
    assert len(features) == (0 if shape == (1, 1) else 50)
    if len(features):
        assert (features.keypoints.xy.max(0) <= np.array(shape[::-1])).all()


def test_max_side_gives_keypoints_in_original_pixels(small_model: Path, photo: Image) -> None:
    large = cv2.resize(photo.rgb, (1024, 1024), interpolation=cv2.INTER_CUBIC)
    model = load(small_model, max_side=512, detector=Detector(200))
    features = model.extract(large)
    halved = cv2.resize(large, (512, 512), interpolation=cv2.INTER_AREA)
    direct = detect(cv2.cvtColor(halved, cv2.COLOR_RGB2GRAY), Detector(200))
    np.testing.assert_allclose(features.keypoints.xy, direct.xy * 2 + 0.5, atol=1e-3)
    np.testing.assert_allclose(features.keypoints.size, direct.size * 2, rtol=1e-5)
    again = model.describe(large, features.keypoints)
    np.testing.assert_allclose(again.descriptors, features.descriptors, atol=1e-4)


def test_domain_sizes_sum_raw_descriptors(small_model: Path, photo: Image) -> None:
    keypoints = detect(photo.gray, Detector(50))
    parts = [load(small_model, domain_sizes=(size,)).raw(photo, keypoints)[0] for size in (1.0, 0.5)]
    both = load(small_model, domain_sizes=(1.0, 0.5))
    np.testing.assert_allclose(both.raw(photo, keypoints)[0], parts[0] + parts[1], rtol=1e-5)
    assert both.context != load(small_model).context  # such features do not compare with others
    halved = replace(keypoints, size=keypoints.size / 2)
    np.testing.assert_allclose(load(small_model).raw(photo, halved)[0], parts[1], rtol=1e-4, atol=1e-4)


def test_mask_of_an_image(small_model: Path, photo: Image) -> None:
    mask = np.zeros((512, 512), np.uint8)
    mask[:256] = 255
    features = load(small_model, context="none", max_side=256).extract(photo, mask)
    assert len(features) > 0
    assert (features.keypoints.xy[:, 1] < 258).all()
    with pytest.raises(InputError, match="mask array is 3 x 3 pixels, its image astronaut 512 x 512"):
        load(small_model).extract(photo, np.ones((3, 3), np.uint8))


def test_rootsift_base_describes_and_augments(rootsift_model: Path, photo: Image) -> None:
    model = load(rootsift_model)
    keypoints = detect(photo.gray, Detector(100))
    raw, _ = model.raw(photo, keypoints)
    np.testing.assert_allclose(np.linalg.norm(raw, axis=1), 1, rtol=1e-4)
    whole = model.describe(photo, keypoints).descriptors
    np.testing.assert_allclose(model.augment(raw, keypoints, photo.size), whole, **LOOSE)
    extracted = load(rootsift_model, detector=Detector(100)).extract(photo)
    np.testing.assert_array_equal(extracted.keypoints.xy, keypoints.xy)
    np.testing.assert_array_equal(extracted.descriptors, whole)


def test_given_base_augments_only(given_model: Path, photo: Image) -> None:
    model = load(given_model)
    raw = np.random.default_rng(0).normal(size=(3, 128)).astype(np.float32)
    assert model.augment(raw, [[1, 2], [3, 4], [5, 6]], (10, 10)).shape == (3, 128)
    with pytest.raises(InputError, match="given augments descriptors of your own"):
        model.extract(photo)


def test_keypoints_in_every_form(small_model: Path, photo: Image) -> None:
    model = load(small_model, context="none")
    found = cv2.SIFT_create(20).detect(photo.gray, None)
    keypoints = Keypoints.from_opencv(found)
    array = np.column_stack([keypoints.xy, keypoints.size, keypoints.angle])
    expected = model.describe(photo, keypoints).descriptors
    np.testing.assert_array_equal(model.describe(photo, found).descriptors, expected)
    np.testing.assert_array_equal(model.describe(photo, array).descriptors, expected)
    assert len(model.describe(photo, [])) == 0


def test_coordinates_run_from_border_to_border() -> None:
    corners = Keypoints.from_array([[-0.5, -0.5], [9.5, 4.5], [4.5, 2]])
    np.testing.assert_allclose(unit_coordinates(corners, (10, 5)), [[-1, -1], [1, 1], [0, 0]])


def test_directions_turn_clockwise_on_screen_as_angles_do() -> None:
    keypoints = Keypoints.from_array([[0, 0, 5, angle] for angle in (0, 90, 180, 270)])
    expected = [[1, 0], [0, 1], [-1, 0], [0, -1]]  # y points down
    np.testing.assert_allclose(directions(keypoints), expected, atol=1e-6)
    assert directions(Keypoints.empty()).shape == (0, 2)


@pytest.mark.parametrize(
    ("size", "expected"), [((1, 1), (32, 32)), ((2048, 1000), (512, 256)), ((100, 90), (96, 96))]
)
def test_regional_image_has_sides_of_32(size: tuple[int, int], expected: tuple[int, int]) -> None:
    rgb = np.zeros((size[1], size[0], 3), np.uint8)
    assert regional_image(Image(rgb, size), 512).shape == (1, 3, expected[1], expected[0])


def test_mistakes_are_named(small_model: Path, rootsift_model: Path, photo: Image) -> None:
    with pytest.raises(InputError, match="rootsift has no visual term \\(it has geometric\\)"):
        load(rootsift_model, context="both")
    with pytest.raises(InputError, match="context is 'everything': one of"):
        load(small_model, context="everything")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="domain_sizes need a patch network"):
        load(rootsift_model, domain_sizes=(1, 2))
    with pytest.raises(InputError, match="device is 'tpu'"):
        load(small_model, device="tpu").extract(photo)  # type: ignore[arg-type]
    model, point = load(small_model), [[5, 5]]
    with pytest.raises(InputError, match=r"descriptors of shape \(1, 64\): expected \(1, 128\)"):
        model.augment(np.zeros((1, 64), np.float32), point, (10, 10))
    with pytest.raises(InputError, match="pass matchability="):
        model.augment(np.ones((1, 128), np.float32), point, (10, 10), image=photo)
    with pytest.raises(InputError, match="the visual term needs image= or regional="):
        model.augment(np.ones((1, 128), np.float32), point, (10, 10), matchability=np.ones(1, np.float32))
    grid = np.zeros((5, 2, 2), np.float32)
    with pytest.raises(InputError, match=r"regional grid of shape \(5, 2, 2\): expected \(320, h, w\)"):
        model.augment(np.ones((1, 128), np.float32), point, (10, 10), None, grid, np.ones(1, np.float32))
    with pytest.raises(InputError, match="rootsift has no regional network"):
        load(rootsift_model).regional(photo)
