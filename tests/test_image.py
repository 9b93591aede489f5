from __future__ import annotations

import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from contextdesc.errors import InputError
from contextdesc.image import Image, find_images, read


def encode(picture: PIL.Image.Image, kind: str = "PNG", **options: object) -> bytes:
    stream = BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


@pytest.fixture(scope="module")
def small(photo: Image) -> PIL.Image.Image:
    return PIL.Image.fromarray(photo.rgb[:60, :80])


def test_path_bytes_and_array_agree(small: PIL.Image.Image, tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(encode(small))
    expected = np.asarray(small)
    for source in (path, str(path), path.read_bytes(), expected):
        image = read(source)
        np.testing.assert_array_equal(image.rgb, expected)
        assert image.original_size == image.size == (80, 60)
        assert image.gray.shape == (60, 80)


def test_gray_becomes_three_equal_channels(small: PIL.Image.Image) -> None:
    image = read(encode(small.convert("L")))
    np.testing.assert_array_equal(image.rgb[..., 0], image.rgb[..., 2])
    np.testing.assert_array_equal(image.rgb[..., 0], np.asarray(small.convert("L")))


def test_palette_is_resolved(small: PIL.Image.Image) -> None:
    palette = small.convert("P", palette=PIL.Image.Palette.ADAPTIVE)
    np.testing.assert_array_equal(read(encode(palette)).rgb, np.asarray(palette.convert("RGB")))


def test_alpha_is_composited_on_white(small: PIL.Image.Image) -> None:
    rgba = np.dstack([np.asarray(small), np.full((60, 80), 255, np.uint8)])
    rgba[:, :40, 3] = 0
    for image in (read(rgba), read(encode(PIL.Image.fromarray(rgba)))):
        assert (image.rgb[:, :40] == 255).all()
        np.testing.assert_array_equal(image.rgb[:, 40:], np.asarray(small)[:, 40:])


@pytest.mark.parametrize("bits", [12, 16])
def test_sixteen_bit_gray_uses_its_own_range(small: PIL.Image.Image, bits: int) -> None:
    gray = np.asarray(small.convert("L"))
    deep = np.rint(gray.astype(np.float64) / 255 * (2**bits - 1)).astype(np.uint16)
    deep[0, 0] = 2**bits - 1
    for source in (deep, encode(PIL.Image.fromarray(deep)), encode(PIL.Image.fromarray(deep), "TIFF")):
        image = read(source)
        assert np.abs(image.rgb[1:, 1:, 0].astype(int) - gray[1:, 1:]).max() <= 1


def test_float_and_bool_arrays(small: PIL.Image.Image) -> None:
    rgb = np.asarray(small)
    np.testing.assert_array_equal(read(rgb / 255.0).rgb, rgb)
    np.testing.assert_array_equal(read(rgb.astype(np.float32)).rgb, rgb)
    assert set(np.unique(read(rgb[..., 0] > 100).rgb)) == {0, 255}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(small: PIL.Image.Image, orientation: int) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    encoded = encode(small, "JPEG", exif=exif, quality=95)
    from PIL import ImageOps

    expected = ImageOps.exif_transpose(PIL.Image.open(BytesIO(encoded)))
    image = read(encoded)
    np.testing.assert_array_equal(image.rgb, np.asarray(expected))
    assert image.original_size == expected.size


@pytest.mark.parametrize("as_bytes", [True, False])
def test_heif(small: PIL.Image.Image, tmp_path: Path, as_bytes: bool) -> None:
    import pillow_heif

    path = tmp_path / "phone.heic"
    pillow_heif.from_pillow(small).save(path, quality=95)
    image = read(path.read_bytes() if as_bytes else path)
    assert image.size == (80, 60)
    assert np.abs(image.rgb.astype(int) - np.asarray(small)).mean() < 8


def test_focal_length_comes_from_exif(small: PIL.Image.Image) -> None:
    exif = PIL.Image.Exif()
    exif.get_ifd(0x8769)[0xA405] = 18  # mm, on a frame 36 mm wide: half the width
    assert read(encode(small, "JPEG", exif=exif)).focal == pytest.approx(40)
    assert read(encode(small)).focal is None


def test_max_side_downscales_and_remembers_the_original(photo: Image) -> None:
    image = read(photo.rgb[:300], max_side=128)
    assert image.size == (128, 75)
    assert image.original_size == (512, 300)
    np.testing.assert_allclose(image.scale, [4, 4])
    assert read(photo, max_side=4000) is photo


def test_one_pixel() -> None:
    assert read(np.zeros((1, 1), np.uint8)).size == (1, 1)


def test_a_bomb_is_refused_by_its_header(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    PIL.Image.new("1", (20000, 20000)).save(path)
    with pytest.raises(InputError, match=r"bomb.png: 20000 x 20000 pixels are more than the limit"):
        read(path, max_pixels=1_000_000)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "BMP", "WEBP"])
