"""Figures of docs/training.md are those of the committed logs."""

from __future__ import annotations

import json
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


def test_the_run_whose_weights_were_not_kept() -> None:
    photographs, scenes = brought("2j-local")
    assert f"2j, brought {photographs} on photographs and {scenes} on scenes" in PAGE


def test_the_run_that_is_not_packaged() -> None:
    page = " ".join(PAGE.split())
    folder = DOCS / "models" / "contextdesc"
    (rule,) = json.loads((folder / "2k-rule.json").read_text(encoding="utf-8"))["compared"].values()
    told = [
        f"{g['mean']:+.2f} ({g['low']:.2f} to {g['high']:.2f})"
        for g in (rule[kind]["none"] for kind in ("photos", "scenes"))
    ]
    assert "it says {} on photographs and {} on scenes".format(*told) in page
    (terms,) = json.loads((folder / "2k-terms.json").read_text(encoding="utf-8"))["models"].values()
    gain = terms["scenes"]["gain"]["both - visual"]
    assert f"{gain['mean']:+.2f} ({gain['low']:.2f} to {gain['high']:.2f}), where both terms find" in page
    packaged = json.loads((DOCS / "results" / "terms-contextdesc.json").read_text(encoding="utf-8"))
    for found, words in (
        (terms, "find {:.2f} on photographs and {:.2f} on scenes"),
        (packaged["models"]["contextdesc"], "the packaged model {:.2f} and {:.2f})"),
    ):
        assert words.format(*(found[kind]["recall"]["both"] for kind in ("photos", "scenes"))) in page
