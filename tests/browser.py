"""A real browser for tests of pages: Debian's Chromium, driven by Playwright.

`conftest.py` makes the fixture `browser` known to all tests.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CI = os.environ.get("CI") == "true"
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--disable-gpu",
    "--use-gl=angle",  # these three: WebGL by software
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
]


def find_chromium() -> str | None:
    """The executable that CONTEXTDESC_CHROMIUM names, else one on the search path."""
    named = os.environ.get("CONTEXTDESC_CHROMIUM")
    return named or next((path for path in map(shutil.which, NAMES) if path), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium; without one the test is skipped, and with CI=true it fails."""
    path = find_chromium()
    if path is None:
        reason = "no Chromium: apt-get install chromium, or name one in CONTEXTDESC_CHROMIUM"
        if CI:
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        yield running
        running.close()


@contextmanager
def opened(
    browser: Browser,
    url: str,
    *,
    width: int = 1280,
    height: int = 900,
    dark: bool = False,
    expected_errors: str = "",
) -> Iterator[Page]:
    """The page at `url` in a fresh window; errors on its console fail the test at the end.

    Args:
        expected_errors: text in errors that are part of the test, such as `413` for a refused request.
    """
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        accept_downloads=True,
    )
    page = context.new_page()
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        page.goto(url)
        yield page
        assert [error for error in errors if not expected_errors or expected_errors not in error] == []
    finally:
        context.close()


def accessibility_problems(page: Page) -> list[str]:
    """What axe-core calls serious or critical on the page, with the elements that it names."""
    from axe_playwright_python.sync_playwright import Axe

    violations = Axe().run(page).response["violations"]
    return [
        f"{found['id']}: {', '.join(str(node['target']) for node in found['nodes'])}"
        for found in violations
        if found["impact"] in ("serious", "critical")
    ]
