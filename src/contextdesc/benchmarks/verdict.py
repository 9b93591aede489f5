"""Calibration of the verdict: pairs with known answer in, coefficients and error rates out.

`verdict_pairs` makes the pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

import numpy as np

from contextdesc.errors import InputError
from contextdesc.geometry import Geometry
from contextdesc.verdict import Answer, Calibration

if TYPE_CHECKING:
    from numpy.typing import NDArray

GEOMETRIES: tuple[Geometry, ...] = ("fundamental", "homography", "essential")
SAME_AT_MOST = 0.01  # of the pairs of two scenes, called `same scene`
DIFFERENT_AT_MOST = 0.10  # of the pairs of the same thing, called `different scenes`
SURE = 0.8  # no threshold is less sure of its answer than this
RIDGE = 3.0  # penalty of standardised coefficients, in pairs

# Share of the pairs of different things; those of the same thing weigh alike by scene. Mirror images are
# reported, but not fitted: that of a symmetric building is the building, as far as matches can tell. Two
# halves of a facade are fitted, but no threshold would keep them to a stated rate.
HALVES, CHANCE = "two halves", "random matches"
SHARES = {"two scenes": 0.5, "two scenes, most matches": 0.2, CHANCE: 0.2, HALVES: 0.1, "mirrored": 0.0}


@dataclass(frozen=True, eq=False)
class Evidence:
    """P pairs as the verdict sees them.

    Attributes:
        features: by geometry, (P, F) float64; see `contextdesc.verdict.measure`.
        inliers: by geometry, (P,) int64.
        same: (P,) bool, the known answer.
        kind: (P,) what a pair is.
        groups: (P, 2) scenes or groups of photographs of both images.
    """

    features: dict[str, NDArray[np.float64]]
    inliers: dict[str, NDArray[np.int64]]
    same: NDArray[np.bool_]
    kind: NDArray[np.str_]
    groups: NDArray[np.str_]

    def weights(self) -> NDArray[np.float64]:
        """(P,): half for pairs of the same thing, alike by scene, and half for the others, by `SHARES`."""
        weights = np.zeros(len(self.same))
        scenes = np.unique(self.groups[self.same, 0])
        cells = [(self.same & (self.groups[:, 0] == scene), 1 / len(scenes)) for scene in scenes]
        present = {kind: ~self.same & (self.kind == kind) for kind in SHARES}
        total = sum(SHARES[kind] for kind, rows in present.items() if rows.any())
        cells += [(rows, SHARES[kind] / total) for kind, rows in present.items() if rows.any()]
        for rows, share in cells:
            weights[rows] = 0.5 * share / rows.sum()
        return weights

    @classmethod
    def joined(cls, parts: Sequence[Evidence]) -> Evidence:
        """The pairs of several models."""
        return cls(
            {g: np.concatenate([p.features[g] for p in parts]) for g in GEOMETRIES},
            {g: np.concatenate([p.inliers[g] for p in parts]) for g in GEOMETRIES},
            np.concatenate([p.same for p in parts]),
            np.concatenate([p.kind for p in parts]),
            np.concatenate([p.groups for p in parts]),
        )


@dataclass(frozen=True, eq=False)
class Fit:
    """A calibration, and for each pair the probability by one that saw neither of its scenes, (P,)."""

    calibration: Calibration
    held_out: NDArray[np.float64]


def cross_validated(evidence: Evidence, geometry: Geometry) -> Fit:
    """Fit on all pairs; and for the error rates, each pair by a fit without the scenes of its two images."""
    features, weights = evidence.features[geometry], evidence.weights()
    held_out = np.zeros(len(features))
    codes = np.array(["\n".join(sorted(set(pair))) for pair in evidence.groups.tolist()])
    for code in np.unique(codes):
        rows = codes == code
        others = ~np.isin(evidence.groups, code.split("\n")).any(1)
        fitted = fit(features[others], evidence.same[others], weights[others])
        held_out[rows] = fitted.probability(features[rows])
    same_from, different_below = thresholds(held_out, evidence.same, weights * (evidence.kind != HALVES))
    final = fit(features, evidence.same, weights)
    return Fit(replace(final, same_from=same_from, different_below=different_below), held_out)


def fit(features: NDArray[np.float64], same: NDArray[np.bool_], weights: NDArray[np.float64]) -> Calibration:
    """Logistic regression with a ridge, both answers equally likely before.

    Args:
        features: (P, F).
        same: (P,) bool.
        weights: (P,), scaled so that both answers weigh half.
    """
    if same.all() or not same.any():
        raise InputError("a verdict is fitted on pairs of the same thing and on pairs of different things")
    weights = np.where(same, weights / weights[same].sum(), weights / weights[~same].sum()) * len(same) / 2
    mean, scale = features.mean(0), np.maximum(features.std(0), 1e-9)
    beta = _newton(np.column_stack([np.ones(len(features)), (features - mean) / scale]), same, weights)
    coefficients = beta[1:] / scale
    return Calibration(float(beta[0] - coefficients @ mean), tuple(map(float, coefficients)), 1.0, 0.0)


def _newton(
    inputs: NDArray[np.float64], same: NDArray[np.bool_], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Coefficients (F,) of inputs (P, F), the first of which are ones; the others are penalised."""
    penalty = np.diag([0.0] + [RIDGE] * (inputs.shape[1] - 1))
    beta = np.zeros(inputs.shape[1])
    for _ in range(100):
        probability = 1 / (1 + np.exp(-np.clip(inputs @ beta, -30, 30)))
        gradient = inputs.T @ (weights * (same - probability)) - penalty @ beta
        curvature = (inputs * (weights * probability * (1 - probability))[:, None]).T @ inputs + penalty
        step = np.linalg.solve(curvature + 1e-9 * np.eye(len(beta)), gradient)
        beta += step * min(1.0, 5 / max(np.abs(step).max(), 1e-9))
        if np.abs(step).max() < 1e-8:
            break
    return beta


