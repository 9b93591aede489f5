"""Each loss against a plain-loop version, and by gradcheck."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from contextdesc.training.losses import (
    LOSSES,
    TEMPERED,
    LossName,
    Temperature,
    distances,
    geodesc,
    hard_triplet,
    n_pair,
    n_pair_of_places,
    plain_n_pair,
    quad,
    scale_aware,
)

ALPHA = 3.0


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def unit(*shape: int) -> Tensor:
    return F.normalize(torch.randn(*shape, dtype=torch.float64), dim=-1)


def similarity(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64)


# What one keypoint costs, written out: its partner's cosine, those of its negatives in the other image,
# those of its partner's negatives in its own, and the patch similarity.
def by_hand(name: LossName, partner: float, row: list[float], column: list[float], alike: float) -> float:
    def apart(cosine: float) -> float:
        return math.sqrt(2 * (1 - cosine))

    if name == "geodesc":
        margin = 0.7 if alike >= 0.5 else 0.5 if alike >= 0.2 else 0.2
        structured = sum(
            sum(max(0.0, s - 0.4 * partner) for s in side) / max(len(side), 1) for side in (row, column)
        )
        return structured + 0.2 * max(0.0, margin - partner)
    if name == "hard-triplet":
        return max(0.0, 1 + apart(partner) - min(apart(s) for s in row + column))
    total = 0.0
    for side in (row, column):
        if name == "scale-aware":
            near, far = apart(partner), min(apart(s) for s in side)
            theta = 0.5 * (near + far) / 2 + 0.5 * 1.15
            total += math.log(1 + math.exp(10 * (near - theta))) / 10 / 2
            total += math.log(1 + math.exp(10 * (theta - far))) / 10 / 2
            continue
        logits = [
            {"n-pair": ALPHA * s, "n-pair-distance": ALPHA * (2 - apart(s)), "plain-n-pair": 2 - apart(s)}[
                name
            ]
            for s in [partner, *side]
        ]
        total -= (logits[0] - math.log(sum(math.exp(x) for x in logits))) / 2
    return total


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("name", LOSSES)
def test_agrees_with_plain_loops(name: LossName, masked: bool) -> None:
    size = 7
    first, alike = unit(2, size, 8), similarity(2, size)
    second = F.normalize(first + 0.4 * unit(2, size, 8), dim=2)
    matchable = torch.rand(2, size) < 0.6
    ignored = torch.rand(2, size, size) < 0.2  # also on the diagonal, which is not read
    total, rows = 0.0, 0
    for b in range(2):
        cosine = (first[b] @ second[b].T).tolist()
        for i in range(size):
            if masked and not matchable[b, i]:
                continue
            others = [j for j in range(size) if j != i]
            row = [cosine[i][j] for j in others if not (masked and ignored[b, i, j])]
            column = [cosine[j][i] for j in others if not (masked and ignored[b, j, i])]
            total += by_hand(name, cosine[i][i], row, column, float(alike[b, i]))
            rows += 1
    masks = (matchable, ignored) if masked else (None, None)
    loss = LOSSES[name](first, second, torch.tensor(ALPHA, dtype=torch.float64), *masks, alike)
    assert float(loss) == pytest.approx(total / rows)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_right(name: LossName) -> None:
    first, second, alpha = unit(1, 4, 3), unit(1, 4, 3), torch.tensor(2.0, dtype=torch.float64)
    matchable, alike = torch.tensor([[True, True, True, False]]), similarity(1, 4)
    ignored = torch.zeros(1, 4, 4, dtype=torch.bool)
    ignored[0, 0, 2] = True

    def loss(a: Tensor, b: Tensor, t: Tensor) -> Tensor:
        return LOSSES[name](a, b, t, matchable, ignored, alike)

    inputs = [x.requires_grad_() for x in (first, second, alpha)]
    assert torch.autograd.gradcheck(loss, inputs)
    loss(*inputs).backward()
    assert first.grad is not None
    assert first.grad.abs().sum() > 0
    assert (alpha.grad is not None) == (name in TEMPERED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LOSSES)
def test_finite_where_descriptors_are_equal(name: LossName, dtype: torch.dtype) -> None:
    """Partners that are equal, all descriptors equal, and a keypoint without any negative."""
    same = unit(1, 5, 8).to(dtype)
    for first, ignored in (
        (same, None),
        (same[:, :1].repeat(1, 5, 1), None),
        (same, torch.ones(1, 5, 5, dtype=torch.bool)),
        (same[:, :1], None),
    ):
        first = first.clone().requires_grad_()
        second = first.detach().clone().requires_grad_()
        alpha = torch.tensor(50.0, dtype=dtype)
        loss = LOSSES[name](first, second, alpha, None, ignored, similarity(*first.shape[:2]).to(dtype))
        loss.backward()
        for value in (loss, first.grad, second.grad):
            assert value is not None
            assert value.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_no_matchable_row_costs_nothing(name: LossName) -> None:
    first, second = unit(2, 4, 8).requires_grad_(), unit(2, 4, 8)
    nothing = torch.zeros(2, 4, dtype=torch.bool)
    ignored = torch.ones(2, 4, 4, dtype=torch.bool)
    unknown = torch.full((2, 4), torch.nan, dtype=torch.float64)
    loss = LOSSES[name](first, second, torch.tensor(5.0), nothing, ignored, unknown)
    loss.backward()
    assert loss == 0
    assert first.grad is not None
    assert first.grad.abs().max() == 0


@pytest.mark.parametrize("name", LOSSES)
def test_rows_that_are_not_matchable_are_negatives_but_not_averaged(name: LossName) -> None:
    first, alpha, alike = unit(1, 5, 8), torch.tensor(10.0, dtype=torch.float64), similarity(1, 5)
    second = F.normalize(first + 0.3 * unit(1, 5, 8), dim=2)
    second[0, 4] = first[0, 0]  # a keypoint without partner that looks just like the first
    matchable = torch.tensor([[True, True, False, False, False]])
    loss = LOSSES[name](first, second, alpha, matchable, None, alike)
    alone = LOSSES[name](first[:, :2], second[:, :2], alpha, None, None, alike[:, :2])
    assert float(loss) > float(alone)
    ignored = ~(matchable[:, :, None] & matchable[:, None])
    masked = LOSSES[name](first, second, alpha, matchable, ignored, alike)
    assert float(masked) == pytest.approx(float(alone))  # all but the two ignored leaves the two alone


@pytest.mark.parametrize("name", LOSSES)
def test_descent_brings_partners_together(name: LossName) -> None:
    # From a start at which no loss is at rest: the partners' cosine is below GeoDesc's least margin.
    raw = torch.randn(2, 1, 12, 16, dtype=torch.float64, requires_grad=True)

    def loss() -> Tensor:
        first, second = F.normalize(raw, dim=3)
        alpha = torch.tensor(10.0, dtype=torch.float64)
        return LOSSES[name](first, second, alpha, None, None, torch.ones(1, 12))

    def correct() -> float:
        first, second = F.normalize(raw.detach(), dim=3)
        return float(((first @ second.transpose(1, 2)).argmax(2) == torch.arange(12)).double().mean())

    before, right_before = float(loss().detach()), correct()
    optimiser = torch.optim.Adam([raw], 0.05)
    for _ in range(60):
        optimiser.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert float(loss().detach()) < before
    assert correct() > max(right_before, 0.9)


def test_both_forms_of_n_pair_meet_in_the_plain_one() -> None:
    first, second = unit(2, 6, 8), unit(2, 6, 8)
    plain = plain_n_pair(first, second)
    assert float(plain) == float(n_pair(first, second, 1.0, form="distance"))
    assert float(plain) != pytest.approx(float(n_pair(first, second, 1.0)))
    with pytest.raises(ValueError, match="form 'euclid' of the N-pair loss: one of cosine, distance"):
        n_pair(first, second, 1.0, form="euclid")  # type: ignore[arg-type]


def test_places_with_one_partner_each_are_plain_partners() -> None:
    first, second = unit(2, 6, 8), unit(2, 6, 8)
    matchable, ignored = torch.rand(2, 6) < 0.7, torch.rand(2, 6, 6) < 0.3
    for known, masked in ((torch.ones(2, 6, dtype=torch.bool), None), (matchable, ignored)):
        expected = n_pair(first, second, ALPHA, known, masked)
        found = n_pair_of_places(first, second, ALPHA, known.diag_embed(), masked)
        assert float(found) == pytest.approx(float(expected))


def test_two_partners_by_hand() -> None:
    """Similarities 2 [[1, 0.6], [0, 0.8]]; both keypoints of the second image lie on the first's first.

    Whichever of the two it finds is right, so its row costs nothing; the second keypoint of the first image
    has no partner. The columns cost log(1 + e^(0 - 2)) and log(1 + e^(1.6 - 1.2)).
    """
    first = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    second = torch.tensor([[[1.0, 0.0], [0.6, 0.8]]], dtype=torch.float64)
    same = torch.tensor([[[True, True], [False, False]]])
    columns = math.log(1 + math.exp(-2)), math.log(1 + math.exp(0.4))
    assert float(n_pair_of_places(first, second, 2.0, same)) == pytest.approx(sum(columns) / 4)
    ignored = torch.tensor([[[True, True], [False, True]]])  # partners are never ignored
    assert float(n_pair_of_places(first, second, 2.0, same, ignored)) == pytest.approx(columns[0] / 4)


def test_places_agree_with_plain_loops() -> None:
    first, second = unit(2, 7, 8), unit(2, 7, 8)
    same, ignored = torch.rand(2, 7, 7) < 0.2, torch.rand(2, 7, 7) < 0.3
    assert 0 < same.any(2).sum() < 14  # some have none, some several
    assert (same.sum(2) > 1).any()
    means = []
    for side in (0, 1):
        costs = []
        for b in range(2):
            cosine, right, left_out = first[b] @ second[b].T, same[b], ignored[b]
            if side:
                cosine, right, left_out = cosine.T, right.T, left_out.T
            for i in range(7):
                partners = [math.exp(ALPHA * cosine[i, j]) for j in range(7) if right[i, j]]
                others = [
                    math.exp(ALPHA * cosine[i, j]) for j in range(7) if not (right[i, j] or left_out[i, j])
                ]
                if partners:
                    costs.append(-math.log(sum(partners) / (sum(partners) + sum(others))))
        means.append(sum(costs) / len(costs))
    found = n_pair_of_places(first, second, ALPHA, same, ignored)
    assert float(found) == pytest.approx(sum(means) / 2)


def test_gradients_of_places() -> None:
    inputs = [unit(1, 4, 3), unit(1, 4, 3), torch.tensor(2.0, dtype=torch.float64)]
    same = torch.zeros(1, 4, 4, dtype=torch.bool)
    same[0, 0, :2] = same[0, 2, 1] = True  # several, shared, and none
    ignored = torch.zeros(1, 4, 4, dtype=torch.bool)
    ignored[0, 3] = ignored[0, :, 3] = True  # nothing but ignored
    inputs = [x.requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(lambda a, b, t: n_pair_of_places(a, b, t, same, ignored), inputs)
    for dtype in (torch.float32, torch.float64):
        first, second = (x.detach().to(dtype).requires_grad_() for x in inputs[:2])
        loss = n_pair_of_places(first, second, 50.0, same, ignored)
        loss.backward()  # type: ignore[no-untyped-call]
        for value in (loss, first.grad, second.grad):
            assert value is not None
            assert value.isfinite().all()
        assert first.grad is not None
        assert first.grad[0, 0].abs().max() > 0


def test_no_place_costs_nothing() -> None:
    first, second = unit(2, 4, 8).requires_grad_(), unit(2, 4, 8)
    nothing = torch.zeros(2, 4, 4, dtype=torch.bool)
    for ignored in (None, nothing, ~nothing):
        loss = n_pair_of_places(first, second, 5.0, nothing, ignored)
        (gradient,) = torch.autograd.grad(loss, first)
        assert loss == 0
        assert gradient.abs().max() == 0


def test_temperature_is_trained() -> None:
    first, temperature = unit(1, 6, 8), Temperature(1.0)
    n_pair(first, first, temperature()).backward()  # type: ignore[no-untyped-call]
    assert temperature.alpha.grad is not None
    assert temperature.alpha.grad < 0  # partners are equal: the sharper the better


def test_distances_are_euclidean() -> None:
    first, second = unit(2, 5, 8), unit(2, 7, 8)
    torch.testing.assert_close(distances(first, second), torch.cdist(first, second))


def test_hard_triplet_is_zero_beyond_its_margin() -> None:
    corners = torch.eye(4, dtype=torch.float64)[None]  # all sqrt(2) apart
    assert float(hard_triplet(corners, corners)) == 0
    assert float(hard_triplet(corners, corners, margin=1.5)) == pytest.approx(1.5 - math.sqrt(2), abs=2e-3)


def test_scale_aware_mixes_siamese_and_triplet() -> None:
    """With mix 0 partners and negatives do not see each other; with mix 1 only their difference counts."""
    first = unit(1, 2, 8)
    triplet = scale_aware(first, first.flip(1), mix=1)  # partners swapped: d+ and d- change places
    swapped = scale_aware(first, first, mix=1)
    gap = float(torch.linalg.vector_norm(first[0, 0] - first[0, 1])) - 1e-3
    assert float(triplet) - float(swapped) == pytest.approx(gap)  # softplus(x) - softplus(-x) = x
    corners = torch.eye(4, dtype=torch.float64)[None]
    siamese: list[float] = [float(scale_aware(corners, corners, mix=0, context=c)) for c in (0.5, 5.0)]
    assert siamese[0] < 0.01
    assert siamese[1] == pytest.approx(5.0 - math.sqrt(2), abs=0.01)


@pytest.mark.parametrize(("alike", "margin"), [(0.9, 0.7), (0.5, 0.7), (0.3, 0.5), (0.2, 0.5), (0.1, 0.2)])
def test_geodesc_margin_follows_the_views(alike: float, margin: float) -> None:
    """One correspondence without negatives, at a right angle: the margin alone is left, times 0.2."""
    first, second = torch.eye(2, dtype=torch.float64)[:, None, None]
    assert float(geodesc(first, second, torch.full((1, 1), alike))) == pytest.approx(0.2 * margin)


def test_geodesc_says_what_it_lacks() -> None:
    with pytest.raises(ValueError, match="geodesc wants the patch similarity of each correspondence"):
        LOSSES["geodesc"](unit(1, 3, 8), unit(1, 3, 8), torch.tensor(1.0), None, None, None)


def test_quad_agrees_with_plain_loops() -> None:
    first, second = torch.randn(2, 5), torch.randn(2, 5)
    matchable = torch.tensor([[True] * 4 + [False], [True] * 5])
    total, pairs = 0.0, 0
    for b in range(2):
        for i in range(5):
            for j in range(5):
                if i != j and matchable[b, i] and matchable[b, j]:
                    rank = float((first[b, i] - first[b, j]) * (second[b, i] - second[b, j]))
                    total += max(0.0, 1 - rank)
                    pairs += 1
    assert float(quad(first, second, matchable)) == pytest.approx(total / pairs)


def test_quad_is_one_at_its_saddle_and_zero_for_spread_equal_orders() -> None:
    same = torch.zeros(1, 4)
    assert float(quad(same, same)) == 1
    spread = torch.arange(4.0)[None] * 2
    assert float(quad(spread, spread)) == 0


def test_quad_gradients() -> None:
    matchable = torch.tensor([[True, True, True, False]])
    scores = [torch.randn(1, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(lambda a, b: quad(a, b, matchable), scores)
    assert quad(scores[0], scores[1], torch.zeros(1, 4, dtype=torch.bool)) == 0
