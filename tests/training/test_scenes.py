"""Scenes: what is stored comes back, pairs follow the rules, labels agree with a scene of known depth.

The scene is rendered: photographs on planes at several depths, seen by known cameras.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from contextdesc.benchmarks.ratio import scene_views
from contextdesc.detection import detect
from contextdesc.errors import InputError
from contextdesc.training.data.scenes import (
    DETECTOR,
    MATCHABLE,
    UNDISCOVERED,
    LabelRules,
    PairRules,
    Scene,
    label_keypoints,
    near_pairs,
    repeated,
)

WIDTH, HEIGHT, FOCAL = 640, 480, 600.0
INTRINSICS = np.array([[FOCAL, 0, WIDTH / 2], [0, FOCAL, HEIGHT / 2], [0, 0, 1]])  # COLMAP's convention


@dataclass(frozen=True)
class View:
    """A rendered photograph with its camera (world to camera) and its true depth (H, W)."""

    rgb: NDArray[np.uint8]
    depth: NDArray[np.float64]
    rotation: NDArray[np.float64]
    translation: NDArray[np.float64]


def render(rotation: NDArray[np.float64], translation: NDArray[np.float64]) -> View:
    from skimage import data

    wall = np.vstack([
        np.hstack([cv2.resize(p, (600, 450)) for p in row])
        for row in ((data.coffee(), data.astronaut()[60:]), (data.chelsea(), data.rocket()))
    ])  # fmt: skip
    coins = cv2.cvtColor(data.coins(), cv2.COLOR_GRAY2RGB)
    page = cv2.cvtColor(data.page(), cv2.COLOR_GRAY2RGB)
    hubble = cv2.resize(data.hubble_deep_field(), (500, 436))
    planes = [  # texture, its top left corner, its sides
        (wall, (-6.5, -4.9, 8), (13, 0, 0), (0, 9.8, 0)),
        (coins, (-2.6, -1.6, 6), (2.2, 0, 0.8), (0, 1.8, 0)),
        (page, (0.4, 0.2, 5.5), (1.9, 0, -0.7), (0, 1.0, 0.3)),
        (hubble, (0.6, -1.7, 6.5), (1.8, 0, 0), (0, 1.5, -0.4)),
    ]
    pixels = INTRINSICS - [[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]]  # OpenCV's convention
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    rays = np.dstack([x, y, np.ones_like(x)]) @ np.linalg.inv(pixels).T
    rgb, depth = np.zeros((HEIGHT, WIDTH, 3), np.uint8), np.full((HEIGHT, WIDTH), np.inf)
    for texture, corner, across, down in planes:
        h, w = texture.shape[:2]
        local = np.column_stack([rotation @ across / w, rotation @ down / h, rotation @ corner + translation])
        warp = (pixels @ local, (WIDTH, HEIGHT))
        smooth = cv2.GaussianBlur(texture, (0, 0), 0.7)
        picture = cv2.warpPerspective(smooth, *warp, flags=cv2.INTER_LINEAR)
        covered = cv2.warpPerspective(np.full((h, w), 255, np.uint8), *warp) > 250
        normal = np.cross(local[:, 0], local[:, 1])
        here = (normal @ local[:, 2]) / (rays @ normal)
        front = covered & (here > 0) & (here < depth)
        rgb[front], depth[front] = picture[front], here[front]
    return View(rgb, depth, rotation, translation)


def views(count: int) -> list[View]:
    """Cameras on an arc that look at the scene, each also turned a little about its axis."""
    found = []
    for turn in np.linspace(-1, 1, count):
        centre = np.array([2.0 * turn, 0.5 * np.cos(3 * turn), 0.4 * turn**2])
        forward = np.array([0, 0, 6.5]) - centre
        forward /= np.linalg.norm(forward)
        right = np.cross([0, 1, 0], forward)
        right /= np.linalg.norm(right)
        roll = cv2.Rodrigues(np.array([0, 0, 0.15 * turn]))[0]
        rotation = roll @ np.stack([right, np.cross(forward, right), forward])
        found.append(render(rotation, -rotation @ centre))
    return found


def write(images: list[View], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, view in enumerate(images):
        cv2.imwrite(str(folder / f"{number:03}.png"), view.rgb[:, :, ::-1])
    return folder


def true_place(scene: Scene, images: list[View], image: int, other: int, xy: NDArray[np.floating]) -> NDArray:
    """Where points (N, 2) of one image truly are in another, NaN where they are hidden."""
    column, row = np.rint(xy).astype(int).T
    points = scene.unproject(image, xy, images[image].depth[row, column])
    place, depth = scene.project(other, points)
    inside = np.isfinite(place).all(1) & (place >= 0).all(1) & (place <= [WIDTH - 1, HEIGHT - 1]).all(1)
    x, y = np.rint(np.where(inside[:, None], place, 0)).astype(int).T
    seen = inside & (np.abs(images[other].depth[y, x] / np.where(depth > 0, depth, np.inf) - 1) < 0.02)
    return np.where(seen[:, None], place, np.nan)


@pytest.fixture(scope="module")
def rendered() -> list[View]:
    return views(4)


@pytest.fixture(scope="module")
def made(rendered: list[View], tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Every second true correspondence of neighbouring views is a track; the others are left to find."""
    folder = tmp_path_factory.mktemp("scene")
    write(rendered, folder / "images")
    size = np.tile(np.array([[WIDTH, HEIGHT]], np.int32), (len(rendered), 1))
    empty = Scene(
        folder / "images", tuple(f"{i:03}.png" for i in range(len(rendered))),
        np.tile(INTRINSICS.astype(np.float32), (len(rendered), 1, 1)),
        np.array([v.rotation for v in rendered], np.float32),
        np.array([v.translation for v in rendered], np.float32), size, np.zeros(0, np.int16),
        np.zeros((0, 2), np.float32), *(np.zeros(0, np.float32),) * 2, np.zeros(0, np.int32),
        np.zeros((0, 3), np.float32),
    )  # fmt: skip
    image, rows, points = [], [], []
    for first in range(len(rendered) - 1):
        a, b = (empty.detect(i) for i in (first, first + 1))
        a = a[(a.size < 12) & (np.arange(len(a)) % 2 == 0)]
        pairs = near_pairs(true_place(empty, rendered, first, first + 1, a.xy), b.xy, 0.7)
        _, once = np.unique(pairs[:, 0], return_index=True)
        pairs = pairs[once]
        _, once = np.unique(pairs[:, 1], return_index=True)
        pairs = pairs[once]
        column, row = np.rint(a.xy[pairs[:, 0]]).astype(int).T
        points.append(empty.unproject(first, a.xy[pairs[:, 0]], rendered[first].depth[row, column]))
        for number, found in ((first, a[pairs[:, 0]]), (first + 1, b[pairs[:, 1]])):
            image.append(np.full(len(pairs), number, np.int16))
            rows.append(found)
    count = [len(p) for p in points]
    track = np.concatenate([np.tile(np.arange(n) + sum(count[:i]), 2) for i, n in enumerate(count)])
    order = np.argsort(np.concatenate(image), kind="stable")
    scene = dataclasses.replace(
        empty, image=np.concatenate(image)[order], track=track[order].astype(np.int32),
        xy=np.concatenate([r.xy for r in rows])[order],
        scale=np.concatenate([r.size for r in rows])[order],
        angle=np.concatenate([r.angle for r in rows])[order],
        points=np.concatenate(points).astype(np.float32),
    )  # fmt: skip
    scene.save(folder)
    return Scene.load(folder)


