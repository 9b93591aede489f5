"""The page's server as a client meets it: photographs in, matches and files out, kind words for the rest."""

from __future__ import annotations

import csv
import importlib.util
import tempfile
from collections.abc import Iterator
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

import contextdesc as cd
from contextdesc import samples
from contextdesc.demo import app, session
from contextdesc.errors import InputError
from contextdesc.formats.hloc import FeatureFile
from tests.demo.conftest import Server

SETTINGS = {"budget": 512, "ratio": 0.8}


def png(array: Any) -> bytes:
    memory = BytesIO()
    PIL.Image.fromarray(np.asarray(array, np.uint8)).save(memory, "PNG")
    return memory.getvalue()


def add(server: Server, data: bytes, name: str = "photo.png") -> dict[str, Any]:
    answer = server.http.post("api/images", params={"name": name}, content=data)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def pair(server: Server, stereo_pair: tuple[Path, Path]) -> dict[str, str]:
    first, second = (add(server, path.read_bytes(), path.name) for path in stereo_pair)
    return {"first": first["id"], "second": second["id"]}


@pytest.fixture
def flat(server: Server) -> dict[str, str]:
    """A pair of which one photograph has no keypoint."""
    blank, textured = np.full((80, 120), 128), np.random.default_rng(0).integers(0, 256, (80, 120))
    return {"first": add(server, png(blank))["id"], "second": add(server, png(textured))["id"]}


def test_an_image_is_described_once(server: Server, stereo_pair: tuple[Path, Path]) -> None:
    image = add(server, stereo_pair[0].read_bytes(), "left.jpg")
    assert image["name"] == "left.jpg"
    assert image["size"] == [741, 500]
    x, _, size, angle = np.array(image["keypoints"]).T
    assert len(x) > 300
    assert x.max() > 500, "coordinates are those of the original, not of the downscaled picture"
    assert (size > 0).all()
    assert ((angle >= 0) & (angle <= 360)).all()
    assert list(image["seconds"]) == ["read", "detect", "describe", "regional", "sift"]
    shown = PIL.Image.open(BytesIO(server.http.get(f"api/images/{image['id']}/picture").content))
    assert shown.format == "JPEG"
    assert shown.size == (320, 216)


def test_matches_of_all_three_methods(server: Server, pair: dict[str, str]) -> None:
    answer = server.http.get("api/match", params={**pair, **SETTINGS, "context": "both"}).json()
    for result in answer["results"]:
        assert result["keypoints"] == [512, 512]
        assert len(result["matches"]) == len(result["inliers"]) == len(result["similarity"])
        assert sum(result["inliers"]) == result["inlier_count"] > 50
        assert np.array(result["matches"]).max() < 512
        assert list(result["seconds"]) == ["augment", "match", "verify"]
    assert answer["results"][2]["verdict"] == "same scene"
    assert [r["inlier_count"] for r in answer["results"]][1:] != [answer["results"][0]["inlier_count"]] * 2


def test_controls_change_the_matches(server: Server, pair: dict[str, str]) -> None:
    def matches(**changed: Any) -> int:
        wanted = {**pair, **SETTINGS, "context": "both", **changed}
        return len(server.http.get("api/match", params=wanted).json()["results"][2]["matches"])

    usual = matches()
    assert matches(budget=128) < usual
    assert matches(ratio=0.6) < usual < matches(ratio=1)
    assert len({usual, matches(context="none"), matches(context="visual"), matches(context="geometric")}) > 1


def test_the_session_finds_what_the_library_finds(server: Server, pair: dict[str, str]) -> None:
    """Features of the strongest keypoints equal those of an extraction with that budget."""
    image = server.session.image(pair["first"])
    for context in ("none", "visual", "both"):
        model = cd.load(
            "sift-context", context=context, detector=cd.Detector(max_keypoints=256), max_side=320, threads=1
        )
        expected = model.extract(image.picture)
        found = server.session.features(image, 256, context)
        assert found.source == expected.source
        np.testing.assert_allclose(found.keypoints.xy, expected.keypoints.xy, atol=1e-3)
        np.testing.assert_allclose(found.descriptors, expected.descriptors, atol=1e-4)
        np.testing.assert_allclose(found.matchability, expected.matchability, atol=1e-4)


