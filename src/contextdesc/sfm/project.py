"""An existing COLMAP project: its database and images come in, the database with our features goes out.

Work is done beside the database, in a folder that is kept; the database changes at the end, at once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.errors import InputError
from contextdesc.extraction import extract_images
from contextdesc.formats import hloc
from contextdesc.formats.atomic import replacing
from contextdesc.formats.colmap import write_descriptors
from contextdesc.formats.shards import open_features
from contextdesc.image import find_images, read
from contextdesc.keypoints import Keypoints
from contextdesc.match_set import match_pairs
from contextdesc.sfm.binding import import_pycolmap
from contextdesc.sfm.cameras import CameraConfig, group_cameras
from contextdesc.sfm.database import (
    Pair,
    add_images,
    check_version,
    copy_database,
    delete_database,
    read_keypoints,
)
from contextdesc.sfm.disk import told_when_full
from contextdesc.sfm.pairs import PairConfig, choose_pairs
from contextdesc.sfm.settings import digest, feature_settings, fingerprint
from contextdesc.sfm.verification import verified, verify_pairs

if TYPE_CHECKING:
    from contextdesc.model import ContextDesc


@dataclass(frozen=True)
class FillConfig:
    """How a database is filled.

    Attributes:
        keep_keypoints: describe the keypoints that the database holds, in their order.
        overwrite: replace keypoints, descriptors and matches that it holds.
        upgrade: convert a database of another COLMAP, of which a copy is kept.
        ratio, mutual, pairs: of the matches.
        cameras: of images that are added to an empty database.
    """

    keep_keypoints: bool = False
    overwrite: bool = False
    upgrade: bool = False
    ratio: float | None = None
    mutual: bool = True
    pairs: PairConfig = field(default_factory=PairConfig)
    cameras: CameraConfig = field(default_factory=CameraConfig)


@dataclass
class Filled:
    """What a database got."""

    images: int
    keypoints: int
    matches: int
    pairs: int  # that were verified
    inliers: int
    failed: dict[str, str]  # images that could not be read, with their reason


def fill_database(
    model: ContextDesc, path: Path, images: Path, config: FillConfig | None = None, *,
    masks: Path | None = None, pair_list: Path | None = None, strict: bool = False, restart: bool = False,
    quiet: bool = False,
) -> Filled:  # fmt: skip
    """Fill a COLMAP database with keypoints, descriptors and verified matches.

    Args:
        path: the database; an empty one gets all images of the folder.
        images: folder that the names in the database are relative to.
        masks: folder of masks, `NAME.png` for the image NAME.
        pair_list: pairs to match, two names a line.
        restart: forget the features and matches of an unfinished run.
    """
    config = config or FillConfig()
    import_pycolmap()
    if not images.is_dir():
        raise InputError(f"{images}: no such folder of images")
    work = path.with_name(f"{path.name}.contextdesc")
    with told_when_full(path.parent):
        if config.upgrade and path.is_file():
            _upgrade(path)
        check_version(path)
        before = fingerprint(path)
        work.mkdir(exist_ok=True)
        copy = work / "database.db"
        copy_database(path, copy)  # opening the database itself would write to it
        _check(path, copy, config)
        sizes = _sizes(copy)
        found = _find(path, images, sizes)
        given = _write_keypoints(copy, work / "keypoints", found) if config.keep_keypoints else None
        settings = feature_settings(model, found, masks) | {"keypoints": given and given.name}
        stage = work / digest(settings)
        features, matches = stage / "features.h5", stage / "matches.h5"
        if restart:
            for old in (features, matches):
                old.unlink(missing_ok=True)
        report = extract_images(
            model, found, features, masks=masks, keypoints=given, strict=strict, restart=restart, quiet=quiet
        )
        failed = report.failed | _misfits(features, sizes)
        with open_features(features) as file:
            names = [name for name in file.names if name in found and name not in failed]
        if len(names) < 2:
            reason = next(iter(failed.values()), "it holds fewer")
            raise InputError(f"{path}: {len(names)} usable images; at least 2 are needed ({reason})")
        usable = {name: found[name] for name in names}
        journal = work / "retrieval.journal"
        pairs = choose_pairs(model, usable, set(found), config.pairs, pair_list, journal, quiet)
        match_pairs(
            features, pairs, matches, ratio=config.ratio, mutual=config.mutual, restart=restart, quiet=quiet
        )
        _fill(copy, usable, pairs, features, matches, config)
        verify_pairs(copy, pairs, quiet)
        numbers = _numbers(copy, failed)
        if fingerprint(path) != before:
            raise InputError(f"{path}: another program changed it meanwhile; run the same command again")
        _replace(path, copy)
    return numbers


def _upgrade(path: Path) -> None:
    """Let COLMAP convert a database of another version, and keep the old one."""
    try:
        check_version(path)
    except InputError:
        backup = path.with_name(f"{path.name}.before-upgrade")
        if not backup.exists():
            copy_database(path, backup)
        import_pycolmap().Database.open(str(path)).close()


def _check(path: Path, copy: Path, config: FillConfig) -> None:
    """Refuse what would be lost, before any work."""
    with import_pycolmap().Database.open(str(copy)) as database:
        keypoints, matches = _count(database, "num_keypoints"), _count(database, "num_matches")
    if config.keep_keypoints and not keypoints:
        raise InputError(f"{path}: holds no keypoints to keep; leave out --keep-keypoints")
    if keypoints and not config.keep_keypoints and not config.overwrite:
        raise InputError(
            f"{path}: holds {keypoints} keypoints; describe them with --keep-keypoints, or replace them and "
            "their matches with --overwrite"
        )
    if matches and not config.overwrite:
        raise InputError(f"{path}: holds {matches} matches; replace them with --overwrite")


def _count(database: Any, name: str) -> int:
    """A number of the database's: a method of pycolmap 4, a property before."""
    value = getattr(database, name)
    return int(value() if callable(value) else value)


