"""The training loop: runs a stage for its steps, validates, checkpoints, and resumes exactly.

A step's data depends on the seed and the step's number alone, so a run that was stopped and resumed takes
the same steps as one that was not. Checkpoints are safetensors, written atomically.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from contextdesc.errors import ContextDescError, InputError
from contextdesc.training import distributed, losses
from contextdesc.training.config import StageConfig
from contextdesc.training.data.cache import Cache
from contextdesc.training.logs import Log, draw_curves
from contextdesc.training.parts import Parts, read_metadata, read_tensors
from contextdesc.training.setup import build_stage

CHECKPOINT, LOG, CURVES = "checkpoint.safetensors", "log.jsonl", "curves.png"
MEAN = "mean."  # of the averaged weights' names in a checkpoint


class Stage(Protocol):
    """What the loop runs; an nn.Module."""

    parts: Parts

    def loss(self, step: int, part: int = 0, of: int = 1) -> dict[str, Tensor]:
        """Losses of a part of a step's batch; `loss` is the one that is minimised."""

    def recall(self) -> dict[str, float]:
        """How well it does on held-out data, in [0, 1]."""


def train(
    config: StageConfig, output: Path, cache: Cache, workers: int = 1, log: Callable[[str], None] = print
) -> Path:
    """Run a stage to its last step and return the checkpoint; an existing one in `output` is continued.

    Under `torchrun`, each process takes its share of every step, and the first one writes.
    """
    device = distributed.choose_device(config.device)
    if config.precision == "fp16" and device.type == "cpu":
        raise InputError("precision fp16 is for GPUs: set it to fp32 or bf16, or train on one")
    if config.compile and device.type == "cpu" and not _has_compiler():
        raise InputError("compile is true and there is no C++ compiler: install one, or set it to false")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{output}: cannot be written ({error.strerror})") from None
    with distributed.process_group(device):
        first = distributed.rank() == 0
        torch.manual_seed(config.seed)
        if first:  # prepares the data; the others read it
            stage = build_stage(config, cache, workers, log)
        distributed.barrier()
        if not first:
            torch.manual_seed(config.seed)
            stage = build_stage(config, cache, workers, lambda text: None)
        distributed.synchronise_batch_norms(stage)
        stage.to(device)
        distributed.copy_first(stage)
        with Log(output, log, config.tensorboard) if first else nullcontext() as lines:
            _Run(config, stage, output / CHECKPOINT, lines, device).run()
        if first:
            _draw(output, log)
        distributed.barrier()
    return output / CHECKPOINT


