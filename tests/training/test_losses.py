"""Each loss against a plain-loop version, and by gradcheck."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from contextdesc.training.losses import Temperature, n_pair, quad


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def unit(*shape: int) -> torch.Tensor:
    return F.normalize(torch.randn(*shape, dtype=torch.float64), dim=-1)


@pytest.mark.parametrize("masked", [True, False])
def test_n_pair_agrees_with_plain_loops(masked: bool) -> None:
    first, second, alpha = unit(2, 6, 8), unit(2, 6, 8), torch.tensor(3.0, dtype=torch.float64)
    matchable = torch.rand(2, 6) < 0.6 if masked else torch.ones(2, 6, dtype=torch.bool)
    ignored = torch.rand(2, 6, 6) < 0.2
    ignored[:, range(6), range(6)] = False
    total, rows = 0.0, 0
    for b in range(2):
        for i in range(6):
            if not matchable[b, i]:
                continue
            positive = math.exp(3 * float(first[b, i] @ second[b, i]))
            row = sum(
                math.exp(3 * float(first[b, i] @ second[b, j])) for j in range(6) if not ignored[b, i, j]
            )
            column = sum(
                math.exp(3 * float(first[b, j] @ second[b, i])) for j in range(6) if not ignored[b, j, i]
            )
            total -= (math.log(positive / row) + math.log(positive / column)) / 2
            rows += 1
    loss = n_pair(first, second, alpha, matchable if masked else None, ignored)
    assert float(loss) == pytest.approx(total / rows)


def test_rows_that_are_not_matchable_are_negatives_but_not_averaged() -> None:
    first, second, alpha = unit(1, 5, 8), unit(1, 5, 8), Temperature(10.0)().detach()
    matchable = torch.tensor([[True, True, False, False, False]])
    loss = n_pair(first, second, alpha, matchable).detach()
    assert float(loss) > float(n_pair(first[:, :2], second[:, :2], alpha))
    assert float(n_pair(first, second, alpha, torch.zeros(1, 5, dtype=torch.bool))) == 0


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


def test_gradients() -> None:
    first, second = (unit(1, 4, 3).requires_grad_() for _ in range(2))
    alpha = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    matchable = torch.tensor([[True, True, True, False]])
    assert torch.autograd.gradcheck(lambda a, b, t: n_pair(a, b, t, matchable), (first, second, alpha))
    scores = [torch.randn(1, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(lambda a, b: quad(a, b, matchable), scores)
