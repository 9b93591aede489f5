"""The rows of the paper's tables 1 and 2 as trainings: what is the same in all of them, and what differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from contextdesc.training.config import StageConfig
from contextdesc.training.data.pairs import PairConfig
from contextdesc.training.data.scene_pairs import ScenePairConfig
from contextdesc.training.networks import VisualConfig
from contextdesc.training.variants import GeometricVariant, VisualVariant

STEPS = 1_000_000  # more than any budget has time for
BASE = "base"  # the row of the base alone, which is not trained
TEMPERED = "n-pair-distance"  # the paper's loss, which others are compared with
PAPER_BASE, PAPER_TEMPERED = (59.46, 71.24), (59.7, 72.6)  # the paper's base is GeoDesc
NO_VISUAL, NO_GEOMETRIC = VisualVariant("none"), GeometricVariant("none")
# Few pairs: a wide encoder would learn them by heart.
ENCODER = VisualConfig(grid_widths=(64,), fusion_widths=(128,), final_relu=False, interpolation="bilinear")


@dataclass(frozen=True)
class Variant:
    """A row.

    Attributes:
        title: in tables.
        part: of the tables: context terms on a frozen base, or the local network alone.
        paper: its recall on the illumination and the viewpoint sequences of HPatches in the paper.
        against: name of the variant that it is compared with.
        paper_against: recall of the row that the paper compares it with.
        changes: fields of the config that differ from those of its part.
    """

    title: str
    part: Literal["context", "local"]
    paper: tuple[float, float]
    against: str = BASE
    changes: Mapping[str, Any] = field(default_factory=dict)
    paper_against: tuple[float, float] = PAPER_BASE


def _visual(strategy: str) -> dict[str, Any]:
    chosen = VisualVariant(strategy, ENCODER)  # type: ignore[arg-type]  # StageConfig.check has the last word
    return {"visual": chosen, "geometric": NO_GEOMETRIC}


def _geometric(encoder: str, inputs: str) -> dict[str, Any]:
    chosen = GeometricVariant(encoder, inputs)  # type: ignore[arg-type]
    return {"visual": NO_VISUAL, "geometric": chosen}


VARIANTS = {
    "global": Variant("visual: global feature", "context", (59.11, 71.02), changes=_visual("global")),
    "regional": Variant("visual: regional feature", "context", (63.64, 73.37), changes=_visual("regional")),
    "regional-cn": Variant(
        "visual: regional feature + CN", "context", (63.98, 73.63), changes=_visual("regional+cn")
    ),
    "pointnet": Variant(
        "geometric: PointNet", "context", (59.61, 70.96), changes=_geometric("pointnet", "xy")
    ),
    "pre-xy": Variant(
        "geometric: CN (pre.) + xy", "context", (61.67, 72.63), changes=_geometric("cn-pre", "xy")
    ),
    "pre-xy-raw": Variant(
        "geometric: CN (pre.) + xy + raw", "context", (60.91, 72.99), changes=_geometric("cn-pre", "xy+raw")
    ),
    "post-xy-matchability": Variant(
        "geometric: CN (orig.) + xy + matchability", "context", (59.94, 71.25),
        changes=_geometric("cn-post", "xy+matchability"),
    ),
    "pre-xy-matchability": Variant(
        "geometric: CN (pre.) + xy + matchability", "context", (62.82, 73.40),
        changes=_geometric("cn-pre", "xy+matchability"),
    ),
    "both": Variant(
        "both: regional + CN, CN (pre.) + xy + matchability", "context", (66.55, 75.52),
        changes={"visual": VisualVariant("regional+cn", ENCODER), "geometric": GeometricVariant()},
    ),
    TEMPERED: Variant(
        "loss: N-pair with temperature", "local", PAPER_TEMPERED, TEMPERED, {"loss": TEMPERED}, PAPER_TEMPERED
    ),
    "plain-n-pair": Variant(
        "loss: N-pair without temperature", "local", (32.2, 48.5), TEMPERED, {"loss": "plain-n-pair"},
        PAPER_TEMPERED,
    ),
    "scale-aware": Variant(
        "loss: scale-aware (Keller et al.)", "local", (50.0, 64.8), TEMPERED, {"loss": "scale-aware"},
        PAPER_TEMPERED,
    ),
    "central-surround": Variant(
        "visual: central-surround, 256-d", "local", (59.83, 71.27), TEMPERED,
        {"loss": TEMPERED, "visual": VisualVariant("central-surround")},
    ),
}  # fmt: skip


def config_of(variant: Variant, common: StageConfig, keypoints: int) -> StageConfig:
    """The training of a variant.

    Args:
        common: data, budget and base.
        keypoints: of a batch; pairs of images have a third more, of which each batch draws its own.
    """
    stored, fewest = 4 * keypoints // 3, min(64, keypoints // 3)
    shared = replace(
        common,
        pairs=PairConfig(stored, min_corresponding=fewest, per_photo=4, seed=1),
        scene_pairs=ScenePairConfig(stored, min_corresponding=fewest, per_scene=50, seed=1),
        held_out_pairs=12,
        validate_every=STEPS,
        checkpoint_every=100,
        log_every=50,
    )
    if variant.part == "local":
        alone = replace(shared, stage="local", base=None, learning_rate=0.1, pairs_per_step=2)
        alone = replace(alone, keypoints=5 * keypoints // 6, visual=NO_VISUAL, geometric=NO_GEOMETRIC)
        return replace(alone, **variant.changes)
    context = replace(
        shared,
        stage="context",
        optimiser="adamw",
        learning_rate=1e-3,
        weight_decay=0.5,
        pairs_per_step=4,
        keypoints=keypoints,
        sampling="random",
        term_dropout=0.25,
        grid_dropout=0.5,
    )
    return replace(context, **variant.changes)
