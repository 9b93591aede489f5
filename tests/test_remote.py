"""Images behind URLs: an S3 that moto serves on loopback, HTTP, memory and archives."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import numpy as np
import PIL.Image
import pytest

from contextdesc import remote
from contextdesc.errors import InputError
from contextdesc.formats.shards import FeatureSet, open_features
from contextdesc.image import Image, find_images, read

ACCOUNT = {
    "AWS_ACCESS_KEY_ID": "tester",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}
QUICK = ("--model", "sift-context", "--max-keypoints", "200", "--max-side", "320", "--threads", "1")


def run(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "contextdesc", *map(str, arguments)]
    variables = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300, env=variables)


@pytest.fixture(scope="module")
def pictures(photo: Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs with awkward names, one turned by EXIF, a truncated one and a text."""
    folder = tmp_path_factory.mktemp("pictures")
    turned = PIL.Image.Exif()
    turned[0x0112] = 6
    (folder / "old town").mkdir()
    PIL.Image.fromarray(photo.rgb[:300, :400]).save(folder / "old town" / "a + b #1.png")
    PIL.Image.fromarray(photo.rgb[100:400]).save(folder / "turned.JPG", exif=turned)
    whole = (folder / "turned.JPG").read_bytes()
    (folder / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "text.png").write_text("I am no image")
    (folder / "notes.txt").write_text("not listed")
    return folder


@pytest.fixture(scope="module")
def bucket(pictures: Path) -> Iterator[str]:
    """The pictures in a bucket of an S3 on loopback."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ACCOUNT, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
            patch.setenv(name, value)
        system = fsspec.filesystem("s3", skip_instance_cache=True)
        system.mkdir("photos")
        system.put(f"{pictures}/", "photos/summer/", recursive=True)
        yield "s3://photos/summer"
        fsspec.get_filesystem_class("s3").clear_instance_cache()
    server.stop()


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_bucket_is_listed_like_a_folder(bucket: str, pictures: Path, slash: str) -> None:
    found = find_images([bucket + slash])
    assert list(found) == list(find_images([pictures]))
    assert found["old town/a + b #1.png"] == f"{bucket}/old town/a + b #1.png"
    assert not fsspec.filesystem("s3").dircache
    one = f"{bucket}/old town/a + b #1.png"
    assert find_images([one]) == {"a + b #1.png": one}


def test_the_same_name_here_and_there_is_refused(bucket: str, pictures: Path) -> None:
    with pytest.raises(InputError, match=r"and s3://photos/summer/cut.jpg would both be called cut.jpg"):
        find_images([str(pictures), bucket])


@pytest.mark.parametrize("name", ["old town/a + b #1.png", "turned.JPG"])
def test_remote_pixels_are_those_of_the_local_file(bucket: str, pictures: Path, name: str) -> None:
    far, near = read(f"{bucket}/{name}", max_side=300), read(pictures / name, max_side=300)
    np.testing.assert_array_equal(far.rgb, near.rgb)
    assert far.original_size == near.original_size
    assert far.name == f"{bucket}/{name}"


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("s3://photos/summer/cut.jpg", "s3://photos/summer/cut.jpg: damaged or truncated"),
        ("s3://photos/summer/text.png", "s3://photos/summer/text.png: not an image"),
        ("s3://photos/summer/gone.jpg", "s3://photos/summer/gone.jpg: no such file"),
        ("s3://nobody/summer/a.jpg", "s3://nobody/summer/a.jpg: no such file"),
        ("s3://photos", "s3://photos: "),
    ],
)
def test_what_cannot_be_read_is_named_by_its_url(bucket: str, location: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read(location)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("s3://nobody/summer", "s3://nobody/summer: no such file, folder or bucket"),
        ("s3://photos/winter", "s3://photos/winter: no such file, folder or bucket"),
    ],
)
def test_what_cannot_be_listed_is_named_by_its_url(bucket: str, location: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        find_images([location])
    assert str(error.value).startswith(message)


def test_limits_hold_for_remote_files(bucket: str) -> None:
    with pytest.raises(InputError, match=r"#1.png: 400 x 300 pixels are more than the limit of 1,000"):
        read(f"{bucket}/old town/a + b #1.png", max_pixels=1000)
    with pytest.raises(InputError, match=r"turned.JPG: more than 99 bytes, too many"):
        remote.read_bytes(f"{bucket}/turned.JPG", 99)


@pytest.fixture(scope="module")
def near(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> FeatureSet:
    """Features of the local files."""
    folder = tmp_path_factory.mktemp("near")
    out = run("extract", pictures, "-o", "near.h5", *QUICK, cwd=folder)
    assert out.returncode == 1, out.stderr
    return open_features(folder / "near.h5")


@pytest.mark.parametrize(
    "how",
    [
        ("-o", "far.h5"),
        ("-o", "far", "--workers", "2", "--shard-size", "1"),
        pytest.param(("-o", "far", "--cluster", "auto", "--workers", "1"), marks=pytest.mark.slow),
    ],
)
def test_extract_from_a_bucket_equals_extract_from_a_folder(
    bucket: str, near: FeatureSet, tmp_path: Path, how: tuple[str, ...]
) -> None:
    out = run("extract", bucket, *how, *QUICK, cwd=tmp_path, RAY_ADDRESS="local")
    assert out.returncode == 1, out.stderr
    assert "failed: cut.jpg: s3://photos/summer/cut.jpg: damaged or truncated" in out.stderr
    assert "failed: text.png: s3://photos/summer/text.png: not an image" in out.stderr
    far = open_features(tmp_path / how[1])
    assert far.names == near.names == ["old town/a + b #1.png", "turned.JPG"]
    for name in far.names:
        assert len(far[name]) > 50
        np.testing.assert_array_equal(far[name].keypoints.xy, near[name].keypoints.xy)
        np.testing.assert_array_equal(far[name].descriptors, near[name].descriptors)


def test_match_takes_a_url_and_a_file(bucket: str, pictures: Path, tmp_path: Path) -> None:
    options = ("--no-picture", "--rotate", "none", *QUICK)
    out = run("match", f"{bucket}/turned.JPG", pictures / "turned.JPG", *options, cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    assert out.stdout.startswith(f"{bucket}/turned.JPG: 300 x 512 pixels, 200 keypoints")
    assert "verdict: same scene" in out.stdout


def test_credentials(bucket: str, tmp_path: Path) -> None:
    """Without them the error has an advice for public files, and the advice works."""
    code = (
        "import sys; from contextdesc.image import find_images\n"
        "try: print(len(find_images(sys.argv[1:])))\n"
        "except ValueError as error: print(error)"
    )
    stranger = {name: value for name, value in os.environ.items() if name not in ACCOUNT}
    stranger |= {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}

    def listing(**environment: str) -> str:
        command = [sys.executable, "-c", code, bucket]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env=stranger | environment
        ).stdout

    advice = """FSSPEC_S3='{"anon": true}'"""
    assert listing() == f"{bucket}: no credentials for s3; log in, or for public files set {advice}\n"
    assert listing(FSSPEC_S3='{"anon": true}') == "4\n"


def test_outputs_are_local(tmp_path: Path) -> None:
    out = run("extract", "photos", "-o", "s3://photos/f.h5", cwd=tmp_path)
    message = "error: s3://photos/f.h5: the output must be a local path, not a URL\n"
    assert (out.returncode, out.stderr) == (2, message)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def web(pictures: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def send_head(self) -> object:
            return self.send_error(403) if "secret" in self.path else super().send_head()

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(pictures)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_http(web: str, pictures: Path) -> None:
    """A server without ranges, as Python's; its files have names without the query."""
    url = f"{web}/turned.JPG?signature=1"
    assert find_images([url]) == {"turned.JPG": url}
    np.testing.assert_array_equal(read(url).rgb, read(pictures / "turned.JPG").rgb)
    with pytest.raises(InputError, match=r"^http://127.*/gone.jpg: no such file$"):
        read(f"{web}/gone.jpg")
    with pytest.raises(InputError, match=r"/secret.jpg: access denied, check your credentials$"):
        read(f"{web}/secret.jpg")
    with pytest.raises(InputError, match=r"^http://127.0.0.1:9/a.jpg: cannot be reached"):
        read("http://127.0.0.1:9/a.jpg")


