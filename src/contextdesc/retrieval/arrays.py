"""Arrays in files of plain numbers, read through memory maps; what and how many they are is written down
beside them, with a checksum."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.errors import InputError
from contextdesc.modelfile import sha256

if TYPE_CHECKING:
    from numpy.typing import NDArray

DTYPES = ("|u1", "|i1", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4")  # as NumPy writes them


@dataclass(frozen=True)
class ArrayFile:
    """A file with the numbers of one array, row after row, little endian.

    Attributes:
        name: of the file, relative to the folder of the index.
        dtype: NumPy's name of the type, such as `<u4`.
        shape: of the array.
        checksum: SHA-256 of the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    checksum: str

    def __post_init__(self) -> None:
        parts = PurePosixPath(self.name).parts
        if not parts or ".." in parts or parts[0] == "/" or self.dtype not in DTYPES:
            raise InputError(f"{self.name!r} of type {self.dtype!r} is no file of an index")

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    def opened(self, folder: Path) -> NDArray[Any]:
        """The array, mapped: what is read of it comes from the disk."""
        if not self.bytes:  # which cannot be mapped
            return np.zeros(self.shape, self.dtype)
        return np.memmap(folder / self.name, self.dtype, "r", shape=self.shape)

    def check(self, folder: Path, thorough: bool) -> str | None:
        """What is wrong with the file, or None: its size, and if thorough its checksum."""
        path = folder / self.name
        if not path.is_file():
            return f"{path}: missing"
        if path.stat().st_size != self.bytes:
            return f"{path}: {path.stat().st_size} bytes instead of {self.bytes}"
        if thorough and sha256(path) != self.checksum:
            return f"{path}: damaged (its checksum differs)"
        return None


class ArrayWriter:
    """Writes an array row after row, without knowing how many there will be.

    Args:
        folder: of the index.
        name: of the file in it.
        dtype: of the numbers.
        columns: shape of a row; () for numbers.
    """

    def __init__(self, folder: Path, name: str, dtype: str, columns: tuple[int, ...] = ()) -> None:
        self.name, self.dtype, self.columns, self.rows = name, np.dtype(dtype), columns, 0
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb")
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror})") from None
        self._digest = hashlib.sha256()

    def append(self, rows: NDArray[Any]) -> None:
        content = np.ascontiguousarray(rows, self.dtype).reshape(-1, *self.columns)
        self.rows += len(content)
        view = content.tobytes()
        self._file.write(view)
        self._digest.update(view)

    def close(self) -> ArrayFile:
        self._file.close()
        shape = (self.rows, *self.columns)
        return ArrayFile(self.name, self.dtype.str, shape, self._digest.hexdigest())


def write_array(folder: Path, name: str, array: NDArray[Any], dtype: str) -> ArrayFile:
    """Write a whole array."""
    writer = ArrayWriter(folder, name, dtype, array.shape[1:])
    writer.append(array)
    return writer.close()
