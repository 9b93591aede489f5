"""The page in a real browser, as a visitor meets it: by mouse, by keyboard, on a phone, in the dark.

With CONTEXTDESC_SCREENSHOTS naming a folder, the picture of the page in the documentation is written there.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import PIL.Image
import pytest

from contextdesc.cli.demo import _session
from contextdesc.formats.hloc import FeatureFile
from tests.browser import accessibility_problems, opened
from tests.demo.conftest import MAX_PIXELS, Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

PATIENCE = 600_000  # milliseconds for a busy machine to describe two photographs
SCREENSHOTS = os.environ.get("CONTEXTDESC_SCREENSHOTS")


@pytest.fixture(scope="module")
def visited() -> Iterator[Server]:
    """The packaged model; for screenshots at full size, else on small photographs, to save time."""
    side = 1600 if SCREENSHOTS else 240
    session = _session("contextdesc", max_side=side, max_pixels=MAX_PIXELS, device="cpu", threads=1)
    with serving(session) as running:
        yield running


def wait_for_result(page: Page) -> int:
    """The number of inliers, when the page shows it and waits for nothing."""
    page.wait_for_selector("body:not(.waiting) #counts b", timeout=PATIENCE)
    page.wait_for_selector(".slot.busy", state="detached", timeout=PATIENCE)
    return int(page.locator("#counts b").first.inner_text())


def wait_for_change(page: Page, inliers: int) -> int:
    changed = "before => document.querySelector('#counts b')?.textContent !== String(before)"
    page.wait_for_function(changed, arg=inliers, timeout=PATIENCE)
    return wait_for_result(page)


def upload(page: Page, paths: tuple[Path, Path]) -> int:
    """Give the page two photographs and wait for their matches."""
    page.set_input_files("[data-slot='0'] input", paths[0])
    page.set_input_files("[data-slot='1'] input", paths[1])
    for slot, path in enumerate(paths):
        page.wait_for_selector(
            f"[data-slot='{slot}']:not(.busy) .name[title='{path.name}']", timeout=PATIENCE
        )
    return wait_for_result(page)


def test_a_visit(visited: Server, browser: Browser, stereo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    with opened(browser, visited.url) as page:
        inliers = upload(page, stereo_pair)
        assert inliers > 64
        assert page.inner_text("#verdict") == "Same scene"

        # Controls change the matches.
        page.locator("#budget").press("Home")
        fewer = wait_for_change(page, inliers)
        assert page.inner_text("#budget-value") == "64"
        assert 0 < fewer < 65
        page.click("#reset")
        assert wait_for_change(page, fewer) == inliers
        page.check("[name='context'][value='none']")
        without_context = wait_for_change(page, inliers)
        assert without_context > 0
        assert 'context="none"' in page.inner_text("#snippet")
        page.click("#reset")
        assert wait_for_change(page, without_context) == inliers

        # Three descriptors side by side; the one that is chosen is shown large.
        counts = [int(text) for text in page.locator(".card .numbers b").all_inner_texts()]
        assert len(counts) == 3
        assert counts[2] == inliers
        page.check("[name='method'][value='sift']")
        assert page.inner_text("#counts b >> nth=0") == str(counts[0])
        page.check("[name='method'][value='augmented']")

        # Pointing at the picture brings up the patches of a match.
        before = page.inner_text("#match-note")
        box = page.locator("#picture").bounding_box()
        assert box is not None
        for step in range(20):
            page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * (step + 0.5) / 20)
        assert page.inner_text("#match-note") != before
        page.wait_for_function("() => document.getElementById('patch-0').naturalWidth === 32")
        page.wait_for_function("() => document.getElementById('patch-1').naturalWidth === 32")

        # Layers.
        pixels = page.evaluate("document.getElementById('picture').toDataURL()")
        page.check("#show-heat")
        page.wait_for_selector(".stage:not(.busy)", timeout=PATIENCE)
        with_heat = page.evaluate("document.getElementById('picture').toDataURL()")
        page.check("#show-keypoints")
        assert len({pixels, with_heat, page.evaluate("document.getElementById('picture').toDataURL()")}) == 3

        # Files to take home.
        files = {}
        for link in ("get-picture", "get-matches", "get-features"):
            with page.expect_download() as download:
                page.click(f"#{link}")
            files[link] = tmp_path / download.value.suggested_filename
            download.value.save_as(files[link])
    assert PIL.Image.open(files["get-picture"]).format == "PNG"
    with files["get-matches"].open() as file:
        assert sum(row["inlier"] == "1" for row in csv.DictReader(file)) == inliers
    with FeatureFile(files["get-features"]) as features:
        assert features.names == [path.name for path in stereo_pair]


def test_the_sample_pair_greets_the_visitor_by_day_and_by_night(visited: Server, browser: Browser) -> None:
    for dark in (False, True):
        with opened(browser, visited.url, dark=dark) as page:
            assert accessibility_problems(page) == []
            wait_for_result(page)
            assert page.inner_text("[data-slot='0'] .name") == "motorcycle, left"
            assert accessibility_problems(page) == []
            if SCREENSHOTS and not dark:
                below = page.locator(".more").bounding_box()
                assert below is not None
                clip = {"x": 0, "y": 0, "width": 1280, "height": below["y"] - 4}
                page.screenshot(path=Path(SCREENSHOTS) / "demo.png", clip=clip, full_page=True)


def test_a_phone_shows_everything_without_scrolling_sideways(visited: Server, browser: Browser) -> None:
    for width in (320, 390):
        with opened(browser, visited.url, width=width, height=800) as page:
            wait_for_result(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            first, second = (page.locator(f"[data-slot='{slot}']").bounding_box() for slot in (0, 1))
            assert first is not None
            assert second is not None
            assert second["x"] + second["width"] <= width
            picture = page.locator("#picture").bounding_box()
            assert picture is not None
            assert picture["height"] > picture["width"], "the photographs stand one above the other"
            assert accessibility_problems(page) == []
            page.mouse.click(picture["x"] + picture["width"] / 2, picture["y"] + picture["height"] / 2)


def test_everything_works_by_keyboard(visited: Server, browser: Browser) -> None:
    with opened(browser, visited.url) as page:
        inliers = wait_for_result(page)
        reached = []

        def tab_to(selector: str) -> None:
            for _ in range(40):
                page.keyboard.press("Tab")
                reached.append(page.evaluate("document.activeElement.id || document.activeElement.name"))
                if page.evaluate("s => document.activeElement.matches(s)", selector):
                    outline = "getComputedStyle(document.activeElement).outlineStyle"
                    hidden = "getComputedStyle(document.activeElement).opacity === '0'"
                    assert page.evaluate(f"{hidden} || {outline} !== 'none'"), f"{selector} shows no focus"
                    return
            pytest.fail(f"{selector} is not reached by Tab, only {reached}")

        tab_to("[data-slot='0'] input")
        tab_to("[data-slot='1'] input")
        tab_to("#samples")
        tab_to("#show-outliers")
        page.keyboard.press("Space")
        assert not page.is_checked("#show-outliers")
        tab_to("#budget")
        page.keyboard.press("Home")
        fewer = wait_for_change(page, inliers)
        tab_to("#ratio")
        page.keyboard.press("End")
        assert page.inner_text("#ratio-value") == "1.00"
        wait_for_change(page, fewer)
        tab_to("[name='context']")
        page.keyboard.press("ArrowLeft")
        assert page.is_checked("[name='context'][value='geometric']")
        tab_to("#match")
        before = page.get_attribute("#match", "aria-valuetext")
        page.keyboard.press("ArrowRight")
        assert page.get_attribute("#match", "aria-valuetext") != before
        tab_to("[name='method']")
        page.keyboard.press("ArrowLeft")
        assert page.is_checked("[name='method'][value='raw']")
        tab_to("#get-matches")
        with page.expect_download() as download:
            page.keyboard.press("Enter")
        assert download.value.suggested_filename == "matches.csv"
        tab_to("#copy")


def test_a_bad_file_and_a_blank_photograph_get_kind_words(
    visited: Server,
    browser: Browser,
    stereo_pair: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    (tmp_path / "notes.jpg").write_text("no photograph at all")
    PIL.Image.new("RGB", (300, 200), "gray").save(tmp_path / "wall.png")
    with opened(browser, visited.url, expected_errors="400 (Bad Request)") as page:
        wait_for_result(page)
        page.set_input_files("[data-slot='0'] input", tmp_path / "notes.jpg")
        page.wait_for_selector("[data-slot='0'] .error:not(:empty)")
        shown = page.inner_text("[data-slot='0'] .error")
        assert shown == "notes.jpg: not an image, or in a format that cannot be read"
        assert page.inner_text("[data-slot='0'] .name") == "motorcycle, left", "what was there stays"
        page.set_input_files("[data-slot='0'] input", tmp_path / "wall.png")
        page.wait_for_selector("#counts:text('No keypoints in wall.png')", timeout=PATIENCE)
        assert page.inner_text("[data-slot='0'] .error") == ""
        assert page.inner_text("#verdict") == "Unsure"
        assert page.is_disabled("#match")
        assert accessibility_problems(page) == []
