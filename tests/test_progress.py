from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from contextdesc.progress import progress

CODE = """
from contextdesc.progress import progress
with progress("work", 3, done=1) as advance:
    advance()
    advance("a note", failed=True)
"""


def test_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("work", 3, done=1) as advance:
        advance()
        advance("bad.jpg: damaged")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "work: 1 of 3 were finished before"
    assert lines[1] == "bad.jpg: damaged"
    assert lines[2].startswith("work: 3 of 3, ")
    assert lines[2].endswith(" s left")


def test_nothing_when_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("work", 1, quiet=True) as advance:
        advance("note")
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal() -> None:
    """A real pseudo-terminal as standard error."""
    master, slave = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", CODE], stderr=slave)
    os.close(slave)
    output = b""
    while True:
        try:
            chunk = os.read(master, 4096)
        except OSError:  # the terminal is closed when the process ends
            break
        if not chunk:
            break
        output += chunk
    assert process.wait() == 0
    assert b"3/3" in output
    assert b"a note" in output
    assert b"/s" in output
    assert b"1 failed" in output
