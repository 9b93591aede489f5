"""Reading: a path, a URL, encoded bytes or an array comes in, an upright 8-bit RGB `Image` goes out.

Pillow reads the header first, so a file is judged by its size before its pixels are decoded, and a
truncated file is an error instead of a picture with a gray bottom.
"""

from __future__ import annotations

import os
import struct
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, TypeAlias, overload

import cv2
import numpy as np

from contextdesc import remote
from contextdesc.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image as PillowImage

Location: TypeAlias = Path | str  # a local file, or the URL of one elsewhere
Source: TypeAlias = "str | os.PathLike[str] | bytes | NDArray[np.generic] | Image"

MAX_PIXELS = 250_000_000  # decoded size above which a file is refused as a decompression bomb
SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp", ".ppm", ".pgm", ".heic", ".heif")

# The largest remote file that can be an image of so many pixels: 16-bit RGBA, and what else a file may hold.
_MAX_BYTES_PER_PIXEL, _MAX_METADATA = 8, 2**26

_EXIF_ORIENTATION, _EXIF_IFD, _EXIF_FOCAL_35MM = 0x0112, 0x8769, 0xA405
_FULL_FRAME_WIDTH = 36.0  # mm, the long side that a 35 mm equivalent focal length refers to

_HEIF_BRANDS = tuple(b"ftyp" + brand for brand in (b"heic", b"heix", b"hevc", b"heim", b"mif1", b"msf1"))

_pillow_limit = threading.Lock()  # guards Pillow's global pixel limit while we apply our own


@dataclass(frozen=True, eq=False)
class Image:
    """An upright image, possibly smaller than its file.

    Attributes:
        rgb: (H, W, 3) uint8.
        original_size: (width, height) in pixels of the upright file, before `max_side`.
        name: the path, or what the caller called it; used in messages.
        focal: focal length in original pixels from EXIF, or None.
    """

    rgb: NDArray[np.uint8]
    original_size: tuple[int, int]
    name: str = "array"
    focal: float | None = None

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of `rgb`."""
        return self.rgb.shape[1], self.rgb.shape[0]

    @cached_property
    def gray(self) -> NDArray[np.uint8]:
        """(H, W) uint8, the luminance that SIFT and the patches read."""
        return np.asarray(cv2.cvtColor(self.rgb, cv2.COLOR_RGB2GRAY), np.uint8)

    @property
    def scale(self) -> NDArray[np.float32]:
        """(2,) float32: pixels of the original per pixel of `rgb`, in x and y."""
        return (np.array(self.original_size) / np.array(self.size)).astype(np.float32)


def read(source: Source, max_side: int | None = None, max_pixels: int = MAX_PIXELS) -> Image:
    """Read one image, turn it upright and make it 8-bit RGB.

    Args:
        source: a path, a URL that fsspec reads (a string), the bytes of an encoded file, an array of
            shape (H, W), (H, W, 1), (H, W, 3) or (H, W, 4) in RGB order (uint8, uint16, bool or float),
            or an `Image`.
        max_side: if the longer side is larger, the image is downscaled to it.
        max_pixels: refuse files that would decode to more pixels.

    Returns:
        The image. Alpha is composited on white; 16-bit values are scaled by the smallest usual bit
        depth (8, 10, 12, 14, 16) that holds their maximum; float arrays hold 0 to 1, or 0 to 255.
    """
    if isinstance(source, Image):
        image = source
    elif isinstance(source, np.ndarray):
        rgb = _rgb_from_array(source, "array")
        image = Image(rgb, (rgb.shape[1], rgb.shape[0]))
    elif isinstance(source, (bytes, bytearray, memoryview)):
        image = _decode_quietly(BytesIO(source), "bytes", max_pixels)
    elif isinstance(source, str) and remote.is_url(source):
        content = remote.read_bytes(source, max_pixels * _MAX_BYTES_PER_PIXEL + _MAX_METADATA)
        image = _decode_quietly(BytesIO(content), source, max_pixels)
    elif isinstance(source, (str, os.PathLike)):
        image = _read_file(Path(source), max_pixels)
    else:
        raise InputError(
            f"cannot read an image from {type(source).__name__}: give a path, URL, bytes or a NumPy array"
        )
    return image if max_side is None else _downscale(image, max_side)


@overload
def find_images(roots: Sequence[Path]) -> dict[str, Path]: ...
@overload
def find_images(roots: Sequence[Location]) -> dict[str, Location]: ...
def find_images(roots: Sequence[Location]) -> dict[str, Location] | dict[str, Path]:
    """List image files below folders (recursively) and single files, by name.

    Args:
        roots: paths, or strings: those that are URLs (`s3://bucket/folder`) are listed through fsspec.

    Returns:
        Name to path, sorted: the name is the path relative to its folder, with forward slashes; for a
        single file, its file name. Two files of one name are refused. URLs stay strings.
    """
    found: dict[str, Location] = {}
    for root in roots:
        remote_root = isinstance(root, str) and remote.is_url(root)
        for name, path in _remote_images(str(root)) if remote_root else _local_images(Path(root)):
            if found.setdefault(name, path) != path:
                raise InputError(
                    f"{found[name]} and {path} would both be called {name}: give their common folder"
                )
    if not found:
        raise InputError(f"{', '.join(map(str, roots))}: no images here (looked for {', '.join(SUFFIXES)})")
    return dict(sorted(found.items()))


def _local_images(root: Path) -> list[tuple[str, Path]]:
    if root.is_dir():
        files = sorted(p for p in root.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        return [(p.relative_to(root).as_posix(), p) for p in files]
    if root.exists():
        return [(root.name, root)]
    remote.refuse_url(root, "this")
    raise InputError(f"{root}: no such file or folder")


def _remote_images(url: str) -> list[tuple[str, str]]:
    files = remote.list_files(url)
    if files and files[0][1] == url:
        return files
    return [(name, file) for name, file in files if PurePosixPath(name).suffix.lower() in SUFFIXES]


def _read_file(path: Path, max_pixels: int) -> Image:
    try:
        with path.open("rb") as file:
            return _decode_quietly(file, str(path), max_pixels)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, not an image") from None
    except PermissionError:
        raise InputError(f"{path}: not readable, check its permissions") from None


def _decode_quietly(file: IO[bytes], name: str, max_pixels: int) -> Image:
    with warnings.catch_warnings():  # Pillow's, of odd metadata; what matters becomes an error
        warnings.simplefilter("ignore")
        return _decode(file, name, max_pixels)


def _decode(file: IO[bytes], name: str, max_pixels: int) -> Image:
    import PIL.Image

    header = file.read(12)
    file.seek(0)
    if header[4:] in _HEIF_BRANDS:
        _register_heif(name)
    try:
        with _pillow_limit:
            limit, PIL.Image.MAX_IMAGE_PIXELS = PIL.Image.MAX_IMAGE_PIXELS, None
            try:
                opened = PIL.Image.open(file)
            finally:
                PIL.Image.MAX_IMAGE_PIXELS = limit
        width, height = opened.size
        if width * height > max_pixels:
            raise InputError(
                f"{name}: {width} x {height} pixels are more than the limit of {max_pixels:,}; "
                "raise max_pixels (--max-pixels) if you trust the file"
            )
        opened.load()
    except PIL.UnidentifiedImageError:
        raise InputError(f"{name}: not an image, or in a format that cannot be read") from None
    except (OSError, SyntaxError, ValueError, EOFError, MemoryError) as error:
        if isinstance(error, (InputError, PermissionError)):
            raise
        raise InputError(f"{name}: damaged or truncated ({error}); restore the file") from None
    array = _rgb_from_array(_pixels(opened), name)
    orientation, focal_35mm = _exif(opened)
    rgb = _upright(array, orientation)
    size = (rgb.shape[1], rgb.shape[0])
    focal = None if focal_35mm is None else focal_35mm / _FULL_FRAME_WIDTH * max(size)
    return Image(rgb, size, name, focal)


def _register_heif(name: str) -> None:
    try:
        import pillow_heif
    except ImportError:
        raise InputError(f"{name}: HEIF needs an extra: pip install 'contextdesc[heif]'") from None
    pillow_heif.register_heif_opener()


def _pixels(opened: PillowImage) -> NDArray[np.generic]:
    """Pixels of an opened file: palettes resolved, 16-bit and float gray kept as they are."""
    if opened.mode.startswith("I") or opened.mode == "F":
        return np.asarray(opened)
    has_alpha = opened.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in opened.info
    return np.asarray(opened.convert("RGBA" if has_alpha else "RGB"))


def _upright(rgb: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Undo EXIF orientation 1 to 8; other values are ignored, as viewers do."""
    if orientation in (5, 6, 7, 8):
        rgb = rgb.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        rgb = rgb[:, ::-1]
    if orientation in (3, 4, 7, 8):
        rgb = rgb[::-1]
    return np.ascontiguousarray(rgb)


