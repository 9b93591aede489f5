"""The one way to pycolmap: imported after OpenCV, with a clear line if it is missing or too old."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import cv2  # noqa: F401  # before pycolmap: the other order aborts the process (pycolmap 4.2.1)

from contextdesc.errors import InputError

OLDEST = "3.13"  # that has what we use

# What we use, and what it is for
_NEEDED = {
    "Rig": "rigs and frames",
    "Frame": "rigs and frames",
    "Database.open": "databases",
    "DatabaseTransaction": "databases",
    "estimate_two_view_geometry": "geometric verification",
    "RANSACOptions.random_seed": "repeatable verification",
    "incremental_mapping": "incremental mapping",
}
_OPTIONAL = {
    "global_mapping": ("global mapping", "4.0"),
    "FeatureDescriptors": ("typed descriptors", "4.0"),
    "estimate_and_refine_absolute_pose": ("localisation", "4.2"),
    "AbsolutePoseEstimationOptions.estimate_focal_length": ("localisation with unknown cameras", "4.2"),
}


def import_pycolmap(*optional: str) -> Any:
    """pycolmap, if it has what we use.

    Args:
        optional: names of pycolmap's that the caller needs beyond what every caller does.
    """
    try:
        import pycolmap
    except ImportError:
        raise InputError("structure from motion needs an extra: pip install 'contextdesc[sfm]'") from None
    wanted = {name: (purpose, OLDEST) for name, purpose in _NEEDED.items()}
    wanted |= {name: _OPTIONAL.get(name, ("a function", OLDEST)) for name in optional}
    for name, (purpose, version) in wanted.items():
        if not has(pycolmap, name):
            raise InputError(
                f"pycolmap {pycolmap.__version__} lacks {purpose} ({name}): pip install 'pycolmap>={version}'"
            )
    return pycolmap


def has(pycolmap: Any, name: str) -> bool:
    """Whether this pycolmap has a name such as `Database.open`."""
    try:
        attrgetter(name)(pycolmap)
    except AttributeError:
        return False
    return True
