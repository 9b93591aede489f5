"""A journal: finished pieces of long work, appended to one file that survives being killed.

Each record is a key and named arrays, with a length and a checksum; a record that was cut off by a kill is
dropped when the journal is opened again, and everything before it is kept. The header says which work it
belongs to, so that settings never mix.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.errors import InputError
from contextdesc.interrupts import uninterrupted

if sys.platform != "win32":  # which has no such locks; two runs at once are the user's own to avoid
    import fcntl

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAGIC = b"contextdesc journal 1\n"
_RECORD = Struct("<IQI")  # length of the key, length of the payload, CRC-32 of both


class Journal:
    """Open or create a journal for work described by `settings`.

    Args:
        path: of the journal's file.
        settings: whatever must be equal for finished pieces to be reused, as JSON values.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self._where: dict[str, tuple[int, int]] = {}  # key to position and length of its payload
        header = _MAGIC + json.dumps(settings, sort_keys=True).encode() + b"\n"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            self._file = path.open("r+b")
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror})") from None
        self._lock()
        found = self._file.read(len(header))
        if found != header and not header.startswith(found):
            self._refuse(settings)
        if len(found) < len(header):  # new, or killed while it was being created
            self._file.seek(0)
            self._file.truncate()
            self._file.write(header)
            self._file.flush()
        else:
            self._recover()

    def __contains__(self, key: str) -> bool:
        return key in self._where

    def __len__(self) -> int:
        return len(self._where)

    def append(self, key: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Add a finished piece; it is safe from a kill of this process when the call returns.

        Ctrl-C meanwhile waits for it.
        """
        with uninterrupted():
            stream = BytesIO()
            np.savez(stream, **arrays)  # type: ignore[arg-type]  # the stub confuses names and options
            name, payload = key.encode(), stream.getvalue()
            self._file.seek(0, 2)
            checksum = zlib.crc32(payload, zlib.crc32(name))
            self._file.write(_RECORD.pack(len(name), len(payload), checksum) + name)
            self._where[key] = (self._file.tell(), len(payload))
            self._file.write(payload)
            self._file.flush()

    def __getitem__(self, key: str) -> dict[str, NDArray[Any]]:
        position, length = self._where[key]
        self._file.seek(position)
        with np.load(BytesIO(self._file.read(length)), allow_pickle=False) as arrays:
            return dict(arrays)

    def close(self) -> None:
        self._file.close()

    def delete(self) -> None:
        self.close()
        self.path.unlink()

    def _lock(self) -> None:
        """One run at a time; the lock goes with the process, however it ends."""
        if sys.platform == "win32":
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise InputError(f"{self.path}: another run is writing it; wait for it or stop it") from None

    def _recover(self) -> None:
        """Index the records; cut the file after the last one that is whole."""
        whole = self._file.tell()
        while len(head := self._file.read(_RECORD.size)) == _RECORD.size:
            key_length, length, checksum = _RECORD.unpack(head)
            name = self._file.read(key_length)
            position = self._file.tell()
            payload = self._file.read(length)
            if len(payload) < length or zlib.crc32(payload, zlib.crc32(name)) != checksum:
                break
            self._where[name.decode()] = (position, length)
            whole = self._file.tell()
        self._file.seek(whole)
        self._file.truncate()

    def _refuse(self, settings: Mapping[str, Any]) -> None:
        self._file.seek(0)
        first, second = self._file.readline(), self._file.readline()
        self._file.close()
        if first != _MAGIC:
            raise InputError(f"{self.path}: is in the way and no journal of contextdesc; move it")
        try:
            old = json.loads(second)
        except ValueError:
            raise InputError(f"{self.path}: damaged; delete it to start again") from None
        changed = [k for k in {**old, **settings} if old.get(k) != settings.get(k)]
        raise InputError(
            f"{self.path}: unfinished work with other settings ({', '.join(changed)}); "
            "finish it with those, or start again with --restart"
        )
