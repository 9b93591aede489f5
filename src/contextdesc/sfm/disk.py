"""A full disk, told in one line whatever library met it."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contextdesc.errors import ContextDescError, InputError

_FULL = 1_000_000  # bytes that are left when writing fails for lack of them
_SIGNS = ("no space left", "disk is full", "disk i/o error", "errno = 28", "errno 28")


@contextmanager
def told_when_full(folder: Path) -> Iterator[None]:
    """Turn any error that a full disk causes into one that says so."""
    try:
        yield
    except Exception as error:  # HDF5, SQLite and COLMAP each have their own
        told = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        told |= any(sign in str(error).lower() for sign in _SIGNS)
        if told or (_free(folder) < _FULL and not isinstance(error, InputError)):
            raise ContextDescError(
                f"{folder}: the disk is full; free some space and run the same command again: it goes on"
            ) from error
        raise


def _free(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
