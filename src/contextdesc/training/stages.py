"""Training stages: what is trained, on what, and how well it does on pairs held out from it.

A stage is a module with the `parts` that it trains, a `loss(step, ...)` and a `recall()`; `loop.py` runs
it. `PairStage` describes the keypoints of image pairs, for the stages `local`, `context`, `end-to-end` and
`joint`, which differ in what is frozen; `RegionalStage` trains the regional network alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contextdesc.image import read
from contextdesc.keypoints import Keypoints
from contextdesc.model import directions, regional_image
from contextdesc.training import losses
from contextdesc.training.config import StageConfig
from contextdesc.training.data.frozen import Example, Examples, Mixture
from contextdesc.training.data.hard import hard_rows
from contextdesc.training.data.places import at_place, place_recall
from contextdesc.training.landmarks import LandmarkTask
from contextdesc.training.parts import Parts

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Which terms are on when a stage with context validates
SUBSETS = {
    "raw": (), "visual": ("visual",), "geometric": ("geometric",), "both": ("visual", "geometric"),
}  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """B image pairs of K keypoints: images 2 b and 2 b + 1 are a pair.

    Attributes:
        xy: (2B, K, 2) in [-1, 1], where the visual term reads the regional grid.
        moved: (2B, K, 2), the same through a random homography, which the geometric term sees in training.
        direction: (2B, K, 2), cosine and sine of the keypoints' angles, turned as `moved` is.
        matchable: (B, K) bool, rows that correspond.
        same, ignored: (B, K, K) bool, see `losses.py`.
        likeness: (B, K), or None if it is unknown.
        patches: (2B, K, 32, 32) uint8, or None if the base is frozen.
        raw, score: (2B, K, C) and (2B, K) of the frozen base, or None.
        regional: 2B grids (C, h, w), images (3, H, W) if the regional network is trained, or None.
    """

    xy: Tensor
    moved: Tensor
    direction: Tensor
    matchable: Tensor
    same: Tensor
    ignored: Tensor
    likeness: Tensor | None
    patches: Tensor | None
    raw: Tensor | None
    score: Tensor | None
    regional: Sequence[Tensor] | None


class RegionalStage(nn.Module):
    """The regional network as a landmark classifier (A.1)."""

    def __init__(self, parts: Parts, landmarks: LandmarkTask) -> None:
        super().__init__()
        self.parts, self.landmarks = parts, landmarks
        landmarks.prepare(self.network)

    @property
    def network(self) -> nn.Module:
        assert self.parts.regional is not None  # the stage has nothing else
        return self.parts.regional

    def train(self, mode: bool = True) -> RegionalStage:
        super().train(mode)
        self.landmarks.keep_frozen(self.network)
        return self

    def loss(self, step: int, part: int = 0, of: int = 1) -> dict[str, Tensor]:
        return self.landmarks.loss(self.network, step, part)

    def recall(self) -> dict[str, float]:
        return self.landmarks.recall(self.network)


class PairStage(nn.Module):
    """Descriptors of image pairs; negatives come from the same image."""

    def __init__(
        self,
        config: StageConfig,
        parts: Parts,
        train: Mixture,
        held_out: dict[str, Examples],
        landmarks: LandmarkTask | None = None,
    ) -> None:
        super().__init__()
        self.config, self.parts, self.landmarks = config, parts, landmarks
        self.examples, self.held_out = train, held_out
        self.temperature = losses.Temperature(config.temperature)
        adds_raw = config.has_context and config.trains_local and config.raw_loss > 0
        self.raw_temperature = losses.Temperature(config.temperature) if adds_raw else None
        if parts.local is not None:
            parts.local.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            if config.compile:
                parts.local.compile()
        if landmarks is not None and parts.regional is not None:
            landmarks.prepare(parts.regional)

    def train(self, mode: bool = True) -> PairStage:
        super().train(mode)
        if self.landmarks is not None and self.parts.regional is not None:
            self.landmarks.keep_frozen(self.parts.regional)
        return self

    @property
    def device(self) -> torch.device:
        return self.temperature.alpha.device

    def loss(self, step: int, part: int = 0, of: int = 1) -> dict[str, Tensor]:
        """Losses of a batch: part `part` of the `of` equal ones that step `step` consists of.

        Every pair counts the same, whatever its number of matchable keypoints, so that the mean over parts
        is the loss of all parts together.
        """
        config = self.config
        batch, rngs = self._draw(step, part, of)
        raw, score, terms = self._describe(batch)
        values: dict[str, Tensor] = {}
        if config.has_context:
            terms = self._drop_terms(terms, rngs)
            descriptors = self._aggregate(raw, terms)
        else:
            descriptors = F.normalize(raw, dim=2)
        values["n_pair"] = self._pair_loss(descriptors, batch, self.temperature())
        total = values["n_pair"]
        if self.raw_temperature is not None:
            values["raw_n_pair"] = self._pair_loss(F.normalize(raw, dim=2), batch, self.raw_temperature())
            total = total + config.raw_loss * values["raw_n_pair"]
        if score is not None and score.requires_grad and config.quad > 0:
            values["quad"] = self._of_pairs(
                lambda i: losses.quad(score[2 * i, None], score[2 * i + 1, None], batch.matchable[i, None]),
                batch,
            )
            total = total + config.quad * values["quad"]
        if self.landmarks is not None:
            assert self.parts.regional is not None  # stage joint has one
            landmark = self.landmarks.loss(self.parts.regional, step, part)
            values["classification"] = landmark["classification"]
            total = total + config.classification * landmark["loss"]
        return {"loss": total, **values, "accuracy": _accuracy(descriptors.detach(), batch)}

    @torch.no_grad()
    def recall(self) -> dict[str, float]:
        """Mean recall of each held-out set, by the terms that are on; see `recalls`."""
        return {name: float(np.mean(values)) for name, values in self.recalls().items()}

    @torch.no_grad()
    def recalls(self) -> dict[str, list[float]]:
        """Recall of each held-out pair, by the terms that are on and the suffix of the set."""
        subsets = {
            name: on for name, on in SUBSETS.items() if set(on) <= set(self.parts.terms) or not on
        }  # without context, raw alone
        found: dict[str, list[float]] = {}
        for suffix, examples in self.held_out.items():
            for index in range(len(examples)):
                example = examples[index]
                rows = np.arange(example.pair.keypoints.shape[1])
                batch = self._collate([example], [rows], None)
                raw, _, terms = self._describe(batch)
                for name, on in subsets.items():
                    kept = {
                        term: value if term in on else torch.zeros_like(value)
                        for term, value in terms.items()
                    }
                    both = self._aggregate(raw, kept) if self.config.has_context else F.normalize(raw, dim=2)
                    first, second = both.cpu().numpy()
                    value = place_recall(first, second, example.pair.place, example.pair.xy[1])
                    found.setdefault(name + suffix, []).append(value)
        return found

    def _draw(self, step: int, part: int, of: int) -> tuple[Batch, list[np.random.Generator]]:
        config, pairs = self.config, self.config.pairs_per_step
        drawn = self.examples.draw(np.random.default_rng([config.seed, step]), pairs * of, config.scene_share)
        examples, rows, rngs = [], [], []
        for number in range(part * pairs, (part + 1) * pairs):
            rng = np.random.default_rng([config.seed, step, number])
            example = self.examples[int(drawn[number])]
            examples.append(example)
            rows.append(_drawn_rows(example, rng, config))
            rngs.append(rng)
        return self._collate(examples, rows, rngs), rngs

    def _collate(
        self,
        examples: Sequence[Example],
        rows: Sequence[NDArray[np.int64]],
        rngs: Sequence[np.random.Generator] | None,
    ) -> Batch:
        """A batch of rows of examples; with `rngs` (training) patches and coordinates are augmented."""
        config = self.config
        patches, raws, scores, xy, moved, direction = [], [], [], [], [], []
        matchable, same, ignored, likeness = [], [], [], []
        regional: list[Tensor] = []
        for index, (example, chosen) in enumerate(zip(examples, rows, strict=True)):
            pair, rng = example.pair, None if rngs is None else rngs[index]
            partner = chosen < pair.count
            matchable.append(partner)
            same.append(at_place(pair.place[chosen], pair.xy[1, chosen]) | np.diag(partner))
            ignored.append(
                near_partner(pair.xy[:, chosen], partner, config.near)
                | at_place(pair.place[chosen], pair.xy[1, chosen], config.near)
            )
            likeness.append(pair.likeness[chosen])
            if config.trains_local:
                cut = pair.patches[:, chosen]
                patches.append(cut if rng is None else flipped(cut, rng))
            if example.raw is not None:
                raws.append(np.asarray(example.raw[:, chosen], np.float32))
            if example.score is not None:
                scores.append(example.score[:, chosen])
            for side in (0, 1):
                unit = torch.from_numpy(pair.unit_xy[side, chosen])
                xy.append(unit)
                pointing = torch.from_numpy(directions(Keypoints.from_array(pair.keypoints[side, chosen])))
                layout = (unit, pointing) if rng is None else self._moved(unit, pointing, rng)
                moved.append(layout[0])
                direction.append(layout[1])
                if self.parts.visual is not None:
                    regional.append(self._regional_input(example, side, rng))
        alike = torch.from_numpy(np.stack(likeness))
        marked = torch.from_numpy(np.stack(matchable))
        unknown = bool((alike.isnan() & marked).any())
        return Batch(
            torch.stack(xy).to(self.device),
            torch.stack(moved).to(self.device),
            torch.stack(direction).to(self.device),
            marked.to(self.device),
            torch.from_numpy(np.stack(same)).to(self.device),
            torch.from_numpy(np.stack(ignored)).to(self.device),
            None if unknown else alike.to(self.device),
            self._stacked(patches),
            self._stacked(raws),
            self._stacked(scores),
            [value.to(self.device) for value in regional] or None,
        )

    def _moved(self, xy: Tensor, direction: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Coordinates through a random homography, after a turn that directions take part in."""
        if self.config.layout_turns and rng.random() < self.config.layout_turns:
            angle = rng.uniform(-np.pi, np.pi)
            xy, direction = turned(xy, angle), turned(direction, angle)
        return warp_unit_square(xy, rng, self.config.corner_shift), direction

    def _stacked(self, sides: list[NDArray[Any]]) -> Tensor | None:
        """Arrays (2, K, ...) of the pairs as (2B, K, ...), None if there are none."""
        return torch.from_numpy(np.concatenate(sides)).to(self.device) if sides else None

    def _regional_input(self, example: Example, side: int, rng: np.random.Generator | None) -> Tensor:
        if example.grids is None:
            pixels = regional_image(read(example.views[side]), self.config.regional.max_side)
            return torch.from_numpy(pixels[0])
        grid = torch.from_numpy(example.grids[side])
        if rng is not None and self.config.grid_dropout > 0:
            kept = rng.random(len(grid)) >= self.config.grid_dropout
            grid = (
                grid
                * torch.from_numpy(kept.astype(np.float32) / (1 - self.config.grid_dropout))[:, None, None]
            )
        return grid

    def _describe(self, batch: Batch) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        """Raw descriptors (2B, K, C), matchability (2B, K) if there is any, terms (2B, 128, K)."""
        parts = self.parts
        raw, score = batch.raw, batch.score
        if parts.local is not None and batch.patches is not None:
            raw, score = (
                output.unflatten(0, batch.patches.shape[:2])
                for output in parts.local(batch.patches.flatten(0, 1))
            )
        assert raw is not None  # one of both is given
        if parts.matchability is not None:
            score = parts.matchability(raw.detach().flatten(0, 1)).unflatten(0, raw.shape[:2])
        terms: dict[str, Tensor] = {}
        if parts.visual is not None and batch.regional is not None:
            grids = batch.regional
            if parts.regional is not None:
                grids = [parts.regional(image[None])[0] for image in grids]
            terms["visual"] = parts.visual(grids, batch.xy, raw)
        if parts.geometric is not None:
            # A ranking is learned from the quad loss alone: the encoder reads scores, it does not move them.
            read_score = torch.zeros_like(raw[..., 0]) if score is None else score.detach()
            terms["geometric"] = parts.geometric(batch.moved, read_score, raw, batch.direction)
        return raw, score, terms

    def _aggregate(self, raw: Tensor, terms: dict[str, Tensor]) -> Tensor:
        assert self.parts.aggregation is not None  # stages with context have one
        return self.parts.aggregation(raw.transpose(1, 2), *terms.values()).transpose(1, 2)

    def _drop_terms(self, terms: dict[str, Tensor], rngs: list[np.random.Generator]) -> dict[str, Tensor]:
        if not self.config.term_dropout:
            return terms
        kept = {}
        for name, term in terms.items():
            # The same for both images of a pair: descriptors with and without a term do not match.
            on = np.repeat([rng.random() >= self.config.term_dropout for rng in rngs], 2)
            kept[name] = term * torch.from_numpy(on).to(term)[:, None, None]
        return kept

    def _pair_loss(self, descriptors: Tensor, batch: Batch, alpha: Tensor) -> Tensor:
        function = losses.LOSSES[self.config.loss]

        def of_pair(i: int) -> Tensor:
            alike = None if batch.likeness is None else batch.likeness[i, None]
            first, second = descriptors[2 * i, None], descriptors[2 * i + 1, None]
            if self.config.labels == "places":
                return losses.n_pair_of_places(
                    first, second, alpha, batch.same[i, None], batch.ignored[i, None]
                )
            return function(first, second, alpha, batch.matchable[i, None], batch.ignored[i, None], alike)

        # In full precision, whatever the networks' is: half of it does not tell rivals apart.
        descriptors = descriptors.float()
        with torch.autocast(self.device.type, enabled=False):
            return self._of_pairs(of_pair, batch)

    @staticmethod
    def _of_pairs(of_pair: Callable[[int], Tensor], batch: Batch) -> Tensor:
        return torch.stack([of_pair(i) for i in range(len(batch.matchable))]).mean()


