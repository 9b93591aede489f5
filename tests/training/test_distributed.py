"""Several processes take the very steps of one with their batches together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from contextdesc.training import loop
from contextdesc.training.config import StageConfig
from contextdesc.training.data.cache import Cache
from contextdesc.training.loop import train
from contextdesc.training.networks import Gate
from contextdesc.training.regional import RegionalConfig
from contextdesc.training.setup import build_stage
from contextdesc.training.variants import GeometricVariant, VisualVariant
from tests.training.tiny import ENCODER, PAIRS, networks, quiet

STAGES = {
    "local": 'stage = "local"\nlearning_rate = 0.005\n',
    "context": 'stage = "context"\nbase = "rootsift"\nlearning_rate = 0.02\n',
}
COMMON = """
held_out = 1
keypoints = 32
warmup = 1
validate_every = 100
[pairs]
keypoints = 64
min_corresponding = 16
per_photo = 1
[visual]
encoder = { grid_widths = [32, 16], fusion_widths = [32, 128], gate = true }
[geometric]
width = 32
units = 2
[regional]
network = "precomputed"
"""


def run(config: Path, output: Path, cache: Path, processes: int) -> Path:
    several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [
        sys.executable, *(several if processes > 1 else []), "-m", "contextdesc", "train", str(config),
        "-o", str(output), "--cache", str(cache), "--workers", "1",
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("checkpoint:") == 1
    return output / "checkpoint.safetensors"


@pytest.mark.parametrize("stage", STAGES)
def test_two_processes_are_one_with_twice_the_pairs(
    stage: str, few_photos: Path, grids: Path, cache_folder: Path, tmp_path: Path
) -> None:
    """Weights and the statistics of batch norms, on grids of different sizes."""
    checkpoints = []
    for processes in (1, 2):
        config = tmp_path / f"{processes}.toml"
        config.write_text(
            f'{STAGES[stage]}steps = 4\nphotos = "{few_photos}"\npairs_per_step = {3 - processes}\n'
            f'{COMMON}grids = "{grids}"\n'
        )
        checkpoints.append(run(config, tmp_path / str(processes), cache_folder, processes))
    one, two = (  # the optimiser's momenta are gradients: not scaled by the learning rate
        {name: value for name, value in load_file(path).items() if name.startswith("model.")}
        for path in checkpoints
    )
    assert one.keys() == two.keys()
    assert any("running_mean" in name for name in one)
    for name in one:
        torch.testing.assert_close(two[name], one[name], atol=1e-4, rtol=1e-3, msg=name)
    logs = [
        [json.loads(line) for line in (c.parent / "log.jsonl").read_text().splitlines()] for c in checkpoints
    ]
    last = [next(line for line in log if "loss" in line) for log in logs]
    assert last[1]["loss"] == pytest.approx(last[0]["loss"], abs=1e-3)
    assert [line["step"] for line in logs[0]] == [line["step"] for line in logs[1]]
    fresh = few_steps(tmp_path, config, cache_folder)
    moved = [name for name, value in networks(checkpoints[0]).items() if not torch.equal(value, fresh[name])]
    assert len(moved) > 10  # so there was something to agree on


def few_steps(folder: Path, config: Path, cache: Path) -> dict[str, torch.Tensor]:
    """The networks as they start."""
    from contextdesc.config import from_toml

    settings = from_toml(StageConfig, config)
    torch.manual_seed(settings.seed)
    return dict(build_stage(settings, Cache(cache), 1, quiet).parts.state_dict())  # type: ignore[union-attr, operator]


def test_a_time_limit_stops_all_processes_together(
    few_photos: Path, cache_folder: Path, tmp_path: Path
) -> None:
    """Each has its own clock; a process that stopped a step early would leave the other waiting."""
    config = tmp_path / "timed.toml"
    config.write_text(
        f'{STAGES["local"]}steps = 100000\nminutes = 0.05\nphotos = "{few_photos}"\npairs_per_step = 1\n'
        f"log_every = 1\n{COMMON}"
    )
    run(config, tmp_path / "run", cache_folder, 2)
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert 1 < max(steps) < 1000


def test_frozen_layers_stay_frozen_in_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch norms are replaced: what they were in training must hold for the new ones."""
    from contextdesc.training import distributed
    from contextdesc.training.landmarks import freeze_leading, keep_statistics
    from contextdesc.training.regional import EfficientNetLite0

    network = EfficientNetLite0(head=False)
    freeze_leading(network, 14)
    before = {name: p.requires_grad for name, p in network.named_parameters()}
    values = {name: value.clone() for name, value in network.state_dict().items()}
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    distributed.synchronise_batch_norms(network)
    norms = [m for m in network.modules() if isinstance(m, distributed.SyncBatchNorm)]
    assert len(norms) == 48
    assert {name: p.requires_grad for name, p in network.named_parameters()} == before
    assert all(torch.equal(value, values[name]) for name, value in network.state_dict().items())
    network.train()
    keep_statistics(network)
    assert not any(norm.training for norm in norms)


@pytest.fixture
def config(few_photos: Path, grids: Path) -> StageConfig:
    return StageConfig(
        stage="context", base="rootsift", steps=1, photos=str(few_photos), held_out=1, keypoints=32, warmup=1,
        pairs_per_step=1, accumulate=2, clip=1e9, learning_rate=1e-3, weight_decay=0.0, pairs=PAIRS,
        visual=VisualVariant(encoder=ENCODER), geometric=GeometricVariant(width=32, units=2),
        regional=RegionalConfig("precomputed", grids=str(grids)),
    )  # fmt: skip


def test_accumulated_gradients_are_the_mean_of_both_batches(
    config: StageConfig, cache_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(config: StageConfig, *_: object) -> torch.nn.Module:
        torch.manual_seed(config.seed)
        stage = build_stage(config, Cache(cache_folder), 1, quiet)
        for module in stage.modules():
            if isinstance(module, Gate):  # else the terms are 0, and so are most gradients
                torch.nn.init.constant_(module.factor, 0.5)
        return stage

    stage = start(config).train()
    gradients: list[dict[str, torch.Tensor]] = []
    loss: Callable[..., dict[str, torch.Tensor]] = stage.loss  # type: ignore[assignment]
    for part in (0, 1):
        stage.zero_grad()
        loss(0, part, 2)["loss"].backward()
        gradients.append({n: p.grad.clone() for n, p in stage.named_parameters() if p.grad is not None})
    assert any((gradients[0][name] - gradients[1][name]).abs().max() > 1e-3 for name in gradients[0])

    before = {name: value.clone() for name, value in start(config).state_dict().items()}
    monkeypatch.setattr(loop, "build_stage", start)
    plain = replace(config, optimiser="sgd")
    after = load_file(train(plain, tmp_path, Cache(cache_folder), log=quiet))
    for name, first in gradients[0].items():
        mean = (first + gradients[1][name]) / 2
        step = (before[name] - after[f"model.{name}"]) / config.learning_rate
        torch.testing.assert_close(step, mean, atol=2e-3, rtol=1e-2, msg=name)
