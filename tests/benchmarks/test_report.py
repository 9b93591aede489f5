"""Reports: what stands in them, and that the page needs nothing beside it."""

from __future__ import annotations

import json
import re
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import PIL.Image
import pytest

from contextdesc.benchmarks.report import Curves, Intervals, Plot, Report, Table, look
from contextdesc.benchmarks.statistics import Mean
from contextdesc.errors import InputError
from tests.browser import accessibility_problems, opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TABLE = Table(
    "Recall & more", ("method", "recall", "pairs"), [("sift<1>", Mean(50.04, 40, 60), 3), ("b", 1.25, None)]
)
CURVES = Curves(
    "Growth", "growth", "keypoints", "recall, %", {"sift": [(1, 10), (2, 20)], "b": [(1, 30), (2, 5)]}
)
INTERVALS = Intervals(
    "By scene", "scenes", "", "recall, %",
    {"graf": {"sift": Mean(30, 10, 50), "b": Mean(40, 35, 45)}, "wall": {"b": Mean(60, 60, 60)}},
)  # fmt: skip
REPORT = Report("demo", "Made up.", {"value": 1}, [TABLE], [CURVES, INTERVALS], {"bad": "bad: not readable"})


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
        "scenes.png",
    }
    page = (folder / "report.html").read_text()
    assert "<td>sift&lt;1&gt;</td>" in page
    assert "Recall &amp; more" in page
    assert "a&lt;b" in page
    links = re.findall(r'(?:src|srcset|href)="([^"]*)"', page)
    assert len(links) == 4  # two plots, light and dark
    assert all(link.startswith("data:image/png;base64,") for link in links)
    assert links[0] != links[1]
    assert "![Growth](growth.png)" in (folder / "report.md").read_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("plot", [CURVES, INTERVALS], ids=["curves", "intervals"])
def test_a_plot_is_drawn_in_its_theme(plot: Plot, theme: str) -> None:
    pixels = np.asarray(PIL.Image.open(BytesIO(plot.png(theme))).convert("RGB"))  # type: ignore[arg-type]
    background = pixels[2, 2]
    assert (background.mean() > 200) == (theme == "light")
    blue, orange = ((0, 114, 178), (213, 94, 0)) if theme == "light" else ((86, 180, 233), (230, 159, 0))
    for colour in (blue, orange):
        assert (np.abs(pixels.astype(int) - colour).max(2) < 10).sum() > 50


def test_legends_of_many_and_long_names_fit() -> None:
    short, long = ["sift", "rootsift", "contextdesc"], [f"kornia:HardNet=weights-{i}.pth" for i in range(8)]
    for names in (short, long, short + long):
        plot = Curves("Growth", "growth", "keypoints", "recall, %", {n: [(1, 10), (2, 20)] for n in names})
        pixels = np.asarray(PIL.Image.open(BytesIO(plot.png())).convert("L"))
        assert pixels[:, -4:].min() > 200, names  # nothing is cut at the right border
    looks = [tuple(look(index, "light").values()) for index in range(42)]
    assert len(set(looks)) == 42


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_page_fits_its_window(browser: Browser, tmp_path: Path, width: int, dark: bool) -> None:
    wide = Table("Wide", tuple(f"column {i}" for i in range(20)), [tuple(float(i) for i in range(20))])
    report = Report("demo", "Made up.", {}, [TABLE, wide], [INTERVALS])
    command = "contextdesc benchmark demo --methods " + "kornia:HardNet=folder/file.pth," * 9 + " --limit 3"
    (tmp_path / "report.html").write_text(report.html(command))
    with opened(browser, f"file://{tmp_path / 'report.html'}", width=width, dark=dark) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("[...document.images].every(i => i.naturalWidth > 600)")
        assert accessibility_problems(page) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file: cannot be written"):
        REPORT.write(tmp_path / "file", "")