def test_what_is_saved_is_loaded(made: Scene, tmp_path: Path) -> None:
    made.save(tmp_path / "copy")
    again = Scene.load(tmp_path / "copy")
    assert again.names == made.names
    assert again.path(1).read_bytes() == made.path(1).read_bytes()
    for name in ("intrinsics", "rotation", "translation", "size", "image", "xy", "scale", "track", "points"):
        np.testing.assert_array_equal(getattr(again, name), getattr(made, name), name)
    np.testing.assert_allclose(again.angle, made.angle, atol=0.011)


def test_the_true_points_project_to_their_observations(made: Scene) -> None:
    for image in range(len(made)):
        keypoints, track = made.keypoints(image)
        assert len(keypoints) > 100
        error = np.linalg.norm(made.project(image, made.points[track])[0] - keypoints.xy, axis=1)
        assert error.max() < 0.8
    depth = made.project(2, made.points[made.keypoints(2)[1]])[1]
    back = made.unproject(2, made.keypoints(2)[0].xy, depth)
    np.testing.assert_allclose(made.project(2, back)[0], made.keypoints(2)[0].xy, atol=1e-3)


def test_matches_of_two_views_are_judged_by_their_cameras(made: Scene) -> None:
    pairs = list(scene_views([made.images.parent], per_scene=2))
    assert len(pairs) == 2
    for pair in pairs:
        first, second = (made.names.index(Path(image.name).name) for image in pair.images)
        rows = made.matches(first, second)
        one, two = made.keypoints(first)[0].xy[rows[:, 0]], made.keypoints(second)[0].xy[rows[:, 1]]
        assert pair.errors(one, two).max() < 1
        assert np.median(pair.errors(one, two[::-1])) > 10


