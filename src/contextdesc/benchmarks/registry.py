"""The protocols that exist: one line each, the name of a module beside this one and what it measures.

Their modules are imported when they are wanted. `protocol.py` says what a protocol has to bring.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextdesc.benchmarks.protocol import Protocol, Request
    from contextdesc.benchmarks.report import Report

PROTOCOLS = {
    "heinly": "Recall per transformation on the Oxford affine scenes and Heinly's own.",
    "hsequences": "Recall, matching accuracy and homographies on HPatches sequences.",
    "hpatches": "Verification, matching and retrieval of patches, on HPatches or on patches cut like it.",
    "pairs": "Relative pose of pairs of images: inliers, mAP and AUC of the pose error.",
    "sfm": "Reconstructions with COLMAP: images, points, observations, errors of cameras.",
    "retrieval": "Images found among many by visual words, before and after verification: mAP, recall.",
    "repeatability": "Repeatability of detectors; matchability as a detector against SIFT.",
    "ratio": "Precision and recall by the threshold of the ratio test, and each method's own.",
    "density": "Recall and precision from few keypoints to all of them.",
    "domain": "Recall by the size of the region that descriptors read, and of sums of two sizes.",
    "cost": "Time, operations and parameters of every stage.",
    "speed": "Time of every stage beside the machine's limits and beside others; peak memory.",
    "growth": "Time and memory by keypoints, pixels and images; how busy the cores are.",
    "ablation": "Trains every variant of the paper's tables 1 and 2 on a budget, and compares.",
    "terms": "What each context term of a model adds on images held out from its training.",
}


def protocol(name: str) -> Protocol:
    """What a protocol says about itself."""
    found: Protocol = _module(name).PROTOCOL
    return found


def run(name: str, request: Request) -> Report:
    """Run a protocol by its name."""
    report: Report = _module(name).run(request)
    return report


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"contextdesc.benchmarks.{name}")
