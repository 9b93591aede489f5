"""Turned images: two images in, the turn of the second that fits, its features and matches out.

Keypoints and base descriptors turn with the image, but neither context does. So keypoints are found and
described once, and a turn by 90, 180 or 270 degrees costs only its context: the regional grid of the turned
image and the two encoders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.features import Features
from contextdesc.geometry import Verification, verify
from contextdesc.image import Image, Source, read
from contextdesc.keypoints import Keypoints
from contextdesc.matching import Matches, match

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.model import ContextDesc

Turn = Literal[0, 90, 180, 270]
Rotate = Literal["auto", "none", 0, 90, 180, 270]

TURNS: tuple[Turn, ...] = get_args(Turn)
VOTES = 5  # matches whose keypoints turned by one angle, from which that turn is tried


@dataclass(frozen=True, eq=False)
class Base:
    """An image described without context, from which the features of any turn are made.

    Attributes:
        model: that described it.
        image: as the model reads it, at most `max_side` large.
        keypoints: N, in pixels of `image`.
        raw: (N, 128) float32 base descriptors.
        score: (N,) float32 matchability scores, or None.
        grids: regional grids by turn, filled when first needed.
    """

    model: ContextDesc
    image: Image
    keypoints: Keypoints
    raw: NDArray[np.float32]
    score: NDArray[np.float32] | None
    grids: dict[int, NDArray[np.float32]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ContextDesc, source: Source, detector: Detector | None = None) -> Base:
        """Detect and describe an image; the detector is the model's own unless given."""
        image = read(source, model.max_side, model.max_pixels)
        keypoints = detect(image.gray, detector or model.detector)
        return cls(model, image, keypoints, *model.raw(_own_pixels(image), keypoints))

    def features(self, turn: Turn = 0) -> Features:
        """The features as the model sees them in the turned image; keypoints stay in original pixels.

        Args:
            turn: degrees by which the image is turned clockwise.
        """
        model, image, keypoints = self.model, _own_pixels(self.image), self.keypoints
        raw, score = self.raw, self.score
        if turn:
            keypoints = turned_keypoints(keypoints, image.size, turn)
            image = turned_image(image, turn)
            if model.detector.upright:  # patches do not follow the turn
                keypoints = replace(keypoints, angle=np.zeros_like(keypoints.angle))
                raw, score = model.raw(image, keypoints)
        if "visual" in model.terms and turn not in self.grids:
            self.grids[turn] = model.regional(image)
        grid = self.grids.get(turn)
        descriptors = model.augment(raw, keypoints, image.size, regional=grid, matchability=score)
        return Features(
            self.keypoints.scaled(self.image.scale), descriptors, self.image.original_size,
            model.spec.name, model.checksum, model.context, model.spec.ratio,
            None if score is None else np.tanh(score),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Matched:
    """Two images matched.

    Attributes:
        features: of both images, keypoints in original pixels; those of the second with the context of
            the turned image.
        matches, result: between them, and its verification, in original pixels.
        turn: degrees by which the second image was turned clockwise.
        tried: turns that were matched, in that order.
    """

    features: tuple[Features, Features]
    matches: Matches
    result: Verification
    turn: Turn
    tried: tuple[Turn, ...]


def match_rotated(
    model: ContextDesc,
    first: Source | Base,
    second: Source | Base,
    rotate: Rotate = "auto",
    *,
    ratio: float | None = None,
    mutual: bool = True,
    check: Callable[[Features, Features, Matches], Verification] = verify,
) -> Matched:
    """Match two images of which the second may be turned.

    Args:
        first, second: images, or what `Base.of` made of them.
        rotate: a turn of the second image in degrees clockwise; `none` for 0; `auto` to match it as it is,
            then with the turns that its matches ask for (see `turns_to_try`), and to keep the turn with
            most inliers.
        ratio, mutual: see `match`.
        check: verifies; `verify` with its defaults.
    """
    if rotate not in get_args(Rotate):
        raise InputError(f"rotate is {rotate!r}: one of {', '.join(map(str, get_args(Rotate)))}")
    bases = [side if isinstance(side, Base) else Base.of(model, side) for side in (first, second)]
    still = bases[0].features()

    def attempt(turn: Turn) -> Matched:
        turned = bases[1].features(turn)
        matches = match(still, turned, ratio, mutual)
        return Matched((still, turned), matches, check(still, turned, matches), turn, (turn,))

    if rotate != "auto":
        return attempt(0 if rotate == "none" else rotate)
    begun = attempt(0)
    follows = not model.terms and not model.detector.upright  # nothing in it depends on the turn
    turns = () if follows else turns_to_try(begun, model.detector.upright)
    tries = [begun, *map(attempt, turns)]
    best = max(tries, key=lambda tried: tried.result.inlier_count)  # the first of equals
    return replace(best, tried=(0, *turns))


def turns_to_try(begun: Matched, upright: bool) -> tuple[Turn, ...]:
    """The turns, other than 0, that a pair matched as it is asks for.

    Each match votes for the quarter turn that is nearest to the difference of its keypoints' orientations;
    turns with more votes than 0 are tried. Upright keypoints have no vote: every turn is tried unless the
    pair is the same scene as it is.
    """
    if upright:
        return () if begun.result.verdict == "same scene" else TURNS[1:]
    votes = quarter_votes(begun.features, begun.matches.indices)
    return tuple(turn for turn in TURNS[1:] if votes[turn] >= VOTES and votes[turn] > votes[0])


def quarter_votes(features: tuple[Features, Features], rows: NDArray[np.int64]) -> dict[Turn, int]:
    """How many matches (M, 2) were turned by about each quarter.

    To undo a turn of the keypoints by +90 degrees, the second image is turned by 270.
    """
    angles = [side.keypoints.angle[rows[:, i]] for i, side in enumerate(features)]
    quarters = np.rint((angles[0] - angles[1]) / 90).astype(np.int64) % 4
    counts = np.bincount(quarters, minlength=4)
    return {turn: int(count) for turn, count in zip(TURNS, counts, strict=True)}


def turned_image(image: Image, turn: Turn) -> Image:
    """An image turned clockwise; nothing is resampled."""
    flipped = turn in (90, 270)
    size = image.original_size[::-1] if flipped else image.original_size
    rgb = np.ascontiguousarray(np.rot90(image.rgb, -turn // 90))
    return Image(rgb, size, image.name, image.focal)


def turned_keypoints(keypoints: Keypoints, size: tuple[int, int], turn: Turn) -> Keypoints:
    """Where keypoints of an image of `size` (width, height) lie once it is turned clockwise."""
    right, bottom = np.float32(size[0] - 1), np.float32(size[1] - 1)
    x, y = keypoints.xy.T
    columns = {0: (x, y), 90: (bottom - y, x), 180: (right - x, bottom - y), 270: (y, right - x)}[turn]
    angle = (keypoints.angle + np.float32(turn)) % np.float32(360)
    return replace(keypoints, xy=np.column_stack(columns), angle=angle)


def _own_pixels(image: Image) -> Image:
    """The image as one that was never downscaled, so that its keypoints are in its own pixels."""
    return replace(image, original_size=image.size)
