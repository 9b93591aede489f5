"""The page in a real browser: drawn, clicked, typed at, touched, without WebGL, light, dark and small.

`CONTEXTDESC_SFM_PICTURE=FILE.png` has the picture for the documentation taken, of the reconstruction in the
folder that `CONTEXTDESC_SFM` names, with its photographs in `CONTEXTDESC_SFM_IMAGES`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from contextdesc.sfm_page import write_page
from tests.browser import accessibility_problems, opened
from tests.sfm_page.scene import HOSTILE, LEFT_OUT, NAMES, WITHOUT, KnownScene

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.slow

TANGENT = np.tan(np.deg2rad(45 / 2))  # the page's view is 45 degrees high
RED, BLUE = (198, 64, 48), (52, 116, 168)  # bands of the column
SET_OPACITY = """opacity => {
    for (const id of ["display", "tools", "label"]) document.getElementById(id).style.opacity = opacity;
}"""
AFTER_THREE_FRAMES = """() => new Promise(done =>
    requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done))))"""
LOSE_GRAPHICS = """() => new Promise(done => {
    const canvas = document.getElementById("cloud");
    const extension = canvas.getContext("webgl2").getExtension("WEBGL_lose_context");
    canvas.addEventListener("webglcontextrestored", () => done(), { once: true });
    extension.loseContext();
    setTimeout(() => extension.restoreContext(), 100);
})"""
WITH_POINT, WITHOUT_POINT = (86, 180, 233), (213, 94, 0)  # keypoints


@pytest.fixture(scope="module")
def url(scene: KnownScene, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "page.html"
    write_page(scene.directory, scene.images, path)
    return path.as_uri()


@contextmanager
def opened_page(
    browser: Browser, url: str, width: int = 1000, height: int = 700, dark: bool = False
) -> Iterator[Page]:
    """The page; drawing by software takes long on a busy machine, so that waiting is patient."""
    with opened(browser, url, width=width, height=height, dark=dark) as page:
        page.set_default_timeout(120_000)
        yield page


def pixels(element: Locator) -> NDArray[np.uint8]:
    """(H, W, 3) uint8 RGB of what is on the screen there."""
    encoded = np.frombuffer(element.screenshot(), np.uint8)
    return np.asarray(cv2.imdecode(encoded, cv2.IMREAD_COLOR)[:, :, ::-1])


def cloud(page: Page) -> NDArray[np.uint8]:
    """The view with nothing laid over it, when everything is drawn."""
    page.evaluate(SET_OPACITY, 0)
    page.evaluate(AFTER_THREE_FRAMES)
    drawn = pixels(page.locator("#cloud"))
    page.evaluate(SET_OPACITY, 1)
    return drawn


def near(picture: NDArray[np.uint8], colour: tuple[int, int, int], tolerance: int = 24) -> NDArray[np.bool_]:
    return (np.abs(picture.astype(int) - colour) <= tolerance).all(2)


def foreground(picture: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return ~near(picture, tuple(picture[2, 2].tolist()), 6)


def place_of(page: Page, name: str) -> dict[str, float]:
    """Where the first view shows the camera of an image, in pixels of the canvas."""
    data: dict[str, Any] = json.loads(page.locator("#data").text_content() or "")
    view = {key: np.array(value) for key, value in data["view"].items()}
    box = page.locator("#cloud").bounding_box()
    assert box is not None
    right = np.cross(view["direction"], view["up"])
    right /= np.linalg.norm(right)
    frame = np.stack([right, np.cross(right, view["direction"]), view["direction"]])
    wide, high, along = view["half"]
    distance = (max(high / TANGENT, wide / (TANGENT * box["width"] / box["height"])) + along) * 1.06
    centre = next(image["pose"]["centre"] for image in data["images"] if image["name"] == name)
    x, y, depth = frame @ centre + [0, 0, distance]
    x, y = np.array([x, -y]) / depth / TANGENT * box["height"] / 2
    return {"x": float(x + box["width"] / 2), "y": float(y + box["height"] / 2)}


def test_the_cloud_is_drawn_and_a_clicked_camera_shows_its_photograph(
    browser: Browser, url: str, scene: KnownScene
) -> None:
    with opened_page(browser, url) as page:
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.reload()
        before = cloud(page)
        assert foreground(before).mean() > 0.01
        assert near(before, RED).sum() > 100
        assert near(before, BLUE).sum() > 100

        name = "003.jpg"
        seen = int(scene.visible[NAMES.index(name)].sum())
        page.locator("#cloud").click(position=place_of(page, name))
        page.locator("#chosen").wait_for()
        assert page.locator("#chosen-name").text_content() == name
        assert page.locator("#with-count").text_content() == f"{seen} with a 3D point"
        assert page.locator("#without-count").text_content() == f"{WITHOUT} without"
        assert page.locator("tr.chosen th").text_content() == name
        photograph = pixels(page.locator("#picture"))
        assert near(photograph, WITH_POINT).sum() > seen
        assert near(photograph, WITHOUT_POINT, 40).sum() > WITHOUT
        page.locator("#with").uncheck()
        assert near(pixels(page.locator("#picture")), WITH_POINT).sum() < seen / 2
        assert accessibility_problems(page) == []

        page.locator("#dim").uncheck()
        page.get_by_text("error", exact=True).click()
        coloured = cloud(page)
        assert near(coloured, RED).sum() < 20
        assert page.locator("#ramp").is_visible()
        page.locator("#shortest").fill("7")
        shown = int((scene.visible.sum(0) >= 7).sum())
        assert page.locator("#shown").text_content() == f"{shown} of 400 points"
        fewer = cloud(page)
        assert foreground(fewer).sum() < 0.9 * foreground(coloured).sum()
        page.evaluate(LOSE_GRAPHICS)
        np.testing.assert_array_equal(cloud(page), fewer)
        assert requests == [url]


def test_keys_move_the_view_and_sort_the_table(browser: Browser, url: str) -> None:
    with opened_page(browser, url) as page:
        page.emulate_media(reduced_motion="reduce")
        page.locator("#cloud").focus()
        home = cloud(page)
        seen = [home]
        for key in ("ArrowLeft", "ArrowUp", "Shift+ArrowRight", "+", "-", "Home"):
            page.keyboard.press(key)
            seen.append(cloud(page))
        for before, after in pairwise(seen):
            assert (before != after).any(2).mean() > 0.005
        np.testing.assert_array_equal(seen[-1], home)

        page.keyboard.press("PageDown")
        page.locator("#chosen").wait_for()
        first = page.locator("#chosen-name").text_content()
        page.keyboard.press("PageDown")
        page.wait_for_function(
            "name => document.getElementById('chosen-name').textContent !== name", arg=first
        )

        page.get_by_role("button", name="triangulated").focus()
        page.keyboard.press("Enter")
        counts = [int(text) for text in page.locator("tbody td:nth-child(4)").all_text_contents()]
        assert counts == sorted(counts, reverse=True)
        page.keyboard.press("Enter")
        counts = [int(text) for text in page.locator("tbody td:nth-child(4)").all_text_contents()]
        assert counts == sorted(counts)


def test_names_are_shown_as_they_are(browser: Browser, url: str) -> None:
    with opened_page(browser, url) as page:
        for name in (HOSTILE, NAMES[1], LEFT_OUT):
            page.get_by_role("button", name=name, exact=True).click()
            page.wait_for_function(
                "name => document.getElementById('chosen-name').textContent === name", arg=name
            )
        assert page.locator("b").count() == 0
        assert "registered" in (page.locator("#facts").text_content() or "")
        assert page.locator("#look").is_hidden()  # the last one has no camera
        page.locator("#enlarge").click()
        assert page.locator("dialog canvas").is_visible()
        assert foreground(pixels(page.locator("dialog canvas"))).any()
        page.keyboard.press("Escape")
        assert page.locator("dialog").is_hidden()


def test_without_webgl_the_rest_is_there(browser: Browser, url: str) -> None:
    with opened_page(browser, url) as page:
        page.add_init_script(
            "const real = HTMLCanvasElement.prototype.getContext;"
            "HTMLCanvasElement.prototype.getContext = function (kind, ...rest) {"
            " return kind.startsWith('webgl') ? null : real.call(this, kind, ...rest); };"
        )
        page.reload()
        assert "WebGL 2 is missing" in (page.locator("#no-webgl").text_content() or "")
        assert page.locator("#no-webgl").is_visible()
        assert page.locator("#cloud").is_hidden()
        page.get_by_role("button", name="002.jpg").click()
        page.locator("#chosen").wait_for()
        assert near(pixels(page.locator("#picture")), WITH_POINT).any()
        assert accessibility_problems(page) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_phone_shows_everything(browser: Browser, url: str, dark: bool) -> None:
    with opened_page(browser, url, width=390, height=844, dark=dark) as page:
        drawn = cloud(page)
        assert (drawn[2, 2].mean() < 60) == dark
        assert foreground(drawn).mean() > 0.01
        touch = page.context.new_cdp_session(page)
        touch.send("Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": 2})
        for kind, apart in (("touchStart", 20), *(("touchMove", 20 + 10 * step) for step in range(1, 7))):
            fingers = [{"x": 195 - apart, "y": 420, "id": 0}, {"x": 195 + apart, "y": 420, "id": 1}]
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": fingers})
        touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        assert np.ptp(np.nonzero(near(cloud(page), RED))[0]) > 1.5 * np.ptp(np.nonzero(near(drawn, RED))[0])
        page.get_by_role("button", name="002.jpg").click()
        page.locator("#chosen").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert accessibility_problems(page) == []


def test_the_picture_for_the_documentation(browser: Browser, scene: KnownScene, tmp_path: Path) -> None:
    directory = Path(os.environ.get("CONTEXTDESC_SFM", scene.directory))
    images = Path(os.environ.get("CONTEXTDESC_SFM_IMAGES", scene.images))
    target = Path(os.environ.get("CONTEXTDESC_SFM_PICTURE", tmp_path / "picture.png"))
    write_page(directory, images, tmp_path / "page.html")
    with opened_page(browser, (tmp_path / "page.html").as_uri(), width=1360, height=850) as page:
        rows = page.locator("tbody button.name")
        rows.nth(rows.count() // 2).click()
        page.locator("#chosen").wait_for()
        page.locator("#dim").uncheck()
        page.mouse.move(600, 600)
        page.mouse.down()
        page.mouse.move(650, 470, steps=3)  # which tilts the view
        page.mouse.up()
        page.mouse.move(5, 845)  # over nothing
        assert foreground(cloud(page)).mean() > 0.01
        page.screenshot(path=target)
