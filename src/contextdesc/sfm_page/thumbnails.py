"""Small JPEG copies of photographs, so many and so large that together they stay below a limit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import cv2

from contextdesc.errors import InputError
from contextdesc.image import Image, read

_SIDES = (1024, 800, 640, 480, 360, 256, 180, 128, 96, 64, 48)  # pixels of the longer side, tried in order
_QUALITY = 82


def thumbnails(images: Mapping[str, Path], limit: int) -> dict[str, bytes]:
    """JPEG files by name, at most `limit` bytes together; each image gets an equal share.

    Images that cannot be read, or that do not fit even when tiny, are left out.
    """
    made = {}
    for name, path in images.items():
        try:
            image = read(path, _SIDES[0])
        except InputError:
            continue
        encoded = _encode(image, limit // len(images))
        if encoded is not None:
            made[name] = encoded
    return made


def _encode(image: Image, limit: int) -> bytes | None:
    """The largest copy that fits into `limit` bytes."""
    for side in _SIDES:
        small = read(image, side)
        _, encoded = cv2.imencode(".jpg", small.rgb[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
        if len(encoded) <= limit:
            return encoded.tobytes()
    return None
