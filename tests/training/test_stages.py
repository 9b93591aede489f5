"""Every stage on real photographs: what trains moves, what is frozen stays, and the result is a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.image import Image
from contextdesc.model import load, regional_image
from contextdesc.training import losses
from contextdesc.training.assembly import assemble
from contextdesc.training.config import StageConfig
from contextdesc.training.data.cache import Cache
from contextdesc.training.data.places import place_recall
from contextdesc.training.data.scenes import Scene
from contextdesc.training.export import export_model
from contextdesc.training.landmarks import LandmarkConfig
from contextdesc.training.loop import _optimiser, train
from contextdesc.training.networks import Gate, VisualConfig
from contextdesc.training.parts import read_tensors
from contextdesc.training.regional import RegionalConfig
from contextdesc.training.setup import build_stage
from contextdesc.training.stages import Batch, PairStage, _accuracy, _drawn_rows, turned, warp_unit_square
from contextdesc.training.variants import AggregationVariant, GeometricStart, GeometricVariant, VisualVariant
from tests.training.test_scenes import made, rendered  # noqa: F401  # fixtures
from tests.training.tiny import ENCODER, PAIRS, SCENE_PAIRS, networks, quiet, torch_descriptors

REGIONAL = RegionalConfig(head=False, max_side=128)
LANDMARKS = LandmarkConfig(side=64, validation_side=64, images=4, frozen_blocks=14)
FROZEN = ("regional.stem.", *(f"regional.blocks.{i}." for i in range(14)))
Make = Callable[..., StageConfig]
Build = Callable[[StageConfig], PairStage]


@pytest.fixture(scope="module")
def scenes(made: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("scenes")
    for name in ("one", "two"):
        made.save(folder / name)
    return folder


@pytest.fixture(scope="module")
def make(few_photos: Path, scenes: Path, grids: Path) -> Make:
    """Configs of tiny trainings; `data` is photos, scenes or both."""

    def config(stage: str, data: str = "photos", **options: object) -> StageConfig:
        values: dict[str, object] = {
            "photos": str(few_photos) if data != "scenes" else None,
            "scenes": str(scenes) if data != "photos" else None,
            "steps": 2, "held_out": 1, "keypoints": 32, "warmup": 1, "optimiser": "adamw",
            "learning_rate": 1e-2, "weight_decay": 0.0,
            "pairs": PAIRS, "scene_pairs": SCENE_PAIRS, "landmarks": LANDMARKS,
            "visual": VisualVariant(encoder=ENCODER), "geometric": GeometricVariant(width=32, units=2),
            "regional": RegionalConfig("precomputed", grids=str(grids)),
        }  # fmt: skip
        return StageConfig(stage=stage, **(values | options))  # type: ignore[arg-type]

    return config


@pytest.fixture(scope="module")
def build(cache_folder: Path) -> Build:
    def stage(config: StageConfig) -> PairStage:
        torch.manual_seed(config.seed)
        return build_stage(config, Cache(cache_folder), 1, quiet)  # type: ignore[return-value]

    return stage


def wake(stage: PairStage) -> PairStage:
    """Give context terms values other than 0, as if they were trained."""
    torch.manual_seed(7)
    for module in stage.parts.modules():
        if isinstance(module, Gate):
            torch.nn.init.constant_(module.factor, 0.5)
    assert stage.parts.geometric is not None
    torch.nn.init.normal_(stage.parts.geometric.last.weight, std=0.1)
    return stage


@pytest.mark.parametrize(
    ("stage", "data", "options", "trained", "frozen"),
    [
        ("local", "photos", {}, {"local"}, ()),
        ("local", "both", {"base": "small_model", "sampling": "hard", "precision": "bf16"}, {"local"}, ()),
        ("context", "photos", {"base": "rootsift"}, {"matchability", "visual", "geometric"}, ()),
        ("context", "photos", {"base": "small_model"}, {"visual", "geometric"}, ()),
        ("end-to-end", "both", {}, {"local", "visual", "geometric"}, ()),
        ("joint", "both", {"regional": REGIONAL}, {"local", "visual", "geometric", "regional"}, FROZEN),
        ("regional", "scenes", {"regional": REGIONAL}, {"regional"}, FROZEN),
    ],
    ids=["local", "hard bf16", "rootsift", "model", "end-to-end", "joint", "regional"],
)
def test_a_stage_moves_what_it_trains_and_nothing_else(
    stage: str, data: str, options: dict[str, object], trained: set[str], frozen: tuple[str, ...],
    make: Make, build: Build, cache_folder: Path, tmp_path: Path, request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    if options.get("base") == "small_model":
        options = options | {"base": str(request.getfixturevalue("small_model"))}
    config = make(stage, data, **options)
    fresh = build(config).parts
    before = {name: value.clone() for name, value in fresh.state_dict().items()}
    after = networks(train(config, tmp_path, Cache(cache_folder), log=quiet))
    assert {name.split(".")[0] for name in after} == trained
    assert after.keys() == before.keys()
    weights = {name for name, parameter in fresh.named_parameters() if parameter.dim() > 1}
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    still = {name for name in after if name.startswith(frozen)} if frozen else set()
    assert bool(still) == bool(frozen)
    assert not moved & still
    assert weights - still <= moved
    statistics = {name.split(".")[0] for name in moved if "running_" in name}
    assert statistics == trained - {"regional"}  # whose statistics stay (`update_statistics`)


@pytest.mark.parametrize("stage", ["local", "model", "end-to-end"])
def test_a_stage_becomes_a_model(
    stage: str, make: Make, cache_folder: Path, tmp_path: Path, photo: Image, request: pytest.FixtureRequest
) -> None:
    config = make("local" if stage == "model" else stage)
    if stage == "model":
        config = make("context", base=str(request.getfixturevalue("small_model")))
    if stage != "local":
        config = replace(config, visual=VisualVariant("none"))
    model = assemble([train(config, tmp_path / "run", Cache(cache_folder), log=quiet)], "tiny")
    export_model(model.parts, model.spec, tmp_path / "model", photo, model.carried)
    features = load(tmp_path / "model", detector=Detector(50)).extract(photo)
    assert features.descriptors.shape == (50, 128)
    np.testing.assert_allclose(np.linalg.norm(features.descriptors, axis=1), 1, atol=1e-5)
    assert features.context == ("none" if stage == "local" else "geometric")
    if stage == "model":  # the base's network is taken over as it is
        base = request.getfixturevalue("small_model")
        raw, new = (
            load(folder, context="none", detector=Detector(50)).extract(photo).descriptors
            for folder in (base, tmp_path / "model")
        )
        np.testing.assert_allclose(new, raw, atol=1e-6)
        assert np.abs(features.descriptors - raw).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["context", "joint"])
def test_a_stage_with_a_regional_network_becomes_a_model(
    stage: str, make: Make, cache_folder: Path, tmp_path: Path, photo: Image
) -> None:
    config = make(stage, "scenes", regional=REGIONAL, base="rootsift", learning_rate=0.05)
    model = assemble([train(config, tmp_path / "run", Cache(cache_folder), log=quiet)], "tiny")
    spec = export_model(model.parts, model.spec, tmp_path / "model", photo)
    assert spec.regional == "efficientnet-lite0"
    assert (spec.regional_channels, spec.regional_max_side) == (320, 128)
    keypoints = detect(photo.gray, Detector(60))
    got = load(tmp_path / "model").describe(photo, keypoints).descriptors
    assert model.parts.regional is not None
    with torch.no_grad():
        grid = model.parts.regional(torch.from_numpy(regional_image(photo, 128)))[0]
    expected = torch_descriptors(model.parts, spec, photo, keypoints, grid)
    np.testing.assert_allclose(got, expected, atol=1e-3)
    raw = load(tmp_path / "model", context="none").describe(photo, keypoints).descriptors
    assert np.abs(got - raw).max() > 0.01


def test_a_regional_checkpoint_alone_is_no_model(make: Make, cache_folder: Path, tmp_path: Path) -> None:
    config = make("regional", "scenes", regional=REGIONAL, steps=1)
    checkpoint = train(config, tmp_path, Cache(cache_folder), log=quiet)
    with pytest.raises(InputError, match="regional network alone; add checkpoints of other stages"):
        assemble([checkpoint], "regional")


def test_a_step_depends_on_its_number_alone(make: Make, build: Build) -> None:
    config = make("context", base="rootsift", term_dropout=0.5, grid_dropout=0.5)
    stage = wake(build(config)).train()
    expected = stage.loss(3)["loss"].item()
    for step in (0, 4):
        assert stage.loss(step)["loss"].item() != expected
    assert stage.loss(3)["loss"].item() == expected
    other = PairStage(replace(config, seed=1), stage.parts, stage.examples, stage.held_out).train()
    assert other.loss(3)["loss"].item() != expected


@pytest.mark.parametrize("options", [{"stage": "context", "base": "rootsift"}, {"stage": "end-to-end"}])
def test_the_parts_of_a_step_make_up_the_whole(options: dict[str, str], make: Make, build: Build) -> None:
    """In evaluation mode: batch norms would see other batches."""
    whole = wake(build(make(**options, pairs_per_step=4, term_dropout=0.5))).eval()
    config = replace(whole.config, pairs_per_step=2)
    half = PairStage(config, whole.parts, whole.examples, whole.held_out).eval()
    expected, halves = whole.loss(5), [half.loss(5, part, 2) for part in (0, 1)]
    assert halves[0]["loss"].item() != pytest.approx(halves[1]["loss"].item(), abs=1e-3)
    for name in ("loss", "n_pair", "quad"):
        mean = (halves[0][name] + halves[1][name]).item() / 2
        assert mean == pytest.approx(expected[name].item(), abs=1e-4)


def test_a_compiled_network_learns_the_same(
    make: Make, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the backend that wants no C++ compiler."""
    plain = build(make("local"))
    compiled: list[object] = []
    really = torch.compile

    def compile(function: object, **_: object) -> object:
        compiled.append(function)
        return really(function, backend="eager")

    monkeypatch.setattr(torch, "compile", compile)
    stage = build(make("local", compile=True))
    assert len(compiled) == 1
    assert stage.state_dict().keys() == plain.state_dict().keys()  # so that checkpoints are interchangeable
    stage.load_state_dict(plain.state_dict())
    expected, found = plain.train().loss(2)["loss"], stage.train().loss(2)["loss"]
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("kind", ["sum", "learned"])
def test_without_terms_the_raw_descriptors_are_left(kind: str, make: Make, build: Build) -> None:
    config = make("context", base="rootsift", aggregation=AggregationVariant(kind))  # type: ignore[arg-type]
    raw = build(config).eval().loss(1)["n_pair"].item()  # fresh terms are 0
    assert wake(build(config)).eval().loss(1)["n_pair"].item() != pytest.approx(raw, abs=1e-2)
    without = wake(build(replace(config, term_dropout=1.0))).eval()
    assert without.loss(1)["n_pair"].item() == pytest.approx(raw, abs=1e-6)


