"""The contract: every protocol in the registry, and how a request goes over its units."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contextdesc.benchmarks import heinly, registry
from contextdesc.benchmarks.cache import Cache
from contextdesc.benchmarks.methods import Method, build_method, build_methods
from contextdesc.benchmarks.protocol import OWN, Protocol, Request, Setting
from contextdesc.benchmarks.statistics import difference
from contextdesc.cli.benchmark import _labels
from contextdesc.detection import Detector, detect
from contextdesc.errors import ContextDescError, InputError
from contextdesc.image import Image
from tests.cli.test_cli import run


def square(request: Request, unit: int) -> int:
    """At the top level, so that other processes find it."""
    if unit == 3:
        raise InputError("three: not wanted")
    return unit**2


@pytest.mark.parametrize("workers", [1, 2])
def test_units_come_back_in_their_order_and_bad_ones_are_told(
    workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = Request(tmp_path, {}, workers=workers, quiet=False)
    scores, skipped = request.each("numbers", {str(n): n for n in range(6)}, square)
    assert scores == {"0": 0, "1": 1, "2": 4, "4": 16, "5": 25}
    assert list(scores) == ["0", "1", "2", "4", "5"]
    assert skipped == {"3": "three: not wanted"}
    told = capsys.readouterr().err
    assert "skipped: three: not wanted" in told
    assert "numbers: 6 of 6" in told
    with pytest.raises(InputError, match="no numbers could be used; the first: three: not wanted"):
        request.each("numbers", {"three": 3}, square)


def die(request: Request, unit: int) -> int:
    os._exit(3)


def test_a_process_that_dies_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    monkeypatch.delenv("VECLIB_MAXIMUM_THREADS", raising=False)
    request = Request(tmp_path, {}, workers=2)
    with pytest.raises(ContextDescError, match=r"a process ended while it worked on .*fewer --workers"):
        request.each("numbers", {"one": 1, "two": 2}, die)
    assert os.environ["MKL_NUM_THREADS"] == "3"  # as it was
    assert "VECLIB_MAXIMUM_THREADS" not in os.environ


SLEEPING = """
import os, time
from pathlib import Path
import numpy as np

