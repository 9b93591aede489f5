"""Targets of speed and memory: measured numbers in, a table of what is met out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contextdesc.benchmarks.report import Cell, Table
from contextdesc.benchmarks.timing import Workload, shown


@dataclass(frozen=True)
class Target:
    """A bound on a ratio.

    Attributes:
        title: what is compared, such as "patches / local network".
        ratio: its name among the ratios.
        bound: of the median.
        at_least: whether the ratio has to be as large as the bound, or no larger than it.
        at: the workload that decides; None for all of them.
    """

    title: str
    ratio: str
    bound: float
    at_least: bool
    at: Workload | None = None

    @property
    def needed(self) -> str:
        where = f" at {self.at}" if self.at is not None else ""
        return f"{'at least' if self.at_least else 'at most'} {self.bound:g}{where}"

    def met(self, found: Mapping[str, Mapping[str, Any]]) -> str:
        """Whether the median of every deciding workload meets it; `found` has ratios by workload."""
        deciding = {w: r[self.ratio] for w, r in found.items() if self.ratio in r and self._decides(w)}
        if not deciding:
            return "not measured"
        good = [self.holds(spread["median"]) for spread in deciding.values()]
        if len(set(good)) == 1:
            return "yes" if good[0] else "no"
        return f"{sum(good)} of {len(good)}"

    def holds(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def _decides(self, workload: str) -> bool:
        return self.at is None or workload == str(self.at)


def target_table(title: str, targets: Sequence[Target], found: Mapping[str, Mapping[str, Any]]) -> Table:
    """A row per target: what is needed, what each workload has, whether it is met."""
    rows: list[list[Cell]] = [
        [t.title, t.needed, *(shown(ratios.get(t.ratio), ".3g") for ratios in found.values()), t.met(found)]
        for t in targets
    ]
    return Table(title, ("target", "needed", *found, "met"), rows)
