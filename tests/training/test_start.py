"""The closed-form start of the context terms, on made-up features whose worth is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from contextdesc.errors import InputError
from contextdesc.keypoints import Keypoints
from contextdesc.model import directions
from contextdesc.training.config import StageConfig
from contextdesc.training.data.frozen import Example, Mixture
from contextdesc.training.data.pairs import Pair
from contextdesc.training.data.places import place_recall
from contextdesc.training.networks import Gate, Matchability, VisualConfig, VisualContext
from contextdesc.training.start import RIDGE, fit_matchability, fit_terms
from contextdesc.training.variants import (
    AggregationVariant,
    ContextNormContext,
    GeometricStart,
    GeometricVariant,
    GlobalContext,
    VisualVariant,
)

CHANNELS, TELLING = 16, 8  # of a grid; the first of them tell places apart, the others are noise
HEIGHT, WIDTH = 12, 16
KEYPOINTS = 160
DRAWN = 25  # pairs that a start is fitted to here
ENCODER = VisualConfig(
    CHANNELS, (), fusion_widths=(128,), interpolation="bilinear", unit=True, final_relu=False, start=0.5
)
CONFIG = StageConfig("context", steps=1, base="rootsift", visual=VisualVariant(encoder=ENCODER))


@pytest.fixture(autouse=True)
def _few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contextdesc.training.start.PAIRS", DRAWN)


def unit(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def example(seed: int, count: int = KEYPOINTS) -> Example:
    """A pair whose keypoints lie on points of the grid; raw descriptors are mostly noise.

    Beyond `count`, raw descriptors are not even numbers: nothing may be learned of them.
    """
    rng = np.random.default_rng(seed)
    place = rng.normal(size=(CHANNELS, HEIGHT, WIDTH))
    grids = np.stack([place, place]) + 0.3 * rng.normal(size=(2, *place.shape))
    grids[:, TELLING:] = rng.normal(size=grids[:, TELLING:].shape)
    row, column = np.divmod(rng.permutation(HEIGHT * WIDTH)[:KEYPOINTS], WIDTH)
    size = np.array([320, 240], np.float32)
    keypoints = np.zeros((2, KEYPOINTS, 4), np.float32)  # the same of both views
    keypoints[..., :2] = np.column_stack([column / (WIDTH - 1), row / (HEIGHT - 1)]) * size - 0.5
    raw = unit(rng.normal(size=(KEYPOINTS, 128))) + 0.15 * rng.normal(size=(2, KEYPOINTS, 128))
    raw[:, count:] = np.nan
    no_patches, no_likeness = np.empty(0, np.uint8), np.empty(0, np.float32)
    pair = Pair(no_patches, keypoints, np.stack([size, size]), count, no_likeness, keypoints[1, :, :2])
    first, second = grids.astype(np.float32)
    return Example(pair, (Path("a"), Path("b")), unit(raw).astype(np.float16), None, (first, second))


class InTurn(Mixture):
    """Examples that are drawn one after the other."""

    def draw(
        self, rng: np.random.Generator, count: int, last_share: float | None = None
    ) -> NDArray[np.int64]:
        return np.arange(count) % len(self)


class Listed(list[Example]):
    """Examples, each as likely to be drawn as any other."""

    @property
    def weights(self) -> NDArray[np.float64]:
        return np.ones(len(self))


def mixture(*parts: list[Example], kind: type[Mixture] = Mixture) -> Mixture:
    return kind([Listed(part) for part in parts])  # type: ignore[misc]  # all that it asks of examples


def fitted(examples: Mixture, encoder: VisualConfig = ENCODER, config: StageConfig = CONFIG) -> VisualContext:
    torch.manual_seed(0)
    visual = VisualContext(encoder)
    fit_terms(visual, examples, config)
    return visual


@pytest.fixture(scope="module")
def training() -> Mixture:
    return mixture([example(seed) for seed in range(12)])


def whole_map(visual: VisualContext) -> NDArray[np.float64]:
    """(128, C + 128): the map of regional feature and raw descriptor to raw + term."""
    weights = visual.fusion[0].weight.detach().double()[..., 0].numpy()  # type: ignore[operator]
    weights[:, -128:] += np.eye(128)
    return weights


@torch.no_grad()
def described(visual: VisualContext, one: Example) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Inputs (2, K, C + 128) of an example's corresponding keypoints, and raw + term (2, K, 128)."""
    assert one.raw is not None
    assert one.grids is not None
    rows = slice(one.pair.count)
    read = (
        [torch.from_numpy(grid) for grid in one.grids],
        torch.from_numpy(one.pair.unit_xy[:, rows]),
        torch.from_numpy(one.raw[:, rows].astype(np.float32)),
    )
    inputs, term = visual.inputs(*read).transpose(1, 2), visual(*read).transpose(1, 2)
    return inputs.double().numpy(), (read[2] + term).double().numpy()


