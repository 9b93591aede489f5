"""The picture of a scene: its pair graph and its three kinds of keypoints, as in the paper's appendix."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from contextdesc.image import read
from contextdesc.training.data.scenes import KINDS, MATCHABLE, LabelledKeypoints, Scene


def draw_scene(scene: Scene, pairs: NDArray[np.int64], labels: list[LabelledKeypoints]) -> NDArray[np.uint8]:
    """(H, W, 3) uint8 RGB: the pair graph of a scene beside the kinds of keypoints of one of its images.

    Images stand on a circle; lines between selected pairs are blue, others gray, the thicker and darker the
    more tracks they share. The image shown is the one with most matchable keypoints; of each kind, an even
    sample of some 400 is drawn.
    """
    side, dark = 720, (40, 40, 40)
    graph = np.full((side, side, 3), 255, np.uint8)
    turn = 2 * np.pi * np.arange(len(scene)) / len(scene) - np.pi / 2
    compass = np.column_stack([np.cos(turn), np.sin(turn)])
    spots = np.rint(side / 2 + compass * (side / 2 - 60)).astype(int)
    selected = {(int(a), int(b)) for a, b in pairs}
    linked, count, _ = scene.shared_tracks
    for row in np.argsort(count):
        a, b = (int(i) for i in linked[row])
        share = float(count[row] / count.max())
        tint = share * np.array([0, 90, 160]) + (1 - share) * np.array([190, 215, 235])
        colour = tint.tolist() if (a, b) in selected else (210, 210, 210)
        ends = (spots[a].tolist(), spots[b].tolist())
        cv2.line(graph, *ends, colour, max(1, round(6 * share)), cv2.LINE_AA)
    shown = int(np.argmax([(found.kind == MATCHABLE).sum() for found in labels]))
    for index, spot in enumerate(spots.tolist()):
        cv2.circle(graph, spot, 7, (213, 94, 0) if index == shown else dark, -1, cv2.LINE_AA)
        if len(scene) <= 60:
            place = np.rint(np.array(spot) + compass[index] * 24 + [-8, 5]).astype(int).tolist()
            _write(graph, str(index), place)
    rgb, found = read(scene.path(shown)).rgb, labels[shown]
    factor = side / rgb.shape[0]
    photo = cv2.resize(rgb, (round(rgb.shape[1] * factor), side), interpolation=cv2.INTER_AREA)
    canvas = np.asarray(photo // 2 + 64, np.uint8)  # paler, for the marks to stand out
    legend = np.full((40, side + photo.shape[1], 3), 255, np.uint8)
    text = f"{len(scene)} images, {len(pairs)} pairs selected, {len(linked)} share tracks"
    _write(legend, f"{text}; right: image {shown}", (10, 26))
    for kind, name in enumerate(KINDS):
        rows = np.flatnonzero(found.kind == kind)
        left = side + 10 + (len(KINDS) - 1 - kind) * (photo.shape[1] // 3)
        _mark(legend, (left + 6, 21), kind)
        _write(legend, f"{name} {len(rows)}", (left + 20, 26))
        for x, y in found.keypoints.xy[rows[:: max(1, len(rows) // 400)]]:
            _mark(canvas, (round((x + 0.5) * factor), round((y + 0.5) * factor)), kind)
    return np.vstack([np.hstack([graph, canvas]), legend])


def _write(canvas: NDArray[np.uint8], text: str, spot: Sequence[int]) -> None:
    cv2.putText(canvas, text, spot, cv2.FONT_HERSHEY_SIMPLEX, 0.5, (40, 40, 40), 1, cv2.LINE_AA)


def _mark(canvas: NDArray[np.uint8], spot: tuple[int, int], kind: int) -> None:
    """Unrepeatable: vermilion cross; undiscovered: yellow triangle; matchable: green circle."""
    colour = ((213, 94, 0), (240, 228, 66), (0, 158, 115))[kind]
    for tint, width in (((20, 20, 20), 3), (colour, 2)):
        if kind == MATCHABLE:
            cv2.circle(canvas, spot, 5, tint, width, cv2.LINE_AA)
        else:
            shape = (cv2.MARKER_TILTED_CROSS, cv2.MARKER_TRIANGLE_UP)[kind]
            cv2.drawMarker(canvas, spot, tint, shape, 9, width, cv2.LINE_AA)