def _has_compiler() -> bool:
    """Whether there is the one that PyTorch calls."""
    return shutil.which(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")) is not None


def _draw(output: Path, log: Callable[[str], None]) -> None:
    try:
        draw_curves(output / LOG, output / CURVES)
    except InputError as error:  # a picture that cannot be drawn is no reason to fail a training
        log(f"no curves: {error}")


class _Run:
    """One call of `train`: the state of the optimiser, the clock and the log."""

    def __init__(
        self, config: StageConfig, stage: nn.Module, path: Path, log: Log | None, device: torch.device
    ) -> None:
        self.config, self.stage, self.path, self.log, self.device = config, stage, path, log, device
        self.optimiser = _optimiser(stage, config)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
        self.begun_as = copy.deepcopy(stage.state_dict()) if config.keep_start else {}
        self.mean = Mean()
        self.start, self.spent = 0, 0.0
        if path.exists():
            self.start, self.spent = _resume(path, stage, self.optimiser, self.mean, config)

    def run(self) -> None:
        config = self.config
        if self.log is not None:
            self.log.rewind(self.start if self.start else -1)
        if self.start == 0:
            self._validate(0)
        if self.start and config.minutes is not None and self.spent >= config.minutes:
            return  # a run whose time was up is finished
        begun = time.monotonic()
        for step in range(self.start, config.steps):
            minutes = self.spent + (time.monotonic() - begun) / 60
            if config.minutes is not None:
                minutes = distributed.first_number(minutes, self.device)
            last = step + 1 == config.steps or (config.minutes is not None and minutes >= config.minutes)
            values = self._step(step, minutes)
            done = step + 1
            if progress(step, config, minutes) < 1 - config.average:
                self.mean = Mean()  # whatever a shorter run has averaged that this one continues
            elif config.average:
                self.mean.add(self.stage.state_dict())
            if last:
                self._settle()
            if done % config.log_every == 0 or last:
                rate = (done - self.start) / (time.monotonic() - begun)
                self._report(done, values, rate)
            if done % config.checkpoint_every == 0 or last:
                self._save(done, minutes)
            if done % config.validate_every == 0 or last:
                self._validate(done)
            if last:
                break

    def _step(self, step: int, minutes: float) -> dict[str, Tensor]:
        config = self.config
        for group in self.optimiser.param_groups:
            group["lr"] = group["rate"] * config.learning_rate * schedule(step, config, minutes)
        self.stage.train()
        self.optimiser.zero_grad()
        sums: dict[str, Tensor] = {}
        world, rank = distributed.world_size(), distributed.rank()
        for batch in range(config.accumulate):
            with self._mixed_precision():
                values = self.stage.loss(step, batch * world + rank, config.accumulate * world)  # type: ignore[operator]
            self.scaler.scale(values["loss"] / config.accumulate).backward()
            for name, value in values.items():
                sums[name] = sums.get(name, 0) + value.detach() / config.accumulate
        sums = distributed.mean_over_processes(sums)
        if not torch.isfinite(sums["loss"]):
            raise ContextDescError(
                f"the loss is not finite at step {step}: lower learning_rate; {self.path} is kept"
            )
        distributed.average_gradients(list(self.stage.parameters()))
        self.scaler.unscale_(self.optimiser)
        nn.utils.clip_grad_norm_(self.stage.parameters(), config.clip)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        return sums

    @torch.no_grad()
    def _settle(self) -> None:
        """Put averages for the weights: of the run's end (as Izmailov et al., UAI 2018), and with its start
        (as Wortsman et al., CVPR 2022)."""
        self.stage.load_state_dict(self.mean.values, strict=False)
        for name, value in self.stage.state_dict().items() if self.begun_as else ():
            if value.is_floating_point():
                value.lerp_(self.begun_as[name], self.config.keep_start)

    def _mixed_precision(self) -> torch.autocast | nullcontext[None]:
        if self.config.precision == "fp32":
            return nullcontext()
        half = torch.bfloat16 if self.config.precision == "bf16" else torch.float16
        return torch.autocast(self.device.type, half)

    def _report(self, step: int, values: dict[str, Tensor], rate: float) -> None:
        if self.log is None:
            return
        numbers = {name: round(float(value), 4) for name, value in values.items()}
        if "accuracy" in numbers:
            numbers["accuracy"] = round(100 * numbers["accuracy"], 2)
        for name, module in self.stage.named_children():
            if isinstance(module, losses.Temperature):
                numbers[name] = round(float(module.alpha.detach()), 3)
        self.log.write(step, **numbers, steps_per_second=round(rate, 3))

    def _validate(self, step: int) -> None:
        if self.log is None:
            return
        self.stage.eval()
        found = self.stage.recall()  # type: ignore[operator]
        self.log.write(step, held_out_recall={name: round(100 * value, 2) for name, value in found.items()})

    def _save(self, step: int, minutes: float) -> None:
        if self.log is None:
            return
        tensors = {f"model.{name}": value for name, value in self.stage.state_dict().items()}
        for index, state in self.optimiser.state_dict()["state"].items():
            for name, value in state.items():
                tensors[f"optimiser.{index}.{name}"] = torch.as_tensor(value)
        tensors |= {f"{MEAN}{name}": value for name, value in self.mean.values.items()}
        config = json.dumps(dataclasses.asdict(self.config))
        metadata = {"step": str(step), "minutes": str(minutes), "config": config}
        metadata["averaged"] = str(self.mean.count)
        parts = self.stage.parts
        if isinstance(parts, Parts) and parts.visual is not None:
            metadata["regional_channels"] = str(parts.visual.config.regional_channels)
        temporary = self.path.with_suffix(".tmp")
        save_file({name: value.contiguous() for name, value in tensors.items()}, temporary, metadata)
        os.replace(temporary, self.path)


class Mean:
    """The average of weights, step by step; whole numbers, which count batches, are not among them."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}
        self.count = 0

    @torch.no_grad()
    def add(self, weights: Mapping[str, Tensor]) -> None:
        self.count += 1
        for name, value in weights.items():
            if not value.is_floating_point():
                continue
            if name in self.values:
                self.values[name].lerp_(value, 1 / self.count)
            else:
                self.values[name] = value.clone()


def schedule(step: int, config: StageConfig, minutes: float = 0.0) -> float:
    """Linear warm-up, then a cosine to 0 at the last step or minute: the factor on the learning rate."""
    cosine = 0.5 * (1 + math.cos(math.pi * progress(step, config, minutes)))
    # The clock may run out before the warm-up ends.
    return min(cosine, (step + 1) / config.warmup) if step < config.warmup else cosine


def progress(step: int, config: StageConfig, minutes: float = 0.0) -> float:
    """How much of a run is over, from the end of its warm-up on: 0 to 1, by steps or minutes."""
    part = (step - config.warmup) / max(1, config.steps - config.warmup)
    if config.minutes is not None:
        part = max(part, minutes / config.minutes)
    return min(1.0, max(0.0, part))


def _optimiser(stage: nn.Module, config: StageConfig) -> torch.optim.Optimizer:
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in stage.named_parameters():
        if parameter.requires_grad:
            kept = "temperature" in name and not config.temperature_decay
            rate = config.geometric_rate if name.startswith("parts.geometric.") else 1.0
            groups.setdefault((0.0 if kept else config.weight_decay, rate), []).append(parameter)
    trained = [{"params": of, "weight_decay": decay, "rate": rate} for (decay, rate), of in groups.items()]
    if config.optimiser == "adamw":
        return torch.optim.AdamW(trained, config.learning_rate)
    return torch.optim.SGD(trained, config.learning_rate, momentum=0.9)


def _resume(
    path: Path, stage: nn.Module, optimiser: torch.optim.Optimizer, mean: Mean, config: StageConfig
) -> tuple[int, float]:
    """Continue from a checkpoint: the steps and minutes that it took."""
    metadata, tensors = read_metadata(path), read_tensors(path)
    earlier = json.loads(metadata["config"])
    for key in ("stage", "optimiser"):
        if earlier.get(key) != getattr(config, key):
            raise InputError(
                f"{path}: a checkpoint of {key} {earlier.get(key)}, and the config says "
                f"{getattr(config, key)}: train into another folder, or delete it"
            )
    model = {n.removeprefix("model."): v for n, v in tensors.items() if n.startswith("model.")}
    try:
        stage.load_state_dict(model)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: a checkpoint of another shape, so not of this config: {reason}") from None
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimiser."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    device = next(stage.parameters()).device
    mean.values = {n.removeprefix(MEAN): v.to(device) for n, v in tensors.items() if n.startswith(MEAN)}
    mean.count = int(metadata.get("averaged", 0))
    return int(metadata["step"]), float(metadata["minutes"])
