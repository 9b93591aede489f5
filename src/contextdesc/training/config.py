"""The settings of a training stage: every key of its TOML file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from contextdesc.errors import InputError
from contextdesc.training.data.pairs import PairConfig
from contextdesc.training.data.scene_pairs import ScenePairConfig
from contextdesc.training.landmarks import LandmarkConfig
from contextdesc.training.losses import LossName
from contextdesc.training.networks import LocalConfig
from contextdesc.training.regional import RegionalConfig
from contextdesc.training.variants import AggregationVariant, GeometricVariant, VisualVariant, reads

Stage = Literal["local", "context", "end-to-end", "joint", "regional"]


@dataclass(frozen=True)
class StageConfig:
    """A stage of training.

    `local` trains the local network and its matchability; `context` the context encoders on a frozen
    base; `end-to-end` both at once, the regional network frozen; `joint` the regional network too, with
    its classification loss; `regional` that network alone, as a landmark classifier.
    """

    stage: Stage
    steps: int
    minutes: float | None = None  # time budget: the learning rate falls with the clock, whichever ends first
    init: tuple[str, ...] = ()  # checkpoints, or a model's folder: their parts are the start

    photos: str | None = None  # folder of photographs, for homography pairs
    held_out: int = 30  # photographs at the end of the list that only validate
    scenes: str | None = None  # folder of scenes, for pairs of different photographs
    held_out_scenes: tuple[str, ...] = ()  # names of scenes that only validate
    held_out_pairs: int = 5  # of each held-out scene
    # Descriptors that context is put on (stage context), or that tell what is hard (sampling hard): rootsift,
    # a model with a local network, or module:function
    base: str | None = None
    base_precision: Literal["fp32", "int8"] = "fp32"  # int8: by the 8-bit network of a model that has one

    optimiser: Literal["sgd", "adamw"] = "sgd"
    learning_rate: float = 0.1
    geometric_rate: float = 1.0  # of the geometric encoder, times learning_rate
    weight_decay: float = 1e-4
    average: float = 0.0  # share of the run, its end, whose weights are averaged into those that it ends with
    keep_start: float = 0.0  # share of the start in them
    warmup: int = 100  # steps to the full learning rate, which then falls to 0 on a cosine
    clip: float = 1.0  # largest norm of the gradient
    accumulate: int = 1  # batches per step, whose gradients are averaged
    pairs_per_step: int = 2  # image pairs of a batch
    scene_share: float | None = None  # of pairs of scenes in a batch; None: as of all pairs
    keypoints: int = 256  # per image and batch
    # Matchable ones first (release), as they come (paper), or those that are hard for `base` first
    sampling: Literal["matchable", "random", "hard"] = "matchable"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"  # mixed precision; fp16 on a GPU alone
    compile: bool = False  # the local network by torch.compile, which wants a C++ compiler
    seed: int = 0

    loss: LossName = "n-pair"
    temperature: float = 20.0  # start of the softmax temperature; 1 in the paper
    temperature_decay: bool = False  # whether weight decay acts on it (A.2)
    raw_loss: float = 0.0  # weight of the loss on raw descriptors, which stages with context add (release)
    quad: float = 1.0  # weight of the matchability ranking loss
    labels: Literal["partners", "places"] = "partners"  # one partner each, or all within 2.5 pixels
    near: float = 4.0  # pixels: other keypoints this close to the partner are no negatives
    corner_shift: float = 0.3  # of the random homography that the geometric term sees; 0.5 in the paper
    layout_turns: float = 0.0  # share of images whose layout the geometric term sees turned by any angle
    term_dropout: float = 0.0  # probability that a pair is described without a context term
    grid_dropout: float = 0.0  # probability that a channel of the regional grid is 0
    classification: float = 1.0  # weight of the landmark loss, stage joint

    validate_every: int = 300
    checkpoint_every: int = 100
    log_every: int = 20
    tensorboard: bool = False

    local: LocalConfig = field(default_factory=LocalConfig)
    visual: VisualVariant = field(default_factory=VisualVariant)
    geometric: GeometricVariant = field(default_factory=GeometricVariant)
    aggregation: AggregationVariant = field(default_factory=AggregationVariant)
    regional: RegionalConfig = field(default_factory=RegionalConfig)
    landmarks: LandmarkConfig = field(default_factory=LandmarkConfig)
    pairs: PairConfig = field(default_factory=PairConfig)
    scene_pairs: ScenePairConfig = field(default_factory=ScenePairConfig)

    def check(self) -> None:
        """Raise an error where values do not fit together."""
        for name in ("steps", "accumulate", "pairs_per_step", "keypoints", "validate_every",
                     "checkpoint_every", "log_every"):  # fmt: skip
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}: at least 1")
        for name in ("average", "keep_start"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name):g}: at least 0 and below 1")
        if self.stage == "context" and self.base is None:
            raise InputError("stage context needs 'base': rootsift, a model, or module:function")
        if self.sampling == "hard" and (self.base is None or self.stage in ("context", "regional")):
            raise InputError(
                "sampling hard needs 'base', whose descriptors tell which keypoints are hard, and a stage "
                f"that trains the local network, not {self.stage}"
            )
        if self.stage == "context" and self.visual.strategy == "central-surround":
            raise InputError("visual strategy central-surround trains on patches: stage local or end-to-end")
        if self.stage == "context" and not (self.has_visual or self.has_geometric):
            raise InputError("stage context with neither a visual nor a geometric term: nothing to train")
        if self.has_context and self.visual.strategy == "central-surround":
            if self.aggregation.kind != "concat":
                raise InputError(
                    "visual strategy central-surround has raw descriptors of another size than the "
                    "geometric term: set the aggregation's kind to concat"
                )
            if self.has_geometric and reads(self.geometric.inputs, "raw"):
                raise InputError(
                    "visual strategy central-surround does not go with geometric inputs "
                    f"{self.geometric.inputs}"
                )
        start = self.visual.encoder.start
        if start > 0 and not (self.stage == "context" and self.has_visual):
            raise InputError(
                f"start is {start:g} with stage {self.stage} and visual strategy {self.visual.strategy}: "
                "set it to 0; it needs stage context and a strategy that reads the grid"
            )
        for name, weight in self.geometric.start.weights.items():
            given = self.geometric.encoder.startswith("cn") and reads(self.geometric.inputs, name)
            if not (start > 0 and given):
                raise InputError(
                    f"geometric start of {name} is {weight:g}: set it to 0; it needs a start of the visual "
                    f"term, encoder cn-pre or cn-post and inputs with {name}, not "
                    f"{self.geometric.encoder} and {self.geometric.inputs}"
                )
        if start > 0 and self.aggregation.kind == "concat":
            raise InputError(f"start is {start:g} with aggregation concat: set it to 0, or the kind to sum")
        if self.scene_share is not None and not (
            0 <= self.scene_share <= 1 and self.photos is not None and self.scenes is not None
        ):
            raise InputError(
                f"scene_share is {self.scene_share:g}: from 0 to 1, and with both photos and scenes"
            )
        if self.labels == "places" and self.loss != "n-pair":
            raise InputError(f"labels places go with the loss n-pair, not with {self.loss}")
        both = self.photos is not None and self.scenes is not None
        if both and self.pairs.support != self.scene_pairs.support:
            raise InputError(
                f"support is {self.pairs.support} of pairs and {self.scene_pairs.support} of scene_pairs: "
                "a model has one"
            )
        if self.stage == "joint" and (self.scenes is None or self.regional.network == "precomputed"):
            raise InputError("stage joint trains the regional network: it needs 'scenes' and a network")

    @property
    def support(self) -> float:
        """Patch side over keypoint size, of the patches that are trained on."""
        return self.scene_pairs.support if self.photos is None else self.pairs.support

    @property
    def trains_local(self) -> bool:
        return self.stage in ("local", "end-to-end", "joint")

    @property
    def has_context(self) -> bool:
        return self.stage in ("context", "end-to-end", "joint")

    @property
    def has_visual(self) -> bool:
        return self.has_context and self.visual.strategy not in ("none", "central-surround")

    @property
    def has_geometric(self) -> bool:
        return self.has_context and self.geometric.encoder != "none"
