"""Contact sheets: everything that was answered is on them, and the page needs nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from contextdesc.errors import InputError
from contextdesc.retrieval.searching import FLOOR, Answer, Answers
from contextdesc.retrieval.sheet import check_sheet, draw_sheet, html_sheet, write_sheet
from tests.browser import accessibility_problems, opened

HOSTILE = '<script>alert("x")</script>.png'


@pytest.fixture(scope="module")
def found(photo_folder: Path) -> list[Answers]:
    paths = {path.name: str(path) for path in sorted(photo_folder.rglob("*.png"))}
    answers = [
        Answer("00.png", paths["00.png"], 1.0, 300),
        Answer("04.png", paths["04.png"], 0.5, FLOOR),
        Answer(HOSTILE, str(photo_folder / "gone.png"), 0.25, FLOOR - 1),
        *(Answer(name, paths[name], 0.1) for name in list(paths)[5:]),
    ]
    return [
        Answers("query.png", 321, tuple(answers)),
        Answers("blank.png", 0, (), "no keypoints in the query"),
    ]


@pytest.fixture(scope="module")
def queries(photo_folder: Path) -> dict[str, Path]:
    return {"query.png": photo_folder / "a" / "00.png", "blank.png": photo_folder / "nowhere.png"}


def test_the_page_says_everything_and_loads_nothing(
    found: list[Answers], queries: dict[str, Path], tmp_path: Path
) -> None:
    write_sheet(tmp_path / "sheet.html", found, queries)
    page = (tmp_path / "sheet.html").read_text(encoding="utf-8")
    assert page == html_sheet(found, queries)
    assert page.count("<li") == 10
    assert page.count('<li class="agrees">') == 2
    assert "300 inliers" in page
    assert "not verified" in page
    assert "score 0.250" in page
    assert "no keypoints in the query" in page
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert page.count('<div class="missing">') == 2
    images = re.findall(r"<img [^>]*>", page)
    assert len(images) == 10
    assert all(re.search(r'alt="(query|answer \d+:) .+?"', image) for image in images)
    assert re.findall(r"(?:src|href)=\"(?!data:)", page) == []


def test_the_picture_shows_query_and_answers(found: list[Answers], queries: dict[str, Path]) -> None:
    picture = draw_sheet(found, queries)
    texts = [shape.text for shape in picture.shapes if hasattr(shape, "text")]
    assert "1 · 300 inliers · score 1.000" in texts
    assert "321 keypoints" in texts
    assert "no keypoints in the query" in texts
    pixels = np.asarray(picture)
    assert pixels.shape[:2] == (picture.size[1], picture.size[0])
    assert (pixels[:200, :400] != 255).any(2).mean() > 0.7  # the query
    framed = (pixels == (0, 114, 178)).all(2)
    assert framed.sum() > 1000
    assert draw_sheet([], {}).size == (200, 200)


def test_sheets_have_known_suffixes(tmp_path: Path, found: list[Answers], queries: dict[str, Path]) -> None:
    with pytest.raises(InputError, match=r"sheet.docx: contact sheets are written as .html, .png"):
        check_sheet(Path("sheet.docx"))
    check_sheet(Path("sheet.HTML"))
    write_sheet(tmp_path / "sheet.jpg", found[:1], queries)
    assert (tmp_path / "sheet.jpg").read_bytes().startswith(b"\xff\xd8")


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_readable_in_a_browser(
    dark: bool, browser: object, found: list[Answers], queries: dict[str, Path], tmp_path: Path
) -> None:
    path = tmp_path / "sheet.html"
    write_sheet(path, found, queries)
    with opened(browser, path.as_uri(), dark=dark) as page:  # type: ignore[arg-type]
        assert accessibility_problems(page) == []
        assert page.locator("li").count() == 10
        widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert widths[0] <= widths[1]
    with opened(browser, path.as_uri(), width=390, dark=dark) as page:  # type: ignore[arg-type]
        widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert widths[0] <= widths[1]
