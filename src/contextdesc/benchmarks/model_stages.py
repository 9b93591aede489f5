"""The stages of a model on an image: pieces of work that run alone, and what their networks cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from contextdesc import modelfile
from contextdesc.benchmarks.graph_cost import GraphCost, graph_cost
from contextdesc.engine import Engine
from contextdesc.model import Context, ContextDesc, load, regional_image
from contextdesc.patches import sample_patches
from contextdesc.rootsift import rootsift

if TYPE_CHECKING:
    from contextdesc.image import Image
    from contextdesc.keypoints import Keypoints

PATCHES, LOCAL, ROOTSIFT, MATCHABILITY = "patches", "local network", "RootSIFT", "matchability"
REGIONAL, GEOMETRIC, VISUAL = "regional network", "geometric context", "visual context"
BOTH = "both contexts"


@dataclass(frozen=True, eq=False)
class Stage:
    """A step of a method.

    Attributes:
        run: does it once.
        cost: of its network, if it has one.
        summed: whether it is part of the total; a term alone is not, where both are computed.
    """

    name: str
    run: Callable[[], object]
    cost: GraphCost | None = None
    summed: bool = True


def model_stages(
    folder: Path, context: Context, image: Image, keypoints: Keypoints, threads: int
) -> Iterator[Stage]:
    """From keypoints to descriptors; what a stage reads has been computed, which warms it up as well."""

    def loaded(terms: Context) -> ContextDesc:
        return load(folder, context=terms, device="cpu", threads=threads)

    def network(name: str, **inputs: Sequence[int]) -> GraphCost:
        return graph_cost(folder / name, **inputs)

    model, count = loaded(context), len(keypoints)
    spec = model.spec
    raw, score = model.raw(image, keypoints)
    if spec.base == "local":
        patches = sample_patches(image.gray, keypoints, spec.support)
        local = Engine(folder / modelfile.LOCAL, "cpu", threads)
        yield Stage(PATCHES, lambda: sample_patches(image.gray, keypoints, spec.support))
        yield Stage(
            LOCAL,
            lambda: local.run_batched(patches=patches),
            network(modelfile.LOCAL, patches=patches.shape),
        )
    else:
        yield Stage(ROOTSIFT, lambda: rootsift(image.gray, keypoints))
        if modelfile.MATCHABILITY in spec.files:
            scorer = Engine(folder / modelfile.MATCHABILITY, "cpu", threads)
            yield Stage(
                MATCHABILITY,
                lambda: scorer.run_batched(raw=raw),
                network(modelfile.MATCHABILITY, raw=raw.shape),
            )
    grid = None
    if "visual" in model.terms:
        grid = model.regional(image)
        pixels = regional_image(image, spec.regional_max_side)
        yield Stage(REGIONAL, lambda: model.regional(image), network(modelfile.REGIONAL, image=pixels.shape))
    files = {"geometric": modelfile.GEOMETRIC, "visual": modelfile.VISUAL}
    shapes = {"xy": (count, 2), "direction": (count, 2), "raw": (count, spec.raw_size), "score": (count,)}
    shapes |= {} if grid is None else {"grid": grid.shape}
    costs = {term: network(file, **shapes) for term, file in files.items() if term in model.terms}

    def augmented(terms: Context) -> Callable[[], object]:
        augment = loaded(terms).augment
        work = partial(augment, raw, keypoints, image.size, regional=grid, matchability=score)
        work()
        return work

    for term, cost in costs.items():
        yield Stage(f"{term} context", augmented(term), cost, summed=len(costs) == 1)  # type: ignore[arg-type]
    if len(costs) > 1:
        yield Stage(BOTH, augmented("both"), costs["geometric"] + costs["visual"])
