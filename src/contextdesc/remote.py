"""Files behind URLs (`s3://bucket/folder`, `gs://...`, `https://...`), listed and read through fsspec.

fsspec and the package of a protocol are imported when the first URL is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from contextdesc.errors import InputError

# Two letters at least: C:// is a drive. Links of a chain are joined with `::`, as in zip://::s3://a/b.zip.
_URL = re.compile(r"[a-z][a-z0-9+.-]+(://|::.*://)", re.IGNORECASE)
_FOLDED_URL = re.compile(r"[a-z][a-z0-9+.-]+:/(?!/)", re.IGNORECASE)  # Path("s3://a") is s3:/a

_DENIED = "access denied, check your credentials"


def is_url(text: str) -> bool:
    """Whether a text names a file elsewhere, and not a local path."""
    return _URL.match(text) is not None


def refuse_url(path: Path, what: str) -> None:
    """Refuse a path that was meant as a URL, where only local paths will do."""
    if _FOLDED_URL.match(path.as_posix()) and not path.exists():
        raise InputError(f"{path.as_posix().replace(':/', '://', 1)}: {what} must be a local path, not a URL")


def list_files(url: str) -> list[tuple[str, str]]:
    """Files at and below a URL, sorted.

    Returns:
        (name, URL) of each: the name is relative to the folder; for a single file, its file name.
    """
    with _told(url, "no such file, folder or bucket"):
        system, path = _filesystem(url)
        if system.info(path)["type"] == "file":
            return [(_file_name(url), url)]
        top = path.rstrip("/") + "/"
        names = sorted(file.removeprefix(top).lstrip("/") for file in system.find(path))
        system.invalidate_cache()  # it would keep more than a kilobyte per file
        return [(name, _below(url, name)) for name in names]


def read_bytes(url: str, limit: int) -> bytes:
    """The content of a file; one of more than `limit` bytes is refused, unfetched if its size is known."""
    with _told(url, "no such file"):
        system, path = _filesystem(url)
        with system.open(path, "rb") as file:
            too_large = (getattr(file, "size", None) or 0) > limit
            content = b"" if too_large else bytes(file.read(limit + 1))
    if too_large or len(content) > limit:
        raise InputError(
            f"{url}: more than {limit:,} bytes, too many for an image within the limit of pixels"
        )
    return content


def _file_name(url: str) -> str:
    last = url.partition("::")[0] if "://" in url.partition("::")[0] else url
    path = unquote(urlsplit(last).path) if last.startswith("http") else last
    return path.rstrip("/").rpartition("/")[2]


def _below(url: str, name: str) -> str:
    """The URL of a file in a folder; of a chain, the first link with a path is the folder."""
    links = url.split("::")
    folder = next(number for number, link in enumerate(links) if "://" in link)
    links[folder] = f"{links[folder].removesuffix('/')}/{name}"
    return "::".join(links)


def _filesystem(url: str) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path in it."""
    try:
        import fsspec
        from fsspec.core import url_to_fs
    except ImportError:
        raise InputError(f"{url}: URLs need an extra: pip install 'contextdesc[cluster]'") from None
    for link in url.split("::"):
        protocol, has_path, _ = link.partition("://")
        if not has_path and not link.isalpha():  # the local file at the end of a chain
            continue
        try:
            fsspec.get_filesystem_class(protocol)
        except ImportError:
            raise InputError(f"{url}: {protocol}:// needs pip install {_package(protocol)}") from None
        except ValueError:
            raise InputError(f"{url}: nothing is known that reads {protocol}://; check the URL") from None
    system, path = url_to_fs(url)
    return system, path


def _package(protocol: str) -> str:
    """What to install for a protocol that fsspec knows."""
    from importlib.metadata import metadata

    from fsspec.registry import known_implementations

    if protocol in ("s3", "s3a"):
        return "'contextdesc[cluster]'"
    extra = "http" if protocol == "https" else protocol
    if extra in (metadata("fsspec").get_all("Provides-Extra") or ()):
        return f"'fsspec[{extra}]'"
    return str(known_implementations[protocol]["class"]).partition(".")[0]


@contextmanager
def _told(url: str, missing: str) -> Iterator[None]:
    """Say what went wrong with a URL in one line; backends of fsspec raise whatever their libraries do."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError as error:
        cause = error.__cause__  # HTTP's may be another
        if getattr(cause, "status", None) in (401, 403):
            raise InputError(f"{url}: {_DENIED}") from None
        if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
            raise InputError(f"{url}: cannot be reached ({cause})") from None
        raise InputError(f"{url}: {missing}") from None
    except IsADirectoryError:
        raise InputError(f"{url}: is a folder, not a file") from None
    except PermissionError:
        raise InputError(f"{url}: {_DENIED}") from None
    except Exception as error:
        protocol = url.partition("://")[0]
        if "Credentials" in type(error).__name__:
            raise InputError(
                f"{url}: no credentials for {protocol}; log in, or for public files set "
                f"FSSPEC_{protocol.upper()}='{{\"anon\": true}}'"
            ) from None
        reason = " ".join(str(error).split()) or "no reason given"
        raise InputError(f"{url}: cannot be read ({type(error).__name__}: {reason})") from None
