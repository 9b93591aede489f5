"""The contract of a protocol: what it says about itself, what it is asked, and how it goes over its data.

A protocol is a module `contextdesc.benchmarks.NAME`, listed in `registry.py`, with

    PROTOCOL = Protocol(layout=..., source=..., takes=(...))       # and settings=, for options of its own
    def run(request: Request) -> Report: ...

Its work is cut into units that stand alone: sequences, pairs, scenes. `request.each` calls a function of the
module for each of them, in processes, with progress, and tells which could not be used; in it,
`request.describe` gives keypoints and descriptors of an image for every method, from the cache where it has
them, and `method.match` matches them:

    def run(request):
        units = request.limited(find_units(request.data))             # name -> anything that can be pickled
        scores, skipped = request.each("pairs", units, score)         # name -> score; name -> reason
        ...
        return Report("pairs", about, numbers, tables, plots, skipped)

    def score(request, unit):                                         # at the top level of the module
        first, second = (request.describe(read(path), DETECTOR) for path in unit.paths)
        for name, method in request.methods.items():
            matches = method.match(first[name].descriptors, second[name].descriptors, method.ratio)
            points = first[name].keypoints.xy[matches.indices[:, 0]], ...

An `InputError` in `score` leaves its unit out and stands in the report. Optional packages are imported inside
functions. Means come from `statistics.bootstrap`, over units; where `request.baseline` is set, differences
from it come from `statistics.difference`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np

from contextdesc.benchmarks.cache import Cache, key_of, keypoints_of, pixels_of
from contextdesc.benchmarks.methods import Described, Method
from contextdesc.detection import Detector, detect
from contextdesc.engine import available_cores
from contextdesc.errors import ContextDescError, InputError
from contextdesc.keypoints import Keypoints
from contextdesc.processes import processes
from contextdesc.progress import progress

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.image import Image

Value: TypeAlias = str | int | float | bool
Unit = TypeVar("Unit")
Score = TypeVar("Score")

# Options of the command line that not every protocol has a use for
Option: TypeAlias = Literal["methods", "seeds", "limit", "baseline", "keypoints", "workers"]
SEEDS = (0, 1, 2, 3, 4)
MOST_WORKERS = 8  # unless more are asked for: each holds the models
OWN = ", own keypoints"  # after the name of a method in every row


@dataclass(frozen=True)
class Setting:
    """An option that only one protocol has: `--set NAME=VALUE`, of the type of its default."""

    name: str
    default: Value
    help: str

    def parse(self, text: str) -> Value:
        if isinstance(self.default, bool):
            if text not in ("true", "false"):
                raise InputError(f"--set {self.name}={text}: true or false")
            return text == "true"
        try:
            return type(self.default)(text)
        except ValueError:
            raise InputError(
                f"--set {self.name}={text}: not a number such as {self.default} ({self.help})"
            ) from None


@dataclass(frozen=True)
class Protocol:
    """What a protocol says about itself.

    Attributes:
        layout: what has to be in the folder of data.
        source: where such data is published.
        takes: options that it has a use for.
        settings: options of its own.
    """

    layout: str
    source: str
    takes: tuple[Option, ...] = ("methods", "limit", "baseline", "keypoints", "workers")
    settings: tuple[Setting, ...] = ()


@dataclass(frozen=True)
class Request:
    """What a protocol is asked.

    Attributes:
        data: folder of the data.
        methods: by the name that stands in tables.
        seeds: of random draws.
        limit: units to look at, None for all.
        baseline: name of the method that the others are compared with, None for no comparison.
        keypoints: the same SIFT keypoints for every method, or those of each method's own detector.
        workers: processes; 0 for one per core, at most `MOST_WORKERS`. Results do not depend on it.
        cache: of descriptors, None to compute all of them.
        quiet: no progress.
        settings: values of the protocol's own options by name; `setting` knows their defaults.
    """

    data: Path
    methods: Mapping[str, Method]
    seeds: tuple[int, ...] = SEEDS
    limit: int | None = None
    baseline: str | None = None
    keypoints: Literal["shared", "own"] = "shared"
    workers: int = 1
    cache: Cache | None = None
    quiet: bool = True
    settings: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.baseline is not None and self.baseline not in self.methods:
            raise InputError(f"baseline {self.baseline!r}: one of the methods, {', '.join(self.methods)}")

    @property
    def whose_keypoints(self) -> str:
        """For the sentences of a report."""
        return "the same for every method" if self.keypoints == "shared" else "of each method's own detector"

    def which_keypoints(self, shared: str) -> str:
        """For the sentences of a report; `shared` says what the shared keypoints are."""
        return f"{shared}, {self.whose_keypoints}" if self.keypoints == "shared" else self.whose_keypoints

    @property
    def compared(self) -> list[str]:
        """Methods to compare with the baseline; none without one."""
        return [name for name in self.methods if self.baseline not in (None, name)]

    def setting(self, name: str, protocol: Protocol) -> Value:
        default = next(setting.default for setting in protocol.settings if setting.name == name)
        return self.settings.get(name, default)

    def limited(self, units: Mapping[str, Unit]) -> dict[str, Unit]:
        """The first units, as many as asked for."""
        return dict(list(units.items())[: self.limit])

    def describe(self, image: Image, detector: Detector) -> dict[str, Described]:
        """Keypoints and descriptors of an image by method.

        Args:
            detector: of the shared keypoints; with own keypoints its budget holds for each method.
        """
        if self.keypoints == "shared":
            return self.describe_at(image, self.detect(image, detector), detector.precise_upscale)
        found = {}
        for name, method in self.methods.items():
            key = method.identity and key_of("own", pixels_of(image), detector, method.identity)
            found[name] = Described.from_arrays(self._kept(key, partial(_own, method, image, detector)))
        return found

    def describe_at(self, image: Image, keypoints: Keypoints, precise_upscale: bool) -> dict[str, Described]:
        """Descriptors of given keypoints by method; `precise_upscale` as they were detected."""
        where = (pixels_of(image), keypoints_of(keypoints), precise_upscale)
        found = {}
        for name, method in self.methods.items():
            key = method.identity and key_of("described", *where, method.identity)
            arrays = self._kept(key, partial(_described, method, image, keypoints, precise_upscale))
            found[name] = Described(keypoints, arrays["descriptors"])
        return found

    def detect(self, image: Image, detector: Detector) -> Keypoints:
        """SIFT keypoints of an image."""
        key = key_of("keypoints", pixels_of(image), detector)
        return Keypoints(**self._kept(key, lambda: vars(detect(image.gray, detector))))

    def each(
        self, title: str, units: Mapping[str, Unit], score: Callable[[Request, Unit], Score]
    ) -> tuple[dict[str, Score], dict[str, str]]:
        """`score(request, unit)` of every unit.

        Args:
            title: of the progress.
            score: a function at the top level of a module; an `InputError` in it leaves the unit out.

        Returns:
            Scores by unit, in the order of the units; and of those that were left out the reasons.
        """
        scores: dict[str, Score] = {}
        skipped: dict[str, str] = {}
        with progress(title, len(units), quiet=self.quiet) as advance:
            for name, outcome in self._outcomes(units, score):
                if isinstance(outcome, InputError):
                    known = str(outcome) in skipped.values()
                    skipped[name] = str(outcome)
                    advance("" if known else f"skipped: {outcome}", failed=True)
                else:
                    scores[name] = outcome
                    advance()
        if not scores:
            first = next(iter(skipped.values()), "there is none")
            raise InputError(f"{self.data}: no {title} could be used; the first: {first}")
        return {name: scores[name] for name in units if name in scores}, skipped

    def _outcomes(
        self, units: Mapping[str, Unit], score: Callable[[Request, Unit], Score]
    ) -> Iterator[tuple[str, Score | InputError]]:
        """Outcomes by unit, as they come."""
        workers = min(self.workers or min(MOST_WORKERS, available_cores()), len(units))
        if workers <= 1:
            for name, unit in units.items():
                yield name, _attempt(score, self, unit)
            return
        with processes(workers) as pool:
            asked = {pool.submit(_attempt, score, self, unit): name for name, unit in units.items()}
            for future in as_completed(asked):
                try:
                    yield asked[future], future.result()
                except BrokenProcessPool:
                    raise ContextDescError(
                        f"a process ended while it worked on {asked[future]}, perhaps for want of memory: "
                        "run again with fewer --workers; what was finished is in the cache"
                    ) from None

    def _kept(
        self, key: str | None, compute: Callable[[], Mapping[str, NDArray[np.generic]]]
    ) -> Mapping[str, Any]:
        """Arrays from the cache, or computed and then kept; without a key they are always computed."""
        if self.cache is None or key is None:
            return compute()
        return self.cache.fetch(key, compute)


def _own(method: Method, image: Image, detector: Detector) -> Mapping[str, NDArray[np.generic]]:
    return method.own(image, detector).arrays


def _described(
    method: Method, image: Image, keypoints: Keypoints, precise_upscale: bool
) -> Mapping[str, NDArray[np.generic]]:
    return {"descriptors": method(image, keypoints, precise_upscale)}


def _attempt(score: Callable[[Request, Unit], Score], request: Request, unit: Unit) -> Score | InputError:
    try:
        return score(request, unit)
    except InputError as error:
        return error
