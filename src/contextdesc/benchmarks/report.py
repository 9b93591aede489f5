"""Reports: tables and curves of a protocol in; JSON, Markdown, PNG plots and one HTML file out.

The HTML file holds its plots, in a light and a dark version, and loads nothing.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, TypeAlias

from contextdesc.benchmarks.statistics import Mean
from contextdesc.errors import InputError
from contextdesc.formats.atomic import replacing

Cell: TypeAlias = str | int | float | Mean | None
Theme: TypeAlias = Literal["light", "dark"]

# Okabe and Ito's colours, which stay apart for every common kind of colour blindness; methods are told apart
# by marker and dash as well.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_DASHES = ("-", "--", "-.", ":")
_INK = {"light": ("#1a1f2b", "#ffffff", "#d7dbe2"), "dark": ("#e8ebf0", "#14181f", "#3a414d")}

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1a1f2b; --paper: #ffffff; --line: #d7dbe2; --soft: #5a6474; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e8ebf0; --paper: #14181f; --line: #3a414d; --soft: #a5adba; }}
}}
body {{ margin: 2rem auto; padding: 0 1rem; max-width: 64rem; font: 16px/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }}
h2 {{ margin-top: 2.5rem; font-size: 1.15rem; }}
p, li {{ color: var(--soft); }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 0.35rem 0.8rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; }}
img {{ max-width: 100%; height: auto; }}
pre {{ padding: 0.8rem 1rem; overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


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
        return f'<h2>{html.escape(self.title)}</h2>\n<div class="wide">{table}</div>'


@dataclass(frozen=True)
class Curves:
    """A line of points (x, y) for each method."""

    title: str
    name: str  # of the PNG file
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    log_x: bool = False

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
        for index, (method, points) in enumerate(self.lines.items()):
            axes.plot(
                *zip(*points, strict=True), label=method, color=_COLOURS[index % len(_COLOURS)],
                marker=_MARKERS[index % len(_MARKERS)], linestyle=_DASHES[index % len(_DASHES)], markersize=5,
            )  # fmt: skip
        if self.log_x:
            axes.set_xscale("log", base=2)
        axes.set_xlabel(self.x, color=ink)
        axes.set_ylabel(self.y, color=ink)
        axes.tick_params(colors=ink)
        axes.grid(color=grid, linewidth=0.6)
        for side, spine in axes.spines.items():
            spine.set_color(grid)
            spine.set_visible(side in ("left", "bottom"))
        axes.legend(facecolor=paper, edgecolor=grid, labelcolor=ink, fontsize=9)
        buffer = BytesIO()
        figure.savefig(buffer, format="png", dpi=120)
        pyplot.close(figure)
        return buffer.getvalue()

    @property
    def html(self) -> str:
        light, dark = (_embedded(self.png(theme)) for theme in ("light", "dark"))
        return (
            f"<h2>{html.escape(self.title)}</h2>\n<picture>"
            f'<source srcset="{dark}" media="(prefers-color-scheme: dark)">'
            f'<img src="{light}" alt="{html.escape(f"{self.y} by {self.x}, a line per method")}"></picture>'
        )


@dataclass(frozen=True)
class Report:
    """What a protocol found.

    Attributes:
        protocol: its name.
        about: what was measured, in a sentence or two.
        numbers: everything, for the JSON file.
        tables, curves: for people.
        skipped: data that could not be used, with the reason.
    """

    protocol: str
    about: str
    numbers: Mapping[str, Any]
    tables: Sequence[Table]
    curves: Sequence[Curves] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def json(self) -> str:
        named = {"protocol": self.protocol, **self.numbers}
        return json.dumps(named | ({"skipped": dict(self.skipped)} if self.skipped else {}), indent=2) + "\n"

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
        return _PAGE.format(
            title=html.escape(f"contextdesc benchmark {self.protocol}"), body="\n".join(parts)
        )

    def write(self, folder: Path, command: str) -> None:
        """Write `numbers.json`, `report.md`, `report.html` and a PNG file per set of curves."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: cannot be written ({error.strerror})") from None
        page = f"# {self.protocol}\n\n{self.about}\n\n```sh\n{command}\n```\n\n{self.markdown}\n"
        page += "".join(f"\n![{curves.title}]({curves.name}.png)\n" for curves in self.curves)
        files = {"numbers.json": self.json.encode(), "report.md": page.encode()}
        files |= {f"{curves.name}.png": curves.png() for curves in self.curves}
        files["report.html"] = self.html(command).encode()
        for name, content in files.items():
            with replacing(folder / name) as temporary:
                temporary.write_bytes(content)


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    return f"{cell:.1f}" if isinstance(cell, float) else str(cell)


def _embedded(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