def test_shared_tracks_equal_a_plain_count(made: Scene) -> None:
    pairs, count, turn = made.shared_tracks
    assert [tuple(p) for p in pairs] == [(0, 1), (1, 2), (2, 3)]
    for (a, b), shared, mean in zip(pairs, count, turn, strict=True):
        (one, first), (two, second) = made.keypoints(a), made.keypoints(b)
        both = sorted(set(first.tolist()) & set(second.tolist()))
        assert shared == len(both)
        angles = [one.angle[list(first).index(t)] - two.angle[list(second).index(t)] for t in both]
        assert mean == pytest.approx(np.mean([min(d % 360, -d % 360) for d in angles]), abs=1e-3)
        rows = made.matches(a, b)
        assert sorted(first[rows[:, 0]].tolist()) == both
        np.testing.assert_array_equal(first[rows[:, 0]], second[rows[:, 1]])


def test_each_pair_rule_removes_pairs(made: Scene) -> None:
    pairs, count, turn = made.shared_tracks
    lax = PairRules(keypoints=0, min_rotation=0, max_angle=180, min_matched=0, min_shared=1)
    assert len(made.select_pairs(lax)) == 3
    assert len(made.select_pairs(dataclasses.replace(lax, min_shared=int(count.max())))) == 1
    assert len(made.select_pairs(dataclasses.replace(lax, max_angle=float(turn.min())))) == 1
    angles = [
        np.rad2deg(np.linalg.norm(cv2.Rodrigues((made.rotation[a] @ made.rotation[b].T).astype(float))[0]))
        for a, b in pairs
    ]
    assert len(made.select_pairs(dataclasses.replace(lax, min_rotation=max(angles) - 0.01))) == 2
    assert len(made.select_pairs(dataclasses.replace(lax, min_rotation=max(angles) + 0.01))) == 0
    half = dataclasses.replace(lax, keypoints=2 * int(count.max()), min_matched=0.5)
    assert len(made.select_pairs(half)) == 1
    rule = dataclasses.replace(lax, keypoints=1024)
    assert made.select_pairs(rule, np.array([2000, 2000, 1000, 2000])).tolist() == [[0, 1]]


def test_labels_agree_with_the_true_depth(made: Scene, rendered: list[View]) -> None:
    """What is called undiscovered has a keypoint at its true place elsewhere; most such are found."""
    detected = [made.detect(image) for image in range(len(made))]
    true = found = both = 0
    for image in range(len(made)):
        labels = label_keypoints(made, image, detected)
        tracked, ids = made.keypoints(image)
        assert set(labels.track[labels.kind == MATCHABLE]) == set(ids)
        assert ((labels.track >= 0) == (labels.kind == MATCHABLE)).all()
        assert (labels.kind == MATCHABLE).sum() <= len(tracked) < len(labels)
        rest = labels.track < 0
        repeatable = np.zeros(rest.sum(), np.bool_)
        for other in made.covisible(image, 5):
            place = true_place(made, rendered, image, int(other), labels.keypoints.xy[rest])
            repeatable[near_pairs(place, detected[other].xy, 2.0)[:, 0]] = True
        undiscovered = labels.kind[rest] == UNDISCOVERED
        true, found = true + repeatable.sum(), found + undiscovered.sum()
        both += (repeatable & undiscovered).sum()
    assert both / found > 0.9
    assert both / true > 0.7


def test_few_partners_are_found_by_chance(made: Scene) -> None:
    first, second = made.detect(1), made.detect(2)
    rules = LabelRules()
    share = repeated(made, 1, 2, first, second, rules).mean()
    by_chance = [
        repeated(made, 1, 2, first, second, rules, shift).mean() for shift in ((15, 9), (-15, 9), (9, -15))
    ]
    assert share > 10 * np.mean(by_chance)


