"""A Ray cluster of several nodes on this machine: the same shards, and workers and nodes that are killed."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contextdesc.detection import Detector
from contextdesc.errors import InputError
from contextdesc.extraction import extract_images
from contextdesc.formats.manifest import read_manifest
from contextdesc.formats.shards import open_features
from contextdesc.image import find_images
from contextdesc.match_set import match_pairs
from contextdesc.model import load
from contextdesc.scale.run import Workers
from tests.conftest import CI
from tests.scale.tasks import NUMBERS, Square, began, processes, prove, square_all
from tests.scale.test_run import equal, wait_until

if not CI:
    pytest.importorskip("ray")

_STORE = 80_000_000  # bytes of shared memory per node


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one core each, the first of them the head, that this process is connected to."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": _STORE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1, object_store_memory=_STORE)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The squares as processes of this machine make them."""
    folder = tmp_path_factory.mktemp("local")
    square_all(folder / "shards", Square(folder / "notes"), Workers(1))
    return folder / "shards"


def test_features_and_matches_are_those_of_local_processes(
    cluster: Any, photo_folder: Path, tmp_path: Path
) -> None:
    images = dict(list(find_images([photo_folder]).items())[:6])
    images["gone.png"] = tmp_path / "gone.png"
    model = load(detector=Detector(60))
    for name, workers in (("ray", Workers(cluster=cluster.address)), ("processes", Workers(2))):
        report = extract_images(model, images, tmp_path / name, workers=workers, shard_size=2, quiet=True)
        assert (len(report.done), list(report.failed)) == (6, ["gone.png"])
        pairs = [("a/00.png", "a/04.png"), ("a/01.png", "a/05.png"), ("a/00.png", "a/01.png")]
        found = match_pairs(
            tmp_path / name, pairs, tmp_path / f"{name}-matches", workers=workers, shard_size=2, quiet=True
        )
        assert len(found.done) == 3
    for suffix in ("", "-matches"):
        one, two = (read_manifest(tmp_path / f"{name}{suffix}") for name in ("ray", "processes"))
        assert one.shards == two.shards  # checksums included
    with open_features(tmp_path / "ray") as features:
        direct = load(detector=Detector(60), threads=1).extract(images["a/03.png"])
        np.testing.assert_array_equal(features["a/03.png"].descriptors, direct.descriptors)


def test_a_worker_is_killed_and_an_item_is_poison(cluster: Any, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    items = NUMBERS | {"negative": -1}

    def kill() -> None:
        wait_until(lambda: len(began(notes)) > 5)
        os.kill(processes(notes)[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    task = Square(notes, 0.1, deadly={"item33": 1000})
    report = square_all(tmp_path / "shards", task, Workers(cluster=cluster.address), items)
    killer.join()
    assert report.failed == {
        "item33": "the process that worked on it died, 3 times (its worker or node is gone)",
        "negative": "-1 is negative",
    }
    assert began(notes).count("item33") == 4
    assert len(processes(notes)) >= 6  # two, one for the first that was killed, three more for the poison
    assert prove(tmp_path / "shards", items).failed == report.failed


def test_a_node_is_killed_and_the_run_completes(cluster: Any, local: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()

    def kill() -> None:
        wait_until(lambda: len(processes(notes)) == 2 and len(began(notes)) > 8)
        cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    task = Square(notes, 0.2)
    report = square_all(tmp_path / "shards", task, Workers(cluster=cluster.address))
    killer.join()
    assert (report.done, report.failed) == (sorted(NUMBERS), {})
    first, second = ((notes / str(process)).read_text().split() for process in processes(notes))
    assert min(len(first), len(second)) < 20 < max(len(first), len(second))  # one of them did the rest
    prove(tmp_path / "shards")
    equal(tmp_path / "shards", local)


def test_addresses_that_do_not_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(InputError, match=r"run on a node of the cluster with --cluster auto"):
        square_all(tmp_path / "shards", Square(tmp_path / "notes"), Workers(cluster="ray://head:10001"))
    for address, reason in (("localhost:1", "refused"), ("localhost", "give HOST:PORT")):
        with pytest.raises(InputError, match=rf"--cluster {address}: no Ray cluster there \(.*{reason}"):
            square_all(tmp_path / "shards", Square(tmp_path / "notes"), Workers(cluster=address))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"--cluster needs an extra: pip install 'contextdesc\[cluster\]'"):
        square_all(tmp_path / "shards", Square(tmp_path / "notes"), Workers(cluster="auto"))


@pytest.mark.slow
def test_auto_starts_ray_and_its_dashboard_answers_until_the_driver_is_killed(
    photo_folder: Path, tmp_path: Path
) -> None:
    """The command line where no cluster runs: it starts one, with a page and the workers on it.

    Killed, it takes all of Ray with it; processes of this machine go on with its shards.
    """
    folder = tmp_path / "features"
    command = [sys.executable, "-m", "contextdesc", "extract", str(photo_folder), "-o", str(folder)]
    command += [
        "--workers",
        "1",
        "--shard-size",
        "1",
        "--json",
        "--contrast",
        "0.001",
    ]  # some seconds of work
    token = secrets.token_hex(32)  # which Ray asks visitors of the page for
    environment = os.environ | {
        "RAY_ADDRESS": "local",  # never the cluster of another test
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
    }
    process = subprocess.Popen(
        [*command, "--cluster", "auto"], stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stderr is not None
        address = re.fullmatch(r"Ray's dashboard: (http://127.0.0.1:\d+)\n", process.stderr.readline())
        assert address is not None
        assert b"<title>Ray Dashboard</title>" in visit(address[1], token)
        wait_until((folder / "shard-000000.h5").exists)
        assert b"_Actor" in visit(f"{address[1]}/logical/actors", token)
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not answers_at(address[1]))
    numbers = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert numbers["before"] + numbers["done"] == 12
    with open_features(folder) as features:
        assert len(features.names) == 12


def visit(address: str, token: str) -> bytes:
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())


def answers_at(address: str) -> bool:
    host, port = address.removeprefix("http://").split(":")
    with socket.socket() as connection:
        return connection.connect_ex((host, int(port))) == 0
