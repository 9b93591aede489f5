"""An extractor that hloc finds by the name `contextdesc`, without a change to hloc's own code.

`register()` puts it where hloc's `extract_features` looks. Or write it into a checkout of hloc, as the file
`hloc/extractors/contextdesc.py`:

    from contextdesc.adapters.hloc import Extractor
    from ..utils.base_model import BaseModel
    class ContextDesc(Extractor, BaseModel): ...
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np

from contextdesc.adapters.lightglue import tensor_image, to_tensor
from contextdesc.detection import Detector
from contextdesc.errors import InputError
from contextdesc.model import ContextDesc, load
from contextdesc.modelfile import DEFAULT


class Extractor:
    """What hloc's `BaseModel` leaves to an extractor; hloc calls it with images of 0 to 1, (1, C, H, W)."""

    default_conf: dict[str, Any] = {  # noqa: RUF012  # hloc's protocol
        "weights": DEFAULT,  # packaged model or model folder
        "context": "all",
        "max_keypoints": 4096,  # -1 for all
        "contrast": 0.04,  # SIFT's threshold; 0.0067 finds far more
        "upright": False,
        "precision": "fp32",  # or int8
        "device": "auto",
        "threads": 0,
    }
    required_inputs: list[str] = ["image"]  # noqa: RUF012
    detection_noise = 1.0  # pixels

    contextdesc: ContextDesc

    def _init(self, conf: dict[str, Any]) -> None:
        budget = None if conf["max_keypoints"] < 0 else conf["max_keypoints"]
        self.contextdesc = load(
            conf["weights"],
            context=conf["context"],
            detector=Detector(budget, contrast=conf["contrast"], upright=conf["upright"]),
            precision=conf["precision"],
            device=conf["device"],
            threads=conf["threads"],
        )

    def _forward(self, data: dict[str, Any]) -> dict[str, Any]:
        features = self.contextdesc.extract(tensor_image(data["image"]))
        keypoints = features.keypoints
        answer = {
            "keypoints": keypoints.xy,
            "descriptors": np.ascontiguousarray(features.descriptors.T),
            "scores": keypoints.response,
            "scales": keypoints.size / np.float32(2),  # sigma
            "oris": keypoints.angle,  # degrees
        }
        return {key: to_tensor(value[None], data["image"]) for key, value in answer.items()}


def register(**settings: Any) -> dict[str, Any]:
    """Make hloc know the extractor `contextdesc`.

    Args:
        settings: changes to `Extractor.default_conf`.

    Returns:
        A configuration for hloc's `extract_features.main`.
    """
    unknown = settings.keys() - Extractor.default_conf.keys()
    if unknown:
        known = ", ".join(Extractor.default_conf)
        raise InputError(f"{', '.join(sorted(unknown))}: no setting of the extractor; it has {known}")
    try:
        from hloc.utils.base_model import BaseModel
    except ImportError:
        raise InputError(
            "hloc is not installed; get it from github.com/cvg/Hierarchical-Localization"
        ) from None
    module = ModuleType("hloc.extractors.contextdesc")
    module.ContextDesc = type(  # type: ignore[attr-defined]
        "ContextDesc", (Extractor, BaseModel), {"__module__": module.__name__}
    )
    sys.modules[module.__name__] = module
    return {
        "output": "feats-contextdesc",
        "model": {"name": "contextdesc", **settings},
        "preprocessing": {"grayscale": False, "resize_max": 1600},
    }
