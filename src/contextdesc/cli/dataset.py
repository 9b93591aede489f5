"""`contextdesc dataset build IMAGES -o DIR`: training data from photographs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contextdesc.cli import options as o

if TYPE_CHECKING:
    from contextdesc.training.data.sfm import Report

app = typer.Typer(
    help="Training data from your own photographs.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def _group() -> None:
    """Training data from your own photographs."""


@app.command("build")
def command(
    images: Annotated[Path, typer.Argument(help="Folder of photographs: a scene, or a subfolder per scene.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder that the scenes are written to.")],
    colmap: Annotated[
        Path | None, typer.Option(help="Existing COLMAP model of the images, instead of reconstructing.")
    ] = None,
    database: Annotated[
        Path | None, typer.Option(help="COLMAP database of --colmap; looked for beside the model.")
    ] = None,
    homographies: Annotated[
        bool, typer.Option("--homographies", help="Single photographs: pairs by random homographies.")
    ] = False,
    gl3d: Annotated[
        bool, typer.Option("--gl3d", help="IMAGES is a scene of GL3D, or a folder of them.")
    ] = False,
    max_keypoints: Annotated[int, typer.Option(help="Keypoints per image; 0 for all.", min=0)] = 4096,
    contrast: Annotated[float, typer.Option(help="SIFT's contrast threshold.", min=0.0)] = 0.02,
    max_side: Annotated[
        int, typer.Option(help="Downscale images to this longer side.", min=64, max=1024)
    ] = 800,
    ratio: Annotated[float, typer.Option(help="Ratio test of the matches for reconstruction.")] = 0.85,
    shared_camera: Annotated[
        bool, typer.Option("--shared-camera", help="Images of one size were taken with one camera and zoom.")
    ] = False,
    min_images: Annotated[int, typer.Option(help="Images that must be placed in a scene.", min=2)] = 3,
    pair_keypoints: Annotated[int, typer.Option(help="Pairs: keypoints in both images.", min=0)] = 1024,
    min_rotation: Annotated[float, typer.Option(help="Pairs: degrees between the cameras.", min=0)] = 3.0,
    max_angle: Annotated[
        float, typer.Option(help="Pairs: mean difference of matched orientations, degrees.", min=0)
    ] = 60.0,
    min_matched: Annotated[
        float, typer.Option(help="Pairs: share of --pair-keypoints that is matched.", min=0, max=1)
    ] = 0.01,
    min_shared: Annotated[int, typer.Option(help="Pairs: tracks that both images see.", min=1)] = 16,
    per_photo: Annotated[int, typer.Option(help="With --homographies: pairs per photograph.", min=1)] = 6,
    restart: Annotated[
        bool, typer.Option("--restart", help="Build again what was finished or begun before.")
    ] = False,
    quiet: o.Quiet = False,
    json_: o.Json = False,
) -> None:
    """Turn photographs into training scenes. What was finished is kept; the same command goes on."""
    from contextdesc.detection import Detector
    from contextdesc.errors import InputError

    if sum([colmap is not None, homographies, gl3d]) > 1:
        raise InputError("--colmap, --homographies and --gl3d exclude each other: give one")
    if database is not None and colmap is None:
        raise InputError(f"--database {database} goes with --colmap")
    if homographies:
        _homographies(images, output, per_photo, contrast, restart, quiet or json_, json_)
        return

    from contextdesc.training.data.scenes import PairRules
    from contextdesc.training.data.sfm import BuildConfig, build_scenes, from_colmap, from_gl3d

    config = BuildConfig(
        detector=Detector(max_keypoints=max_keypoints or None, contrast=contrast),
        ratio=ratio,
        max_side=max_side,
        shared_camera=shared_camera,
        min_images=min_images,
        pairs=PairRules(pair_keypoints, min_rotation, max_angle, min_matched, min_shared),
    )
    silent = quiet or json_
    if colmap is not None:
        report = from_colmap(colmap, images, output, config, database=database, restart=restart, quiet=silent)
    else:
        build = from_gl3d if gl3d else build_scenes
        report = build(images, output, config, restart=restart, quiet=silent)
    _finish(report, output, json_)


def _homographies(
    images: Path, output: Path, per_photo: int, contrast: float, restart: bool, quiet: bool, as_json: bool
) -> None:
    from contextdesc.image import find_images
    from contextdesc.progress import progress
    from contextdesc.training.data.cache import Cache
    from contextdesc.training.data.pairs import PairConfig, build_homography_pairs

    photos = list(find_images([images]).values())
    config = PairConfig(per_photo=per_photo, contrast=contrast)
    cache = Cache(output)
    if restart:
        shutil.rmtree(cache.entry("homography", config.settings(photos)), ignore_errors=True)
    with progress("pairs", len(photos), quiet=quiet) as advance:
        workers = os.cpu_count() or 1
        pairs = build_homography_pairs(photos, cache, config, workers, lambda done, total: advance())
    numbers = {"output": str(pairs.folder), "photographs": len(photos), "pairs": len(pairs)}
    if as_json:
        print(json.dumps(numbers, indent=2))
    else:
        print(f"{pairs.folder}: {len(pairs)} pairs of {len(photos)} photographs")


def _finish(report: Report, output: Path, as_json: bool) -> None:
    """Print what was built; exit with 1 if a scene failed."""
    if as_json:
        numbers = {
            "output": str(output),
            "scenes": report.scenes,
            "before": report.before,
            "failed": report.failed,
        }
        print(json.dumps(numbers, indent=2))
    else:
        print(report.table())
        for name in report.before:
            print(f"{output / name}: was finished before")
        for name in set(report.scenes) - set(report.before):
            print(f"{output / name}: see {output / name / 'scene.png'}")
        for name, reason in report.failed.items():
            print(f"failed: {name}: {reason}", file=sys.stderr)
    if report.failed:
        raise typer.Exit(1)
