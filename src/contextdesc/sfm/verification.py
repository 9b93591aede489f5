"""Geometric verification: matches of a database come in, two-view geometries and their inliers go out.

COLMAP's estimator, one pair at a time with a fixed seed, so that the answer depends on nothing but the pair.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contextdesc.engine import available_cores
from contextdesc.progress import progress
from contextdesc.sfm.binding import import_pycolmap
from contextdesc.sfm.database import Pair

MIN_INLIERS = 15  # of a pair that counts: COLMAP's default
_TOGETHER = 64  # pairs that are estimated and written at a time
_CACHED = 64  # images whose keypoints stay in memory


def verify_pairs(path: Path, pairs: list[Pair], quiet: bool = False) -> None:
    """Verify the matches of pairs of a database; those that have a geometry already are left as they are."""
    pycolmap = import_pycolmap()
    with pycolmap.Database.open(str(path)) as database, ThreadPoolExecutor(available_cores()) as pool:
        images = {image.name: image for image in database.read_all_images()}
        cameras = {camera.camera_id: camera for camera in database.read_all_cameras()}
        before = verified(pycolmap, database)
        waiting = [pair for pair in pairs if _key(images, pair) not in before]

        @lru_cache(_CACHED)
        def points(image_id: int) -> NDArray[np.float64]:
            return np.asarray(database.read_keypoints(image_id)[:, :2], np.float64)

        with progress("verify", len(pairs), len(pairs) - len(waiting), quiet) as advance:
            for start in range(0, len(waiting), _TOGETHER):
                some = waiting[start : start + _TOGETHER]
                work = []
                for first, second in some:
                    one, two = images[first], images[second]
                    rows = database.read_matches(one.image_id, two.image_id)
                    sides = [(cameras[image.camera_id], points(image.image_id)) for image in (one, two)]
                    work.append((sides, rows))
                found = list(pool.map(_estimate, work))
                with pycolmap.DatabaseTransaction(database):
                    for (first, second), geometry in zip(some, found, strict=True):
                        if geometry is not None:
                            ids = images[first].image_id, images[second].image_id
                            database.write_two_view_geometry(*ids, geometry)
                        advance()


def verified(pycolmap: Any, database: Any) -> set[frozenset[int]]:
    """Pairs of image ids that have a geometry with inliers."""
    pair_ids, _ = database.read_two_view_geometry_num_inliers()
    return {frozenset(pycolmap.pair_id_to_image_pair(pair_id)) for pair_id in pair_ids}


def _key(images: dict[str, Any], pair: Pair) -> frozenset[int]:
    return frozenset(images[name].image_id for name in pair)


def _estimate(work: tuple[list[tuple[Any, NDArray[np.float64]]], NDArray[np.uint32]]) -> Any:
    """The geometry of two images, or None if too few matches agree with any."""
    pycolmap = import_pycolmap()
    ((camera1, points1), (camera2, points2)), rows = work
    if len(rows) < MIN_INLIERS:
        return None
    options = pycolmap.TwoViewGeometryOptions()
    options.min_num_inliers = MIN_INLIERS
    options.ransac.random_seed = 0
    geometry = pycolmap.estimate_two_view_geometry(camera1, points1, camera2, points2, rows, options)
    return geometry if len(geometry.inlier_matches) >= MIN_INLIERS else None