def recall(descriptors: NDArray[np.float64], one: Example) -> float:
    first, second = unit(descriptors)
    return place_recall(first, second, one.pair.place, one.pair.xy[1])


ANGLE = GeometricStart(angle=0.1)
ALL_STARTS = GeometricVariant(inputs="xy+angle+matchability", start=GeometricStart(0.1, 0.1, 0.1))


@pytest.mark.parametrize(
    "start",
    [GeometricStart(xy=0.1), GeometricStart(angle=0.1), GeometricStart(matchability=0.1), ALL_STARTS.start],
    ids=["xy", "angle", "matchability", "all"],
)
def test_what_places_keep_enters_the_geometric_term(start: GeometricStart) -> None:
    """Keypoints of a place lie, point and score alike in both images; raw descriptors do not know it."""

    def kept(seed: int) -> Example:
        rng = np.random.default_rng([seed, 1])
        one = example(seed)
        one.pair.keypoints[..., 2:] = 5
        one.pair.keypoints[..., 3] = rng.uniform(0, 360, KEYPOINTS)
        score = rng.normal(size=KEYPOINTS) + 0.1 * rng.normal(size=(2, KEYPOINTS))
        score[1] = 3 * score[1] - 2  # what counts is how a score compares with the others of its image
        return replace(one, score=score.astype(np.float32))

    variant = replace(ALL_STARTS, start=start)
    visual, geometric = VisualContext(ENCODER), ContextNormContext(variant).eval()
    training = mixture([kept(seed) for seed in range(12)])
    fit_terms(visual, training, replace(CONFIG, geometric=variant), geometric)
    new = kept(99)
    assert new.score is not None
    _, without = described(visual, new)
    direction = torch.stack(
        [torch.from_numpy(directions(Keypoints.from_array(k))) for k in new.pair.keypoints]
    )
    with torch.no_grad():
        term = geometric(torch.from_numpy(new.pair.unit_xy), torch.from_numpy(new.score), None, direction)
    assert recall(without + term.transpose(1, 2).numpy(), new) > recall(without, new) + 0.02
    assert visual.fusion[0].weight.shape == fitted(training).fusion[0].weight.shape  # none of it is visual


@torch.no_grad()
def scores(network: Matchability, one: Example) -> torch.Tensor:
    assert one.raw is not None
    return network(torch.from_numpy(one.raw.astype(np.float32)).flatten(0, 1)).unflatten(0, (2, -1))


