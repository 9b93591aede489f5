"""The first view: upright, from the cameras' side, everything in sight."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from contextdesc.sfm_page.content import Content, Photograph, Pose, read_content
from contextdesc.sfm_page.view import View, first_view
from tests.sfm_page.scene import KnownScene, write_scene


def content_of(
    xyz: NDArray[np.float64],
    cameras: list[tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]],
) -> Content:
    """A reconstruction of points and of cameras given as (centre, direction, up)."""
    photographs = []
    for centre, direction, up in cameras:
        right = np.cross(direction, up)
        corners = [direction + up / 2 - right / 2, direction + up / 2 + right / 2,
                   direction - up / 2 + right / 2, direction - up / 2 - right / 2]  # fmt: skip
        pose = Pose(np.asarray(centre, float), np.array(corners), "PINHOLE", 100.0)
        empty = np.zeros((0, 2), np.float32)
        photographs.append(Photograph(str(centre), (10, 10), pose, empty, np.zeros(0, np.int64)))
    count = len(xyz)
    rgb = np.zeros((count, 3), np.uint8)
    return Content(photographs, xyz, rgb, np.zeros(count, np.float32), np.full(count, 2))


def cube(size: float) -> NDArray[np.float64]:
    return np.random.default_rng(0).uniform(-size, size, (500, 3))


def in_page(view: View, world: NDArray[np.float64]) -> NDArray[np.float64]:
    return (world - view.origin) / view.scale


def test_it_looks_with_the_cameras_and_upright(scene: KnownScene) -> None:
    view = first_view(read_content(scene.directory, scene.images))
    np.testing.assert_allclose(view.up, [0, 0, 1], atol=0.25)
    assert view.direction[1] > 0.8  # the cameras stand at negative y
    assert view.direction[2] < 0  # and are looked down upon
    assert np.abs(in_page(view, scene.centres)).max() < 1.5
    assert np.abs(in_page(view, scene.xyz)).max() < 1.5


def test_stray_points_do_not_shrink_the_scene(scene: KnownScene, tmp_path: Path) -> None:
    known = write_scene(tmp_path / "stray", stray=20)
    calm = first_view(read_content(scene.directory, scene.images))
    view = first_view(read_content(known.directory, known.images))
    assert view.scale < 1.1 * calm.scale
    assert np.linalg.norm(view.origin - calm.origin) < 0.2 * calm.scale


def test_world_coordinates_of_a_survey_keep_their_precision(scene: KnownScene, tmp_path: Path) -> None:
    origin = (400_000.0, 5_700_000.0, 120.0)
    known = write_scene(tmp_path / "survey", origin=origin)
    view = first_view(read_content(known.directory, known.images))
    page = in_page(view, known.xyz).astype(np.float32)
    calm = first_view(read_content(scene.directory, scene.images))
    np.testing.assert_allclose(page, in_page(calm, scene.xyz), atol=1e-5)


def test_a_ring_of_cameras_stays_upright() -> None:
    up = np.array([0.0, 0.0, 1.0])
    turns = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    inward = [np.array([-np.cos(turn), -np.sin(turn), 0]) for turn in turns]
    view = first_view(content_of(cube(1), [(-4 * direction, direction, up) for direction in inward]))
    np.testing.assert_allclose(view.up, up, atol=1e-6)
    assert abs(view.direction @ up) < 0.5


def test_a_survey_flight_to_and_fro_is_seen_from_above() -> None:
    down = np.array([0.0, 0.0, -1.0])
    headings = [np.array([0.0, (-1.0) ** strip, 0.0]) for strip in range(6)]
    cameras = [
        (np.array([strip, along, 20.0]), down, headings[strip]) for strip in range(6) for along in range(6)
    ]
    view = first_view(content_of(cube(8) * [1, 1, 0.05], cameras))
    np.testing.assert_allclose(view.up, [0, 0, 1], atol=1e-6)
    assert view.direction[2] < -0.1


def test_a_camera_far_away_does_not_count() -> None:
    up, ahead = np.array([0.0, -1.0, 0.0]), np.array([0.0, 0.0, 1.0])
    near = [(np.array([x, 0.0, -4.0]), ahead, up) for x in np.linspace(-1, 1, 9)]
    calm = first_view(content_of(cube(1), near))
    view = first_view(content_of(cube(1), [*near, (np.array([900.0, 0.0, 0.0]), ahead, up)]))
    assert view.scale == calm.scale


def test_without_cameras_or_points_there_is_a_view() -> None:
    for content in (
        content_of(cube(1), []),
        content_of(np.zeros((0, 3)), []),
        content_of(np.zeros((1, 3)), []),
    ):
        view = first_view(content)
        numbers = [*view.origin, view.scale, *view.direction, *view.up, *view.half, view.frustum]
        assert np.isfinite(numbers).all()
        assert view.scale > 0
    one = np.array([0.0, 0.0, 1.0])
    assert np.isfinite(first_view(content_of(np.zeros((0, 3)), [(one, one, one)])).direction).all()