def _drawn_rows(example: Example, rng: np.random.Generator, config: StageConfig) -> NDArray[np.int64]:
    count, total = example.pair.count, example.pair.keypoints.shape[1]
    if config.sampling == "random":
        return rng.permutation(total)[: config.keypoints]
    if config.sampling == "hard":
        assert example.hard is not None  # by the config's check
        return hard_rows(example.hard, total, config.keypoints, rng)
    rows = rng.permutation(count)[: config.keypoints]
    others = count + rng.permutation(total - count)[: config.keypoints - len(rows)]
    return np.concatenate([rows, others])


def flipped(patches: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Patches under one of the square's eight symmetries, the same for all: more patches for nothing."""
    if rng.random() < 0.5:
        patches = patches.swapaxes(-1, -2)
    return np.ascontiguousarray(patches[..., :: rng.choice([-1, 1]), :: rng.choice([-1, 1])])


def _accuracy(descriptors: Tensor, batch: Batch) -> Tensor:
    """Share of the keypoints with a partner whose nearest neighbour in the batch is at their place."""
    nearest = (descriptors[::2] @ descriptors[1::2].transpose(1, 2)).argmax(2, keepdim=True)
    right = batch.same.gather(2, nearest).squeeze(2)
    return right[batch.same.any(2)].float().mean()


def near_partner(xy: NDArray[np.float32], matchable: NDArray[np.bool_], distance: float) -> NDArray[np.bool_]:
    """(K, K) bool: keypoint j of either image lies on the partner of i, so it is no negative of i."""
    near = np.zeros((xy.shape[1], xy.shape[1]), np.bool_)
    for side in (0, 1):
        x, y = xy[side, :, 0], xy[side, :, 1]
        apart = (x[:, None] - x) ** 2 + (y[:, None] - y) ** 2
        known = matchable[:, None] if side == 1 else matchable[None]
        near |= (apart < distance**2) & known
    np.fill_diagonal(near, False)
    return near


def turned(xy: Tensor, angle: float) -> Tensor:
    """(N, 2) coordinates turned by an angle in radians about (0, 0)."""
    cosine, sine = np.cos(angle), np.sin(angle)
    return xy @ xy.new_tensor([[cosine, sine], [-sine, cosine]])


def warp_unit_square(xy: Tensor, rng: np.random.Generator, shift: float) -> Tensor:
    """(N, 2) coordinates in [-1, 1] through a random homography that moves the corners by up to `shift`."""
    corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], np.float32)
    moved = corners + rng.uniform(-shift, shift, (4, 2)).astype(np.float32)
    matrix = torch.from_numpy(cv2.getPerspectiveTransform(corners, moved)).float()
    projected = torch.cat([xy, torch.ones_like(xy[:, :1])], 1) @ matrix.T
    return projected[:, :2] / projected[:, 2:]
