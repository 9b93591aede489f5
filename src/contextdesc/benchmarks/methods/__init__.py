"""Methods to compare: a name in, a `Method` out.

| name | descriptors |
|---|---|
| `sift`, `rootsift` | OpenCV's |
| `MODEL`, `MODEL:TERMS` | of a packaged model or a model folder; `MODEL:none` is its raw descriptor |
| `MODEL:int8`, `MODEL:TERMS:int8` | of its 8-bit networks, where it has them |
| `kornia:HardNet=FILE`, `SOSNet`, `HyNet` | kornia's networks with weights from a file |
| `opencv:ORB` or any other name | an OpenCV Feature2D |
| `h5:FILE` | those in a file of hloc's layout |
| `python:MODULE.FUNCTION` | a function of yours |
| `METHOD@2`, `METHOD@1+0.5` | of regions of other sizes, summed where there are several; not of `h5` |
"""

from __future__ import annotations

from contextdesc.benchmarks.methods.method import Described, Method, Metric
from contextdesc.errors import InputError
from contextdesc.modelfile import packaged_models

__all__ = ["Described", "Method", "Metric", "build_method", "build_methods"]


def build_method(name: str, threads: int = 0) -> Method:
    """The method of a name.

    Args:
        threads: of networks; 0 for all cores. With 1 the answer does not depend on the machine's cores.
    """
    from contextdesc.benchmarks.methods import function, kornia, models, opencv, precomputed, sizes

    plain, wanted = sizes.parsed(name)
    kind, _, rest = name.partition(":")
    if wanted and (plain in models.SIFT or kind in ("kornia", "opencv", "python")):
        return sizes.summed(build_method(plain, threads), name, wanted)
    if wanted and kind == "h5":
        raise InputError(f"method {name!r}: features that were computed before have the size that they have")
    if name in models.SIFT:
        return models.sift_method(name)
    if kind == "kornia":
        return kornia.build(name, rest, threads)
    if kind == "opencv":
        return opencv.build(name, rest)
    if kind == "h5":
        return precomputed.build(name, rest)
    if kind == "python":
        return function.build(name, rest)
    return models.model_method(name, threads)


def build_methods(names: str, threads: int = 0) -> dict[str, Method]:
    """Methods by their comma-separated names."""
    chosen = [name for part in names.split(",") if (name := part.strip())]
    if not chosen:
        raise InputError(
            f"no methods: give some of sift, rootsift, {', '.join(packaged_models())}, a model folder, ..."
        )
    return {name: build_method(name, threads) for name in dict.fromkeys(chosen)}