def test_truncated_files_are_refused(small: PIL.Image.Image, tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"cut.{kind.lower()}"
    whole = encode(small, kind)
    path.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(InputError, match=path.name):
        read(path)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "BMP", "WEBP"])
def test_random_damage_is_an_image_or_an_input_error(small: PIL.Image.Image, kind: str) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    whole = encode(small, kind, **({} if kind == "BMP" else {"exif": exif}))
    rng = np.random.default_rng(0)
    refusals = []
    for _ in range(400):
        damaged = bytearray(whole)
        for spot in rng.integers(0, min(len(whole), 400), rng.integers(1, 6)):
            damaged[spot] = rng.integers(256)
        try:
            assert read(bytes(damaged), max_pixels=10**7).rgb.ndim == 3
        except InputError as error:
            refusals.append(str(error))
    assert len(refusals) > 50
    assert all(message.startswith("bytes: ") for message in refusals)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "not an image"), (b"hello, I am text", "not an image")],
)
def test_files_that_are_no_images(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "fake.jpg"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.jpg: no such file"):
        read(tmp_path / "nowhere.jpg")
    with pytest.raises(InputError, match="is a folder"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((4, 5, 2), np.uint8), r"shape \(4, 5, 2\)"),
        (np.zeros((0, 5), np.uint8), "shape"),
        (np.full((4, 4), np.nan), "not finite"),
        (np.full((4, 4), -1.0), "negative"),
    ],
)
def test_arrays_that_are_no_images(array: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(array)
    with pytest.raises(InputError, match="cannot read an image from int"):
        read(5)  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are POSIX's")
def test_unreadable_file(tmp_path: Path) -> None:
    """Root reads everything, so the reader runs as nobody."""
    path = tmp_path / "secret.png"
    path.write_bytes(encode(PIL.Image.new("L", (4, 4))))
    path.chmod(0)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    code = (
        "import os, sys, contextdesc.image as i\n"
        "if os.getuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: i.read(sys.argv[1])\n"
        "except i.InputError as e: print(e)\n"
    )
    out = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == f"{path}: not readable, check its permissions"


def test_find_images(photo_folder: Path, tmp_path: Path) -> None:
    names = list(find_images([photo_folder]))
    assert names[0] == "a/00.png"
    assert names[-1] == "b/11.png"
    assert len(names) == 12
    with pytest.raises(InputError, match="no images here"):
        find_images([tmp_path])
    with pytest.raises(InputError, match="no such file or folder"):
        find_images([tmp_path / "nowhere"])
    copy = tmp_path / "other" / "a" / "00.png"
    copy.parent.mkdir(parents=True)
    copy.write_bytes((photo_folder / "a" / "00.png").read_bytes())
    with pytest.raises(InputError, match=r"would both be called a/00.png"):
        find_images([photo_folder, tmp_path / "other"])