def _exif(opened: PillowImage) -> tuple[int, float | None]:
    """Orientation and 35 mm equivalent focal length; damaged EXIF data are as good as none."""
    try:
        exif = opened.getexif()
        focal = exif.get_ifd(_EXIF_IFD).get(_EXIF_FOCAL_35MM)
        return exif.get(_EXIF_ORIENTATION, 1), float(focal) if focal else None
    except (OSError, SyntaxError, ValueError, TypeError, KeyError, EOFError, struct.error):
        return 1, None


def _rgb_from_array(array: NDArray[np.generic], name: str) -> NDArray[np.uint8]:
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or 0 in array.shape:
        raise InputError(
            f"{name}: shape {array.shape} is not an image; expected (H, W), (H, W, 3) or (H, W, 4)"
        )
    values = _to_uint8(array, name)
    if values.shape[2] == 4:
        alpha = values[:, :, 3:].astype(np.uint16)
        blended = values[:, :, :3] * alpha + 255 * (255 - alpha)
        values = ((blended + 127) // 255).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(values, (*values.shape[:2], 3)))


def _to_uint8(array: NDArray[np.generic], name: str) -> NDArray[np.uint8]:
    if array.dtype == np.uint8:
        return array.astype(np.uint8, copy=False)
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    values = array.astype(np.float32)
    if not np.isfinite(values).all():
        raise InputError(f"{name}: holds values that are not finite; replace NaN and infinity first")
    if values.min() < 0:
        raise InputError(f"{name}: holds negative values; expected 0 to 1, 0 to 255 or unsigned integers")
    top = float(values.max())
    if np.issubdtype(array.dtype, np.integer):
        white = next((2.0**bits - 1 for bits in (8, 10, 12, 14, 16) if top < 2**bits), top)
    else:
        white = 1.0 if top <= 1.0 else 255.0 if top <= 255.0 else top
    return np.rint(values * (255.0 / white)).astype(np.uint8)


def _downscale(image: Image, max_side: int) -> Image:
    if max_side < 1:
        raise InputError(f"max_side is {max_side}: give a positive number of pixels")
    width, height = image.size
    factor = max_side / max(width, height)
    if factor >= 1:
        return image
    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    rgb = np.asarray(cv2.resize(image.rgb, size, interpolation=cv2.INTER_AREA), np.uint8)
    return Image(rgb, image.original_size, image.name, image.focal)
