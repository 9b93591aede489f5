"""The training loop: runs a stage for its steps, validates, checkpoints, and resumes exactly.

A step's data depends on the seed and the step's number alone, so a run that was stopped and resumed takes
the same steps as one that was not. Checkpoints are safetensors, written atomically.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from contextdesc.config import from_dict
from contextdesc.engine import Engine
from contextdesc.errors import ContextDescError, InputError
from contextdesc.modelfile import LOCAL, read_spec, resolve
from contextdesc.training.data.pairs import PairSet, PairSets, build_homography_pairs
from contextdesc.training.data.scene_pairs import build_scene_pairs, find_scenes
from contextdesc.training.stages import GeometricStage, LocalStage, StageConfig, photographs

CHECKPOINT = "checkpoint.safetensors"


def train(
    config: StageConfig, output: Path, cache: Path, workers: int = 1, log: Callable[[str], None] = print
) -> Path:
    """Run a stage to its last step and return the checkpoint; an existing one in `output` is continued."""
    torch.manual_seed(config.seed)
    output.mkdir(parents=True, exist_ok=True)
    stage = _build_stage(config, cache, workers, log)
    optimiser = _optimiser(stage, config)
    path = output / CHECKPOINT
    start = _resume(path, stage, optimiser, config) if path.exists() else 0
    if start == 0:
        _report(output, log, step=0, held_out_recall=_recall(stage))
    begun, since = time.monotonic(), start
    for step in range(start, config.steps):
        for group in optimiser.param_groups:
            group["lr"] = config.learning_rate * schedule(step, config)
        stage.train()
        values = stage.loss(step)
        if not torch.isfinite(values["loss"]):
            raise ContextDescError(
                f"the loss is not finite at step {step}: lower learning_rate; {path} is kept"
            )
        optimiser.zero_grad()
        values["loss"].backward()
        nn.utils.clip_grad_norm_(stage.parameters(), config.clip)
        optimiser.step()
        done = step + 1
        if done % 20 == 0:
            rate = (done - since) / (time.monotonic() - begun)
            numbers = {name: round(float(value), 4) for name, value in values.items()}
            alpha = round(float(stage.temperature()), 3)
            _report(output, log, step=done, **numbers, temperature=alpha, steps_per_second=round(rate, 3))
        if done % config.checkpoint_every == 0 or done == config.steps:
            _save(path, stage, optimiser, config, done)
        if done % config.validate_every == 0 or done == config.steps:
            _report(output, log, step=done, held_out_recall=_recall(stage))
    return path


def schedule(step: int, config: StageConfig) -> float:
    """Linear warm-up, then a cosine to 0: the factor on the learning rate."""
    if step < config.warmup:
        return (step + 1) / config.warmup
    progress = (step - config.warmup) / max(1, config.steps - config.warmup)
    return 0.5 * (1 + math.cos(math.pi * progress))


def load_network(path: Path, network: nn.Module) -> None:
    """Load the network of a checkpoint into a module of the same shape."""
    tensors = _tensors(path)
    own = {name.removeprefix("model.network."): value for name, value in tensors.items()
           if name.startswith("model.network.")}  # fmt: skip
    try:
        network.load_state_dict(own)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: a checkpoint of another network: {reason}") from None


def read_config(path: Path) -> StageConfig:
    """The config that a checkpoint was trained with."""
    _tensors(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata() or {}
    if "config" not in metadata:
        raise InputError(f"{path}: not a checkpoint of contextdesc")
    return from_dict(StageConfig, json.loads(metadata["config"]), str(path))


def _build_stage(
    config: StageConfig, cache: Path, workers: int, log: Callable[[str], None]
) -> LocalStage | GeometricStage:
    train_pairs, held_out_pairs = _pairs(config, cache, workers, log)
    if config.stage == "local":
        return LocalStage(config, train_pairs, held_out_pairs)
    if config.base is None:
        raise InputError("stage geometric needs 'base', a model with a local network")
    base, _ = read_spec(resolve(config.base))
    if base.base != "local":
        raise InputError(
            f"{config.base}: has base {base.base}, and the stage geometric needs a local network"
        )
    return GeometricStage(config, train_pairs, held_out_pairs, Engine(resolve(config.base) / LOCAL))


def _pairs(
    config: StageConfig, cache: Path, workers: int, log: Callable[[str], None]
) -> tuple[PairSets, dict[str, PairSet]]:
    """Pairs to train on, and held-out ones by the suffix of their name in the log."""

    def told(what: str) -> Callable[[int, int], None]:
        def tell(done: int, total: int) -> None:
            if done % 50 == 0 or done == total:
                log(f"{what}: {done} of {total}")

        return tell

    train: list[PairSet] = []
    held_out: dict[str, PairSet] = {}
    if config.photos is not None:
        training, validating = photographs(Path(config.photos), config.held_out)
        once = dataclasses.replace(config.pairs, per_photo=1)
        train.append(build_homography_pairs(training, cache, config.pairs, workers, told("photographs")))
        held_out[""] = build_homography_pairs(validating, cache, once, workers, told("held-out photographs"))
    if config.scenes is not None:
        scenes = find_scenes(Path(config.scenes))
        for name in config.held_out_scenes:
            if name not in {scene.name for scene in scenes}:
                raise InputError(f"{config.scenes}: no scene called {name}, which is to be held out")
        training = [scene for scene in scenes if scene.name not in config.held_out_scenes]
        validating = [scene for scene in scenes if scene.name in config.held_out_scenes]
        if not training:
            raise InputError(f"{config.scenes}: all of its scenes are held out")
        pairs = config.scene_pairs
        train.append(build_scene_pairs(training, cache, pairs, workers, told("pairs of scenes")))
        if validating:
            told_held_out = told("pairs of held-out scenes")
            held_out["_scenes"] = build_scene_pairs(validating, cache, pairs, workers, told_held_out)
    if not train:
        raise InputError("nothing to train on: give 'photos', 'scenes' or both")
    return PairSets(train), held_out


def _optimiser(stage: nn.Module, config: StageConfig) -> torch.optim.Optimizer:
    if config.optimiser == "adamw":
        return torch.optim.AdamW(stage.parameters(), config.learning_rate, weight_decay=config.weight_decay)
    return torch.optim.SGD(
        stage.parameters(), config.learning_rate, momentum=0.9, weight_decay=config.weight_decay
    )


def _recall(stage: LocalStage | GeometricStage) -> dict[str, float]:
    stage.eval()
    return {name: round(100 * value, 2) for name, value in stage.recall().items()}


def _report(output: Path, log: Callable[[str], None], **values: object) -> None:
    line = json.dumps(values)
    log(line)
    with (output / "log.jsonl").open("a") as file:
        file.write(line + "\n")


def _save(
    path: Path, stage: nn.Module, optimiser: torch.optim.Optimizer, config: StageConfig, step: int
) -> None:
    tensors = {f"model.{name}": value for name, value in stage.state_dict().items()}
    for index, state in optimiser.state_dict()["state"].items():
        for name, value in state.items():
            tensors[f"optimiser.{index}.{name}"] = torch.as_tensor(value)
    metadata = {"step": str(step), "config": json.dumps(dataclasses.asdict(config))}
    temporary = path.with_suffix(".tmp")
    save_file({name: value.contiguous() for name, value in tensors.items()}, temporary, metadata)
    os.replace(temporary, path)


def _resume(path: Path, stage: nn.Module, optimiser: torch.optim.Optimizer, config: StageConfig) -> int:
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = _tensors(path)
    model = {n.removeprefix("model."): v for n, v in tensors.items() if n.startswith("model.")}
    try:
        stage.load_state_dict(model)
    except RuntimeError as error:
        raise InputError(
            f"{path}: a checkpoint of another shape: {' '.join(str(error).split())[:200]}"
        ) from None
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimiser."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    return int(metadata["step"])


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{path}: not a readable checkpoint ({error})") from None
    except Exception as error:  # safetensors raises its own type for a damaged header
        raise InputError(f"{path}: damaged checkpoint ({error})") from None