def describe(image, keypoints):
    if len(keypoints) > 1:
        Path(f"started-{os.getpid()}").touch()
        time.sleep(300)
    return np.ones((len(keypoints), 2))
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_run_ends_at_once_and_leaves_no_process(
    sent: signal.Signals, scene: Path, tmp_path: Path
) -> None:
    (tmp_path / "sleeping.py").write_text(SLEEPING)
    command = [
        sys.executable, "-m", "contextdesc", "benchmark", "heinly", "--data", str(scene.parent),
        "--methods", "python:sleeping.describe", "--workers", "2", "--no-cache",
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while len(started := list(tmp_path.glob("started-*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(sent)
        _, told = process.communicate(timeout=60)  # whoever lives on holds standard error open
    assert len(started) == 2
    if sent == signal.SIGINT:
        assert process.returncode == 130
        assert told == "error: stopped; what was finished is kept, the same command goes on\n"
    else:
        assert process.returncode == -sent
    left = [Path("/proc", worker.name.removeprefix("started-")) for worker in started]
    while any(path.exists() for path in left) and time.monotonic() < deadline:
        time.sleep(0.1)  # the system buries whom nobody waits for
    assert not any(path.exists() for path in left)


def test_processes_give_what_one_gives(scene: Path) -> None:
    methods = build_methods("rootsift,sift-context:geometric", threads=1)
    request = Request(scene.parent, methods, (0, 1))
    alone, together = (heinly.run(replace(request, workers=n)).numbers for n in (1, 2))
    assert alone["pairs"] == together["pairs"]


def test_a_method_more_does_not_redo_the_others(photo: Image, tmp_path: Path) -> None:
    calls: list[str] = []
    sift = build_method("sift")

    def counting(name: str) -> Method:
        def describe(*arguments: object) -> np.ndarray:
            calls.append(name)
            return sift.describe(*arguments)  # type: ignore[arg-type]

        return replace(sift, name=name, describe=describe, identity=name)

    request = Request(tmp_path, {"a": counting("a")}, cache=Cache(tmp_path / "cache"))
    first = request.describe(photo, Detector(50))
    both = replace(request, methods={name: counting(name) for name in "ab"}).describe(photo, Detector(50))
    assert calls == ["a", "b"]
    np.testing.assert_array_equal(first["a"].descriptors, both["a"].descriptors)
    np.testing.assert_array_equal(first["a"].keypoints.xy, detect(photo.gray, Detector(50)).xy)
    request.describe(photo, Detector(50, "random", seed=1))
    assert calls == ["a", "b", "a"]  # other keypoints
    unknown = replace(request, methods={"a": replace(counting("a"), identity=None)})
    unknown.describe(photo, Detector(50))
    unknown.describe(photo, Detector(50))
    assert calls == ["a", "b", "a", "a", "a"]  # nobody knows what it depends on


def test_own_keypoints_are_those_of_each_detector(photo: Image, tmp_path: Path) -> None:
    methods = build_methods("sift,opencv:ORB")
    request = Request(tmp_path, methods, cache=Cache(tmp_path / "cache"), keypoints="own")
    for _ in range(2):  # computed, and read again
        found = request.describe(photo, Detector(60))
        assert len(found["sift"].keypoints) == 60
        assert 0 < len(found["opencv:ORB"].keypoints) <= 60
        assert found["opencv:ORB"].descriptors.shape[1] == 256
        assert not np.array_equal(found["sift"].keypoints.xy[:10], found["opencv:ORB"].keypoints.xy[:10])
    shared = replace(request, keypoints="shared").describe(photo, Detector(60))
    np.testing.assert_array_equal(shared["sift"].keypoints.xy, shared["opencv:ORB"].keypoints.xy)


def test_the_baseline_is_one_of_the_methods(tmp_path: Path) -> None:
    methods = build_methods("sift,rootsift")
    assert Request(tmp_path, methods, baseline="sift").compared == ["rootsift"]
    assert Request(tmp_path, methods).compared == []
    with pytest.raises(InputError, match="baseline 'orb': one of the methods, sift, rootsift"):
        Request(tmp_path, methods, baseline="orb")
    assert difference([1, 2, 6], [1, 1, 1]).mean == 2
    assert str(difference([3, 3], [1, 1])) == "+2.0"


def test_settings_have_the_type_of_their_default(tmp_path: Path) -> None:
    protocol = Protocol(
        "", "", settings=(Setting("words", 64, "of a vocabulary"), Setting("fast", False, ""))
    )
    words, fast = protocol.settings
    assert words.parse("12") == 12
    assert fast.parse("true") is True
    with pytest.raises(InputError, match="--set words=many: not a number such as 64"):
        words.parse("many")
    with pytest.raises(InputError, match="true or false"):
        fast.parse("1")
    assert Request(tmp_path, {}).setting("words", protocol) == 64
    assert Request(tmp_path, {}, settings={"words": 12}).setting("words", protocol) == 12


@pytest.mark.parametrize("name", registry.PROTOCOLS)
def test_every_protocol_says_what_it_needs(name: str) -> None:
    protocol = registry.protocol(name)
    assert len(protocol.layout) > 20
    assert len(protocol.source) > 20
    assert registry.PROTOCOLS[name].endswith(".")


def test_the_list_needs_no_extra() -> None:
    extras = ("torch", "kornia", "matplotlib", "onnx", "pycolmap", "faiss", "skimage")
    code = (
        "import sys\n"
        "from contextdesc.benchmarks import registry\n"
        "protocols = [registry.protocol(name) for name in registry.PROTOCOLS]\n"
        f"print(len(protocols), [name for name in {extras!r} if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == f"{len(registry.PROTOCOLS)} []\n"


def test_the_list_tells_of_data_and_options() -> None:
    out = run("benchmark", "list")
    assert out.returncode == 0, out.stderr
    for name, about in registry.PROTOCOLS.items():
        assert f"{name}\n    about: {about}\n    data: " in out.stdout
    entries = json.loads(run("benchmark", "list", "--json").stdout)
    assert "hpatches-sequences-release" in entries["hsequences"]["published"]
    assert "--seeds" in entries["heinly"]["options"]
    assert "Oxford affine layout" in entries["gallery"]["data"]


def test_the_command_writes_numbers_and_how_they_were_made(scene: Path, tmp_path: Path) -> None:
    output = tmp_path / "numbers.json"
    arguments = [
        "benchmark", "heinly", "--data", scene.parent, "--methods", "sift,opencv:ORB", "--keypoints", "own",
        "--baseline", "sift", "--seeds", "1", "--set", "transformations=shift:motion", "-o", output,
    ]  # fmt: skip
    out = run(*arguments, "--workers", "1")
    assert out.returncode == 0, out.stderr
    numbers = json.loads(output.read_text())
    assert list(numbers["recall"]) == [f"sift{OWN}", f"opencv:ORB{OWN}"]
    assert list(numbers["difference"]) == [f"opencv:ORB{OWN}"]
    assert numbers["origin"]["command"] == (
        "contextdesc benchmark heinly --data scenes --methods sift,opencv:ORB --baseline sift "
        "--keypoints own --seeds 1 --set transformations=shift:motion"
    )
    assert "OpenCV" in numbers["origin"]["methods"][f"sift{OWN}"]
    assert (tmp_path / "user-cache" / "contextdesc" / "benchmarks").is_dir()


def test_tables_name_files_without_the_way_to_them() -> None:
    names = ["kornia:HardNet=/a/b/liberty.pth@1.13", "models/mine:none", "h5:x/y.h5", "sift"]
    assert list(_labels(names).values()) == [
        "kornia:HardNet=liberty.pth@1.13",
        "mine:none",
        "h5:y.h5",
        "sift",
    ]
    two = ["models/old/mine", "models/new/mine"]
    assert list(_labels(two).values()) == two


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["terms", "--seeds", "2"], "benchmark terms has no use for --seeds; it takes --methods"),
        (["heinly", "--set", "words=3"], "--set words=3: benchmark heinly has transformations"),
        (["heinly", "--baseline", "orb"], "baseline 'orb': one of the methods"),
        (["heinly", "--methods", ","], "no methods: give some of sift, rootsift, contextdesc"),
        (["heinli"], "No such command 'heinli'"),
    ],
)
def test_bad_options_are_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    out = run("benchmark", *arguments, "--data", tmp_path)
    assert out.returncode == 2
    assert message in out.stderr
    assert out.stderr.count("\n") == 1
