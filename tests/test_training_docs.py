"""Figures of docs/training.md are those of the committed logs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from contextdesc.training.logs import read_log

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "training.md").read_text(encoding="utf-8")
CARD = (DOCS / "models" / "contextdesc.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(2[a-z]-local)` \| ([\d,]+) \| (\d+) \| (\S+) \| (\S+) \|", PAGE, re.MULTILINE)


def brought(run: str) -> list[str]:
    """What the log of a run says that it brought on photographs and scenes, as the page writes it."""
    lines = read_log(DOCS / "models" / "contextdesc" / f"{run}.jsonl")
    first, *_, last = (line["held_out_recall"] for line in lines if "held_out_recall" in line)
    return [f"{last[name] - first[name]:+.2f}" for name in ("raw", "raw_scenes")]


def test_every_packaged_run_has_its_row() -> None:
    assert [row[0] for row in ROWS] == re.findall(r"\(`(2[a-z]-local)`\): ", CARD)


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_runs_of_the_local_network(row: tuple[str, ...]) -> None:
    run, steps, minutes, *gains = row
    assert f"(`{run}`): {steps.replace(',', '')} steps, {minutes} minutes, " in CARD
    if run == "2i-local":  # averaged with its start after the log ended: the card has the average
        photographs, scenes = (gain.lstrip("+") for gain in brought(run))
        assert f"Without the average (`keep_start`) 2i brought {photographs} and {scenes}." in " ".join(
            PAGE.split()
        )
        start = read_log(DOCS / "models" / "contextdesc" / f"{run}.jsonl")[0]["held_out_recall"]
        (kept,) = re.findall(r"computed in bf16, it has ([\d.]+) and ([\d.]+),", CARD)
        assert gains == [f"{float(k) - s:+.2f}" for k, s in zip(kept, start.values(), strict=True)]
    else:
        assert gains == brought(run)


def test_the_next_run() -> None:
    photographs, scenes = brought("2j-local")
    assert f"brought {photographs} on photographs and {scenes} on scenes" in PAGE
