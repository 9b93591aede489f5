"""Manifests and scripts of deploy/: against Kubernetes' own schemas, and run with what they start replaced.

Kubernetes objects are checked by kubernetes-validate with the strict schemas of Kubernetes 1.34. It has none
of KubeRay's objects: their pod templates are checked as pods, their own fields by the schema below.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import typer
import yaml

from contextdesc.cli import app

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
KUBERNETES = "1.34"


def _fields(required: tuple[str, ...] = (), **types: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": {
            name: {"type": kind} if isinstance(kind, str) else kind for name, kind in types.items()
        },
    }


_STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
_HEAD = _fields(
    ("template", "rayStartParams"), template="object", rayStartParams=_STRINGS, serviceType="string",
    headService="object", enableIngress="boolean",
)  # fmt: skip
_WORKERS = _fields(
    ("template", "rayStartParams", "groupName", "minReplicas", "maxReplicas"), template="object",
    rayStartParams=_STRINGS, groupName="string", replicas="integer", minReplicas="integer",
    maxReplicas="integer", numOfHosts="integer", suspend="boolean", idleTimeoutSeconds="integer",
)  # fmt: skip
_RAY_CLUSTER = _fields(
    ("headGroupSpec",), headGroupSpec=_HEAD, workerGroupSpecs={"type": "array", "items": _WORKERS},
    rayVersion="string", enableInTreeAutoscaling="boolean", autoscalerOptions="object",
    headServiceAnnotations=_STRINGS, suspend="boolean",
)  # fmt: skip
# ray.io/v1, RayJob: the names and types of KubeRay's API reference, as far as jobs of ours may need them
RAY_JOB = _fields(
    ("apiVersion", "kind", "metadata", "spec"), apiVersion={"const": "ray.io/v1"}, kind={"const": "RayJob"},
    metadata="object",
    spec=_fields(
        ("entrypoint",), entrypoint="string", rayClusterSpec=_RAY_CLUSTER, backoffLimit="integer",
        activeDeadlineSeconds="integer", shutdownAfterJobFinishes="boolean", runtimeEnvYAML="string",
        ttlSecondsAfterFinished="integer", suspend="boolean", clusterSelector=_STRINGS, metadata=_STRINGS,
        jobId="string", entrypointNumCpus="number", submissionMode={"enum": ["K8sJobMode", "HTTPMode"]},
        submitterPodTemplate="object",
    ),
)  # fmt: skip


def check(document: dict[str, Any]) -> None:
    """Raise `jsonschema.ValidationError` if Kubernetes would refuse a manifest, or ignore a part of it."""
    if document["kind"] != "RayJob":
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
        return
    jsonschema.validate(document, RAY_JOB)
    cluster = document["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **group["template"]}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text(encoding="utf-8")))


NAMES = sorted(path.name for path in (DEPLOY / "kubernetes").iterdir())
HEAD = ("spec", "rayClusterSpec", "headGroupSpec")
WORKERS = ("spec", "rayClusterSpec", "workerGroupSpecs", 0)
POD = ("template", "spec", "containers", 0)


def test_all_manifests_are_known() -> None:
    assert NAMES == ["extract-rayjob.yaml", "train-job.yaml"]


@pytest.mark.parametrize("name", NAMES)
def test_manifests_are_valid(name: str) -> None:
    for document in manifests(name):
        check(document)


def put(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: Any) -> None:
        for step in path[:-1]:
            document = document[step]
        document[path[-1]] = value

    return change


def drop(*path: str | int) -> Callable[[dict[str, Any]], None]:
    def change(document: Any) -> None:
        for step in path[:-1]:
            document = document[step]
        del document[path[-1]]

    return change


@pytest.mark.parametrize(
    ("name", "number", "change"),
    [
        ("train-job.yaml", 0, put("spec", "clusterIp", value="None")),
        ("train-job.yaml", 0, put("spec", "publishNotReadyAddresses", value="yes")),
        ("train-job.yaml", 1, put("spec", "completionsMode", value="Indexed")),
        ("train-job.yaml", 1, put("spec", "completions", value="two")),
        ("train-job.yaml", 1, put("spec", *POD, "command", value="bash -c")),
        ("train-job.yaml", 1, put("spec", *POD, "image", value=7)),
        ("train-job.yaml", 1, drop("spec", "template", "spec", "containers")),
        ("train-job.yaml", 1, drop("spec", *POD, "volumeMounts", 0, "mountPath")),
        ("extract-rayjob.yaml", 0, put(*HEAD, *POD, "volumeMount", value=[])),
        ("extract-rayjob.yaml", 0, put(*WORKERS, *POD, "envFrom", value="bucket")),
        ("extract-rayjob.yaml", 0, drop(*WORKERS, *POD, "name")),
        ("extract-rayjob.yaml", 0, put("spec", "entryPoint", value="contextdesc")),
        ("extract-rayjob.yaml", 0, drop("spec", "entrypoint")),
        ("extract-rayjob.yaml", 0, put(*WORKERS, "replicas", value="4")),
        ("extract-rayjob.yaml", 0, put(*HEAD, "rayStartParams", "num-cpus", value=0)),
        ("extract-rayjob.yaml", 0, put("apiVersion", value="ray.io/v2")),
    ],
)
def test_broken_manifests_are_found(name: str, number: int, change: Callable[[dict[str, Any]], None]) -> None:
    document = deepcopy(manifests(name)[number])
    check(document)
    change(document)
    with pytest.raises(jsonschema.ValidationError):
        check(document)


def pod_specs() -> list[dict[str, Any]]:
    (job,) = manifests("extract-rayjob.yaml")
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"], manifests("train-job.yaml")[1]["spec"]]
    return [group["template"]["spec"] for group in groups]


def test_pods_mount_volumes_that_they_have_and_run_the_image_as_its_user() -> None:
    image = re.search(r"docker build .* -t (\S+)", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
    assert image is not None
    for pod in pod_specs():
        (container,) = pod["containers"]
        assert container["image"] == image[1]
        assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
        assert pod["securityContext"]["runAsUser"] == 1000


def place(folder: Path, **programs: str) -> str:
    """Put programs into a folder; the PATH on which they are found first."""
    folder.mkdir(exist_ok=True)
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """The environment of a job on node7 and node8; srun runs its command on both at the same time."""
    scontrol = (
        """#!/bin/sh\n[ "$*" = "show hostnames node[7-8]" ] && printf "${FIRST_NODE-node7}\\nnode8\\n"\n"""
    )
    srun = """#!/bin/bash\n[ "$1" = --kill-on-bad-exit=1 ] && shift
SLURM_NODEID=0 "$@" & first=$!
SLURM_NODEID=1 "$@" & second=$!
wait $first && wait $second\n"""
    return {
        "PATH": place(tmp_path / "slurm", scontrol=scontrol, srun=srun), "SLURM_NNODES": "2",
        "SLURM_JOB_NODELIST": "node[7-8]", "SLURM_JOB_ID": "123456", "SLURM_GPUS_ON_NODE": "4",
        "SLURM_CPUS_PER_TASK": "32",
    }  # fmt: skip