def thresholds(
    probability: NDArray[np.float64], same: NDArray[np.bool_], weights: NDArray[np.float64]
) -> tuple[float, float]:
    """The lowest `same_from` and the highest `different_below` that keep to the stated error rates."""
    steps = np.arange(1, 100) / 100
    wrong_same = [_share(probability >= p, ~same, weights) for p in steps]
    wrong_different = [_share(probability < p, same, weights) for p in steps]
    same_from = min((p for p, w in zip(steps, wrong_same, strict=True) if w <= SAME_AT_MOST), default=0.99)
    below = max(
        (p for p, w in zip(steps, wrong_different, strict=True) if w <= DIFFERENT_AT_MOST), default=0.01
    )
    return round(float(max(same_from, SURE)), 2), round(float(min(below, 1 - SURE)), 2)


def answers(
    values: NDArray[np.float64] | NDArray[np.int64], same_from: float, different_below: float
) -> NDArray[np.str_]:
    """(P,) of the three answers, by probability or by inliers."""
    return np.select(
        [values >= same_from, values < different_below], ["same scene", "different scenes"], "unsure"
    )


def rates(evidence: Evidence, answers: NDArray[np.str_]) -> dict[str, dict[str, float | int]]:
    """By kind of pair: how many, and the shares of the three answers; over all kinds by their weights."""
    same, kind, alike = evidence.same, evidence.kind, np.ones(len(evidence.same))
    table: dict[str, dict[str, float | int]] = {}
    for of, side in (("same", same), ("different", ~same)):
        rows = {
            f"{of}: {name}": (side & (kind == name), alike) for name in dict.fromkeys(kind[side].tolist())
        }
        rows[f"{of}: all, weighted"] = (side, evidence.weights())
        for name, (among, by) in rows.items():
            table[name] = {"pairs": int(among.sum())}
            for answer in get_args(Answer):
                table[name][answer] = _share(answers == answer, among, by)
    return table


def reliability(
    probability: NDArray[np.float64], same: NDArray[np.bool_], weights: NDArray[np.float64], bins: int = 10
) -> list[dict[str, float | int]]:
    """By bin of probability: its mean, the weighted share that is the same thing, and the number of pairs."""
    which = np.minimum((probability * bins).astype(int), bins - 1)
    table = []
    for b in range(bins):
        rows = (which == b) & (weights > 0)
        if rows.any():
            by = weights[rows]
            table.append({
                "from": b / bins, "to": (b + 1) / bins, "pairs": int(rows.sum()),
                "probability": float(np.average(probability[rows], weights=by)),
                "same": float(np.average(same[rows], weights=by)), "weight": float(by.sum()),
            })  # fmt: skip
    return table


def calibration_error(table: Sequence[Mapping[str, float]]) -> float:
    """Mean distance of a bin's probability and its share of pairs of the same thing, by weight."""
    total = sum(row["weight"] for row in table)
    return sum(row["weight"] * abs(row["probability"] - row["same"]) for row in table) / total


def _share(chosen: NDArray[np.bool_], among: NDArray[np.bool_], weights: NDArray[np.float64]) -> float:
    return float(weights[chosen & among].sum() / weights[among].sum())