def _sizes(path: Path) -> dict[str, tuple[int, int]]:
    """(width, height) of every image's camera, by name."""
    with import_pycolmap().Database.open(str(path)) as database:
        cameras = {camera.camera_id: camera for camera in database.read_all_cameras()}
        return {
            str(image.name): (cameras[image.camera_id].width, cameras[image.camera_id].height)
            for image in database.read_all_images()
        }


def _find(path: Path, images: Path, sizes: Mapping[str, tuple[int, int]]) -> dict[str, Path]:
    """Files of the images that the database names, or of all if it names none."""
    if not sizes:
        return find_images([images])
    missing = [name for name in sizes if not (images / name).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(f"{images / missing[0]}: no such file{more}, which {path} names")
    return {name: images / name for name in sorted(sizes)}


def _write_keypoints(path: Path, folder: Path, found: Mapping[str, Path]) -> Path:
    """The database's keypoints as `NAME.npy`; their folder's name changes with them."""
    rows = read_keypoints(path)
    arrays = {}
    for name in found:
        keypoints = Keypoints.from_colmap(rows[name])
        arrays[name] = np.column_stack([keypoints.xy, keypoints.size, keypoints.angle])
    content = hashlib.sha256()
    for name, array in arrays.items():
        content.update(name.encode() + array.tobytes())
    target = folder / content.hexdigest()[:12]
    for name, array in arrays.items():
        with replacing(target / f"{name}.npy") as temporary, temporary.open("wb") as file:
            np.save(file, array)
    return target


def _misfits(features: Path, sizes: Mapping[str, tuple[int, int]]) -> dict[str, str]:
    """Images whose size is not that of their camera, with what to do."""
    wrong = {}
    with open_features(features) as file:
        for name in file.names:
            own = file[name].image_size
            if name in sizes and own != sizes[name]:
                told = [" x ".join(map(str, size)) for size in (own, sizes[name])]
                turned = "; EXIF turns it: store it upright" if own == sizes[name][::-1] else ""
                wrong[name] = f"is {told[0]} pixels, its camera in the database {told[1]}{turned}"
    return wrong


def _fill(
    path: Path, images: Mapping[str, Path], pairs: list[Pair], features: Path, matches: Path,
    config: FillConfig,
) -> None:  # fmt: skip
    """Write keypoints, descriptors and matches into a database."""
    pycolmap = import_pycolmap()
    with (
        open_features(features) as file,
        pycolmap.Database.open(str(path)) as database,
        pycolmap.DatabaseTransaction(database),
    ):
        ids = {image.name: image.image_id for image in database.read_all_images()}
        if not ids:
            sizes = {name: file[name].image_size for name in images}
            focals = {name: read(path).focal for name, path in images.items()}
            ids = add_images(pycolmap, database, group_cameras(sizes, focals, config.cameras))
        database.clear_two_view_geometries()
        database.clear_matches()
        database.clear_descriptors()
        if not config.keep_keypoints:
            database.clear_keypoints()
        for name in images:
            if not config.keep_keypoints:
                database.write_keypoints(ids[name], file[name].keypoints.to_colmap())
            write_descriptors(database, ids[name], file[name].descriptors)
        for first, second in pairs:
            rows = hloc.read_matches(matches, first, second).indices
            database.write_matches(ids[first], ids[second], rows.astype(np.uint32))


def _numbers(path: Path, failed: dict[str, str]) -> Filled:
    pycolmap = import_pycolmap()
    with pycolmap.Database.open(str(path)) as database:
        names = ("num_images", "num_keypoints", "num_matches")
        images, keypoints, matches = (_count(database, name) for name in names)
        inliers = _count(database, "num_inlier_matches")
        return Filled(images, keypoints, matches, len(verified(pycolmap, database)), inliers, failed)


def _replace(path: Path, copy: Path) -> None:
    """Put the finished copy in the database's place."""
    for suffix in ("-wal", "-shm"):  # of the old one, whose content is in the copy
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    os.replace(copy, path)
    delete_database(copy)
