"""`contextdesc doctor`: what works on this machine, and what to install for the rest."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
from typing import TYPE_CHECKING, Any

import typer

from contextdesc.cli import options as o

if TYPE_CHECKING:
    from contextdesc.model import Precision

# extra -> modules that it brings
EXTRAS = {
    "samples": ("skimage",),
    "train": ("torch", "onnx", "onnxscript", "safetensors"),
    "sfm": ("pycolmap",),
    "heif": ("pillow_heif",),
    "cluster": ("ray", "fsspec", "s3fs"),
    "retrieval": ("faiss",),
    "demo": ("fastapi", "uvicorn"),
}
PACKAGES = ("numpy", "opencv-python-headless", "onnxruntime", "h5py", "pillow", "typer", "rich")


def command(json_: o.Json = False) -> None:
    """Check the installation: versions, models, a self-test, and which extras are there."""
    report = examine()
    if json_:
        print(json.dumps(report, indent=2))
    else:
        _print(report)
    if report["problems"]:
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    from contextdesc import __version__, modelfile
    from contextdesc.engine import available_cores, providers
    from contextdesc.errors import ContextDescError

    problems = []
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "missing"
            problems.append(f"{package} is missing: pip install {package}")
    installed = {d.metadata["Name"].lower() for d in importlib.metadata.distributions() if d.metadata["Name"]}
    wheels = sorted(name for name in installed if name.startswith("opencv-") and "python" in name)
    if len(wheels) > 1:
        problems.append(f"several OpenCV wheels overwrite each other ({', '.join(wheels)}): keep one")
    models = {}
    for name in modelfile.packaged_models():
        precisions: dict[str, Precision] = {name: "fp32"}
        if (modelfile.PACKAGED / name / modelfile.INT8).is_file():
            precisions[f"{name}, int8"] = "int8"
        for title, precision in precisions.items():
            try:
                models[title] = _self_test(name, precision)
            except ContextDescError as error:
                models[title] = "broken"
                problems.append(str(error))
    extras = {
        extra: [module for module in modules if importlib.util.find_spec(module) is None]
        for extra, modules in EXTRAS.items()
    }
    return {
        "contextdesc": __version__,
        "python": platform.python_version(),
        "cores": available_cores(),
        "providers": providers("auto"),
        "packages": versions,
        "models": models,
        "missing_of_extras": extras,
        "problems": problems,
    }


def _self_test(name: str, precision: Precision) -> str:
    """Describe a rendered image with a packaged model, and itself shifted: the features must match."""
    import numpy as np

    from contextdesc.matching import match
    from contextdesc.model import load

    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (40, 40), dtype=np.uint8)
    image = np.kron(coarse, np.ones((8, 8), np.uint8))
    model = load(name, precision=precision)
    if model.spec.base == "given":
        return "loads"
    first, second = model.extract(image[:-8, :-8]), model.extract(image[8:, 8:])
    matches = match(first, second, ratio=1)
    shift = first.keypoints.xy[matches.indices[:, 0]] - second.keypoints.xy[matches.indices[:, 1]]
    right = int((np.abs(shift - 8) < 1.5).all(1).sum()) if len(shift) else 0
    return f"works: {right} of {len(matches)} matches of the self-test right"


def _print(report: dict[str, Any]) -> None:
    print(f"contextdesc {report['contextdesc']}, Python {report['python']}, {report['cores']} cores")
    print("  " + ", ".join(f"{name} {version}" for name, version in report["packages"].items()))
    print(f"  ONNX Runtime runs on {', '.join(report['providers'])}")
    for name, state in report["models"].items():
        print(f"model {name}: {state}")
    for extra, missing in report["missing_of_extras"].items():
        state = (
            f"not installed ({', '.join(missing)}): pip install 'contextdesc[{extra}]'"
            if missing
            else "ready"
        )
        print(f"extra {extra}: {state}")
    for problem in report["problems"]:
        print(f"problem: {problem}")
    print("everything needed works" if not report["problems"] else f"{len(report['problems'])} problems")
