"""`contextdesc demo` as a process, and the page's files in the wheel."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest

from contextdesc.demo.app import STATIC

ROOT = Path(__file__).parent.parent.parent
COMMAND = [sys.executable, "-m", "contextdesc", "demo", "--no-browser", "--threads", "1"]


def main_thread_seconds(pid: int) -> float:
    """CPU time of a process' main thread, which other work on the machine does not lengthen."""
    stat = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def test_it_starts_in_under_three_seconds_and_stops_on_interrupt() -> None:
    process = subprocess.Popen(
        [*COMMAND, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"the page: (http://127\.0\.0\.1:\d+/) \(Ctrl-C stops it\)\n", line)
        assert found, line
        assert "<h1>contextdesc</h1>" in httpx.get(found[1], timeout=60).text
        if sys.platform == "linux":
            assert main_thread_seconds(process.pid) < 3
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, "stopped\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nope"], "nope: neither a packaged model"),
        (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1, port 8000"),
        (["--port", "99999"], "Invalid value for '--port'"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str) -> None:
    out = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120)
    assert out.returncode == 2
    assert message in out.stderr
    assert out.stderr.count("\n") == 1


def test_a_busy_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        out = subprocess.run([*COMMAND, "--port", str(port)], capture_output=True, text=True, timeout=120)
    assert out.returncode == 2
    assert out.stderr == f"error: port {port} is in use: choose another with --port (0: any)\n"


def test_the_wheel_carries_the_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for file in STATIC.iterdir():
        assert f"contextdesc/demo/static/{file.name}" in names
