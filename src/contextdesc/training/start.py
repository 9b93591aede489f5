"""A start of the context terms in closed form, fitted to training pairs, and of matchability before it.

Raw descriptors, regional grids and keypoints of pairs come in; the weights of the visual encoder's one linear
fusion layer go out, and of the map by which inputs enter the geometric term past its units, such that raw
descriptor + terms is a linear discriminant of regional feature, those inputs and raw descriptor side by side.

Features of one place look alike without any training. A linear discriminant finds how far to trust each of
their directions, and so gains on scenes that are held out, which gradient descent from a random start loses
to the training pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from contextdesc.errors import InputError
from contextdesc.keypoints import Keypoints
from contextdesc.model import directions
from contextdesc.training import losses
from contextdesc.training.config import StageConfig
from contextdesc.training.data.frozen import Example, Mixture
from contextdesc.training.networks import DESCRIPTOR, Gate, Matchability, VisualContext
from contextdesc.training.variants import ContextNormContext

if TYPE_CHECKING:
    from numpy.typing import NDArray

PAIRS = 400  # that are drawn, as training draws them
ROWS = 256  # corresponding keypoints of a pair, at most
FEWEST = 16  # a pair with fewer is passed over
RIDGE = 0.3  # of what varies within a place, 1 on average: no direction is trusted without bounds
RANKING_STEPS = 1500  # of a pair each, that a predictor of matchability is trained for
RANKING_RATE = 2e-3  # of AdamW at the first of them, falling to 0


def fit_matchability(network: Matchability, examples: Mixture, config: StageConfig) -> None:
    """Train a fresh predictor that reads raw descriptors, in place, by the quad loss alone."""
    rng = np.random.default_rng([config.seed, *b"matchability"])
    optimiser = torch.optim.AdamW(network.parameters(), RANKING_RATE, weight_decay=config.weight_decay)
    network.train()
    for step, index in enumerate(examples.draw(rng, RANKING_STEPS, config.scene_share)):
        example = examples[int(index)]
        rows = rng.permutation(example.pair.keypoints.shape[1])[: config.keypoints]
        first, second = _scores(network, _raw(example, rows))
        matchable = torch.from_numpy(rows < example.pair.count)
        for group in optimiser.param_groups:
            group["lr"] = RANKING_RATE * (1 - step / RANKING_STEPS)
        optimiser.zero_grad()
        losses.quad(first[None], second[None], matchable[None]).backward()
        optimiser.step()


@torch.no_grad()
def fit_terms(
    visual: VisualContext,
    examples: Mixture,
    config: StageConfig,
    geometric: ContextNormContext | None = None,
    matchability: Matchability | None = None,
) -> None:
    """Give fresh encoders their start, in place.

    Args:
        visual: with one linear fusion layer; its config's `start` weighs the regional feature.
        examples: training pairs with raw descriptors and grids.
        config: of the stage, whose seed and share of scenes choose among them.
        geometric: if it gets a start too; its config's `start` weighs its inputs.
        matchability: what tells it of raw descriptors, if they come without.
    """
    layer = visual.fusion[0]
    assert isinstance(layer, nn.Conv1d)  # checked where the encoder is built
    total, within = _moments(visual, examples, config, geometric, matchability)
    scale = torch.ones(len(total), dtype=total.dtype)
    regional = layer.in_channels - DESCRIPTOR
    scale[:regional] = visual.config.start**0.5
    if geometric is not None:
        starts = [weight for weight in geometric.variant.start.weights.values() for _ in range(2)]
        scale[regional:-DESCRIPTOR] = torch.tensor(starts).sqrt()
    both = scale[:, None] * scale
    weights = discriminant(both * total, both * within) * scale
    weights[:, -DESCRIPTOR:] -= torch.eye(DESCRIPTOR)  # the raw descriptor itself is added to the terms
    layer.weight.copy_(torch.cat([weights[:, :regional], weights[:, -DESCRIPTOR:]], 1)[..., None])
    if geometric is not None:
        geometric.direct.weight.copy_(weights[:, regional:-DESCRIPTOR, None])
        if isinstance(geometric.gate, Gate):
            nn.init.ones_(geometric.gate.factor)
    if isinstance(visual.gate, Gate):
        nn.init.ones_(visual.gate.factor)


def discriminant(total: Tensor, within: Tensor) -> Tensor:
    """The linear map to 128 values that tells places apart best, in the axes of the raw descriptor.

    What varies within a place is damped, then the 128 directions of most variance are kept. The result is
    as long as the raw descriptor on average, and turned so that it changes the raw descriptor least.

    Args:
        total: (D, D) float64, mean outer product of descriptions whose last 128 values are raw.
        within: (D, D) float64, the same of differences between two descriptions of one place.

    Returns:
        (128, D); its last 128 columns are symmetric and positive semidefinite.
    """
    spread, axes = torch.linalg.eigh(within / within.diagonal().mean())
    damp = axes * (spread + RIDGE).rsqrt() @ axes.T
    leading = torch.linalg.eigh(damp @ total @ damp).eigenvectors[:, -DESCRIPTOR:]
    weights = leading.T @ damp
    squared = (weights @ total @ weights.T).trace()
    weights *= (total.diagonal()[-DESCRIPTOR:].sum() / squared).sqrt()
    left, _, right = torch.linalg.svd(weights[:, -DESCRIPTOR:])
    return (left @ right).T @ weights


def _moments(
    visual: VisualContext,
    examples: Mixture,
    config: StageConfig,
    geometric: ContextNormContext | None,
    matchability: Matchability | None,
) -> tuple[Tensor, Tensor]:
    """Mean outer products (D, D) of what the maps read, and of its differences within a place."""
    rng = np.random.default_rng([config.seed, *b"start"])
    total = within = torch.zeros((), dtype=torch.float64)
    places = 0
    frozen = [network for network in (visual, matchability) if network is not None]
    training = [network.training for network in frozen]
    for network in frozen:
        network.eval()
    for index in examples.draw(rng, PAIRS, config.scene_share):
        example = examples[int(index)]
        assert example.grids is not None  # of stage context, whose regional network is frozen
        if example.pair.count < FEWEST:
            continue
        rows = rng.permutation(example.pair.count)[:ROWS]
        xy = torch.from_numpy(example.pair.unit_xy)
        raw = _raw(example, rows)
        grids = [torch.from_numpy(grid) for grid in example.grids]
        read = visual.inputs(grids, xy[:, rows], raw)  # (2, C + 128, rows)
        if geometric is not None:
            keypoints = [Keypoints.from_array(side) for side in example.pair.keypoints]
            direction = torch.from_numpy(np.stack([directions(side) for side in keypoints]))
            score = None if example.score is None else torch.from_numpy(np.array(example.score))
            if matchability is not None:
                score = _scores(matchability, _raw(example))
            direct = geometric.direct_inputs(xy, score, direction)[..., rows]
            read = torch.cat([read[:, :-DESCRIPTOR], direct, read[:, -DESCRIPTOR:]], 1)
        first, second = read.double()  # (D, rows) each
        total = total + first @ first.T + second @ second.T
        within = within + (first - second) @ (first - second).T
        places += len(rows)
    for network, mode in zip(frozen, training, strict=True):
        network.train(mode)
    if not places:
        raise InputError(
            f"start is {visual.config.start:g}, and no training pair has {FEWEST} corresponding keypoints to "
            "fit it to: set it to 0, or add photographs"
        )
    return total / (2 * places), within / places


def _raw(example: Example, rows: NDArray[np.int64] | slice = slice(None)) -> Tensor:
    """Raw descriptors (2, K, 128) of rows of a pair."""
    assert example.raw is not None  # of stage context, whose base is frozen
    return torch.from_numpy(np.asarray(example.raw[:, rows], np.float32))


def _scores(network: Matchability, raw: Tensor) -> Tensor:
    """Matchability (2, K) of raw descriptors (2, K, 128)."""
    scores: Tensor = network(raw.flatten(0, 1))
    return scores.unflatten(0, raw.shape[:2])