def test_a_scene_knows_its_detector(made: Scene) -> None:
    assert made.detector() == DETECTOR
    biased = dataclasses.replace(DETECTOR, precise_upscale=False)
    found = detect(cv2.imread(str(made.path(0)), cv2.IMREAD_GRAYSCALE), biased)
    zeros = np.zeros(len(found), np.int32)
    shifted = dataclasses.replace(
        made, image=zeros.astype(np.int16), xy=found.xy, scale=found.size, angle=found.angle, track=zeros
    )
    assert shifted.detector() == biased


@pytest.mark.parametrize("radius", [0.5, 3.0, 200.0])
def test_near_pairs_equal_all_distances(radius: float) -> None:
    rng = np.random.default_rng(0)
    first, second = rng.uniform(-20, 120, (300, 2)), rng.uniform(0, 100, (200, 2))
    first[7] = np.nan
    first[8] = 1e12
    distance = np.linalg.norm(first[:, None] - second[None], axis=2)
    expected = set(map(tuple, np.argwhere(distance <= radius).tolist()))
    pairs = near_pairs(first, second, radius)
    assert len(pairs) == len(expected)
    assert set(map(tuple, pairs.tolist())) == expected
    assert (
        near_pairs(first[:0], second, radius).shape == near_pairs(first, second[:0], radius).shape == (0, 2)
    )


def _damage(**changes: NDArray | None) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        with np.load(folder / "tracks.npz") as file:
            arrays = {name: file[name] for name in file if name not in changes}
        arrays |= {name: value for name, value in changes.items() if value is not None}
        np.savez(folder / "tracks.npz", **arrays)

    return act


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda f: (f / "tracks.npz").unlink(), "no such file; make it with"),
        (lambda f: (f / "tracks.npz").write_bytes((f / "tracks.npz").read_bytes()[:900]), "damaged"),
        (lambda f: (f / "tracks.npz").write_bytes(b"tracks"), "damaged"),
        (lambda f: (f / "images" / "002.png").unlink(), "002.png: no such image"),
        (lambda f: (f / "images").rename(f / "photos"), "images: no such folder"),
        (_damage(track=None), "track is not a file"),
        (_damage(x=np.zeros(3, np.uint16)), r"array x has shape \(3,\)"),
        (_damage(points=np.zeros((2, 3), np.float32)), "track 0 to"),
        (_damage(t=np.full((4, 3), np.nan, np.float32)), "array t holds values that are not finite"),
    ],
)
def test_a_bad_scene_is_refused_in_one_line(
    made: Scene, tmp_path: Path, act: Callable[[Path], None], message: str
) -> None:
    made.save(tmp_path / "bad")
    act(tmp_path / "bad")
    with pytest.raises(InputError, match=message) as caught:
        Scene.load(tmp_path / "bad")
    assert "bad" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_images_that_do_not_fit_are_refused(made: Scene, tmp_path: Path) -> None:
    made.save(tmp_path / "other")
    cv2.imwrite(str(tmp_path / "other" / "images" / "001.png"), np.zeros((90, 80), np.uint8))
    with pytest.raises(InputError, match=r"001.png: is 80 x 90 pixels, its camera 640 x 480"):
        Scene.load(tmp_path / "other").detect(1)
    large = dataclasses.replace(made, size=made.size * 2)
    with pytest.raises(InputError, match="a side of 1280 pixels"):
        large.save(tmp_path / "large")
    assert not (tmp_path / "large").exists()


@pytest.mark.data
@pytest.mark.parametrize(("name", "images", "pairs"), [("kermit", 11, 39), ("lund_chalmers_4", 14, 91)])
def test_published_scenes_are_read(data: Path, name: str, images: int, pairs: int) -> None:
    scene = Scene.load(data / "train" / "scenes" / name)
    assert len(scene) == images
    assert (scene.shared_tracks[1] >= 48).sum() == pairs
    detector = scene.detector()
    assert not detector.precise_upscale
    detected = [scene.detect(image, detector) for image in range(len(scene))]
    labels = [label_keypoints(scene, image, detected) for image in range(3)]
    again = sum((found.kind == MATCHABLE).sum() for found in labels)
    assert sum(len(found) for found in labels) - sum(map(len, detected[:3])) < 0.01 * again
