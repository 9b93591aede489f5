"""From checkpoints to what a model consists of: trained parts, files taken over from its base, its spec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from contextdesc.errors import InputError
from contextdesc.modelfile import LOCAL, ModelSpec
from contextdesc.training.bases import LocalBase, build_base
from contextdesc.training.config import StageConfig
from contextdesc.training.grids import load_regional
from contextdesc.training.networks import DESCRIPTOR
from contextdesc.training.parts import (
    NAMES,
    PREFIX,
    Parts,
    build_parts,
    load_parts,
    read_config,
    read_metadata,
    read_tensors,
)
from contextdesc.training.regional import EfficientNetLite0
from contextdesc.training.variants import CentralSurround


@dataclass(frozen=True)
class Assembly:
    """A model before its export."""

    parts: Parts
    spec: ModelSpec
    carried: tuple[Path, ...]  # ONNX files taken over from the base model
    config: StageConfig  # of the last checkpoint


def assemble(
    checkpoints: Sequence[Path], name: str, base: str | None = None, training: dict[str, Any] | None = None
) -> Assembly:
    """Put a model together; of a part that several checkpoints have, the last one's is taken.

    Args:
        checkpoints: of any stages.
        name: of the model.
        base: model whose local network is taken over, instead of the one in the config.
        training: what `model.json` says of the training.
    """
    if not checkpoints:
        raise InputError("no checkpoint to export")
    parts, configs = Parts(), []
    for path in checkpoints:
        config = read_config(path)
        own = _parts_of(path, config)
        for part in NAMES:
            if getattr(own, part) is not None:
                setattr(parts, part, getattr(own, part))
        configs.append(config)
    config = configs[-1]
    if config.stage == "context":
        parts.local = None  # context belongs to the very network that it was trained on
    told = {
        "held_out": max((c.held_out for c in configs if c.photos is not None), default=0),
        "held_out_scenes": sorted({name for c in configs for name in c.held_out_scenes}),
    }
    spec = ModelSpec(
        name=name,
        base="local",
        files={},
        training={**(training or {}), **told},
    )
    carried: tuple[Path, ...] = ()
    context = next((c for c in reversed(configs) if c.stage == "context"), None)
    if parts.local is not None:
        local = next(c for c in reversed(configs) if c.trains_local)
        wide = isinstance(parts.local, CentralSurround)
        spec = replace(
            spec,
            support=local.support,
            matchability=local.local.matchability,
            raw_size=DESCRIPTOR * (1 + wide),
        )
    elif context is not None and context.base is not None:
        found = build_base(base or context.base)
        spec = replace(spec, base=found.kind)
        if isinstance(found, LocalBase):
            carried = (found.folder / LOCAL,)
            base_spec = found.spec
            spec = replace(
                spec,
                support=base_spec.support,
                matchability=base_spec.matchability,
                raw_size=base_spec.raw_size,
            )
    else:
        raise InputError(f"{checkpoints[-1]}: regional network alone; add checkpoints of other stages")
    with_context = next((c for c in reversed(configs) if c.has_context), None)
    if with_context is not None:
        networks = {n: asdict(getattr(with_context, n)) for n in ("visual", "geometric", "aggregation")}
        spec = replace(spec, networks=networks)
    if parts.visual is not None:
        spec = replace(spec, **_regional(parts, configs))
        if isinstance(parts.regional, EfficientNetLite0):
            spec = replace(spec, networks={**spec.networks, "regional": parts.regional.shape})
    if parts.aggregation is not None:
        kind = parts.aggregation.config.kind
        size = spec.raw_size + DESCRIPTOR * len(parts.terms) if kind == "concat" else spec.raw_size
        spec = replace(spec, aggregation=kind, descriptor_size=size)
    else:
        spec = replace(spec, descriptor_size=spec.raw_size)
    return Assembly(parts.eval(), spec, carried, config)


def _parts_of(path: Path, config: StageConfig) -> Parts:
    metadata = read_metadata(path)
    scored = not any(name.startswith(f"{PREFIX}matchability.") for name in read_tensors(path))
    channels = metadata.get("regional_channels")
    parts = build_parts(config, scored, None if channels is None else int(channels))
    load_parts(path, parts)
    return parts


def _regional(parts: Parts, configs: list[StageConfig]) -> dict[str, Any]:
    """The entries of a spec on the regional network; loads it if no checkpoint has it."""
    assert parts.visual is not None  # the caller looked
    config = next(c for c in reversed(configs) if c.has_visual)
    if parts.regional is None and config.regional.network != "precomputed":
        parts.regional = load_regional(config.regional)
    return {
        "regional": config.regional.network,
        "regional_channels": parts.visual.config.regional_channels,
        "regional_max_side": config.regional.max_side,
        "interpolation": parts.visual.config.interpolation,
    }