def test_the_snippet_does_the_same(
    server: Server,
    pair: dict[str, str],
    stereo_pair: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = server.http.get("api/match", params={**pair, **SETTINGS, "context": "visual"}).json()
    result = answer["results"][2]
    for path in stereo_pair:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    exec(answer["snippet"], {})
    said = f"{len(result['matches'])} matches, {result['inlier_count']} inliers: {result['verdict']}\n"
    assert capsys.readouterr().out == said
    assert (tmp_path / "matches.png").stat().st_size > 10_000


def test_the_sample_pair_has_a_snippet_of_its_own(server: Server) -> None:
    first, second = server.http.post("api/samples").json()
    assert [first["name"], second["name"]] == ["motorcycle, left", "motorcycle, right"]
    assert server.http.post("api/samples").json()[0]["id"] == first["id"], "it is prepared once"
    wanted = {"first": first["id"], "second": second["id"], **SETTINGS, "context": "both"}
    snippet = server.http.get("api/match", params=wanted).json()["snippet"]
    assert "sample_pair()" in snippet
    compile(snippet, "snippet", "exec")


def test_downloads_open(server: Server, pair: dict[str, str], tmp_path: Path) -> None:
    wanted = {**pair, **SETTINGS}
    result = server.http.get("api/match", params={**wanted, "context": "both"}).json()["results"][2]

    def download(name: str) -> bytes:
        answer = server.http.get(f"api/files/{name}", params={**wanted, "method": "both"})
        assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
        return answer.content

    assert PIL.Image.open(BytesIO(download("matches.png"))).format == "PNG"
    rows = list(csv.DictReader(StringIO(download("matches.csv").decode())))
    assert len(rows) == len(result["matches"])
    assert sum(int(row["inlier"]) for row in rows) == result["inlier_count"]
    (tmp_path / "features.h5").write_bytes(download("features.h5"))
    with FeatureFile(tmp_path / "features.h5") as file:
        assert file.names == ["left.jpg", "right.jpg"]
        left, right = file["left.jpg"], file["right.jpg"]
    assert left.image_size == (741, 500)
    matches = cd.match(left, right, ratio=0.8)
    assert matches.indices.tolist() == result["matches"], "the features of the file give the page's matches"
    x, y = left.keypoints.xy[int(rows[0]["first_row"])]
    assert (float(rows[0]["first_x"]), float(rows[0]["first_y"])) == pytest.approx((x, y), abs=1e-3)


def test_photographs_of_one_name_stay_apart_in_the_file(server: Server, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (90, 120))
    ids = [add(server, png(picture), "a.png")["id"] for picture in (noise, noise[::-1])]
    wanted = {"first": ids[0], "second": ids[1], **SETTINGS, "method": "sift"}
    (tmp_path / "f.h5").write_bytes(server.http.get("api/files/features.h5", params=wanted).content)
    with FeatureFile(tmp_path / "f.h5") as file:
        assert file.names == ["first/a.png", "second/a.png"]


def test_no_keypoints_is_an_answer(server: Server, flat: dict[str, str], tmp_path: Path) -> None:
    answer = server.http.get("api/match", params={**flat, **SETTINGS, "context": "both"})
    assert answer.status_code == 200
    for result in answer.json()["results"]:
        assert result["keypoints"][0] == 0
        assert result["matches"] == []
        assert result["verdict"] != "same scene"
    for name in ("matches.png", "matches.csv", "features.h5"):
        found = server.http.get(f"api/files/{name}", params={**flat, **SETTINGS, "method": "both"})
        assert found.status_code == 200, name
        (tmp_path / name).write_bytes(found.content)
    assert PIL.Image.open(tmp_path / "matches.png").size[0] > 200
    assert (tmp_path / "matches.csv").read_text().count("\n") == 1
    with FeatureFile(tmp_path / "features.h5") as file:
        assert len(file.names) == 2


def test_patches_are_what_the_network_sees(server: Server, pair: dict[str, str]) -> None:
    answer = server.http.get(f"api/images/{pair['first']}/patches/3")
    patch = np.asarray(PIL.Image.open(BytesIO(answer.content)))
    image = server.session.image(pair["first"])
    assert patch.shape == (32, 32)
    assert (patch == server.session.patch(image, 3)).all()
    assert patch.std() > 1
    beyond = server.http.get(f"api/images/{pair['first']}/patches/{len(image.keypoints)}")
    assert beyond.status_code == 400
    assert "this photograph has" in beyond.json()["error"]


def test_matchability_covers_the_picture(server: Server, pair: dict[str, str], flat: dict[str, str]) -> None:
    answer = server.http.get(f"api/images/{pair['first']}/matchability")
    colours = np.asarray(PIL.Image.open(BytesIO(answer.content)))
    assert colours.shape[1] / colours.shape[0] == pytest.approx(741 / 500, rel=0.05)
    assert colours.std(axis=(0, 1)).min() > 5
    assert server.http.get(f"api/images/{flat['first']}/matchability").status_code == 200


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "holiday.jpg: not an image"),
        (b"<script>alert(1)</script>", "holiday.jpg: not an image"),
        (
            png(np.random.default_rng(0).integers(0, 256, (200, 200)))[:9000],
            "holiday.jpg: damaged or truncated",
        ),
        (png(np.zeros((1500, 1500))), "holiday.jpg: 1500 x 1500 pixels are more than the limit of 2,000,000"),
    ],
)
def test_a_bad_file_gets_one_kind_line(server: Server, data: bytes, message: str) -> None:
    answer = server.http.post("api/images", params={"name": "../../etc/holiday.jpg"}, content=data)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(message)
    assert "\n" not in answer.json()["error"]
    assert "Traceback" not in answer.text


