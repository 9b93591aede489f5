"""Cores, disk, network, money and time of many images, on paper: `python scripts/scale_model.py`.

Takes the throughput that `scripts/scale_throughput.py` measured (docs/results/scale-throughput.json) and the
assumptions below, each an option, and prints Markdown. `--write` puts it into docs/scale.md.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
MEASUREMENT = ROOT / "docs" / "results" / "scale-throughput.json"
DOCUMENT = ROOT / "docs" / "scale.md"


def _assumed(default: float, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True)
class Assumptions:
    """What was not measured; every field is an option of the command line."""

    million_hours: float = _assumed(24, "hours that a million images may take")
    billion_hours: float = _assumed(720, "hours that a billion images may take")
    cluster_efficiency: float = _assumed(
        0.8, "share of the measured throughput per core that a large cluster keeps"
    )
    input_mb: float = _assumed(0.5, "megabytes of an image file")
    machine_cores: float = _assumed(64, "cores of one machine")
    shard_size: float = _assumed(1000, "images per shard")
    core_hour_price: float = _assumed(0.04, "price of a core for an hour")
    gb_month_price: float = _assumed(0.02, "price of a gigabyte of storage for a month")
    gb_transfer_price: float = _assumed(0.01, "price of moving a gigabyte of images to the cores")


@dataclass(frozen=True)
class Estimate:
    """What a number of images needs. Gigabytes are 10^9 bytes, prices in whatever the assumptions are in."""

    images: int
    hours: float
    core_hours: float
    cores: int
    machine_hours: float  # on one machine
    input_gb: float
    output_gb: float
    input_gbit_per_second: float
    output_gbit_per_second: float
    shards: int
    computing_price: float
    transfer_price: float
    month_price: float  # of storage

    @property
    def price(self) -> float:
        """Computing, transfer, and storage for one month."""
        return self.computing_price + self.transfer_price + self.month_price


def estimate(images: int, hours: float, measured: dict[str, Any], assumed: Assumptions) -> Estimate:
    """What `images` need to be done in `hours`.

    Args:
        measured: `images_per_second` of one worker on one core under "1", `efficiency` of two workers
            relative to twice that, and `bytes_per_image` of the features.
    """
    per_core = measured["images_per_second"]["1"] * measured["efficiency"] * assumed.cluster_efficiency
    core_hours = images / per_core / 3600
    input_gb = images * assumed.input_mb / 1000
    output_gb = images * measured["bytes_per_image"] / 1e9
    return Estimate(
        images=images,
        hours=hours,
        core_hours=core_hours,
        cores=math.ceil(core_hours / hours),
        machine_hours=core_hours / assumed.machine_cores,
        input_gb=input_gb,
        output_gb=output_gb,
        input_gbit_per_second=input_gb * 8 / (hours * 3600),
        output_gbit_per_second=output_gb * 8 / (hours * 3600),
        shards=math.ceil(images / assumed.shard_size),
        computing_price=core_hours * assumed.core_hour_price,
        transfer_price=input_gb * assumed.gb_transfer_price,
        month_price=output_gb * assumed.gb_month_price,
    )


def measured_text(measured: dict[str, Any]) -> str:
    """The measurement as Markdown."""
    machine, rates = measured["machine"], measured["images_per_second"]
    rows = [
        (
            f"{count} worker{'' if count == '1' else 's'}",
            f"{rates[count]:.2f}",
            _span(measured["repetitions"][count]),
        )
        for count in sorted(rates)
    ]
    return "\n\n".join(
        [
            f"Model `{measured['model']}`, {measured['images']} photographs of "
            f"{_short(measured['image_pixels'] / 1e6)} megapixels, {_short(measured['keypoints'])} keypoints "
            f"in each on average, workers with one thread each ({measured['engine']}), on one machine "
            f"({machine['processor']}, {machine['cores']} cores, {machine['system']}):",
            _table(("", "images per second, median", "lowest and highest"), rows),
            f"Two workers reach {measured['efficiency']:.2f} of twice the throughput of one. The features of "
            f"an image take {_short(measured['bytes_per_image'] / 1e6)} MB.",
        ]
    )


def modelled_text(measured: dict[str, Any], assumed: Assumptions) -> str:
    """The estimates and the assumptions behind them as Markdown."""
    both = [
        estimate(10**6, assumed.million_hours, measured, assumed),
        estimate(10**9, assumed.billion_hours, measured, assumed),
    ]
    rows = [
        ("time wanted (assumed)", *(_time(e.hours) for e in both)),
        ("core-hours", *(_short(e.core_hours) for e in both)),
        ("cores to be done in that time", *(_short(e.cores) for e in both)),
        (
            f"time on one machine of {_short(assumed.machine_cores)} cores",
            *(_time(e.machine_hours) for e in both),
        ),
        ("images to read", *(_size(e.input_gb) for e in both)),
        ("network, images in", *(f"{_short(e.input_gbit_per_second)} Gbit/s" for e in both)),
        ("features to store", *(_size(e.output_gb) for e in both)),
        ("network, features out", *(f"{_short(e.output_gbit_per_second)} Gbit/s" for e in both)),
        (f"shards of {_short(assumed.shard_size)} images", *(_short(e.shards) for e in both)),
        ("price of computing", *(_short(e.computing_price) for e in both)),
        ("price of moving the images", *(_short(e.transfer_price) for e in both)),
        ("price of storing the features, a month", *(_short(e.month_price) for e in both)),
        ("price, with one month of storage", *(_short(e.price) for e in both)),
    ]
    options = [
        (f.metadata["meaning"], f"`{_option(f)}`", _short(getattr(assumed, f.name))) for f in fields(assumed)
    ]
    return "\n\n".join(
        [
            _table(("", "1 million images", "1 billion images"), rows),
            "Assumed, not measured; the prices are examples, in dollars:",
            _table(("assumption", "option", "value"), options),
        ]
    )


def filled(document: str, texts: dict[str, str]) -> str:
    """A document with the text between `<!-- NAME -->` and `<!-- end of NAME -->` replaced."""
    for name, text in texts.items():
        before, begin, rest = document.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"\n<!-- end of {name} -->")
        if not begin or not end:
            raise SystemExit(f"no <!-- {name} --> ... <!-- end of {name} --> in the document")
        document = before + begin + text + end + after
    return document


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--measurement", type=Path, default=MEASUREMENT, help="JSON of scale_throughput.py")
    parser.add_argument("--write", action="store_true", help=f"fill {DOCUMENT.relative_to(ROOT)}")
    for f in fields(Assumptions):
        parser.add_argument(
            _option(f), type=float, default=f.default, help=f"{f.metadata['meaning']} (%(default)s)"
        )
    options = vars(parser.parse_args(arguments))
    measured = json.loads(options.pop("measurement").read_text(encoding="utf-8"))
    write = options.pop("write")
    texts = {
        "measured": measured_text(measured),
        "modelled": modelled_text(measured, Assumptions(**options)),
    }
    if write:
        document = filled(DOCUMENT.read_text(encoding="utf-8"), texts)
        DOCUMENT.write_text(document, encoding="utf-8")
    print("\n\n".join(texts.values()))


def _option(f: Field[Any]) -> str:
    return "--" + f.name.replace("_", "-")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def _short(value: float) -> str:
    """Three digits, or all of those before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _size(gigabytes: float) -> str:
    return f"{_short(gigabytes / 1000)} TB" if gigabytes >= 1000 else f"{_short(gigabytes)} GB"


def _time(hours: float) -> str:
    return f"{_short(hours / 24)} days" if hours > 72 else f"{_short(hours)} hours"


if __name__ == "__main__":
    main()
