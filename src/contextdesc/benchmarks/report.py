"""Reports: tables and plots of a protocol in; JSON, Markdown, PNG plots and one HTML file out.

The HTML file holds its plots, in a light and a dark version, and loads nothing.
"""

from __future__ import annotations

import html
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from contextdesc.benchmarks.page import embedded, page, scrolled
from contextdesc.benchmarks.statistics import Mean
from contextdesc.errors import InputError
from contextdesc.formats.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Cell: TypeAlias = str | int | float | Mean | None
Theme: TypeAlias = Literal["light", "dark"]

# Okabe and Ito's colours, which stay apart for every common kind of colour blindness; methods are told apart
# by marker and dash as well. On dark paper the light ones come first.
_COLOURS = {
    "light": ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    "dark": ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#f0e442"),
}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # one more than colours, so that no two methods look the same
_DASHES = ("-", "--", "-.", ":")
_LETTERS, _HANDLE = 92, 8  # that the width of a plot has room for in a legend, and what a line's sample takes
_INK: dict[Theme, tuple[str, str, str]] = {
    "light": ("#1a1f2b", "#ffffff", "#d7dbe2"),
    "dark": ("#e8ebf0", "#14181f", "#3a414d"),
}


@dataclass(frozen=True)
class Table:
    """Rows of cells; numbers are shown with one decimal, means with their interval."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]

    @property
    def markdown(self) -> str:
        lines = [self.columns, ("---",) * len(self.columns), *([_text(c) for c in row] for row in self.rows)]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    @property
    def html(self) -> str:
        head = "".join(f'<th scope="col">{html.escape(c)}</th>' for c in self.columns)
        rows = ["".join(f"<td>{html.escape(_text(c))}</td>" for c in row) for row in self.rows]
        body = "\n".join(f"<tr>{row}</tr>" for row in rows)
        table = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
        return f"<h2>{html.escape(self.title)}</h2>\n{scrolled(table, self.title)}"


@dataclass(frozen=True)
class Plot(ABC):
    """A picture with a colour per method."""

    title: str
    name: str  # of the PNG file
    x: str
    y: str

    @abstractmethod
    def draw(self, axes: Axes, theme: Theme) -> None:
        """Draw the data on axes that have their labels."""

    @property
    @abstractmethod
    def alternative(self) -> str:
        """What the picture shows, for those who cannot see it."""

    def png(self, theme: Theme = "light") -> bytes:
        try:
            import matplotlib
        except ImportError:
            raise InputError("plots need an extra: pip install 'contextdesc[benchmark]'") from None
        matplotlib.use("Agg")
        from matplotlib import pyplot

        ink, paper, grid = _INK[theme]
        figure, axes = pyplot.subplots(figsize=(7, 4.4), layout="constrained", facecolor=paper)
        axes.set_facecolor(paper)
        axes.set_xlabel(self.x, color=ink)
        axes.set_ylabel(self.y, color=ink)
        axes.tick_params(colors=ink)
        axes.grid(color=grid, linewidth=0.6)
        axes.set_axisbelow(True)
        for side, spine in axes.spines.items():
            spine.set_color(grid)
            spine.set_visible(side in ("left", "bottom"))
        self.draw(axes, theme)
        figure.legend(
            loc="outside upper left", ncols=_columns(axes.get_legend_handles_labels()[1]), facecolor=paper,
            edgecolor=paper, labelcolor=ink, fontsize=9,
        )  # fmt: skip
        buffer = BytesIO()
        figure.savefig(buffer, format="png", dpi=120)
        pyplot.close(figure)
        return buffer.getvalue()

    @property
    def html(self) -> str:
        picture = self._picture({theme: embedded(self.png(theme), "png") for theme in _INK})
        return f"<h2>{html.escape(self.title)}</h2>\n{scrolled(picture, self.title)}"

    @property
    def files(self) -> dict[Theme, str]:
        """Where `write_page` writes the picture, from the page."""
        return {"light": f"images/{self.name}.png", "dark": f"images/{self.name}-dark.png"}

    @property
    def markdown(self) -> str:
        return self._picture(self.files)

    def _picture(self, sources: Mapping[Theme, str]) -> str:
        words = " ".join(f"{self.title}: {self.alternative}".split())  # ticks may stand in two lines
        return (
            f'<picture><source media="(prefers-color-scheme: dark)" srcset="{sources["dark"]}">'
            f'<img src="{sources["light"]}" alt="{html.escape(words)}"></picture>'
        )


@dataclass(frozen=True)
class Curves(Plot):
    """A line of points (x, y) for each method."""

    lines: Mapping[str, Sequence[tuple[float, float]]]
    log_x: bool = False

    def draw(self, axes: Axes, theme: Theme) -> None:
        for index, (method, points) in enumerate(self.lines.items()):
            axes.plot(
                *zip(*points, strict=True), label=method, linestyle=_DASHES[index % len(_DASHES)],
                **look(index, theme),
            )  # fmt: skip
        if self.log_x:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")

    @property
    def alternative(self) -> str:
        return f"{self.y} by {self.x}, a line per method"


@dataclass(frozen=True)
class Intervals(Plot):
    """Means with their intervals: groups along the x axis, in each a point for every method."""

    groups: Mapping[str, Mapping[str, Mean]]  # group -> method -> mean

    def draw(self, axes: Axes, theme: Theme) -> None:
        methods = list(dict.fromkeys(method for group in self.groups.values() for method in group))
        for index, method in enumerate(methods):
            shift = 0.7 * ((index + 0.5) / len(methods) - 0.5)
            places = [i + shift for i, group in enumerate(self.groups.values()) if method in group]
            means = [group[method] for group in self.groups.values() if method in group]
            reach = [[m.mean - m.low for m in means], [m.high - m.mean for m in means]]
            values = [m.mean for m in means]
            axes.errorbar(
                places, values, np.maximum(0, reach), linestyle="", label=method, **look(index, theme)
            )
        axes.set_xticks(range(len(self.groups)), list(self.groups))
        axes.set_xlim(-0.5, len(self.groups) - 0.5)
        axes.grid(visible=False, axis="x")
        for i in range(1, len(self.groups)):
            axes.axvline(i - 0.5, color=axes.spines["left"].get_edgecolor(), linewidth=0.6)

    @property
    def alternative(self) -> str:
        return f"{self.y}: {', '.join(self.groups)}, a point with its interval per method"


@dataclass(frozen=True)
class Report:
    """What a protocol found.

    Attributes:
        protocol: its name.
        about: what was measured, in a sentence or two.
        numbers: everything, for the JSON file.
        tables, curves: for people; curves are plots of any kind.
        skipped: data that could not be used, with the reason.
        origin: what made it: command, versions, checksums of the methods; for the JSON file.
    """

    protocol: str
    about: str
    numbers: Mapping[str, Any]
    tables: Sequence[Table]
    curves: Sequence[Plot] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def json(self) -> str:
        named = {"protocol": self.protocol, **self.numbers}
        rest = {"skipped": dict(self.skipped), "origin": dict(self.origin)}
        return json.dumps(named | {key: value for key, value in rest.items() if value}, indent=2) + "\n"

    @property
    def markdown(self) -> str:
        parts = [f"**{table.title}**\n\n{table.markdown}" for table in self.tables]
        parts += [f"skipped: {reason}" for reason in self.skipped.values()]
        return "\n\n".join(parts)

    def html(self, command: str) -> str:
        """The page; `command` is the line that makes it again."""
        parts = [f"<p>{html.escape(self.about)}</p>", f"<pre>{html.escape(command)}</pre>"]
        parts += [table.html for table in self.tables] + [curves.html for curves in self.curves]
        if self.skipped:
            reasons = "\n".join(f"<li>{html.escape(reason)}</li>" for reason in self.skipped.values())
            parts.append(f"<h2>Skipped</h2>\n<ul>\n{reasons}\n</ul>")
        return page(f"contextdesc benchmark {self.protocol}", "\n".join(parts))

    def write(self, folder: Path, command: str) -> None:
        """Write `numbers.json`, `report.md`, `report.html` and a PNG file per plot."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: cannot be written ({error.strerror})") from None
        text = f"# {self.protocol}\n\n{self.about}\n\n```sh\n{command}\n```\n\n{self.markdown}\n"
        text += "".join(f"\n![{curves.title}]({curves.name}.png)\n" for curves in self.curves)
        files = {"numbers.json": self.json.encode(), "report.md": text.encode()}
        files |= {f"{curves.name}.png": curves.png() for curves in self.curves}
        files["report.html"] = self.html(command).encode()
        for name, content in files.items():
            with replacing(folder / name) as temporary:
                temporary.write_bytes(content)


def write_page(path: Path, text: str, plots: Sequence[Plot]) -> None:
    """Write a page in Markdown, and beside it the pictures of its plots."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    for plot in plots:
        for theme, file in plot.files.items():
            with replacing(path.parent / file) as temporary:
                temporary.write_bytes(plot.png(theme))


def _columns(labels: Sequence[str]) -> int:
    """Columns of a legend that fit into the width of a plot; it is filled column by column."""
    for columns in range(min(4, len(labels)), 1, -1):
        widths = [max(map(len, part)) for part in np.array_split(np.array(labels), columns)]
        if sum(widths) + _HANDLE * len(widths) <= _LETTERS:
            return columns
    return 1


def look(index: int, theme: Theme) -> dict[str, Any]:
    """Colour and marker of the method with this index."""
    colours = _COLOURS[theme]
    return {
        "color": colours[index % len(colours)], "marker": _MARKERS[index % len(_MARKERS)], "markersize": 5,
    }  # fmt: skip


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    return f"{cell:.1f}" if isinstance(cell, float) else str(cell)
