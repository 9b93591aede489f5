"""A dictionary of bounded size."""

from __future__ import annotations

from contextdesc.demo.recent import Recent


def test_what_was_not_used_for_longest_goes_first() -> None:
    recent: Recent[str, int] = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a") == 1
    recent.put("c", 3)
    assert len(recent) == 2
    assert recent.get("b") is None
    assert (recent.get("a"), recent.get("c")) == (1, 3)
