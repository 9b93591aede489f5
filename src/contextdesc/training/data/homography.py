"""Training pairs from single photographs: a random homography and a change of light for each.

A photograph comes in; two views of it, the homography between them and the keypoints that both views
share go out. Correspondences are between keypoints detected independently in both views, so they carry
the detector's own errors of place, scale and orientation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import cv2
import numpy as np

from contextdesc.keypoints import Keypoints

if TYPE_CHECKING:
    from numpy.typing import NDArray


_SHAKE = 0.01  # of the sides: how far the corners of a still camera's view move


@dataclass(frozen=True)
class HomographyConfig:
    """How strongly the second view differs from the first. Ranges are uniform."""

    still: float = 0.0  # share of pairs from a camera that stays, as in series of light, focus, compression
    any_rotation: float = 0.5  # share of the others turned by any angle; the rest by at most `tilt`
    tilt: float = 20.0  # degrees
    perspective: float = 0.5  # corner shift over the half side
    stretch: float = 1.0  # log2 of the anisotropy
    zoom: tuple[float, float] = (0.4, 1.1)  # pixels of a view per pixel of the photograph, both views
    blur: float = 0.3  # share of views blurred, sigma up to `max_blur`
    max_blur: float = 4.0  # pixels
    noise: float = 0.5  # share of views with Gaussian noise of up to 8 gray values
    jpeg: float = 0.5  # share of views compressed, quality 5 to 90
    colour: float = 0.2  # log of the gain of each colour channel
    gray: float = 0.1  # share of views without colour
    max_distance: float = 2.5  # pixels in the second view, of corresponding keypoints
    max_scale: float = 0.8  # log2 of the ratio of their sizes
    max_angle: float = 45.0  # degrees between their orientations


def two_views(
    image: NDArray[np.uint8], rng: np.random.Generator, config: HomographyConfig
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.float64]]:
    """Two views of a photograph, gray (H, W) or RGB (H, W, 3), and the homography between their pixels.

    The first view is the whole photograph, zoomed; the second a turned, stretched and tilted quadrilateral
    of it. Which one is returned first is random.
    """
    height, width = image.shape[:2]
    still = config.still > 0 and rng.random() < config.still
    if still:
        zoom = min(1.0, rng.uniform(*config.zoom))
        quad, size = _still_quad(width, height, zoom, rng)
    else:
        quad, size = _random_quad(width, height, rng, config)
    right, bottom = size[0] - 1, size[1] - 1
    corners = np.array([[0, 0], [right, 0], [right, bottom], [0, bottom]], np.float32)
    to_second = cv2.getPerspectiveTransform(quad.astype(np.float32), corners)
    # Shrinking is done on the blurred photograph, so that the second view does not alias.
    shrink = np.sqrt(_area(corners) / _area(quad))
    second = cv2.warpPerspective(_antialiased(image, shrink), to_second, size, flags=cv2.INTER_LINEAR)

    if not still:
        zoom = min(1.0, rng.uniform(*config.zoom))
    first_size = (max(32, round(width * zoom)), max(32, round(height * zoom)))
    first = cv2.resize(image, first_size, interpolation=cv2.INTER_AREA)
    to_first = _resizing((width, height), first_size)

    first = photometric(np.asarray(first, np.uint8), rng, config)
    second = photometric(np.asarray(second, np.uint8), rng, config)
    homography = to_second @ np.linalg.inv(to_first)
    if rng.random() < 0.5:
        first, second, homography = second, first, np.linalg.inv(homography)
    return first, second, homography / homography[2, 2]


def photometric(
    image: NDArray[np.uint8], rng: np.random.Generator, config: HomographyConfig
) -> NDArray[np.uint8]:
    """Another camera in another light: gamma, contrast, exposure, colour, blur, noise, JPEG."""
    values = np.arange(256) / 255.0
    curve = values ** np.exp(rng.uniform(-0.6, 0.6))
    curve = (curve - 0.5) * rng.uniform(0.4, 1.3) + 0.5 + rng.uniform(-0.2, 0.2)
    if image.ndim == 3:
        gain = np.exp(rng.uniform(-config.colour, config.colour, 3))
        curves = np.clip(curve[:, None] * gain * 255, 0, 255).astype(np.uint8)
        view = cv2.LUT(image, curves[:, None])
        if rng.random() < config.gray:
            view = cv2.cvtColor(cv2.cvtColor(view, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    else:
        view = cv2.LUT(image, np.clip(curve * 255, 0, 255).astype(np.uint8))
    if rng.random() < config.blur:
        view = cv2.GaussianBlur(view, (0, 0), rng.uniform(0.3, config.max_blur))
    if rng.random() < config.noise:
        noise = rng.normal(0, rng.uniform(1, 8), view.shape)
        view = np.clip(view + noise, 0, 255).astype(np.uint8)
    if rng.random() < config.jpeg:
        _, encoded = cv2.imencode(".jpg", view, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(5, 90))])
        view = np.asarray(cv2.imdecode(encoded, cv2.IMREAD_UNCHANGED))
    return np.asarray(view, np.uint8)


def corresponding(
    first: Keypoints, second: Keypoints, homography: NDArray[np.float64], config: HomographyConfig
) -> NDArray[np.int64]:
    """(M, 2) rows of keypoints that are the same spot at the same scale and orientation.

    Each keypoint appears at most once: pairs are mutual nearest among the admissible.
    """
    if not len(first) or not len(second):
        return np.zeros((0, 2), np.int64)
    warped = warp_keypoints(first, homography)
    distance = np.linalg.norm(warped.xy[:, None] - second.xy[None], axis=2)  # (N1, N2)
    scale = np.abs(np.log2(warped.size[:, None] / second.size[None]))
    turn = np.abs((warped.angle[:, None] - second.angle[None] + 180) % 360 - 180)
    admissible = (distance <= config.max_distance) & (scale <= config.max_scale) & (turn <= config.max_angle)
    cost = np.where(
        admissible,
        distance / config.max_distance + scale / config.max_scale + turn / config.max_angle,
        np.inf,
    )
    best = cost.argmin(1)
    mutual = (cost.argmin(0)[best] == np.arange(len(first))) & np.isfinite(cost[np.arange(len(first)), best])
    rows = np.flatnonzero(mutual)
    return np.column_stack([rows, best[rows]])


def warp_points(xy: NDArray[np.floating], homography: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 2) pixels through a homography (3, 3)."""
    projected = np.column_stack([xy, np.ones(len(xy))]) @ homography.T
    return np.asarray(projected[:, :2] / projected[:, 2:], np.float64)


