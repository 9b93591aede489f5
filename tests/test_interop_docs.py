"""The Python examples of docs/interop.md run, one after the other, as a reader would type them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "interop.md"


def examples() -> tuple[list[str], list[str]]:
    """Examples to run, and those that are marked as not to be run."""
    found = re.findall(r"(<!-- not run: [^\n]*-->\n)?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [code for mark, code in found if not mark], [code for mark, code in found if mark]


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run, _ = examples()
    assert len(run) >= 5
    names: dict[str, object] = {}
    for code in run:
        exec(compile(code, str(PAGE), "exec"), names)
    assert (tmp_path / "formats" / "openmvg" / "left.feat").is_file()


def test_what_does_not_run_names_what_exists() -> None:
    """Their imports from contextdesc work; the extractor's lines are those of its module."""
    import contextdesc.adapters.hloc as adapter

    _, not_run = examples()
    for code in not_run:
        for line in code.splitlines():
            if line.startswith("from contextdesc"):
                exec(line, {})
    lines = [line.strip() for line in str(adapter.__doc__).splitlines() if line.startswith("    ")]
    assert "\n".join(lines) + "\n" in not_run
