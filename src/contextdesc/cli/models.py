"""`contextdesc models`: what is packaged."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from contextdesc.cli import options as o


def command(
    speed: Annotated[
        bool, typer.Option("--speed/--no-speed", help="Measure how long each takes on this machine.")
    ] = True,
    json_: o.Json = False,
) -> None:
    """List the packaged models with their size, speed and recall; the default one is marked."""
    from contextdesc import modelfile

    rows: list[dict[str, Any]] = []
    recalls = json.loads(modelfile.RECALLS.read_text(encoding="utf-8"))
    for name in modelfile.packaged_models():
        folder = modelfile.PACKAGED / name
        spec, checksum = modelfile.read_spec(folder)
        size = sum(path.stat().st_size for path in folder.iterdir())
        rows.append(
            {
                "name": name,
                "default": name == modelfile.DEFAULT,
                "base": spec.base,
                "context": list(spec.terms),
                "megabytes": round(size / 1e6, 1),
                "precisions": ["fp32", "int8"] if (folder / modelfile.INT8).is_file() else ["fp32"],
                "ratio": spec.ratio,
                "recall": recalls[name],
                "seconds": _seconds(name) if speed else None,
                "checksum": checksum,
                "summary": spec.training.get("summary", ""),
            }
        )
    if json_:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        mark = " (default)" if row["default"] else ""
        context = " + ".join(row["context"]) or "none"
        facts = [
            f"base {row['base']}",
            f"context {context}",
            f"{row['megabytes']} MB",
            " or ".join(row["precisions"]),
            f"ratio {row['ratio']}",
            f"recall {row['recall']} % on Oxford affine (RootSIFT {recalls['rootsift']})",
        ]
        if row["seconds"] is not None:
            facts.append(f"{row['seconds']} s for an image of 640 x 480 with 2048 keypoints")
        print(f"{row['name']}{mark}: {', '.join(facts)}")
        print(f"    {row['summary']}")


def _seconds(name: str) -> float:
    """Median time of detection and description of a 640 x 480 texture with 2048 keypoints."""
    import time

    import cv2
    import numpy as np

    from contextdesc.detection import Detector
    from contextdesc.model import load

    noise = np.random.default_rng(0).normal(0, 1, (480, 640, 3)).astype(np.float32)
    layers = [cv2.GaussianBlur(noise, (0, 0), sigma) * sigma for sigma in (1.5, 3, 6)]
    image = np.clip(128 + 60 * sum(layers), 0, 255).astype(np.uint8)
    model = load(name, detector=Detector(2048, contrast=0.0067))
    model.extract(image)  # loads the networks
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        features = model.extract(image)
        times.append(time.perf_counter() - begun)
    assert len(features) == 2048
    return round(float(np.median(times)), 3)
