"""COLMAP's database, written through pycolmap: cameras, rigs, frames, images, keypoints and matches.

Keypoints keep their rows; coordinates become COLMAP's, 0.5 pixels larger than ours.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contextdesc.errors import InputError
from contextdesc.formats.colmap import write_descriptors
from contextdesc.keypoints import Keypoints
from contextdesc.sfm.binding import import_pycolmap
from contextdesc.sfm.cameras import Shared

Pair = tuple[str, str]


@dataclass(frozen=True, eq=False)
class ImageRows:
    """What a database holds of one image: keypoints, and unit descriptors (N, 128) if there are any."""

    name: str
    keypoints: Keypoints
    descriptors: NDArray[np.float32] | None = None


def write_database(
    path: Path,
    cameras: Sequence[Shared],
    images: Iterable[ImageRows],
    matches: Iterable[tuple[Pair, NDArray[np.integer]]],
) -> None:
    """Write a new database; it gets its name when it is complete.

    Args:
        cameras: with the images of each; their order is that of the database.
        matches: (M, 2) rows of the two images' keypoints, by pair.
    """
    pycolmap = import_pycolmap()
    temporary = path.with_name(f".{path.name}.new")
    delete_database(temporary)
    with pycolmap.Database.open(str(temporary)) as database, pycolmap.DatabaseTransaction(database):
        ids = add_images(pycolmap, database, cameras)
        for image in images:
            database.write_keypoints(ids[image.name], image.keypoints.to_colmap())
            if image.descriptors is not None:
                write_descriptors(database, ids[image.name], image.descriptors)
        for (first, second), rows in matches:
            database.write_matches(ids[first], ids[second], rows.astype(np.uint32))
    delete_database(path)
    os.replace(temporary, path)


def add_images(pycolmap: Any, database: Any, cameras: Sequence[Shared]) -> dict[str, int]:
    """Add images with their cameras, each camera a rig of its own, each image a frame; ids by name."""
    ids: dict[str, int] = {}
    for shared in cameras:
        camera = shared.camera
        camera.camera_id = database.write_camera(camera)
        rig = pycolmap.Rig()
        rig.add_ref_sensor(camera.sensor_id)
        rig_id = database.write_rig(rig)
        for name in shared.names:
            image = pycolmap.Image(name=name, camera_id=camera.camera_id)
            image.image_id = ids[name] = database.write_image(image)
            frame = pycolmap.Frame()
            frame.rig_id = rig_id
            frame.add_data_id(image.data_id)
            database.write_frame(frame)
    return ids


def read_keypoints(path: Path) -> dict[str, NDArray[np.float32]]:
    """COLMAP's rows of keypoints of every image, by name."""
    pycolmap = import_pycolmap()
    with pycolmap.Database.open(str(path)) as database:
        return {image.name: database.read_keypoints(image.image_id) for image in database.read_all_images()}


def delete_database(path: Path) -> None:
    """Remove a database and what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def copy_database(source: Path, target: Path) -> None:
    """Copy a database with all that was committed, even if SQLite has not yet put it into the file."""
    delete_database(target)
    with closing(_connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


def check_version(path: Path) -> None:
    """Refuse what is no database of the installed COLMAP, before it is opened and thereby changed."""
    if not path.is_file():
        raise InputError(f"{path}: no such database; contextdesc sfm makes one")
    try:
        with closing(_connect(path)) as connection:
            found = _schema(connection)
            version = connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error as error:
        raise InputError(f"{path}: not a COLMAP database ({error})") from None
    if not {"cameras", "images", "keypoints", "matches"} <= found.keys():
        raise InputError(f"{path}: a database, but not one of COLMAP's")
    expected, newest = _current_schema()
    installed = f"the installed pycolmap {import_pycolmap().__version__}"
    if version > newest:
        raise InputError(
            f"{path}: was made by {_version_name(version)}, which is newer than {installed}: "
            "pip install --upgrade pycolmap"
        )
    lacks = sorted(table for table, columns in expected.items() if not columns <= found.get(table, set()))
    if lacks:
        raise InputError(
            f"{path}: was made by {_version_name(version)}, whose tables differ from those of {installed} "
            f"({', '.join(lacks)}); --upgrade converts it and keeps a copy"
        )


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def _schema(connection: sqlite3.Connection) -> dict[str, frozenset[str]]:
    """Names of the columns of each table."""
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {
        name: frozenset(row[1] for row in connection.execute(f"PRAGMA table_info('{name}')"))
        for (name,) in tables
        if not name.startswith("sqlite_")
    }


def _current_schema() -> tuple[dict[str, frozenset[str]], int]:
    """Tables and version of a database that the installed pycolmap makes."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "new.db"
        import_pycolmap().Database.open(str(path)).close()
        with closing(_connect(path)) as connection:
            return _schema(connection), connection.execute("PRAGMA user_version").fetchone()[0]


def _version_name(number: int) -> str:
    """Of a database's `user_version`: 3900 for 3.9, and seven digits since 4.0."""
    if number >= 1_000_000:
        return f"COLMAP {number // 1_000_000}.{number // 10_000 % 100}.{number // 100 % 100}"
    return f"COLMAP {number // 1000}.{number % 1000 // 100}" if number else "an old COLMAP"