def test_matchability_of_raw_descriptors_is_ranked_alike_in_both_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One value of raw descriptors is alike in both images, the others hardly."""

    def telling(seed: int) -> Example:
        one, value = example(seed), np.random.default_rng([seed, 1]).normal(size=KEYPOINTS)
        assert one.raw is not None
        one.raw[..., 0] = value
        return one

    monkeypatch.setattr("contextdesc.training.start.RANKING_STEPS", 150)
    torch.manual_seed(0)
    network, new, training = Matchability(), telling(99), mixture([telling(seed) for seed in range(12)])

    def agreement() -> float:
        return float(torch.corrcoef(scores(network.eval(), new))[0, 1])

    before = agreement()
    fit_matchability(network, training, CONFIG)
    assert network.training
    assert before < 0.6
    assert agreement() > 0.9


def test_a_predictor_of_matchability_stands_in_for_scores() -> None:
    variant = replace(ALL_STARTS, start=GeometricStart(matchability=0.1))
    network = Matchability().eval()
    examples = [example(seed) for seed in range(12)]
    for one in examples:
        one.pair.keypoints[..., 2] = 5
    told = [replace(one, score=scores(network, one).numpy()) for one in examples]

    def fit(examples: Mixture, predictor: Matchability | None) -> torch.Tensor:
        geometric = ContextNormContext(variant)
        fit_terms(VisualContext(ENCODER), examples, CONFIG, geometric, predictor)
        return geometric.direct.weight.detach()

    read = fit(mixture(examples), network.train())
    assert network.training  # it is read as it will be, and left as it was
    assert read.norm() > 0.01
    torch.testing.assert_close(read, fit(mixture(told), None))


def test_inputs_without_a_start_enter_through_the_units_alone() -> None:
    plain = {
        name for name, _ in ContextNormContext(replace(ALL_STARTS, start=GeometricStart())).named_parameters()
    }
    one = ContextNormContext(replace(ALL_STARTS, start=GeometricStart(angle=0.1)))
    assert {name for name, _ in one.named_parameters()} - plain == {"direct.weight"}
    assert one.direct.weight.shape == (128, 2, 1)
    assert ContextNormContext(ALL_STARTS).direct.weight.shape == (128, 6, 1)


def test_a_lone_keypoint_compares_with_nothing() -> None:
    geometric = ContextNormContext(ALL_STARTS).eval()
    xy, direction = torch.rand(1, 1, 2), torch.tensor([[[0.6, 0.8]]])
    read = geometric.direct_inputs(xy, torch.tensor([[7.0]]), direction)
    assert read.flatten().tolist() == pytest.approx([0, 0, 0.6, 0.8, 1, 0])


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("start", [0.5, 2.0])
def test_the_term_by_a_formula_of_its_own(start: float, gate: bool) -> None:
    """A generalised eigenproblem of total against within, instead of damping and principal components."""
    pairs = [example(0, 20), example(1, 90), example(2, 150)]
    encoder = replace(ENCODER, start=start, gate=gate)
    visual = fitted(mixture(pairs, kind=InTurn), encoder)
    scale = np.repeat([start**0.5, 1], [CHANNELS, 128])
    read = [described(visual, pairs[i % 3])[0] * scale for i in range(DRAWN)]
    both = np.concatenate(read, 1)  # (2, all rows, C + 128)
    x, apart = both.reshape(-1, CHANNELS + 128), both[0] - both[1]
    total, within = x.T @ x / len(x), apart.T @ apart / len(apart)
    lower = np.linalg.inv(
        np.linalg.cholesky(within / np.linalg.eigvalsh(within).mean() + RIDGE * np.eye(len(within)))
    )
    directions = lower.T @ np.linalg.eigh(lower @ total @ lower.T)[1][:, -128:]
    metric = directions @ directions.T
    metric *= (x[:, CHANNELS:] ** 2).sum() / ((x @ directions) ** 2).sum()

    new, out = described(visual, example(3))
    new = (new * scale).reshape(-1, CHANNELS + 128)
    out = out.reshape(-1, 128)
    np.testing.assert_allclose(out @ out.T, new @ metric @ new.T, atol=1e-4)
    assert np.abs(new[:, CHANNELS:] - out).max() > 0.05  # not the raw descriptors alone
    assert isinstance(visual.gate, Gate) == gate


def test_the_raw_descriptor_keeps_its_axes(training: Mixture) -> None:
    """No rotation brings the raw part nearer to the identity: it is symmetric, without negative values."""
    visual = fitted(training)
    raw_part = whole_map(visual)[:, -128:]
    np.testing.assert_allclose(raw_part, raw_part.T, atol=1e-6)
    assert np.linalg.eigvalsh(raw_part).min() > -1e-6
    squared = [(described(visual, training[i])[1] ** 2).sum(2).mean() for i in range(12)]
    assert np.mean(squared) == pytest.approx(1, abs=0.02)  # as long as raw


def test_features_that_tell_places_apart_raise_recall_on_new_pairs(training: Mixture) -> None:
    visual = fitted(training)
    raw, side_by_side, start = [], [], []
    for seed in range(100, 104):
        new = example(seed)
        inputs, out = described(visual, new)
        raw.append(recall(inputs[..., CHANNELS:], new))
        side_by_side.append(recall(inputs, new))
        start.append(recall(out, new))
    assert 0.3 < np.mean(raw) < 0.8
    assert np.mean(start) > np.mean(raw) + 0.1
    assert np.mean(start) > np.mean(side_by_side) + 0.1


def test_features_that_vary_within_a_place_weigh_little(training: Mixture) -> None:
    weight = np.linalg.norm(whole_map(fitted(training)), axis=0)  # of each channel
    assert weight[TELLING:CHANNELS].max() < 0.5 * weight[:TELLING].min()


def test_the_weight_of_the_regional_feature(training: Mixture) -> None:
    shares = []
    for start in (1e-6, 0.1, 1.0):
        visual = fitted(training, replace(ENCODER, start=start))
        shares.append(np.linalg.norm(whole_map(visual)[:, :CHANNELS]))
    assert shares[0] < 0.01
    assert shares == sorted(shares)


def test_the_seed_chooses_the_pairs(training: Mixture) -> None:
    first, again = (whole_map(fitted(training)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    other = whole_map(fitted(training, config=replace(CONFIG, seed=1)))
    assert np.abs(first - other).max() > 1e-3


def test_the_seed_chooses_the_keypoints(training: Mixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which makes no difference where all of a pair are taken."""
    alone = mixture([training[0]])
    for rows, differs in ((KEYPOINTS, False), (KEYPOINTS - 1, True)):
        monkeypatch.setattr("contextdesc.training.start.ROWS", rows)
        first, other = (whole_map(fitted(alone, config=replace(CONFIG, seed=seed))) for seed in (0, 1))
        assert (np.abs(first - other).max() > 1e-4) == differs


