"""Reports: what stands in them, and that the page needs nothing beside it."""

from __future__ import annotations

import json
import re
from io import BytesIO
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from contextdesc.benchmarks.report import Curves, Report, Table
from contextdesc.benchmarks.statistics import Mean
from contextdesc.errors import InputError

TABLE = Table(
    "Recall & more", ("method", "recall", "pairs"), [("sift<1>", Mean(50.04, 40, 60), 3), ("b", 1.25, None)]
)
CURVES = Curves(
    "Growth", "growth", "keypoints", "recall, %", {"sift": [(1, 10), (2, 20)], "b": [(1, 30), (2, 5)]}
)
REPORT = Report("demo", "Made up.", {"value": 1}, [TABLE], [CURVES], {"bad": "bad: not readable"})


def test_numbers_become_text() -> None:
    assert TABLE.markdown.splitlines() == [
        "| method | recall | pairs |",
        "| --- | --- | --- |",
        "| sift<1> | 50.0 (40.0 to 60.0) | 3 |",
        "| b | 1.2 |  |",
    ]
    assert "skipped: bad: not readable" in REPORT.markdown
    assert json.loads(REPORT.json) == {
        "protocol": "demo",
        "value": 1,
        "skipped": {"bad": "bad: not readable"},
    }


def test_the_page_holds_everything_and_escapes_names(tmp_path: Path) -> None:
    REPORT.write(tmp_path / "new" / "folder", "contextdesc benchmark demo --methods 'a<b'")
    folder = tmp_path / "new" / "folder"
    assert {path.name for path in folder.iterdir()} == {
        "numbers.json",
        "report.md",
        "report.html",
        "growth.png",
    }
    page = (folder / "report.html").read_text()
    assert "<td>sift&lt;1&gt;</td>" in page
    assert "Recall &amp; more" in page
    assert "a&lt;b" in page
    links = re.findall(r'(?:src|srcset|href)="([^"]*)"', page)
    assert len(links) == 2  # light and dark
    assert all(link.startswith("data:image/png;base64,") for link in links)
    assert links[0] != links[1]
    assert "![Growth](growth.png)" in (folder / "report.md").read_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_plot_is_drawn_in_its_theme(theme: str) -> None:
    pixels = np.asarray(PIL.Image.open(BytesIO(CURVES.png(theme))).convert("RGB"))  # type: ignore[arg-type]
    background = pixels[2, 2]
    assert (background.mean() > 200) == (theme == "light")
    blue, orange = np.array([0, 114, 178]), np.array([213, 94, 0])
    for colour in (blue, orange):
        assert (np.abs(pixels.astype(int) - colour).max(2) < 10).sum() > 50


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file: cannot be written"):
        REPORT.write(tmp_path / "file", "")