def test_memory_and_archives(pictures: Path, tmp_path: Path) -> None:
    fsspec.filesystem("memory").put(f"{pictures}/", "/photos/", recursive=True)
    archive = tmp_path / "photos.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(pictures / "turned.JPG", "inner/turned.JPG")
    expected = read(pictures / "turned.JPG").rgb
    for folder, name in (
        ("memory://photos", "turned.JPG"),
        (f"zip://::{archive}", "inner/turned.JPG"),
        (f"zip://inner::file://{archive}", "turned.JPG"),
        (pictures.as_uri(), "turned.JPG"),
    ):
        np.testing.assert_array_equal(read(find_images([folder])[name]).rgb, expected)


def test_a_missing_package_is_named() -> None:
    answers = {
        "foo://a/b.jpg": "nothing is known that reads foo://; check the URL",
        "s3://a/b.jpg": "s3:// needs pip install 'contextdesc[cluster]'",
        "sftp://a/b.jpg": "sftp:// needs pip install 'fsspec[sftp]'",
        "https://a/b.jpg": "https:// needs pip install 'fsspec[http]'",
        "box://a/b.jpg": "box:// needs pip install boxfs",
        "zip://b.jpg::gs://a/c.zip": "gs:// needs pip install 'fsspec[gs]'",
    }
    code = (
        "import sys; from contextdesc.image import read\n"
        "sys.modules |= dict.fromkeys(('s3fs', 'aiohttp', 'paramiko', 'boxfs', 'gcsfs'))\n"
        "for url in sys.argv[1:]:\n"
        "    try: read(url)\n"
        "    except ValueError as error: print(error)"
    )
    out = subprocess.run([sys.executable, "-c", code, *answers], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines() == [f"{url}: {answer}" for url, answer in answers.items()]


def test_without_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(InputError, match=r"^s3://a/b.jpg: URLs need an extra: pip install 'contextdesc\[cl"):
        find_images(["s3://a/b.jpg"])


def test_local_paths_import_no_fsspec(pictures: Path) -> None:
    code = (
        "import sys; from contextdesc.image import find_images, read\n"
        "for path in find_images([sys.argv[1]]).values():\n"
        "    try: read(path)\n"
        "    except ValueError: pass\n"
        "print('fsspec' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code, pictures], capture_output=True, text=True, check=True)
    assert out.stdout == "False\n"


@pytest.mark.parametrize(
    "name", ["photo::1.jpg", "C:/photos/a b.jpg", "C://photos", r"D:\a.jpg", "a:b.jpg", "50% off://.jpg"]
)
def test_odd_local_names_stay_local(name: str) -> None:
    assert not remote.is_url(name)


def test_commands_for_local_images_say_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^s3://a/b: this must be a local path, not a URL$"):
        find_images([Path("s3://a/b")])
    (tmp_path / "s3:").mkdir()
    (tmp_path / "s3:" / "b.jpg").touch()
    remote.refuse_url(tmp_path / "s3:" / "b.jpg", "this")
