"""The log of a training run: one JSON line a report, TensorBoard if wished, and its curves as a picture.

A line holds its step and named numbers: `{"step": 20, "loss": 1.2, "temperature": 20.1}` or
`{"step": 300, "held_out_recall": {"raw": 80.1}}`. The picture has the panels of the paper's appendix A.2.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from contextdesc.errors import InputError
from contextdesc.formats.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray
    from torch.utils.tensorboard import SummaryWriter

    Series = tuple[NDArray[np.float64], NDArray[np.float64]]  # steps and values, (N,) each

LOG = "log.jsonl"
TENSORBOARD = "tensorboard"
# Okabe and Ito's palette without its greens: apart for every common kind of colour blindness.
GREY, COLOURS = "#444444", ("#0072B2", "#D55E00", "#56B4E9", "#CC79A7", "#E69F00")
LOSSES = {  # key in the log: name and colour in the picture
    "loss": ("total", GREY),
    "n_pair": ("N-pair", COLOURS[0]),
    "raw_n_pair": ("N-pair, raw", COLOURS[2]),
    "quad": ("quad", COLOURS[1]),
    "classification": ("classification", COLOURS[3]),
}
WIDTH, HEIGHT, DPI = 8.0, 2.7, 300  # inches, and 2400 pixels wide: sharp where it is shown at 1200
_SMOOTHING = 0.4  # standard deviation of the smoothing Gaussian, in square roots of the number of points
_LOG_SCALE = 8  # losses that fall by more than this factor are drawn on a logarithmic axis
_LEGEND_INSIDE = 5  # names: more have no room among the lines
_STYLE: dict[Any, Any] = {  # keys are Literals to matplotlib's types
    "figure.constrained_layout.w_pad": 0.08,
    "figure.constrained_layout.h_pad": 0.06,
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "xtick.color": "#888888",
    "ytick.color": "#888888",
    "xtick.labelcolor": "#333333",
    "ytick.labelcolor": "#333333",
    "axes.labelcolor": "#333333",
    "xtick.major.width": 0.6,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "legend.fontsize": 7.5,
    "legend.frameon": True,
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
    "legend.handlelength": 1.2,
    "legend.labelspacing": 0.3,
}


class Log:
    """The log of a run, `folder/log.jsonl`; a context manager.

    Args:
        folder: of the run; made if it is missing.
        echo: is given each line, too.
        tensorboard: write the numbers into `folder/tensorboard` as well.
    """

    def __init__(self, folder: Path, echo: Callable[[str], None] = print, tensorboard: bool = False) -> None:
        self.path = folder / LOG
        self._echo = echo
        self._events = folder / TENSORBOARD
        self._writer: SummaryWriter | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: cannot be written ({error.strerror})") from None
        if tensorboard:
            self._writer = _open_tensorboard(self._events)

    def write(self, step: int, **values: object) -> None:
        """Append a line: numbers by name, or dicts of them."""
        line = json.dumps({"step": step, **values})
        with self.path.open("a") as file:
            file.write(line + "\n")
        self._echo(line)
        if self._writer is not None:
            for name, value in _scalars(values).items():
                self._writer.add_scalar(name, value, step)
            self._writer.flush()  # reports are rare, and a run may be killed at any time

    def rewind(self, step: int) -> None:
        """Forget what was logged after a step, for a run that resumes from it; -1 forgets everything."""
        if self.path.exists():
            kept = [line for line in read_log(self.path) if line["step"] <= step]
            with replacing(self.path) as temporary:
                temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))
        if self._writer is not None:  # TensorBoard hides what older files hold from purge_step on
            self._writer.close()
            self._writer = _open_tensorboard(self._events, purge_step=step + 1)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log in their order; a last line that a kill cut short is left out."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a log of a training run (not text)") from None
    lines: list[dict[str, Any]] = []
    for number, text_line in enumerate(text.splitlines(keepends=True), 1):
        try:
            line = json.loads(text_line)
        except ValueError:
            if text_line.startswith("{") and not text_line.endswith("\n"):  # only the last has no end
                break
            raise InputError(f"{path}: line {number} is not JSON") from None
        if not isinstance(line, dict) or type(line.get("step")) is not int:
            raise InputError(f"{path}: line {number} has no step: not a log of a training run")
        lines.append(line)
    return lines


def draw_curves(log: Path, picture: Path) -> None:
    """Draw a log as a PNG, 2400 pixels wide: loss, accuracy and temperature over the steps.

    Args:
        log: a `log.jsonl`; accuracy and recall in percent. Panels without data are left out.
        picture: the PNG to write.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator
    except ImportError as error:
        raise InputError(f"curves need an extra ({error}): pip install 'contextdesc[train]'") from None

    series = _series(read_log(log))
    panels = [
        (draw, chosen)
        for draw, names in (
            (_draw_losses, [name for name in LOSSES if name in series]),
            (_draw_accuracy, [n for n in series if n == "accuracy" or n.startswith("held_out_recall/")]),
            (_draw_temperature, [name for name in series if name.startswith("temperature")]),
        )
        if (chosen := {name: series[name] for name in names})
    ]
    if not panels:
        raise InputError(f"{log}: nothing to draw: no loss, accuracy, held_out_recall or temperature")
    end = max(steps[-1] for _, chosen in panels for steps, _ in chosen.values())
    with matplotlib.rc_context(_STYLE):
        figure = Figure((WIDTH, HEIGHT), dpi=DPI, layout="constrained")  # Agg: no pyplot, no display
        for axes, (draw, chosen) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            draw(axes, chosen)
            axes.set_xlim(0, max(end, 1) * 1.02)
            axes.set_xlabel("step")
            axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=True))
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 1.5k
            if axes.get_yscale() == "linear":
                axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
            else:
                axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axes.yaxis.set_major_formatter("{x:g}")
                axes.yaxis.set_minor_locator(NullLocator())
        with replacing(picture) as temporary:
            figure.savefig(temporary, format="png")


