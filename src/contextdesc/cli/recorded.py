"""Model options as an earlier command recorded them, for a later one on what it made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from contextdesc.cli import options as o

_CONTEXTS = {
    "none": o.ContextChoice.none,
    "visual": o.ContextChoice.visual,
    "geometric": o.ContextChoice.geometric,
    "visual+geometric": o.ContextChoice.both,
}


def recorded_options(
    what: str,
    model: str,
    checksum: str,
    context: str,
    extraction: Mapping[str, Any],
    given: typer.Context,
) -> dict[str, Any]:
    """Options of `load_model` as something was made with, for those that the user left alone.

    Args:
        what: was made, for messages.
        model, checksum, context: that its features have.
        extraction: `detector` and `max_side` that they were extracted with; empty if nobody knows.
        given: what the user said.
    """
    from contextdesc.errors import InputError
    from contextdesc.features import source_of
    from contextdesc.modelfile import packaged_models

    described, _, sizes = context.partition("@")
    terms, _, precision = described.partition(":")
    recorded: dict[str, Any] = {
        "model": model,
        "context": _CONTEXTS.get(terms, o.ContextChoice.all),
        "domain_sizes": sizes.replace("+", ",") or "1",
        "precision": o.PrecisionChoice.int8 if precision == "int8" else o.PrecisionChoice.fp32,
    }
    if extraction:
        detector = extraction["detector"]
        recorded |= {name: detector[name] for name in ("seed", "contrast", "upright")}
        recorded["max_keypoints"] = detector["max_keypoints"] or 0
        recorded["select"] = o.SelectChoice(detector["select"])
        recorded["max_side"] = extraction["max_side"] or 0
    left_alone = {
        name: value
        for name, value in recorded.items()
        if getattr(given.get_parameter_source(name), "name", "") == "DEFAULT"
    }
    if "model" in left_alone and model not in packaged_models():
        made_with = source_of(model, checksum, context)
        raise InputError(f"{what} was made with {made_with}: give that model with --model")
    return left_alone