def warp_keypoints(keypoints: Keypoints, homography: NDArray[np.float64]) -> Keypoints:
    """Keypoints with their size and orientation, to first order, through a homography."""
    radians = np.deg2rad(keypoints.angle)
    along = np.column_stack([np.cos(radians), np.sin(radians)]) * keypoints.size[:, None] / 2
    across = np.column_stack([-along[:, 1], along[:, 0]])
    centre = warp_points(keypoints.xy, homography)
    right = warp_points(keypoints.xy + along, homography) - centre
    down = warp_points(keypoints.xy + across, homography) - centre
    area = np.abs(right[:, 0] * down[:, 1] - right[:, 1] * down[:, 0])
    angle = np.rad2deg(np.arctan2(right[:, 1], right[:, 0])) % 360
    return Keypoints(
        centre.astype(np.float32), (2 * np.sqrt(area)).astype(np.float32), angle.astype(np.float32),
        keypoints.response,
    )  # fmt: skip


def _random_quad(
    width: int, height: int, rng: np.random.Generator, config: HomographyConfig
) -> tuple[NDArray[np.float64], tuple[int, int]]:
    """A quadrilateral (4, 2) inside the photograph and the size of the view that shows it."""
    while True:
        turn = 180.0 if rng.random() < config.any_rotation else config.tilt
        angle = np.deg2rad(rng.uniform(-turn, turn))
        half = np.array([width, height]) / 2 * rng.uniform(0.6, 1.0)
        corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], float)
        corners += rng.uniform(-config.perspective, config.perspective, (4, 2))
        stretch = 2 ** rng.uniform(-config.stretch / 2, config.stretch / 2)
        corners = corners * half * [stretch, 1 / stretch]
        corners = corners @ np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        extent = np.abs(corners).max(0) / (np.array([width - 1, height - 1]) / 2)
        corners /= max(1.0, extent.max())
        room = np.array([width - 1, height - 1]) / 2 - np.abs(corners).max(0)
        quad = corners + np.array([width - 1, height - 1]) / 2 + rng.uniform(-1, 1, 2) * room
        if _area(quad) < 0.2 * width * height:
            continue
        zoom = rng.uniform(*config.zoom)
        sides = np.linalg.norm(quad - np.roll(quad, -1, 0), axis=1)
        size = zoom * np.array([(sides[0] + sides[2]) / 2, (sides[1] + sides[3]) / 2])
        return quad, (max(32, round(size[0])), max(32, round(size[1])))


def _still_quad(
    width: int, height: int, zoom: float, rng: np.random.Generator
) -> tuple[NDArray[np.float64], tuple[int, int]]:
    """The whole photograph, but for a shake of the camera; see `_random_quad`."""
    sides = np.array([width - 1, height - 1], float)
    corners = np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) * sides
    inwards = rng.uniform(0, _SHAKE, (4, 2)) * sides * [[1, 1], [-1, 1], [-1, -1], [1, -1]]
    return corners + inwards, (max(32, round(width * zoom)), max(32, round(height * zoom)))


def _area(quad: NDArray[np.floating]) -> float:
    x, y = quad[:, 0], quad[:, 1]
    return float(abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2)


def _antialiased(gray: NDArray[np.uint8], shrink: float) -> NDArray[np.uint8]:
    if shrink >= 1:
        return gray
    return np.asarray(cv2.GaussianBlur(gray, (0, 0), 0.5 * np.sqrt(1 / shrink**2 - 1) + 1e-3), np.uint8)


def _resizing(old: tuple[int, int], new: tuple[int, int]) -> NDArray[np.float64]:
    """The homography of cv2.resize, which keeps the image's corners, not its corner pixels."""
    x, y = new[0] / old[0], new[1] / old[1]
    return np.array([[x, 0, x / 2 - 0.5], [0, y, y / 2 - 0.5], [0, 0, 1]])