def _draw_losses(axes: Axes, series: dict[str, Series]) -> None:
    axes.set_title("Loss")
    if "loss" in series:  # its only term would hide it
        total = series["loss"][1]
        series = {n: s for n, s in series.items() if n == "loss" or not np.array_equal(s[1], total)}
    for name, (steps, values) in series.items():
        _draw_noisy(axes, steps, values, *LOSSES[name])
    # The axis fits the smooth lines and all but the extremes of the noise.
    smooth = np.concatenate([_smooth(values) for _, values in series.values()])
    low = min(smooth.min(), *(np.percentile(values, 1) for _, values in series.values()))
    high = max(smooth.max(), *(np.percentile(values, 99) for _, values in series.values()))
    if low > 0 and smooth.max() / smooth.min() > _LOG_SCALE:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.15, max(values.max() for _, values in series.values()) * 1.15)
    elif high > 0:
        axes.set_ylim(min(0, low), high * 1.05)
    if len(series) > 1:
        _add_legend(axes, "upper right")


def _draw_accuracy(axes: Axes, series: dict[str, Series]) -> None:
    axes.set_title("Accuracy, %")
    colours: dict[str, str] = {}  # of a term, the same on every kind of pair
    for name, (steps, values) in series.items():
        if name == "accuracy":
            _draw_noisy(axes, steps, values, "training", GREY)
        else:
            term, _, kind = name.partition("/")[2].partition("_")
            colour = colours.setdefault(term, COLOURS[len(colours) % len(COLOURS)])
            label = f"held out, {term} {kind}".rstrip()
            axes.plot(
                steps, values, "o--" if kind else "o-", color=colour, lw=1.4, ms=3, label=label, clip_on=False
            )
    if len(series) > _LEGEND_INSIDE:
        _add_legend(axes, "upper center", bbox_to_anchor=(0.5, -0.28), ncols=2)
        return
    low, high = axes.get_ylim()
    corner_is_free = min(values[len(values) // 2 :].min() for _, values in series.values()) > (low + high) / 2
    _add_legend(axes, "lower right" if corner_is_free else "best")


def _draw_temperature(axes: Axes, series: dict[str, Series]) -> None:
    axes.set_title("Temperature")
    for (name, (steps, values)), colour in zip(series.items(), itertools.cycle(COLOURS), strict=False):
        label = name.removeprefix("temperature").strip("_/").replace("_", " ") or "temperature"
        axes.plot(steps, values, color=colour, lw=1.4, label=label)
    if len(series) > 1:
        _add_legend(axes, "best")


def _add_legend(
    axes: Axes, place: Literal["best", "upper right", "lower right", "upper center"], **options: Any
) -> None:
    """Names in the order in which their lines end, top to bottom."""
    lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    lines.sort(key=lambda line: -np.asarray(line.get_ydata())[-1])
    axes.legend(handles=lines, loc=place, **options)


def _draw_noisy(
    axes: Axes, steps: NDArray[np.float64], values: NDArray[np.float64], label: str, colour: str
) -> None:
    axes.plot(steps, values, color=colour, lw=0.5, alpha=0.3)
    axes.plot(steps, _smooth(values), color=colour, lw=1.6, label=label)


def _smooth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """A Gaussian mean that has no lag; at the ends it takes the values that there are."""
    sigma = _SMOOTHING * math.sqrt(len(values))
    reach = min(math.ceil(3 * sigma), len(values) - 1)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    middle = slice(reach, reach + len(values))
    weights = np.convolve(np.ones_like(values), kernel)[middle]
    return np.convolve(values, kernel)[middle] / weights


def _series(lines: list[dict[str, Any]]) -> dict[str, Series]:
    """Steps and finite values by name, sorted by step."""
    found: dict[str, dict[int, float]] = {}
    for line in lines:
        for name, value in _scalars(line).items():
            if math.isfinite(value):
                found.setdefault(name, {})[line["step"]] = value
    return {
        name: (np.array(sorted(points), float), np.array([points[step] for step in sorted(points)]))
        for name, points in found.items()
    }


def _scalars(values: dict[str, Any]) -> dict[str, float]:
    """The numbers among values; those of a dict are called `name/key`."""
    numbers: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            numbers |= {f"{name}/{key}": number for key, number in _scalars(value).items()}
        elif isinstance(value, int | float) and not isinstance(value, bool):
            numbers[name] = float(value)
    return numbers


def _open_tensorboard(folder: Path, purge_step: int | None = None) -> SummaryWriter:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("tensorboard is missing: pip install tensorboard") from None
    return SummaryWriter(str(folder), purge_step=purge_step)
