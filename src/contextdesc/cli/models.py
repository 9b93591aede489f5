"""`contextdesc models`: what is packaged."""

from __future__ import annotations

import json
from typing import Any

from contextdesc.cli import options as o


def command(json_: o.Json = False) -> None:
    """List the packaged models; the default one is marked."""
    from contextdesc import modelfile

    rows: list[dict[str, Any]] = []
    for name in modelfile.packaged_models():
        folder = modelfile.PACKAGED / name
        spec, checksum = modelfile.read_spec(folder)
        size = sum(path.stat().st_size for path in folder.iterdir())
        rows.append(
            {
                "name": name,
                "default": name == modelfile.DEFAULT,
                "base": spec.base,
                "context": list(spec.terms),
                "megabytes": round(size / 1e6, 1),
                "ratio": spec.ratio,
                "checksum": checksum,
                "summary": spec.training.get("summary", ""),
            }
        )
    if json_:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        mark = " (default)" if row["default"] else ""
        context = " + ".join(row["context"]) or "none"
        print(
            f"{row['name']}{mark}: base {row['base']}, context {context}, {row['megabytes']} MB, "
            f"ratio {row['ratio']}"
        )
        print(f"    {row['summary']}")
