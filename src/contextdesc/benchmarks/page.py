"""Pages of benchmarks: one HTML file that loads nothing, light or dark as the reader has it."""

from __future__ import annotations

import base64
import html

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
body {{ margin: 2rem auto; padding: 0 1rem; max-width: 70rem; font: 16px/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }}
h2 {{ margin-top: 2.5rem; font-size: 1.25rem; }}
h3 {{ font-size: 1rem; }}
p, li {{ color: var(--soft); }}
.wide {{ overflow-x: auto; }}
.wide img {{ min-width: 34rem; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 0.35rem 0.8rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }}
th:first-child, td:first-child {{ position: sticky; left: 0; text-align: left; background: var(--paper); }}
img {{ max-width: 100%; height: auto; }}
.failures {{ display: flex; flex-wrap: wrap; gap: 1.2rem 1.6rem; }}
figure {{ display: flex; gap: 4px; margin: 0; }}
figure img, figure small {{ display: block; }}
small {{ color: var(--soft); font-variant-numeric: tabular-nums; }}
pre {{ padding: 0.8rem 1rem; white-space: pre-wrap; overflow-wrap: anywhere;
  border: 1px solid var(--line); border-radius: 6px; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def page(title: str, body: str) -> str:
    """A page; `title` is text, `body` is HTML."""
    return _PAGE.format(title=html.escape(title), body=body)


def scrolled(content: str, label: str) -> str:
    """HTML that may be wider than the screen, in a region that scrolls, by keys as well."""
    return f'<div class="wide" role="region" tabindex="0" aria-label="{html.escape(label)}">{content}</div>'


def embedded(content: bytes, kind: str) -> str:
    """An image file, such as of kind `png`, as an address that holds it."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
