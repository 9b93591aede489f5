"""Write the numbers of `docs/retrieval.md` anew: `python scripts/retrieval_page.py`.

They come from `docs/results/retrieval-NAME.json`: `scenes` of `contextdesc benchmark retrieval`; `scale`,
`pairs` and `defaults` of the scripts `retrieval_NAME.py` beside this one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from contextdesc.benchmarks.report import Cell, Table
from contextdesc.benchmarks.retrieval import tables
from contextdesc.formats.atomic import replacing

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "retrieval.md"
RESULTS = ROOT / "docs" / "results"
END = "<!-- end -->"

INDEXES = {"full": "200 descriptors, quantised", "words": "100 visual words"}
MEMORY = ("build_own_mb", "build_resident_mb", "query_own_mb", "query_resident_mb")


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    with replacing(PAGE) as temporary:
        temporary.write_text(filled(text), encoding="utf-8")


def filled(page: str) -> str:
    """The page with the numbers that the results give."""
    for name, write in {"scenes": scenes, "scale": scale, "pairs": pairs, "defaults": defaults}.items():
        path = RESULTS / f"retrieval-{name}.json"
        if path.is_file():
            numbers = json.loads(path.read_text(encoding="utf-8"))
            page = _between(page, f"<!-- numbers: {path.stem} -->", write(numbers))
    return page


def scenes(numbers: dict[str, Any]) -> str:
    """The benchmark's own tables."""
    return "\n\n".join(table.markdown for table in tables(numbers))


def scale(numbers: dict[str, Any]) -> str:
    """A row per step."""
    rows = [
        [
            INDEXES[kind], f"{of['images']:,}", f"{of['build_seconds']:,.1f} s", f"{of['disk_mb']:,.0f} MB",
            *(f"{of[key]:,.0f} MB" for key in MEMORY), f"{of['query_ms']:.1f} ms",
            f"{of['query_95_ms']:.1f} ms",
        ]
        for kind, steps in numbers["steps"].items()
        for of in steps
    ]  # fmt: skip
    head = (
        "an image has", "images", "build", "disk", "memory of the build's last step", "with mapped files",
        "memory of queries", "with mapped files", "query, median", "95 %",
    )  # fmt: skip
    return Table("", head, rows).markdown


def pairs(numbers: dict[str, Any]) -> str:
    """What the pair list holds of the pairs that matching everything finds."""
    kinds = [name for name in numbers if name.startswith("--")]
    rows = [[key, *(_value(numbers[kind][key]) for kind in kinds)] for key in numbers[kinds[0]]]
    return Table("", ("", *(f"`{kind}`" for kind in kinds)), rows).markdown


def defaults(numbers: dict[str, Any]) -> str:
    """Rankings, and pairs by candidates."""
    parts = []
    for title, of in (("ranked by", numbers["ranking"]), ("pairs", numbers["pairs"])):
        what = list(next(iter(of.values())))
        rows = [[name, *(_value(found[key]) for key in what)] for name, found in of.items()]
        parts.append(Table("", (title, *what), rows).markdown)
    return "\n\n".join(parts)


def _value(value: float) -> Cell:
    """Shares in percent, numbers of pairs and images as they are."""
    return f"{100 * value:.1f} %" if isinstance(value, float) else f"{value:,}"


def _between(page: str, begin: str, numbers: str) -> str:
    before, found, rest = page.partition(begin)
    if not found:
        raise ValueError(f"{PAGE}: lacks {begin}")
    return f"{before}{begin}\n\n{numbers}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    main()
