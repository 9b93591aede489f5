"""What a run over many pieces did."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Report:
    """Names done now, the number done before, and failures with their reason."""

    done: list[str] = field(default_factory=list)
    before: int = 0
    failed: dict[str, str] = field(default_factory=dict)
