"""Other sites cannot use the page's server, and the page can do only what it needs."""

from __future__ import annotations

import re

import pytest
from starlette.datastructures import Headers

from contextdesc.demo.app import STATIC
from contextdesc.demo.guard import Guard
from tests.demo.conftest import Server


def refusal(host: str, path: str = "/api/model", bound_to: str = "127.0.0.1", **headers: str) -> str | None:
    async def nothing(*_: object) -> None: ...

    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Guard(nothing, bound_to).refusal(Headers({"host": host, **named}), path)


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000"])
def test_the_page_itself_is_let_in(host: str) -> None:
    assert refusal(host) is None
    assert refusal(host, origin=f"http://{host}", sec_fetch_site="same-origin") is None
    assert refusal(host, sec_fetch_site="none") is None


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[", "192.168.0.7"]
)
def test_another_name_for_this_machine_is_refused(host: str) -> None:
    """DNS rebinding: a page of evil.example whose name now resolves to 127.0.0.1."""
    assert "is not this server" in str(refusal(host))


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "http://localhost:9999",
        "https://localhost:8000",
        "http://127.0.0.1:8000",
    ],
)
def test_another_origin_is_refused(origin: str) -> None:
    assert refusal("localhost:8000", origin=origin) == f"requests from {origin} are refused"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_is_refused_but_may_link_to_the_page(site: str) -> None:
    assert refusal("localhost:8000", sec_fetch_site=site) == "requests from other sites are refused"
    assert refusal("localhost:8000", "/", sec_fetch_site=site) is not None
    assert refusal("localhost:8000", "/", sec_fetch_site=site, sec_fetch_dest="iframe") is not None
    assert refusal("localhost:8000", "/", sec_fetch_site=site, sec_fetch_dest="document") is None
    assert (
        refusal("localhost:8000", "/api/samples", sec_fetch_site=site, sec_fetch_dest="document") is not None
    )


def test_a_server_for_the_network_answers_to_addresses_but_not_to_foreign_names() -> None:
    assert refusal("192.168.0.7:8000", bound_to="0.0.0.0") is None
    assert refusal("[fe80::1]:8000", bound_to="::") is None
    assert refusal("192.168.0.7:8000", bound_to="192.168.0.7") is None
    assert refusal("evil.example:8000", bound_to="0.0.0.0") is not None


def test_refusals_arrive_over_http(server: Server) -> None:
    answer = server.http.get("api/model", headers={"Host": "evil.example"})
    assert answer.status_code == 403
    answer = server.http.post("api/images", content=b"x", headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403
    assert answer.json() == {"error": "requests from http://evil.example are refused"}
    assert server.http.options("api/images", headers={"Origin": "http://evil.example"}).status_code == 403
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("path", ["", "static/app.js", "static/style.css", "api/model", "nowhere"])
def test_every_answer_forbids_inline_and_foreign_code(server: Server, path: str) -> None:
    headers = server.http.get(path).headers
    policy = dict(rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"


def test_the_page_has_nothing_inline_and_nothing_from_elsewhere() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=|javascript:", page) == []
    for name in ("index.html", "style.css", "app.js", "stage.js"):
        text = (STATIC / name).read_text(encoding="utf-8")
        assert re.findall(r"https?://|@import|url\(|innerHTML|\beval\b", text) == [], name


def test_nothing_but_the_static_folder_is_served(server: Server) -> None:
    for path in ("static/../app.py", "static/%2e%2e/app.py", "docs", "openapi.json"):
        assert server.http.get(path).status_code == 404
