"""The scripts that make the packaged models: each step finds what it starts from.

Days of training do not fit into a test, so a stand-in for `contextdesc` looks for the files that each command
reads and writes those that it leaves.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STAND_IN = """#!/usr/bin/env python3
import sys
from pathlib import Path

command, *words = sys.argv[1:]
named = {"-o", "--output", "--photos", "--scenes", "--base", "--init", "--cache", "--ratio-scenes", "--card"}
options, given, names = [], [], iter(words)
for word in names:
    if word in named or word == "--limit":
        options.append((word, next(names)))
    elif word == "--steps":
        next(names)
    else:
        given.append(word)
read = given + [value for name, value in options if name not in ("-o", "--output", "--cache", "--limit")]
missing = [path for path in read if not Path(path).exists()]
assert not missing, f"{command} reads {missing}"
made = Path(dict(options).get("-o", given[0]))
made.mkdir(parents=True, exist_ok=True)
(made / {"train": "checkpoint.safetensors", "export": "model.json", "quantise": "int8.json"}[command]).touch()
print(command, given[0])
"""


@pytest.fixture
def run(tmp_path: Path) -> list[str]:
    """Lines of `scripts/train_models.sh` with the stand-in, started again when it was finished."""
    program = tmp_path / "bin" / "contextdesc"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    for folder in ("photos", "scenes"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    environment = {
        **os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "WEIGHTS": str(tmp_path / "weights"),
    }  # fmt: skip
    command = [
        "bash", str(ROOT / "scripts" / "train_models.sh"), str(tmp_path / "data"), str(tmp_path / "runs"),
        "--steps", "2",
    ]  # fmt: skip
    for _ in range(2):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_config_of_the_packaged_models_is_trained_after_what_it_needs(run: list[str]) -> None:
    trained = [line.removeprefix("train configs/") for line in run if line.startswith("train")]
    for model in ("contextdesc", "sift-context"):
        configs = sorted(path.name for path in (ROOT / "configs" / model).glob("*.toml"))
        assert [name for name in trained if name.startswith(f"{model}/")] == [f"{model}/{c}" for c in configs]


def test_what_depends_on_new_weights_is_measured_again(tmp_path: Path) -> None:
    script = tmp_path / "scripts" / "measure_models.sh"
    script.parent.mkdir()
    shutil.copy(ROOT / "scripts" / "measure_models.sh", script)
    for name in ("contextdesc", "python"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    (tmp_path / "data").mkdir()
    weights = tmp_path / "src" / "contextdesc" / "weights"
    for model in ("contextdesc", "sift-context"):
        (weights / model).mkdir(parents=True)
        (weights / model / "model.json").write_text("first")

    def measured() -> list[str]:
        environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
        command = ["bash", str(script), str(tmp_path / "data"), str(tmp_path / "work")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if line.startswith("+ ")]

    everything = measured()
    assert sum("benchmark heinly" in line for line in everything) == 2
    assert measured() == []
    (weights / "sift-context" / "model.json").write_text("second")
    again = measured()
    assert again == [line for line in everything if line in again]
    assert all("sift-context" in line for line in again if "contextdesc benchmark" in line)
    kept = [line for line in everything if line not in again]
    assert not any("sift-context" in line for line in kept)
    assert any("heinly" in line for line in kept)
