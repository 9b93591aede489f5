"""Training stages: what is trained, on what, and how well it does on pairs held out from it.

`local` trains the local network and its matchability on patches; `geometric` trains the geometric context
on the frozen local network of an exported model. Each stage is a module with a `loss(step)` and a
`recall()`; `loop.py` runs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contextdesc.engine import Engine
from contextdesc.training import losses
from contextdesc.training.data.pairs import PairConfig, PairSet, PairSets
from contextdesc.training.data.scene_pairs import ScenePairConfig
from contextdesc.training.networks import GeometricConfig, GeometricContext, LocalConfig, LocalNetwork

if TYPE_CHECKING:
    from numpy.typing import NDArray

RECALL_DISTANCE = 2.5  # pixels, as in the paper's recall


@dataclass(frozen=True)
class StageConfig:
    """A stage of training; every key of its TOML file."""

    stage: Literal["local", "geometric"]
    steps: int
    photos: str | None = None  # folder of photographs, for homography pairs
    held_out: int = 30  # photographs at the end of the list that only validate
    scenes: str | None = None  # folder of scenes, for pairs of different photographs
    held_out_scenes: tuple[str, ...] = ()  # names of scenes that only validate
    base: str | None = None  # model with the frozen local network (stage geometric)
    optimiser: Literal["sgd", "adamw"] = "sgd"
    learning_rate: float = 0.1
    weight_decay: float = 1e-4
    warmup: int = 100  # steps to the full learning rate, which then falls to 0 on a cosine
    clip: float = 1.0  # largest norm of the gradient
    temperature: float = 20.0  # start of the softmax temperature
    pairs_per_step: int = 2
    keypoints: int = 256  # per image and step
    quad: float = 1.0  # weight of the matchability ranking loss
    near: float = 4.0  # pixels: other keypoints this close to the partner are no negatives
    corner_shift: float = 0.3  # of the random homography of coordinates (stage geometric)
    validate_every: int = 300
    checkpoint_every: int = 100
    seed: int = 0
    local: LocalConfig = field(default_factory=LocalConfig)
    geometric: GeometricConfig = field(default_factory=GeometricConfig)
    pairs: PairConfig = field(default_factory=PairConfig)
    scene_pairs: ScenePairConfig = field(default_factory=ScenePairConfig)


class LocalStage(nn.Module):
    """Local network on patches of image pairs; negatives come from the same image."""

    def __init__(self, config: StageConfig, train: PairSets, held_out: dict[str, PairSet]) -> None:
        super().__init__()
        self.config, self.train_pairs, self.held_out_pairs = config, train, held_out
        self.network = LocalNetwork(config.local)
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.temperature = losses.Temperature(config.temperature)

    def loss(self, step: int) -> dict[str, Tensor]:
        rng = np.random.default_rng([self.config.seed, step])
        batch = [
            self._sample(i, rng) for i in rng.integers(len(self.train_pairs), size=self.config.pairs_per_step)
        ]
        patches = torch.from_numpy(np.stack([b[0] for b in batch]))  # (B, 2, K, 32, 32)
        matchable = torch.from_numpy(np.stack([b[1] for b in batch]))  # (B, K)
        ignored = torch.from_numpy(np.stack([b[2] for b in batch]))  # (B, K, K)
        raw, score = self.network(patches.flatten(0, 2))
        descriptors = F.normalize(raw, dim=1).unflatten(0, patches.shape[:3])
        score = score.unflatten(0, patches.shape[:3])
        pair = losses.n_pair(descriptors[:, 0], descriptors[:, 1], self.temperature(), matchable, ignored)
        quad = losses.quad(score[:, 0], score[:, 1], matchable)
        return {"loss": pair + self.config.quad * quad, "n_pair": pair, "quad": quad}

    def _sample(
        self, index: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.uint8], NDArray[np.bool_], NDArray[np.bool_]]:
        pair = self.train_pairs[index]
        size = self.config.keypoints
        rows = rng.permutation(pair.count)[:size]
        others = pair.count + rng.permutation(len(pair.xy[0]) - pair.count)[: size - len(rows)]
        rows = np.concatenate([rows, others])
        patches = pair.patches[:, rows]
        # One of the square's eight symmetries, the same for both images: more patches for nothing.
        if rng.random() < 0.5:
            patches = patches.transpose(0, 1, 3, 2)
        patches = patches[..., :: rng.choice([-1, 1]), :: rng.choice([-1, 1])]
        matchable = rows < pair.count
        return (
            np.ascontiguousarray(patches),
            matchable,
            near_partner(pair.xy[:, rows], matchable, self.config.near),
        )

    @torch.no_grad()
    def recall(self) -> dict[str, float]:
        recalls = {}
        for name, pairs in self.held_out_pairs.items():
            each = []
            for index in range(len(pairs)):
                pair = pairs[index]
                raw, _ = self.network(torch.from_numpy(np.array(pair.patches)).flatten(0, 1))
                first, second = F.normalize(raw, dim=1).chunk(2)
                each.append(pair_recall(first, second, pair.xy[1], pair.count))
            recalls[f"raw{name}"] = float(np.mean(each))
        return recalls


class GeometricStage(nn.Module):
    """Geometric context on top of a frozen local network, whose outputs are computed once."""

    def __init__(
        self, config: StageConfig, train: PairSets, held_out: dict[str, PairSet], local: Engine
    ) -> None:
        super().__init__()
        self.config = config
        self.network = GeometricContext(config.geometric)
        self.temperature = losses.Temperature(config.temperature)
        self._frozen = FrozenPairs.compute(local, train)
        self._held_out = {name: FrozenPairs.compute(local, pairs) for name, pairs in held_out.items()}

    def loss(self, step: int) -> dict[str, Tensor]:
        config, frozen = self.config, self._frozen
        rng = np.random.default_rng([config.seed, step])
        descriptors, matchables, ignored = [], [], []
        for index in rng.integers(len(frozen.raw), size=config.pairs_per_step):
            rows = torch.from_numpy(rng.permutation(frozen.raw.shape[2])[: config.keypoints])
            raw, score = frozen.raw[index][:, rows].float(), frozen.score[index][:, rows]
            xy = [
                warp_unit_square(frozen.unit_xy[index, side, rows], rng, config.corner_shift)
                for side in (0, 1)
            ]
            descriptors.append(self._augment(raw, torch.stack(xy), score))
            matchable = (rows < frozen.count[index]).numpy()
            matchables.append(matchable)
            ignored.append(near_partner(frozen.xy[index][:, rows].numpy(), matchable, config.near))
        stacked = torch.stack(descriptors)  # (B, 2, K, 128)
        rows_with_partner = torch.from_numpy(np.stack(matchables))
        loss = losses.n_pair(
            stacked[:, 0],
            stacked[:, 1],
            self.temperature(),
            rows_with_partner,
            torch.from_numpy(np.stack(ignored)),
        )
        return {"loss": loss, "n_pair": loss}

    def _augment(self, raw: Tensor, xy: Tensor, score: Tensor) -> Tensor:
        return F.normalize(raw + self.network(xy, score).transpose(1, 2), dim=2)

    @torch.no_grad()
    def recall(self) -> dict[str, float]:
        recalls = {}
        for name, frozen in self._held_out.items():
            without, with_context = [], []
            for index in range(len(frozen.raw)):
                raw, score = frozen.raw[index].float(), frozen.score[index]
                target, count = frozen.xy[index][1].numpy(), int(frozen.count[index])
                plain = F.normalize(raw, dim=2)
                both = self._augment(raw, frozen.unit_xy[index], score)
                without.append(pair_recall(plain[0], plain[1], target, count))
                with_context.append(pair_recall(both[0], both[1], target, count))
            recalls[f"raw{name}"] = float(np.mean(without))
            recalls[f"geometric{name}"] = float(np.mean(with_context))
        return recalls


@dataclass(frozen=True)
class FrozenPairs:
    """Outputs of a frozen local network on a pair set: raw (P, 2, K, 128) half, score (P, 2, K), ..."""

    raw: Tensor
    score: Tensor
    xy: Tensor  # (P, 2, K, 2) pixels
    unit_xy: Tensor  # (P, 2, K, 2) in [-1, 1]
    count: Tensor  # (P,)

    @classmethod
    def compute(cls, local: Engine, pairs: PairSet | PairSets) -> FrozenPairs:
        columns: list[list[NDArray[Any]]] = [[], [], [], [], []]
        for index in range(len(pairs)):
            pair = pairs[index]
            raw, score = local.run_batched(patches=pair.patches.reshape(-1, *pair.patches.shape[2:]))
            unit_xy = (pair.xy + 0.5) / pair.size[:, None] * 2 - 1
            half = raw.reshape(2, -1, raw.shape[1]).astype(np.float16)
            row: list[NDArray[Any]] = [half, score.reshape(2, -1), pair.xy, unit_xy, np.array(pair.count)]
            for column, value in zip(columns, row, strict=True):
                column.append(value)
        return cls(*(torch.from_numpy(np.stack(column)) for column in columns))


def near_partner(xy: NDArray[np.float32], matchable: NDArray[np.bool_], distance: float) -> NDArray[np.bool_]:
    """(K, K) bool: keypoint j of either image lies on the partner of i, so it is no negative of i."""
    near = np.zeros((xy.shape[1], xy.shape[1]), np.bool_)
    for side in (0, 1):
        apart = np.linalg.norm(xy[side][:, None] - xy[side][None], axis=2)
        known = matchable[:, None] if side == 1 else matchable[None]
        near |= (apart < distance) & known
    np.fill_diagonal(near, False)
    return near


def pair_recall(first: Tensor, second: Tensor, target_xy: NDArray[np.float32], count: int) -> float:
    """Share of the first `count` rows whose nearest neighbour lies within 2.5 pixels of its partner."""
    nearest = (first[:count] @ second.T).argmax(1).numpy()
    error = np.linalg.norm(target_xy[nearest] - target_xy[:count], axis=1)
    return float((error <= RECALL_DISTANCE).mean())


def warp_unit_square(xy: Tensor, rng: np.random.Generator, shift: float) -> Tensor:
    """(N, 2) coordinates in [-1, 1] through a random homography that moves the corners by up to `shift`."""
    import cv2

    corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], np.float32)
    moved = corners + rng.uniform(-shift, shift, (4, 2)).astype(np.float32)
    matrix = torch.from_numpy(cv2.getPerspectiveTransform(corners, moved)).float()
    projected = torch.cat([xy, torch.ones_like(xy[:, :1])], 1) @ matrix.T
    return projected[:, :2] / projected[:, 2:]


def photographs(folder: Path, held_out: int) -> tuple[list[Path], list[Path]]:
    """The photographs of a folder in name order: those that train, and the last ones, that validate."""
    from contextdesc.errors import InputError
    from contextdesc.image import find_images

    paths = list(find_images([folder]).values())
    if len(paths) <= held_out:
        raise InputError(f"{folder}: {len(paths)} photographs, and {held_out} of them are held out: add more")
    return paths[:-held_out], paths[-held_out:]