def test_uploads_are_limited_in_bytes(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MAX_BYTES", 1_000_000)

    def unannounced() -> Iterator[bytes]:
        for _ in range(20):
            yield bytes(100_000)

    for content in (bytes(1_000_001), unannounced()):
        answer = server.http.post("api/images", content=content)
        assert answer.status_code == 413
        assert answer.json()["error"] == "files of more than 1 MB are not taken: make the photograph smaller"


def test_nothing_is_written_to_disk(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not even for uploads that frameworks spool to temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    data = png(np.random.default_rng(0).integers(0, 256, (1100, 1100)))
    assert len(data) > 1_100_000
    image = add(server, data)["id"]
    wanted = {"first": image, "second": image, **SETTINGS, "method": "both"}
    assert server.http.get("api/files/features.h5", params=wanted).status_code == 200
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_memory_is_bounded(server: Server) -> None:
    tiny = png(np.random.default_rng(0).integers(0, 256, (40, 40)))
    first = add(server, tiny)["id"]
    for _ in range(session.IMAGES):
        add(server, tiny)
    assert len(server.session._images) == session.IMAGES
    answer = server.http.get(f"api/images/{first}/picture")
    assert answer.status_code == 404
    assert answer.json()["error"] == "this photograph is no longer in memory: choose it again"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ratio": 0}, "ratio: "),
        ({"ratio": "nan"}, "ratio: "),
        ({"budget": -1}, "budget: "),
        ({"context": "all"}, "context: Input should be"),
        ({"first": None}, "first: Field required"),
    ],
)
def test_bad_settings_are_named(server: Server, changed: dict[str, Any], message: str) -> None:
    wanted = {"first": "x", "second": "x", **SETTINGS, "context": "both", **changed}
    sent = {key: value for key, value in wanted.items() if value is not None}
    answer = server.http.get("api/match", params=sent)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(message)


def test_without_the_samples_extra_the_page_says_how_to_get_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise InputError("the sample pair comes with an extra: pip install 'contextdesc[samples]'")

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "skimage" else find_spec(n))
    monkeypatch.setattr(server.session, "_samples", [])
    monkeypatch.setattr(session, "sample_pair", missing)
    assert server.http.get("api/model").json()["samples"] is False
    answer = server.http.post("api/samples")
    assert answer.status_code == 400
    assert "pip install 'contextdesc[samples]'" in answer.json()["error"]
    assert samples.sample_pair is not missing


def test_an_unexpected_error_is_no_stack_trace(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(server.session, "samples", broken)
    answer = server.http.post("api/samples")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.json()["error"].startswith("something went wrong")
    assert "content-security-policy" in answer.headers
