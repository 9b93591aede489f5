"""Reconstruct the Strecha scenes with several descriptors on the same keypoints, and report the numbers.

`python scripts/sfm_numbers.py --data DIR` reads `DIR/eval/strecha/SCENE/{images,gt_dense_cameras}` and the
last photographs of `DIR/train/photos` (held out from all training), prints the table, and writes
`docs/results/sfm-strecha.json` and the table of `docs/sfm.md`. A run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contextdesc.benchmarks import ratio
from contextdesc.benchmarks.methods import build_method
from contextdesc.cli.sfm import DEFAULTS
from contextdesc.detection import Detector, detect
from contextdesc.features import Features
from contextdesc.formats import hloc
from contextdesc.image import find_images, read
from contextdesc.model import load
from contextdesc.modelfile import read_spec, resolve
from contextdesc.sfm.binding import import_pycolmap
from contextdesc.sfm.cameras import CameraConfig
from contextdesc.sfm.pipeline import Given, SfmConfig, reconstruct
from contextdesc.sfm.summary import registered

ROOT = Path(__file__).parent.parent
SCENES = ("fountain-P11", "entry-P10")
METHODS = ("rootsift", "sift-context", "contextdesc")
HELD_OUT = 30  # photographs at the end of train/photos
DETECTOR = Detector(**DEFAULTS)  # type: ignore[arg-type]  # the command's own settings
BEGIN, END = "<!-- numbers: scripts/sfm_numbers.py -->", "<!-- end of numbers -->"
COLUMNS = {
    "ratio": ".2f", "images": "s", "points": ",d", "observations": ",d", "track_length": ".2f",
    "reprojection_error": ".3f", "position_error_mean": ".2f", "position_error_max": ".2f",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with eval/strecha and train/photos")
    parser.add_argument(
        "--work", type=Path, default=Path("sfm-strecha"), help="folder of the reconstructions"
    )
    arguments = parser.parse_args()
    begun = time.monotonic()
    ratios = choose_ratios(arguments.data / "train" / "photos", arguments.work)
    results: dict[str, dict[str, Any]] = {}
    for scene in SCENES:
        folder = arguments.data / "eval" / "strecha" / scene
        keypoints = {
            name: detect(read(p).gray, DETECTOR) for name, p in find_images([folder / "images"]).items()
        }
        results[scene] = {}
        for method in METHODS:
            work = arguments.work / scene / _key(method)
            features = work / "given.h5"
            if not features.exists():
                hloc.write(features, describe(folder / "images", keypoints, method, ratios[method]))
            results[scene][method] = measure(folder, features, work / "model")
            results[scene][method]["ratio"] = ratios[method]
            print(f"{scene} {method}: {results[scene][method]}", flush=True)
    report = {
        "keypoints": DEFAULTS, "pycolmap": import_pycolmap().__version__,
        "checksums": {m: read_spec(resolve(m))[1] for m in METHODS if m != "rootsift"},
        "scenes": results,
    }  # fmt: skip
    target = ROOT / "docs" / "results" / "sfm-strecha.json"
    target.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    text = table(results)
    document = ROOT / "docs" / "sfm.md"
    before, _, rest = document.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    document.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
    print(f"{text}\n{time.monotonic() - begun:.0f} s")


def choose_ratios(photos: Path, work: Path) -> dict[str, float]:
    """Each model's own ratio; RootSIFT's at the precision of SIFT's 0.80 on the held-out photographs."""
    stored = work / "ratios.json"
    if not stored.exists():
        held_out = list(find_images([photos]).values())[-HELD_OUT:]
        found = ratio.candidates(held_out, {n: build_method(n) for n in ("sift", "rootsift")}, 0)
        chosen = ratio.equal_precision(found["sift"], found["rootsift"])
        work.mkdir(parents=True, exist_ok=True)
        stored.write_text(json.dumps({"rootsift": chosen}), encoding="utf-8")
    return {
        "rootsift": json.loads(stored.read_text(encoding="utf-8"))["rootsift"],
        **{m: read_spec(resolve(m))[0].ratio for m in METHODS if m != "rootsift"},
    }


def describe(
    images: Path, keypoints: dict[str, Any], method: str, threshold: float
) -> Iterator[tuple[str, Features]]:
    """Features of one descriptor at keypoints that all of them share."""
    function = build_method(method)
    checksum = "" if method == "rootsift" else read_spec(resolve(method))[1]
    for name, rows in keypoints.items():
        image = read(images / name)
        descriptors = function(image, rows, DETECTOR.precise_upscale)
        yield name, Features(rows, descriptors, image.size, method, checksum, ratio=threshold)


def measure(folder: Path, features: Path, output: Path) -> dict[str, Any]:
    """Numbers of a reconstruction, with camera positions compared with the true ones."""
    config = SfmConfig(cameras=CameraConfig(mode="shared"))
    outcome = reconstruct(load(), folder / "images", output, config, Given(features=features), quiet=True)
    true = true_centres(folder / "gt_dense_cameras")
    model = import_pycolmap().Reconstruction(str(output / "sparse"))
    found = {str(image.name): np.asarray(image.projection_center()) for image in registered(model)}
    names = sorted(found)
    target = np.array([true[name] for name in names])
    error = np.linalg.norm(aligned(np.array([found[name] for name in names]), target) - target, axis=1)
    extent = max(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(true.values(), 2))
    keys = ("registered", "points", "observations", "track_length", "reprojection_error")
    return {
        **{key: outcome.summary[key] for key in keys},
        "images": f"{outcome.summary['registered']}/{outcome.summary['images']}",
        "position_error_mean": float(100 * error.mean() / extent),
        "position_error_max": float(100 * error.max() / extent),
    }


def true_centres(folder: Path) -> dict[str, NDArray[np.float64]]:
    """Camera centres of the ground truth: the eighth line of each `NAME.camera`."""
    return {
        path.name.removesuffix(".camera"): np.array(path.read_text().splitlines()[7].split(), np.float64)
        for path in sorted(folder.glob("*.camera"))
    }


def aligned(points: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points (N, 3) under the similarity that brings them closest to others (Umeyama, 1991)."""
    a, b = points - points.mean(0), target - target.mean(0)
    u, d, v = np.linalg.svd(b.T @ a)
    sign = np.diag([1, 1, np.linalg.det(u @ v)])
    scale = (d * np.diag(sign)).sum() / (a**2).sum()
    return np.asarray(scale * a @ (u @ sign @ v).T + target.mean(0))


def table(results: dict[str, dict[str, Any]]) -> str:
    """A row per scene and descriptor; points and observations also as multiples of RootSIFT's."""
    head = [
        "scene", "descriptor", "ratio", "images", "points", "observations", "track length",
        "reprojection error, px", "position error, mean %", "max %",
    ]  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for scene, rows in results.items():
        for method, numbers in rows.items():
            cells = [format(numbers[key], how) for key, how in COLUMNS.items()]
            for column, key in ((2, "points"), (3, "observations")):
                cells[column] += f" ({numbers[key] / rows['rootsift'][key]:.2f}x)"
            lines.append(f"| {' | '.join([scene, method, *cells])} |")
    return "\n".join(lines)


def _key(method: str) -> str:
    """A folder's name that changes with the model."""
    return method if method == "rootsift" else f"{method}-{read_spec(resolve(method))[1][:8]}"


if __name__ == "__main__":
    main()
