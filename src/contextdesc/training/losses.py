"""Losses of section 3.4, and those that the paper's table 2 and its field compare them with.

Descriptors of a pair of images come as (B, K, D), L2-normalised, row i of the first image matching row i
of the second. `matchable` (B, K) bool marks the rows that have a partner: the others stay negatives of
all (in every softmax denominator), but are not averaged. `ignored` (B, K, K) bool marks entries that are
neither partner nor negative, such as a second keypoint at the partner's place; its diagonal is not read.
Every loss is a scalar, the mean over matchable rows, and 0 where there is none. `LOSSES` names them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contextdesc.errors import InputError

NEAREST = 1e-6  # squared distance below which descriptors count as equal, and pull no longer
FAR = 1e4  # distance of a negative where there is none: far beyond 2, the largest between unit vectors

HARDNET_MARGIN = 1.0
KELLER_CONTEXT = 1.15  # Keller et al.: global context, theta_glo
KELLER_MIX = 0.5  # gamma: 0 is a Siamese loss with that global context, 1 a triplet loss
KELLER_SHARPNESS = 5.0  # delta, of the soft hinge
GEODESC_RATIO = 0.4  # GeoDesc: alpha, negatives below alpha times the partner's similarity are far enough
GEODESC_WEIGHT = 0.2  # lambda, of the geometric loss
GEODESC_MARGINS = ((0.5, 0.7), (0.2, 0.5), (0.0, 0.2))  # patch similarity from, least cosine of partners


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
    alpha: Tensor | float,
    matchable: Tensor | None = None,
    ignored: Tensor | None = None,
    form: Literal["cosine", "distance"] = "cosine",
) -> Tensor:
    """N-pair loss with softmax temperature, row-wise and column-wise.

    Args:
        first, second: (B, K, D), L2-normalised.
        alpha: scalar temperature.
        matchable: (B, K) bool, rows that have a partner; None for all.
        ignored: (B, K, K) bool, entries that are neither partner nor negative; None for none.
        form: softmax(alpha * cosine), as released, or softmax(alpha (2 - distance)), as published.

    Returns:
        Scalar: mean over matchable rows and columns.
    """
    if form == "cosine":
        similarity = alpha * first @ second.transpose(1, 2)  # (B, K, K)
    elif form == "distance":
        similarity = alpha * (2 - distances(first, second))
    else:
        raise InputError(f"form {form!r} of the N-pair loss: one of cosine, distance")
    if ignored is not None:
        similarity = similarity.masked_fill(ignored & ~_diagonal(ignored), -torch.inf)
    target = torch.arange(first.shape[1], device=first.device).expand(first.shape[:2])
    rows = F.cross_entropy(similarity.transpose(1, 2), target, reduction="none")  # (B, K)
    columns = F.cross_entropy(similarity, target, reduction="none")
    return _mean((rows + columns) / 2, matchable)


def n_pair_of_places(
    first: Tensor, second: Tensor, alpha: Tensor | float, same: Tensor, ignored: Tensor | None = None
) -> Tensor:
    """N-pair loss with temperature where a keypoint may have several partners, or share one with others.

    The softmax of a keypoint over the other image is summed over all that lie at its place: any of them
    will do, as in the recall of section 5.1.

    Args:
        first, second: (B, K, D), L2-normalised.
        alpha: scalar temperature.
        same: (B, K, K) bool, keypoints i of the first and j of the second image at one place.
        ignored: (B, K, K) bool, entries that are neither partner nor negative; None for none.

    Returns:
        Scalar: mean over keypoints that have a partner, of both images alike; 0 if none has.
    """
    similarity = alpha * first @ second.transpose(1, 2)  # (B, K, K)
    if ignored is not None:
        similarity = similarity.masked_fill(ignored & ~same, -torch.inf)
    partners = similarity.masked_fill(~same, torch.finfo(similarity.dtype).min)
    total = similarity.new_zeros(())
    for dim in (1, 2):
        missed = similarity.logsumexp(dim) - partners.logsumexp(dim)
        total = total + _mean(missed, same.any(dim)) / 2
    return total


def plain_n_pair(
    first: Tensor, second: Tensor, matchable: Tensor | None = None, ignored: Tensor | None = None
) -> Tensor:
    """N-pair loss without temperature, softmax(2 - distance), as in the paper's table 2.

    The relative loss E1 of L2-Net (Tian et al., CVPR 2017), equation `npair` of the ContextDesc paper;
    L2-Net's penalties on correlated outputs and on intermediate maps are no part of it.

    Shape:
        first, second (B, K, D), matchable (B, K), ignored (B, K, K) -> scalar.
    """
    return n_pair(first, second, 1.0, matchable, ignored, form="distance")


def hard_triplet(
    first: Tensor,
    second: Tensor,
    matchable: Tensor | None = None,
    ignored: Tensor | None = None,
    margin: float = HARDNET_MARGIN,
) -> Tensor:
    """HardNet's triplet margin loss with the hardest negative in the batch.

    max(0, margin + d(a_i, p_i) - min(d(a_i, p_j), d(a_k, p_i))) with the nearest j != i and k != i
    (Mishchuk et al., NIPS 2017, section 3.1). HardNet's batch is a set of unrelated patches; here it is
    one pair of images, where `ignored` keeps true partners from being negatives.

    Shape:
        first, second (B, K, D), matchable (B, K), ignored (B, K, K) -> scalar.
    """
    distance = distances(first, second)
    row, column = _hardest(distance, ignored)
    return _mean(F.relu(margin + _partners(distance) - torch.minimum(row, column)), matchable)


def scale_aware(
    first: Tensor,
    second: Tensor,
    matchable: Tensor | None = None,
    ignored: Tensor | None = None,
    context: float = KELLER_CONTEXT,
    mix: float = KELLER_MIX,
    sharpness: float = KELLER_SHARPNESS,
) -> Tensor:
    """Mixed-context loss with the nearest negative (Keller et al., CVPR 2018, section 4).

    Distances d+ of partners should be below, d- of negatives above a context
    theta = mix (d+ + d-) / 2 + (1 - mix) context, by soft hinges: with s = 2 sharpness,
    (softplus(s (d+ - theta)) + softplus(s (theta - d-))) / s. Triplets of both directions are averaged:
    each keypoint of either image with its partner and its nearest negative in the other. The constants
    are those of a public implementation and have not been compared with the paper's text.

    Shape:
        first, second (B, K, D), matchable (B, K), ignored (B, K, K) -> scalar.
    """
    distance = distances(first, second)
    partner = _partners(distance)
    scale = 2 * sharpness
    total = torch.zeros_like(partner)
    for negative in _hardest(distance, ignored):
        theta = mix * (partner + negative) / 2 + (1 - mix) * context
        hinges = F.softplus(scale * (partner - theta)) + F.softplus(scale * (theta - negative))
        total = total + hinges / scale
    return _mean(total / 2, matchable)


def geodesc(
    first: Tensor,
    second: Tensor,
    patch_similarity: Tensor,
    matchable: Tensor | None = None,
    ignored: Tensor | None = None,
    ratio: float = GEODESC_RATIO,
    weight: float = GEODESC_WEIGHT,
) -> Tensor:
    """GeoDesc's structured loss plus its geometric loss with adaptive margin (Luo et al., ECCV 2018).

    Structured: hinges max(0, s_ij - ratio s_ii) and max(0, s_ji - ratio s_ii) on cosines s, mean over the
    negatives j of i. Geometric: max(0, margin_i - s_ii), where the margin grows with the
    similarity of the two views: partners that should look alike must be close, those seen from very
    different sides need not. Form and constants have not been compared with the paper's text: do so before
    quoting a number for this loss.

    Args:
        first, second: (B, K, D), L2-normalised.
        patch_similarity: (B, K) in [0, 1], how alike the two patches of a correspondence should look by
            the geometry of the scene: g(a, 15 deg) g(b, 20 deg) with g(x, sigma) = exp(-x^2 / 2 sigma^2),
            a the angle between the rays from the 3D point to both cameras, b the difference of the rays'
            angles to the surface normal. Not read where `matchable` is False.
        matchable: (B, K) bool; None for all.
        ignored: (B, K, K) bool; None for none.

    Returns:
        Scalar: mean over matchable rows.
    """
    cosine = first @ second.transpose(1, 2)  # (B, K, K)
    partner = _partners(cosine)
    least = ratio * partner
    hinges = F.relu(cosine - least[:, :, None]), F.relu(cosine - least[:, None])  # of rows, of columns
    negatives = ~_diagonal(cosine).expand_as(cosine) if ignored is None else ~(ignored | _diagonal(cosine))
    structured = torch.zeros_like(partner)
    for hinge, along in zip(hinges, (2, 1), strict=True):
        structured = structured + (hinge * negatives).sum(along) / negatives.sum(along).clamp_min(1)
    margin = torch.full_like(partner, GEODESC_MARGINS[-1][1])
    for above, least_cosine in reversed(GEODESC_MARGINS[:-1]):
        margin = margin.masked_fill(patch_similarity >= above, least_cosine)
    return _mean(structured + weight * F.relu(margin - partner), matchable)


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


def distances(first: Tensor, second: Tensor) -> Tensor:
    """Distances sqrt(2 (1 - cosine)) of unit vectors: (B, K, D), (B, L, D) -> (B, K, L).

    The root has no finite slope at 0: equal descriptors are `sqrt(NEAREST)` apart, with gradient 0.
    """
    return (2 - 2 * first @ second.transpose(1, 2)).clamp_min(NEAREST).sqrt()


LossName = Literal["n-pair", "n-pair-distance", "plain-n-pair", "scale-aware", "hard-triplet", "geodesc"]

# (first, second, alpha, matchable, ignored, patch similarity) -> scalar; a loss reads what it needs
Loss = Callable[[Tensor, Tensor, Tensor, "Tensor | None", "Tensor | None", "Tensor | None"], Tensor]

LOSSES: dict[LossName, Loss] = {
    "n-pair": lambda a, b, alpha, matchable, ignored, _: n_pair(a, b, alpha, matchable, ignored),
    "n-pair-distance": lambda a, b, alpha, matchable, ignored, _: n_pair(
        a, b, alpha, matchable, ignored, form="distance"
    ),
    "plain-n-pair": lambda a, b, _, matchable, ignored, __: plain_n_pair(a, b, matchable, ignored),
    "scale-aware": lambda a, b, _, matchable, ignored, __: scale_aware(a, b, matchable, ignored),
    "hard-triplet": lambda a, b, _, matchable, ignored, __: hard_triplet(a, b, matchable, ignored),
    "geodesc": lambda a, b, _, matchable, ignored, similarity: geodesc(
        a, b, _known(similarity), matchable, ignored
    ),
}
TEMPERED: frozenset[LossName] = frozenset({"n-pair", "n-pair-distance"})  # those that read alpha


def _known(patch_similarity: Tensor | None) -> Tensor:
    if patch_similarity is None:
        raise InputError(
            "loss geodesc wants the patch similarity of each correspondence, which needs a 3D model: "
            "train on scenes, or choose another loss"
        )
    return patch_similarity


def _diagonal(square: Tensor) -> Tensor:
    """(K, K) bool, True on the diagonal of a (..., K, K) tensor."""
    return torch.eye(square.shape[-1], dtype=torch.bool, device=square.device)


def _partners(square: Tensor) -> Tensor:
    return square.diagonal(dim1=1, dim2=2)  # (B, K)


def _hardest(distance: Tensor, ignored: Tensor | None) -> tuple[Tensor, Tensor]:
    """Distance of the nearest negative of each row and of each column, (B, K) both; FAR if it has none."""
    left_out = _diagonal(distance) if ignored is None else ignored | _diagonal(distance)
    negatives = distance.masked_fill(left_out, FAR)
    return negatives.amin(2), negatives.amin(1)


def _mean(loss: Tensor, matchable: Tensor | None) -> Tensor:
    """Mean of a (B, K) loss over matchable rows, 0 if there is none."""
    if matchable is None:
        return loss.mean()
    return loss.masked_fill(~matchable, 0).sum() / matchable.sum().clamp_min(1)