def test_pairs_are_drawn_as_in_training(training: Mixture) -> None:
    broken = [replace(one, raw=one.raw * np.float16(np.nan)) for one in (example(0), example(1))]  # type: ignore[operator]
    both = mixture(broken, training.parts[0])  # type: ignore[arg-type]
    assert np.isfinite(whole_map(fitted(both, config=replace(CONFIG, scene_share=1.0)))).all()


def test_an_encoder_in_training_stays_so(training: Mixture) -> None:
    """And its statistics are not those of the pairs that it was fitted to."""
    torch.manual_seed(0)
    visual = VisualContext(replace(ENCODER, grid_widths=(8,)))
    before = {name: value.clone() for name, value in visual.state_dict().items()}
    fit_terms(visual, training, CONFIG)
    changed = {name for name, value in visual.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"fusion.0.weight"}
    assert visual.training


def test_a_feature_of_the_whole_image_can_be_fitted(training: Mixture) -> None:
    visual = GlobalContext(ENCODER)
    fit_terms(visual, training, CONFIG)
    assert np.isfinite(whole_map(visual)).all()


def test_pairs_with_few_correspondences_are_passed_over(training: Mixture) -> None:
    few = [example(seed, 15) for seed in range(3)]
    with pytest.raises(InputError, match=r"start is 0.5, and no training pair has 16 .*set it to 0, or add"):
        fitted(mixture(few))
    expected = whole_map(fitted(mixture([training[0]])))
    np.testing.assert_allclose(whole_map(fitted(mixture([*few, training[0]]))), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"stage": "end-to-end"},
            "with stage end-to-end and visual strategy regional.cn: set it to 0; it needs",
        ),
        ({"stage": "local"}, "with stage local and"),
        (
            {"visual": VisualVariant("none", ENCODER)},
            "with stage context and visual strategy none: set it to 0",
        ),
        (
            {"aggregation": AggregationVariant("concat")},
            "with aggregation concat: set it to 0, or the kind to",
        ),
    ],
    ids=str,
)
def test_mistakes_are_named(change: dict[str, object], told: str) -> None:
    CONFIG.check()
    with pytest.raises(InputError, match=f"^start is 0.5 {told}[^\n]*$"):
        replace(CONFIG, **change).check()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"geometric": GeometricVariant(start=ANGLE)},
        {"geometric": GeometricVariant("pointnet", "xy+angle+matchability", start=ANGLE)},
        {
            "geometric": GeometricVariant(inputs="xy+angle+matchability", start=ANGLE),
            "visual": VisualVariant(encoder=replace(ENCODER, start=0.0)),
        },
    ],
    ids=["no angle", "pointnet", "no start of the visual term"],
)
def test_a_geometric_start_needs_what_it_is_fitted_with(change: dict[str, object]) -> None:
    replace(CONFIG, geometric=ALL_STARTS).check()
    with pytest.raises(InputError, match=r"^geometric start of angle is 0.1: set it to 0; it needs [^\n]*$"):
        replace(CONFIG, **change).check()  # type: ignore[arg-type]