def test_only_the_geometric_term_sees_moved_coordinates(make: Make, build: Build) -> None:
    still, moving = (
        wake(build(make("context", base="rootsift", corner_shift=shift))).eval() for shift in (0.0, 0.5)
    )
    terms = [stage._describe(stage._draw(0, 0, 1)[0])[2] for stage in (still, moving)]
    assert torch.equal(terms[0]["visual"], terms[1]["visual"])
    assert not torch.allclose(terms[0]["geometric"], terms[1]["geometric"], atol=1e-3)


def test_turned_by_hand() -> None:
    corners = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    quarter = torch.tensor([[0.0, 1.0], [-1.0, 0.0], [-1.0, 1.0]])
    torch.testing.assert_close(turned(corners, np.pi / 2), quarter, atol=1e-6, rtol=0)


def test_layouts_are_turned_as_often_as_asked(make: Make, build: Build) -> None:
    stage = build(make("context", base="rootsift"))
    xy = torch.rand(20, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1

    def layout(seed: int, **options: float) -> tuple[torch.Tensor, torch.Tensor]:
        config = replace(stage.config, **options)  # type: ignore[arg-type]
        of = PairStage(config, stage.parts, stage.examples, stage.held_out)
        return of._moved(xy, xy / xy.norm(dim=1, keepdim=True), np.random.default_rng(seed))

    def moved(seed: int, **options: float) -> torch.Tensor:
        return layout(seed, **options)[0]

    warped = warp_unit_square(xy, np.random.default_rng(3), 0.3)
    assert torch.equal(moved(3, corner_shift=0.3), warped)  # as without the option
    assert not torch.allclose(moved(3, corner_shift=0.3, layout_turns=1.0), warped, atol=1e-2)
    turns = [moved(seed, corner_shift=0.0, layout_turns=1.0) for seed in range(5)]
    for one in turns:
        torch.testing.assert_close(torch.cdist(one, one), torch.cdist(xy, xy), atol=1e-4, rtol=0)
        torch.testing.assert_close(one.norm(dim=1), xy.norm(dim=1), atol=1e-5, rtol=0)
        assert not torch.allclose(one, xy, atol=1e-2)
    assert len({round(float(one[0, 0]), 3) for one in turns}) == 5
    for turn in (0.0, 1.0):  # directions turn with the layout: those that point outwards still do
        one, direction = layout(3, corner_shift=0.0, layout_turns=turn)
        torch.testing.assert_close(direction, one / one.norm(dim=1, keepdim=True), atol=1e-4, rtol=0)
    still = [
        torch.allclose(moved(seed, corner_shift=0.0, layout_turns=0.25), xy, atol=1e-4) for seed in range(200)
    ]
    assert np.mean(still) == pytest.approx(0.75, abs=0.08)


def test_a_batch_has_its_share_of_scenes(make: Make, build: Build) -> None:
    config = make("local", "both", scene_share=1.0)
    stage = build(config)
    photos = len(stage.examples.parts[0])
    assert 0 < photos < len(stage.examples)
    for share, likeness_is_known in ((1.0, True), (0.0, False)):
        of = PairStage(replace(config, scene_share=share), stage.parts, stage.examples, stage.held_out)
        for step in range(4):
            known = of._draw(step, 0, 1)[0].likeness is not None  # of scenes alone
            assert known == likeness_is_known


def test_labels_by_places(make: Make, build: Build) -> None:
    """What lies at one place by the pair's own numbers is a partner, also of rows without one."""
    config = make("local", labels="places", keypoints=64)
    stage = build(config).eval()
    batch, _ = stage._draw(0, 0, 1)
    drawn = np.random.default_rng([0, 0]).integers(len(stage.examples), size=2)
    pair, rng = stage.examples[int(drawn[0])].pair, np.random.default_rng([0, 0, 0])
    rows = _drawn_rows(stage.examples[int(drawn[0])], rng, config)
    same, matchable = batch.same[0], batch.matchable[0]
    for i, j in np.ndindex(64, 64):
        apart = float(np.hypot(*(pair.place[rows[i]] - pair.xy[1, rows[j]])))
        assert same[i, j] == (apart <= 2.5 or bool(i == j and matchable[i]))
        if apart <= config.near:
            assert batch.ignored[0, i, j]
    assert same.sum() > matchable.sum()  # orientations and scales of one spot
    raw, _, _ = stage._describe(batch)
    expected = [
        losses.n_pair_of_places(
            raw[None, 2 * i], raw[None, 2 * i + 1], config.temperature, batch.same[i, None],
            batch.ignored[i, None],
        ).item()
        for i in (0, 1)
    ]  # fmt: skip
    assert stage.loss(0)["n_pair"].item() == pytest.approx(np.mean(expected), rel=1e-4)
    by_partners = PairStage(replace(config, labels="partners"), stage.parts, stage.examples, stage.held_out)
    assert by_partners.eval().loss(0)["n_pair"].item() != pytest.approx(np.mean(expected), rel=1e-3)


def test_accuracy_by_hand() -> None:
    """Of three keypoints with a partner two find one: the first its second, the third its only one."""
    same = torch.zeros(1, 4, 4, dtype=torch.bool)
    same[0, 0, :2] = same[0, 1, 1] = same[0, 2, 2] = True
    second = torch.eye(4)
    first = second[[1, 3, 2, 3]]
    nothing = torch.zeros(1, 4, 4, dtype=torch.bool)
    xy = torch.zeros(2, 4, 2)
    batch = Batch(xy, xy, xy, same.any(2), same, nothing, None, None, None, None, None)
    assert _accuracy(torch.stack([first, second]), batch).item() == pytest.approx(2 / 3)


def test_sampling_takes_matchable_keypoints_first_or_as_they_come(make: Make, build: Build) -> None:
    stage = build(make("local"))
    example = stage.examples[0]
    count = example.pair.count
    assert 16 <= count <= 48
    few = _drawn_rows(example, np.random.default_rng(0), replace(stage.config, keypoints=count - 1))
    assert (few < count).all()
    many = _drawn_rows(example, np.random.default_rng(0), replace(stage.config, keypoints=count + 8))
    assert sorted(many[:count]) == list(range(count))
    assert len(np.unique(many)) == count + 8
    random = replace(stage.config, sampling="random", keypoints=32)
    draws = [_drawn_rows(example, np.random.default_rng(i), random) for i in range(200)]
    assert all(len(np.unique(rows)) == 32 for rows in draws)
    assert np.mean([(rows < count).mean() for rows in draws]) == pytest.approx(count / 64, abs=0.03)


def test_hard_sampling_draws_what_its_base_confuses(make: Make, build: Build, small_model: Path) -> None:
    """The base chooses keypoints; it neither describes them nor what is held out."""
    stage = build(make("local", base=str(small_model), sampling="hard", keypoints=24))
    example = stage.examples[0]
    assert example.raw is None
    assert example.hard is not None
    margin, rival = example.hard.margin, example.hard.rival
    assert len(margin) == len(rival) == example.pair.count
    hardest = int(np.abs(margin).argmin())
    draws = [_drawn_rows(example, np.random.default_rng(i), stage.config) for i in range(100)]
    both = np.mean([np.isin([hardest, rival[hardest]], rows).all() for rows in draws])
    random = replace(stage.config, sampling="random")
    apart = [_drawn_rows(example, np.random.default_rng(i), random) for i in range(100)]
    assert both > 2 * np.mean([np.isin([hardest, rival[hardest]], rows).all() for rows in apart])
    plain = build(make("local"))
    assert stage.eval().recall() == plain.eval().recall()  # the same seed, so the same fresh network


def test_hard_sampling_wants_a_base(make: Make, build: Build) -> None:
    with pytest.raises(InputError, match="sampling hard needs 'base'"):
        build(make("local", sampling="hard"))


def test_half_precision_of_the_network_leaves_the_loss_whole(make: Make, build: Build) -> None:
    """bf16 on a CPU: about the same loss and gradient, and descriptors that full precision tells apart."""
    stage = build(make("local"))
    whole = stage.loss(0)["n_pair"]
    whole.backward()
    last = stage.parts.local.last.weight  # type: ignore[union-attr]
    assert last.grad is not None
    expected = last.grad.clone()
    stage.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        raw, _, _ = stage._describe(stage._draw(0, 0, 1)[0])
        half = stage.loss(0)["n_pair"]
    half.backward()
    assert raw.dtype == half.dtype == torch.float32
    assert half.item() == pytest.approx(whole.item(), rel=0.02)
    assert half.item() != whole.item()
    assert torch.cosine_similarity(last.grad.flatten(), expected.flatten(), dim=0) > 0.95


def test_geodesc_wants_scenes(make: Make, build: Build) -> None:
    with pytest.raises(InputError, match=r"loss geodesc wants the patch similarity .*: train on scenes"):
        build(make("local", loss="geodesc")).loss(0)
    values = build(make("local", "scenes", loss="geodesc")).loss(0)
    assert 0 < values["n_pair"].item() < 4


@pytest.mark.parametrize("name", sorted(losses.LOSSES))
def test_every_loss_trains(name: str, make: Make, build: Build) -> None:
    stage = build(make("local", "scenes", loss=name)).train()
    stage.loss(0)["n_pair"].backward()
    assert stage.parts.local is not None
    gradient = stage.parts.local.last.weight.grad  # type: ignore[union-attr]
    assert gradient is not None
    assert 0 < gradient.norm() < 1e3
    assert (stage.temperature.alpha.grad is not None) == (name in losses.TEMPERED)


def test_the_raw_loss_has_its_own_temperature(make: Make, build: Build) -> None:
    stage = wake(build(make("end-to-end", raw_loss=0.5, quad=2.0))).train()
    values = stage.loss(0)
    assert values["raw_n_pair"].item() != pytest.approx(values["n_pair"].item(), abs=1e-3)
    total = values["n_pair"] + 0.5 * values["raw_n_pair"] + 2.0 * values["quad"]
    assert values["loss"].item() == pytest.approx(total.item(), rel=1e-5)
    assert stage.raw_temperature is not None
    values["raw_n_pair"].backward()
    assert stage.temperature.alpha.grad is None
    assert stage.raw_temperature.alpha.grad != 0
    assert build(make("end-to-end")).raw_temperature is None
    assert build(make("context", base="rootsift", raw_loss=0.5)).raw_temperature is None  # raw is frozen


@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_weight_decay_leaves_the_temperature_alone(
    decays: bool, optimiser: str, make: Make, build: Build
) -> None:
    options = {"weight_decay": 0.5, "temperature_decay": decays, "optimiser": optimiser}
    config = make("end-to-end", raw_loss=1.0, **options)
    stage = build(config)
    before = {name: value.detach().clone() for name, value in stage.named_parameters()}
    temperatures = {"temperature.alpha", "raw_temperature.alpha"}
    assert temperatures < before.keys()
    for parameter in stage.parameters():
        parameter.grad = torch.zeros_like(parameter)
    _optimiser(stage, config).step()
    for name, value in stage.named_parameters():
        shrinks = decays or name not in temperatures
        expected = before[name] * (1 - 0.5 * config.learning_rate if shrinks else 1)
        torch.testing.assert_close(value.detach(), expected)


def test_the_geometric_encoder_learns_at_a_rate_of_its_own(
    make: Make, build: Build, cache_folder: Path, tmp_path: Path
) -> None:
    def moved(rate: float) -> dict[str, float]:
        """How far AdamW's first step, whose length is the learning rate, takes a weight of each encoder."""
        config = make("context", base="rootsift", steps=1, geometric_rate=rate)
        stage = build(config)
        checkpoint = train(config, tmp_path / str(rate), Cache(cache_folder), log=quiet)
        after = read_tensors(checkpoint)
        return {
            term: (after[f"model.parts.{name}"] - stage.get_parameter(f"parts.{name}")).abs().max().item()
            for term, name in (("visual", "visual.gate.factor"), ("geometric", "geometric.last.bias"))
        }

    even, faster = moved(1.0), moved(4.0)
    assert faster["visual"] == pytest.approx(even["visual"], rel=1e-3)
    assert faster["geometric"] == pytest.approx(4 * even["geometric"], rel=1e-3)
    assert even["geometric"] > 0


def test_a_share_of_the_start_is_kept(make: Make, build: Build, cache_folder: Path, tmp_path: Path) -> None:
    config = make("context", base="rootsift", steps=3)
    start = {name: value.clone() for name, value in build(config).state_dict().items()}

    def ended(folder: str, **options: object) -> dict[str, torch.Tensor]:
        changed = replace(config, **options)  # type: ignore[arg-type]
        return read_tensors(train(changed, tmp_path / folder, Cache(cache_folder), log=quiet))

    trained, kept = ended("trained"), ended("kept", keep_start=0.25)
    for name, value in start.items():
        if value.is_floating_point():
            expected = 0.25 * value + 0.75 * trained[f"model.{name}"]
            torch.testing.assert_close(kept[f"model.{name}"], expected, atol=1e-6, rtol=1e-4)
    moved = "model.parts.visual.gate.factor"
    assert not torch.equal(kept[moved], trained[moved])
    again = ended("kept", keep_start=0.25)  # it is finished: nothing goes back a second time
    assert torch.equal(again[moved], kept[moved])
    ended("resumed", steps=1)
    resumed = ended("resumed", keep_start=0.25)
    assert torch.equal(resumed[moved], kept[moved])
    with pytest.raises(InputError, match=r"^keep_start is 1: at least 0 and below 1$"):
        replace(config, keep_start=1.0).check()


def test_a_fitted_start_is_of_fresh_terms_alone(
    make: Make, cache_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = VisualConfig(
        grid_widths=(), fusion_widths=(128,), interpolation="bilinear", final_relu=False, start=0.5
    )
    config = make("context", base="rootsift", visual=VisualVariant(encoder=encoder), steps=1)
    monkeypatch.setattr("contextdesc.training.start.PAIRS", 20)
    monkeypatch.setattr("contextdesc.training.start.RANKING_STEPS", 20)
    told: list[str] = []

    def weight(**options: object) -> torch.Tensor:
        told.clear()
        stage = build_stage(replace(config, **options), Cache(cache_folder), 1, told.append)  # type: ignore[arg-type]
        return stage.parts.visual.fusion[0].weight  # type: ignore[union-attr,index]

    fresh = weight()
    assert fresh.norm() > 0.1
    assert "visual term: fitted to training pairs" in told
    checkpoint = train(config, tmp_path / "both", Cache(cache_folder), log=quiet)
    moved = networks(checkpoint)["visual.fusion.0.weight"]
    assert 0 < (moved - fresh).norm() < 0.5 * fresh.norm()
    assert torch.equal(weight(init=(str(checkpoint),)), moved)
    assert not any("fitted" in line for line in told)
    blind = replace(config, visual=VisualVariant("none"))
    checkpoint = train(blind, tmp_path / "geometric", Cache(cache_folder), log=quiet)
    assert torch.equal(weight(init=(str(checkpoint),)), fresh)  # it gives other parts
    weight(geometric=GeometricVariant(start=GeometricStart(xy=0.1)))
    assert "visual term and xy: fitted to training pairs" in told
    weight(geometric=GeometricVariant(start=GeometricStart(matchability=0.1)))
    assert told[-2:] == [  # RootSIFT comes without
        "matchability: fitted to training pairs",
        "visual term and matchability: fitted to training pairs",
    ]


def test_held_out_recall_names_the_terms(make: Make, build: Build) -> None:
    stage = wake(build(make("context", "both", base="rootsift", held_out_scenes=("two",)))).eval()
    found = stage.recalls()
    assert set(found) == {
        name + suffix for name in ("raw", "visual", "geometric", "both") for suffix in ("", "_scenes")
    }
    assert found["raw"][0] > 0.3  # RootSIFT
    for suffix, examples in stage.held_out.items():
        example = examples[0]
        assert example.raw is not None
        first, second = example.raw.astype(np.float32)
        recall = place_recall(first, second, example.pair.place, example.pair.xy[1])
        assert found["raw" + suffix][0] == pytest.approx(recall, abs=0.02)  # a tie in half precision
    assert {name: float(np.mean(values)) for name, values in found.items()} == stage.recall()


def test_mistakes_are_named(make: Make, build: Build) -> None:
    with pytest.raises(InputError, match="keypoints is 100, and there are pairs of 64: lower it"):
        build(make("local", keypoints=100))
    none = {"visual": VisualVariant("none"), "geometric": GeometricVariant("none")}
    with pytest.raises(InputError, match="neither a visual nor a geometric term"):
        build(make("context", base="rootsift", **none))
    surround = VisualVariant("central-surround")
    with pytest.raises(InputError, match="set the aggregation's kind to concat"):
        build(make("end-to-end", visual=surround))
    reads_raw = {"geometric": GeometricVariant(inputs="xy+raw"), "aggregation": AggregationVariant("concat")}
    with pytest.raises(InputError, match="does not go with geometric inputs xy"):
        build(make("end-to-end", visual=surround, **reads_raw))
    with pytest.raises(InputError, match="central-surround trains on patches"):
        build(make("context", base="rootsift", visual=surround))
    with pytest.raises(InputError, match="stage joint trains the regional network"):
        build(make("joint", "scenes"))
    with pytest.raises(InputError, match="labels places go with the loss n-pair, not with hard-triplet"):
        build(make("local", labels="places", loss="hard-triplet"))
    for data, share in (("photos", 0.5), ("scenes", 0.5), ("both", 1.5), ("both", -0.5)):
        with pytest.raises(
            InputError, match=f"scene_share is {share}: from 0 to 1, and with both photos and"
        ):
            build(make("local", data, scene_share=share))
    with pytest.raises(InputError, match="device is cuda, and PyTorch finds no GPU"):
        train(make("local", device="cuda"), Path("unused"), Cache(Path("unused")))
