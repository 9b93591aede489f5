"""Measure images per second of one and of two workers: `python scripts/scale_throughput.py --photos DIR`.

Photographs are made equally large, then extracted into shards by one worker and by two in turn, each with
one thread. A rate counts from the time when as many images are finished as there are workers, so that
starting processes and loading the model are not in it. Writes docs/results/scale-throughput.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2

from contextdesc.detection import Detector
from contextdesc.engine import available_cores
from contextdesc.extraction import extract_images
from contextdesc.formats.atomic import replacing
from contextdesc.formats.manifest import read_manifest
from contextdesc.formats.shards import open_features
from contextdesc.image import find_images, read
from contextdesc.model import load as load_model
from contextdesc.scale.run import Workers

ROOT = Path(__file__).parent.parent
COUNTS = (1, 2)  # of workers


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--photos", type=Path, required=True, help="folder of photographs")
    parser.add_argument("--images", type=int, default=30, help="photographs to use (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=3, help="of each number of workers (%(default)s)")
    parser.add_argument("--size", default="800x600", help="of the images, in pixels (%(default)s)")
    parser.add_argument("--keypoints", type=int, default=2048, help="per image, at most (%(default)s)")
    parser.add_argument("--model", default="contextdesc", help="(%(default)s)")
    parser.add_argument("--cluster", help="measure on Ray: auto, or an address")
    results = ROOT / "docs" / "results" / "scale-throughput.json"
    parser.add_argument("--output", "-o", type=Path, default=results, help="JSON (docs/results)")
    options = parser.parse_args()
    if available_cores() < max(COUNTS):
        sys.exit(f"{available_cores()} core: {max(COUNTS)} workers would share it")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    with replacing(options.output) as temporary:
        temporary.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))
    print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    load = os.getloadavg()[0]  # of whatever else the machine does; much of it spoils the rates
    width, height = (int(side) for side in options.size.split("x"))
    images = _equally_large(options, folder / "photos", (width, height))
    model = load_model(options.model, detector=Detector(options.keypoints), threads=1)
    rates: dict[int, list[float]] = {count: [] for count in COUNTS}
    checksums = set()
    for repetition in range(options.repetitions):
        for count in COUNTS if repetition % 2 == 0 else COUNTS[::-1]:
            output = folder / "features"
            shutil.rmtree(output, ignore_errors=True)
            workers = Workers(count, options.cluster)
            extract_images(model, images, output, workers=workers, shard_size=1, quiet=True)
            shards = read_manifest(output).shards
            checksums.add(tuple(shard.sha256 for shard in shards))
            rates[count].append(rate([(output / s.file).stat().st_mtime for s in shards], count))
            print(f"{count} workers: {rates[count][-1]:.3f} images per second", file=sys.stderr)
    if len(checksums) != 1:
        sys.exit("the shards of several runs differ")
    with open_features(output) as features:
        keypoints = statistics.mean(len(features[name]) for name in features.names)
    medians = {count: statistics.median(values) for count, values in rates.items()}
    return {
        "images_per_second": {str(count): round(value, 4) for count, value in medians.items()},
        "efficiency": round(medians[2] / (2 * medians[1]), 4),
        "bytes_per_image": round(sum(shard.bytes for shard in shards) / len(shards)),
        "model": model.spec.name,
        "checksum": model.checksum,
        "keypoints": round(keypoints),
        "image_pixels": width * height,
        "images": len(images),
        "repetitions": {str(count): [round(v, 4) for v in values] for count, values in rates.items()},
        "engine": "processes" if options.cluster is None else "Ray",
        "machine": {
            "processor": _processor(),
            "cores": available_cores(),
            "system": platform.system(),
            "load before": round(load, 1),
        },
    }


def rate(finished: list[float], workers: int) -> float:
    """Images per second, by the times at which images were finished, after the first of each worker."""
    times = sorted(finished)
    return (len(times) - workers) / (times[-1] - times[workers - 1])


def _equally_large(options: argparse.Namespace, folder: Path, size: tuple[int, int]) -> dict[str, Path]:
    folder.mkdir()
    for number, path in enumerate(list(find_images([options.photos]).values())[: options.images]):
        rgb = cv2.resize(read(path).rgb, size, interpolation=cv2.INTER_AREA)
        cv2.imwrite(str(folder / f"{number:04}.jpg"), cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR))
    return find_images([folder])


def _processor() -> str:
    """Its name, where the system tells it."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
