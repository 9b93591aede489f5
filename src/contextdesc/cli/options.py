"""Options that several commands share, with their meaning in one place. Imports nothing heavy."""

import functools
import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from contextdesc.modelfile import DEFAULT

if TYPE_CHECKING:
    from contextdesc.model import ContextDesc
    from contextdesc.rotation import Rotate
    from contextdesc.scale.run import Workers


class ContextChoice(StrEnum):
    all = "all"
    both = "both"
    visual = "visual"
    geometric = "geometric"
    none = "none"


class SelectChoice(StrEnum):
    response = "response"
    random = "random"


class DeviceChoice(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class PrecisionChoice(StrEnum):
    fp32 = "fp32"
    int8 = "int8"


class GeometryChoice(StrEnum):
    fundamental = "fundamental"
    homography = "homography"
    essential = "essential"


class RotateChoice(StrEnum):
    auto = "auto"
    none = "none"
    zero = "0"
    quarter = "90"
    half = "180"
    three_quarters = "270"

    @property
    def turn(self) -> "Rotate":
        choices: dict[str, Rotate] = {"auto": "auto", "none": "none", "90": 90, "180": 180, "270": 270}
        return choices.get(self.value, 0)


Ratio = Annotated[float | None, typer.Option(help="Ratio test; the model's own by default, 1 for none.")]
NoMutual = Annotated[bool, typer.Option("--no-mutual", help="Also keep one-way nearest neighbours.")]
Restart = Annotated[bool, typer.Option("--restart", help="Forget an unfinished run.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
WorkerCount = Annotated[
    int | None,
    typer.Option("--workers", help="Work in so many processes; features and matches become shards.", min=1),
]
Cluster = Annotated[
    str | None,
    typer.Option(help="Work on a Ray cluster: its address, or auto; features and matches become shards."),
]
ShardSize = Annotated[int | None, typer.Option(help="Of a folder of shards: pieces per file.", min=1)]
Precision = Annotated[
    PrecisionChoice, typer.Option(help="Of the networks; int8 is faster, for models that have it.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def chosen_workers(count: int | None, cluster: str | None, shard_size: int | None = None) -> "Workers | None":
    """What `--workers` and `--cluster` ask for; None for this process."""
    if count is None and cluster is None:
        if shard_size is not None:
            raise typer.BadParameter(
                "--shard-size needs --workers or --cluster: without, there are no shards"
            )
        return None
    from contextdesc.scale.run import Workers

    return Workers(count, cluster)


class Loader(Protocol):
    """Loads the model that the options ask for, when the command is ready for it; with changes to them."""

    def __call__(self, **changes: Any) -> "ContextDesc": ...


def load_model(
    model: Annotated[
        str, typer.Option(help="Packaged model (see `contextdesc models`) or model folder.")
    ] = DEFAULT,
    context: Annotated[
        ContextChoice, typer.Option(help="Context terms; `all` that the model has.")
    ] = ContextChoice.all,
    max_keypoints: Annotated[int, typer.Option(help="Keypoints per image; 0 for all.", min=0)] = 2048,
    select: Annotated[
        SelectChoice, typer.Option(help="Which keypoints fill the budget.")
    ] = SelectChoice.response,
    seed: Annotated[int, typer.Option(help="Of a random selection.")] = 0,
    contrast: Annotated[
        float, typer.Option(help="SIFT's contrast threshold; lower finds more.", min=0.0)
    ] = 0.04,
    upright: Annotated[
        bool, typer.Option("--upright", help="Ignore orientation: for images that do not turn.")
    ] = False,
    max_side: Annotated[
        int, typer.Option(help="Downscale images to this longer side; 0 for never.", min=0)
    ] = 1600,
    max_pixels: Annotated[
        int, typer.Option(help="Refuse files with more pixels; 0 for the default limit.", min=0)
    ] = 0,
    domain_sizes: Annotated[
        str, typer.Option(help="Patch sizes to sum, such as 1,2 (the paper's A.4).")
    ] = "1",
    precision: Precision = PrecisionChoice.fp32,
    device: Annotated[DeviceChoice, typer.Option(help="Where the networks run.")] = DeviceChoice.auto,
    threads: Annotated[int, typer.Option(help="Of the networks; 0 for all cores.", min=0)] = 0,
) -> "ContextDesc":
    """The model that the options ask for."""
    from contextdesc.detection import Detector
    from contextdesc.errors import InputError
    from contextdesc.image import MAX_PIXELS
    from contextdesc.model import load

    try:
        sizes = tuple(float(size) for size in domain_sizes.split(","))
    except ValueError:
        raise InputError(f"--domain-sizes {domain_sizes!r}: give numbers such as 1,2") from None
    return load(
        model,
        context=context.value,
        detector=Detector(max_keypoints or None, select.value, seed, contrast, upright=upright),
        max_side=max_side or None,
        max_pixels=max_pixels or MAX_PIXELS,
        domain_sizes=sizes,
        precision=precision.value,
        device=device.value,
        threads=threads,
    )


def with_model_options(command: Callable[..., None], **defaults: Any) -> Callable[..., None]:
    """Give a command the options of `load_model`; it takes a `load: Loader` in their place.

    Args:
        defaults: of options whose default is another for this command.
    """
    options = dict(inspect.signature(load_model).parameters)
    options |= {name: options[name].replace(default=value) for name, value in defaults.items()}
    own = inspect.signature(command, eval_str=True).parameters
    parameters = [p for name, p in own.items() if name != "load"] + list(options.values())

    @functools.wraps(command)
    def run(**values: Any) -> None:
        chosen = {name: values.pop(name) for name in options}
        command(load=functools.partial(load_model, **chosen), **values)

    in_any_order = [p.replace(kind=p.KEYWORD_ONLY) for p in parameters]
    run.__signature__ = inspect.Signature(in_any_order)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run
