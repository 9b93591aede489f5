"""Losses of section 3.4: N-pair with a trained softmax temperature, and the matchability ranking loss.

Descriptors of a pair of images come as (B, K, 128), row i of the first image matching row i of the
second. Rows that are not matchable (`matchable` False) stay in every softmax denominator but are not
averaged.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Temperature(nn.Module):
    """The trained factor alpha of the softmax: 1 at the start in the paper, 20 for unit-norm bases."""

    def __init__(self, start: float = 20.0) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(float(start)))

    def forward(self) -> Tensor:
        return self.alpha


def n_pair(
    first: Tensor,
    second: Tensor,
    alpha: Tensor,
    matchable: Tensor | None = None,
    ignored: Tensor | None = None,
) -> Tensor:
    """N-pair loss, softmax(alpha * cosine) row-wise and column-wise.

    Args:
        first, second: (B, K, D), L2-normalised.
        alpha: scalar temperature.
        matchable: (B, K) bool, rows that have a partner; None for all.
        ignored: (B, K, K) bool, entries that are neither partner nor negative, such as a second
            keypoint at the partner's place.

    Returns:
        Scalar: mean over matchable rows and columns.
    """
    similarity = alpha * first @ second.transpose(1, 2)  # (B, K, K)
    if ignored is not None:
        similarity = similarity.masked_fill(ignored, -torch.inf)
    target = torch.arange(first.shape[1], device=first.device).expand(first.shape[:2])
    rows = F.cross_entropy(similarity.transpose(1, 2), target, reduction="none")  # (B, K)
    columns = F.cross_entropy(similarity, target, reduction="none")
    loss = (rows + columns) / 2
    return loss.mean() if matchable is None else (loss * matchable).sum() / matchable.sum().clamp_min(1)


def quad(first: Tensor, second: Tensor, matchable: Tensor | None = None) -> Tensor:
    """Quad loss: the order of matchability scores should be the same in both images.

    For keypoints i != j the hinge max(0, 1 - (first_i - first_j) (second_i - second_j)).

    Args:
        first, second: (B, K) scores of corresponding keypoints.
        matchable: (B, K) bool, rows that take part; None for all.

    Returns:
        Scalar: mean over pairs of matchable keypoints.
    """
    if matchable is None:
        matchable = torch.ones_like(first, dtype=torch.bool)
    rank = (first[:, :, None] - first[:, None]) * (second[:, :, None] - second[:, None])  # (B, K, K)
    pairs = matchable[:, :, None] & matchable[:, None]
    pairs = pairs & ~torch.eye(first.shape[1], dtype=torch.bool, device=first.device)
    return (F.relu(1 - rank) * pairs).sum() / pairs.sum().clamp_min(1)
