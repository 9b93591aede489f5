"""`contextdesc stitch A B ... -o panorama.jpg`: photographs to one panorama."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from contextdesc.cli import options as o


@o.with_model_options
def command(
    load: o.Loader,
    images: Annotated[list[Path], typer.Argument(help="Image files and folders of images, in any order.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The panorama: .jpg or .png.")] = Path(
        "panorama.jpg"
    ),
    json_: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Stitch photographs of a plane, or of anything from one spot, to a panorama.

    Images that do not connect are named and left out (exit code 1).
    """
    from contextdesc.draw import Picture
    from contextdesc.draw.picture import format_of
    from contextdesc.image import find_images
    from contextdesc.stitching import stitch

    format_of(output)
    paths = [path for root in images for path in find_images([root]).values()]
    names = [str(path) for path in paths]
    panorama = stitch(paths, load(), quiet=quiet or json_)
    picture = Picture(panorama.rgb)
    picture.save(output)
    left_out = {names[number]: reason for number, reason in sorted(panorama.left_out.items())}
    if json_:
        numbers = {
            "output": str(output),
            "size": list(picture.size),
            "homographies": {names[n]: h.tolist() for n, h in sorted(panorama.homographies.items())},
            "left_out": left_out,
        }
        print(json.dumps(numbers, indent=2))
    else:
        width, height = picture.size
        print(f"{output}: {width} x {height} pixels, {len(panorama.homographies)} of {len(names)} images")
        for name, reason in left_out.items():
            print(f"left out: {name}: {reason}", file=sys.stderr)
    if left_out:
        raise typer.Exit(1)