def launched(folder: Path, *command: str, **environment: str) -> list[Any]:
    """Run a command in which torchrun tells how it was called; what torchrun's own parser makes of it."""
    from torch.distributed.run import get_args_parser

    torchrun = (
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"open(f'{folder}/{{os.getpid()}}.call', 'w').write(json.dumps(sys.argv[1:]))\n"
    )
    path = place(folder, torchrun=torchrun)
    out = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PATH": path, **environment}
    )
    assert out.returncode == 0, out.stderr
    calls = [get_args_parser().parse_args(json.loads(file.read_text())) for file in folder.glob("*.call")]
    return sorted(calls, key=lambda call: call.node_rank)


def parsed(command: str, arguments: list[str]) -> dict[str, Any]:
    """The options of a command of ours, as its own parser reads them; unknown ones raise."""
    group: Any = typer.main.get_command(app)
    return dict(group.commands[command].make_context(command, list(arguments)).params)


def test_pods_of_the_training_find_each_other(tmp_path: Path) -> None:
    service, job = manifests("train-job.yaml")
    name, domain = job["metadata"]["name"], service["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert job["spec"]["template"]["spec"]["subdomain"] == domain
    (container,) = job["spec"]["template"]["spec"]["containers"]
    command = (*container["command"], *container["args"])
    (call,) = launched(tmp_path / "bin", *command, JOB_COMPLETION_INDEX="1")
    assert (call.master_addr, call.node_rank) == (f"{name}-0.{domain}", 1)
    assert int(call.nnodes) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert int(call.nproc_per_node) == container["resources"]["limits"]["nvidia.com/gpu"]
    assert (call.module, call.training_script, call.training_script_args[0]) == (True, "contextdesc", "train")
    options = parsed("train", call.training_script_args[1:])
    assert (ROOT / options["config"]).is_file()
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/photos", "/runs"} <= mounted
    assert (options["photos"], options["output"].parent) == (Path("/photos"), Path("/runs"))


def test_the_rayjob_runs_a_command_that_we_have() -> None:
    (job,) = manifests("extract-rayjob.yaml")
    program, command, *arguments = shlex.split(job["spec"]["entrypoint"])
    assert (program, command) == ("contextdesc", "extract")
    options = parsed("extract", arguments)
    assert options["cluster"] == "auto"
    for pod in pod_specs()[:2]:
        assert pod["containers"][0]["volumeMounts"][0]["mountPath"] == str(options["output"].parent)


def test_the_page_has_commands_and_numbers_that_are_ours() -> None:
    from contextdesc.extraction import IMAGES_A_SHARD
    from contextdesc.match_set import PAIRS_A_SHARD

    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    shell = "".join(re.findall(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    commands = re.findall(r"^contextdesc (\S+) ([^#\n]*)", shell, re.MULTILINE)
    assert len(commands) >= 7
    for command, arguments in commands:
        parsed(command, shlex.split(arguments))
    assert f"features of {IMAGES_A_SHARD} images or matches of {PAIRS_A_SHARD} pairs" in page
    assert f"schemas of Kubernetes {KUBERNETES}" in page
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", page):
        assert (ROOT / "docs" / link).exists() or link == "results/scale-throughput.json"


SBATCH = DEPLOY / "slurm" / "train.sbatch"

# Of sbatch(1): those that a job like ours may have, and what their values look like
SBATCH_OPTIONS = {
    "job-name": r"\S+", "nodes": r"\d+(-\d+)?", "ntasks": r"\d+", "ntasks-per-node": r"\d+",
    "gpus-per-node": r"(\w+:)?\d+", "gpus": r"(\w+:)?\d+", "gres": r"\S+", "cpus-per-task": r"\d+",
    "mem": r"\d+[KMGT]?", "mem-per-cpu": r"\d+[KMGT]?", "time": r"(\d+-)?\d+(:\d\d){0,2}",
    "partition": r"\S+", "account": r"\S+", "qos": r"\S+", "constraint": r"\S+", "exclusive": r"(user|mcs)?",
    "requeue": "", "no-requeue": "", "open-mode": r"append|truncate", "output": r"\S+", "error": r"\S+",
    "signal": r"([RB]:)?\w+(@\d+)?", "array": r"[\d,%:-]+", "dependency": r"\S+", "chdir": r"\S+",
    "export": r"\S+", "mail-type": r"[A-Z,]+", "mail-user": r"\S+", "nodelist": r"\S+", "exclude": r"\S+",
}  # fmt: skip


def sbatch_problems(script: str) -> list[str]:
    """#SBATCH lines that sbatch would refuse, or would not see since a command stands before them."""
    problems = []
    started = False
    for line in script.splitlines():
        if line.startswith("#SBATCH"):
            name, _, value = line.removeprefix("#SBATCH").strip().removeprefix("--").partition("=")
            if started or name not in SBATCH_OPTIONS or not re.fullmatch(SBATCH_OPTIONS[name], value):
                problems.append(line)
        started = started or not (line.startswith("#") or not line.strip())
    return problems


def test_sbatch_options() -> None:
    script = SBATCH.read_text(encoding="utf-8")
    assert script.count("\n#SBATCH ") >= 8
    assert sbatch_problems(script) == []
    broken = ("#SBATCH --node=2", "#SBATCH --time=a day", "#SBATCH --nodes=two", "#SBATCH --requeue=yes")
    assert sbatch_problems("\n".join(broken)) == list(broken)
    assert sbatch_problems("echo\n#SBATCH --nodes=2") == ["#SBATCH --nodes=2"]


def test_sbatch_starts_one_torchrun_a_machine(slurm: dict[str, str], tmp_path: Path) -> None:
    subprocess.run(["bash", "-n", SBATCH], check=True)
    usage = re.search(r"sbatch deploy/slurm/train.sbatch (.*)", SBATCH.read_text(encoding="utf-8"))
    assert usage is not None
    arguments = [*shlex.split(usage[1]), "--scenes", "my scenes"]
    calls = launched(tmp_path / "slurm", "bash", str(SBATCH), *arguments, **slurm)
    assert [call.node_rank for call in calls] == [0, 1]
    for call in calls:
        assert (call.nnodes, call.nproc_per_node) == ("2", "4")
        assert (call.master_addr, call.master_port) == ("node7", 23456)
        assert (call.module, call.training_script) == (True, "contextdesc")
        assert call.training_script_args == ["train", *arguments]
    assert parsed("train", arguments)["scenes"] == Path("my scenes")
    assert (ROOT / parsed("train", arguments)["config"]).is_file()


@pytest.mark.slow
def test_sbatch_trains_on_two_machines(slurm: dict[str, str], photo_folder: Path, tmp_path: Path) -> None:
    """Both are this one, each with a process without a GPU; torchrun and the training are real."""
    config = tmp_path / "config.toml"
    config.write_text(
        'stage = "local"\nsteps = 2\nwarmup = 1\nheld_out = 1\nkeypoints = 32\npairs_per_step = 1\n'
        "[pairs]\nkeypoints = 64\nmin_corresponding = 16\nper_photo = 1\n"
    )
    shutil.copytree(photo_folder / "a", tmp_path / "photos")
    alone = {
        "FIRST_NODE": "localhost", "SLURM_JOB_ID": str(os.getpid()), "SLURM_GPUS_ON_NODE": "1",
        "SLURM_CPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    command = ["bash", SBATCH, config, "-o", "run", "--photos", "photos", "--workers", "1"]
    out = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=os.environ | slurm | alone, timeout=300
    )
    assert out.returncode == 0, out.stderr[-2000:]
    assert out.stdout.count("checkpoint: ") == 1
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert max(line["step"] for line in log) == 2
    assert (tmp_path / "run" / "checkpoint.safetensors").is_file()


def test_the_dockerfile_copies_what_the_installation_needs(tmp_path: Path) -> None:
    """The image cannot be built here; the wheel is, from the files that the image would get."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE):
        *sources, target = line.split()
        for source in sources:
            place = tmp_path / target / (source if target == "./" else "")
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("*.onnx", "__pycache__"))
            else:
                shutil.copy(ROOT / source, place)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    built = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    assert len(list((tmp_path / "dist").glob("contextdesc-*.whl"))) == 1
    assert (tmp_path / "constraints.txt").is_file()


def test_the_dockerfile_installs_as_the_readme_does() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = re.search(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)
    python = re.search(r"^FROM python:3\.(\d+)-slim$", text, re.MULTILINE)
    assert extras is not None
    assert python is not None
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])
    assert int(python[1]) >= int(project["requires-python"].removeprefix(">=3."))
    assert """pip install --no-cache-dir -c constraints.txt ".[${EXTRAS}]\"""" in text
    assert "pip install -c constraints.txt '.[" in (ROOT / "README.md").read_text(encoding="utf-8")
