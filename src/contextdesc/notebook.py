"""What a notebook shows of a result: a short HTML table."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape


def html_table(title: str, rows: Mapping[str, object]) -> str:
    """A table with a caption and a row for each name and value."""
    cells = "".join(
        f'<tr><th style="text-align: left">{escape(name)}</th>'
        f'<td style="text-align: left">{escape(str(value))}</td></tr>'
        for name, value in rows.items()
    )
    caption = f'<caption style="text-align: left"><b>{escape(title)}</b></caption>'
    return f"<table>{caption}<tbody>{cells}</tbody></table>"
