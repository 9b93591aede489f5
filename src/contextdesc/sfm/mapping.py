"""Mapping: a verified database comes in, COLMAP's models go out.

COLMAP runs in a child process, which can be stopped at any time and ends with its parent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from contextdesc.errors import ContextDescError, InputError
from contextdesc.progress import progress
from contextdesc.sfm.binding import has, import_pycolmap

Mapper = Literal["incremental", "global"]


@dataclass(frozen=True)
class MapConfig:
    """How COLMAP maps.

    Attributes:
        mapper: `incremental`, image by image, or `global`, all at once.
        fixed_cameras: leave the cameras' parameters as they are.
        seed: of COLMAP's random numbers.
    """

    mapper: Mapper = "incremental"
    fixed_cameras: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.mapper not in get_args(Mapper):
            raise InputError(f"mapper is {self.mapper!r}: one of {', '.join(get_args(Mapper))}")


def run_mapping(
    database: Path, images: Path, output: Path, config: MapConfig, total: int, log: Path, quiet: bool = False
) -> list[int]:
    """Map in a child process; the best model is written to the folder `output`.

    Args:
        total: images that may be placed, for the progress.
        log: file that COLMAP's messages go to.

    Returns:
        Registered images of each model that was found, the best first; empty if there is none.
    """
    import_pycolmap(*(["global_mapping"] if config.mapper == "global" else []))
    arguments = json.dumps([str(database), str(images), str(output), asdict(config)])
    pipe = subprocess.PIPE
    log.parent.mkdir(parents=True, exist_ok=True)
    models: list[int] = []
    with log.open("wb") as messages:
        command = [sys.executable, "-m", __name__, arguments]
        child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=messages, text=True)
        try:
            with progress("map", total, quiet=quiet) as advance:
                for line in child.stdout or ():
                    if line.startswith("placed"):
                        advance()
                    elif line.startswith("models"):
                        models = [int(count) for count in line.split()[1:]]
            code = child.wait()
        finally:
            child.kill()
            child.wait()
    if code:
        lines = log.read_text(errors="replace").splitlines()
        raise ContextDescError(f"{log}: COLMAP failed (code {code}): {' '.join(lines[-1:])}")
    return models


def _map(database: str, images: str, output: str, settings: dict[str, Any]) -> None:
    """What the child process does: says `placed` for each image and `models` with their sizes at the end."""
    # Standard input ends when the parent does, however it ends.
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
    pycolmap = import_pycolmap()
    config = MapConfig(**settings)
    pycolmap.set_random_seed(config.seed)
    Path(output).mkdir(parents=True, exist_ok=True)
    run = _global if config.mapper == "global" else _incremental
    models = run(pycolmap, (database, images, output), config)
    ranked = sorted(models.values(), key=_size, reverse=True)
    if ranked:
        ranked[0].write(output)
    print("models", *(model.num_reg_images() for model in ranked))


def _size(model: Any) -> tuple[int, int]:
    return model.num_reg_images(), model.num_points3D()


def _incremental(pycolmap: Any, paths: tuple[str, str, str], config: MapConfig) -> dict[int, Any]:
    options = pycolmap.IncrementalPipelineOptions()
    options.random_seed = config.seed
    options.extract_colors = False
    options.min_model_size = 2
    if config.fixed_cameras:
        options.ba_refine_focal_length = options.ba_refine_extra_params = False
    return dict(pycolmap.incremental_mapping(
        *paths, options,
        initial_image_pair_callback=lambda: print("placed\nplaced", flush=True),
        next_image_callback=lambda: print("placed", flush=True),
    ))  # fmt: skip


def _global(pycolmap: Any, paths: tuple[str, str, str], config: MapConfig) -> dict[int, Any]:
    options = pycolmap.GlobalPipelineOptions()
    options.random_seed = config.seed
    if has(pycolmap, "GlobalPipelineOptions.min_model_size"):
        options.min_model_size = 2
    if config.fixed_cameras:
        adjustment = options.mapper.bundle_adjustment
        adjustment.refine_focal_length = adjustment.refine_extra_params = False
    return dict(pycolmap.global_mapping(*paths, options))


if __name__ == "__main__":
    _map(*json.loads(sys.argv[1]))
