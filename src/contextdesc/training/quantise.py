"""8-bit networks of a model: calibrated on photographs that trained it, accepted by recall on others.

ONNX Runtime's static quantisation: weights in 8 bits per channel, activations in 8 bits over the ranges that
real patches and images have. What comes before the second layer stays in full precision, and so does every
network that would save little time or cost recall.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from contextdesc.benchmarks.statistics import Difference, difference
from contextdesc.benchmarks.terms import held_out_sets, pair_recall
from contextdesc.benchmarks.timing import Spread, cropped, load_average, machine, timed
from contextdesc.detection import Detector, detect
from contextdesc.engine import Engine, available_cores
from contextdesc.errors import InputError
from contextdesc.formats.atomic import replacing
from contextdesc.image import Image, read
from contextdesc.keypoints import Keypoints
from contextdesc.model import ContextDesc, load, regional_image
from contextdesc.modelfile import (
    LOCAL,
    REGIONAL,
    Int8Spec,
    ModelSpec,
    int8_file,
    read_spec,
    sha256,
    write_int8,
)
from contextdesc.patches import sample_patches
from contextdesc.progress import progress
from contextdesc.training.data.cache import Cache
from contextdesc.training.data.pairs import PairSet
from contextdesc.training.setup import photographs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Feeds: TypeAlias = list[dict[str, NDArray[Any]]]  # what a network reads, run by run

Chosen: TypeAlias = tuple[str, ...]  # files of the networks that run in 8 bits
Recalls: TypeAlias = "dict[Chosen, NDArray[np.float64]]"  # percent of each pair

TOLERANCE = 0.5  # points of recall that int8 may cost
WORTH = 0.05  # of an image's description: a network that saves less stays in full precision
PATCHES = 2048
PHOTOGRAPHS = 64  # that patches and images for calibration come from
BATCH = 64  # patches of a run of calibration
ROUNDS = 9  # of timing
TIMED_PATCHES = 512
TIMED_IMAGE, TIMED_KEYPOINTS = (640, 480), 2048
MAX_SIDE = 1600  # of photographs, as `extract` has it

_OPERATORS = ("Conv", "Gemm", "MatMul", "Relu", "Clip", "Add")
_FLOAT_OUTPUT = ("Gemm", "MatMul")  # the kernels give it at no cost


def quantise(
    folder: Path,
    photos: Path,
    scenes: Path | None,
    cache: Cache,
    *,
    patches: int = PATCHES,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    limit: int | None = None,
    workers: int = 1,
    command: str = "",
    quiet: bool = False,
) -> Int8Spec:
    """Write the 8-bit variant of a model into its folder, or raise and leave the folder as it was.

    Args:
        photos: the photographs of the training; those that `model.json` says were held out only measure.
        scenes: the scenes of the training, of which only held-out ones are read; None for none.
        cache: keeps the held-out pairs.
        patches: to calibrate on.
        tolerance: points of recall that int8 may cost on either kind of pairs.
        limit: pairs of each kind at most.
        command: that repeats it, for `int8.json`.
    """
    spec, checksum = read_spec(folder)
    names = tuple(name for name in (LOCAL, REGIONAL) if name in spec.files)
    if not names or spec.base == "given":
        raise InputError(f"{spec.name}: no network that runs on images of its own, so nothing to quantise")
    if not spec.training.get("held_out"):
        raise InputError(
            f"{folder}: its model.json names no photographs held out from training, to measure recall on"
        )
    training = photographs(photos, spec.training["held_out"])[0]
    chosen = np.random.default_rng(seed).permutation(len(training))[:PHOTOGRAPHS]
    feeds = calibration(spec, [training[i] for i in sorted(chosen)], patches, seed)
    with tempfile.TemporaryDirectory() as temporary:
        draft = Path(shutil.copytree(folder, Path(temporary) / "model"))
        for name in names:
            quantise_network(folder / name, draft / int8_file(name), feeds[name])
        files = {name: sha256(draft / int8_file(name)) for name in names}
        trial = _Trial(draft, Int8Spec(checksum, {}, {}, {}, {}, {}), files)
        sets = held_out_sets(spec, photos, scenes, cache, workers)
        recalls = {kind: trial.recalls(kind, pairs, limit, quiet) for kind, pairs in sets.items()}
        speed = trial.describe_speed(cropped(read(training[0]), TIMED_IMAGE))
        reasons = {name: _reason(recalls, (name,), speed[name,], tolerance) for name in names}
        used = tuple(name for name in names if reasons[name] is None)
        refusal = (
            _reason(recalls, used, speed[used], tolerance)
            if used
            else "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        )
        if refusal is not None:
            raise InputError(f"{spec.name}: int8 is not worth it, nothing was written ({refusal})")
        networks = {
            name: {
                "used": name in used,
                "why": reasons[name],
                "recall": {kind: asdict(_lost(of, (name,))) for kind, of in recalls.items()},
                "description": speed[name,],
                "speed": network_speed(folder / name, draft / int8_file(name), feeds[name]),
            }
            for name in names
        }
        found = replace(
            trial.spec_of(used),
            recall={kind: _facts(of, used) for kind, of in recalls.items()},
            networks=networks,
            speed={**speed[used], "machine": machine(), "load_average": load_average()},
            calibration={
                "photographs": len(chosen), "held_out": spec.training["held_out"], "ranges": "min-max",
                "patches": sum(len(feed["patches"]) for feed in feeds.get(LOCAL, [])), "seed": seed,
                "tolerance": tolerance, "command": command,
            },
        )  # fmt: skip
        _install(draft, folder, found)
    return found


def calibration(spec: ModelSpec, photos: Sequence[Path], patches: int, seed: int) -> dict[str, Feeds]:
    """What the networks of a model read of photographs: random keypoints' patches, and the images."""
    of_each = math.ceil(patches / len(photos))
    cut, images = [], []
    for path in photos:
        image = read(path, MAX_SIDE)
        keypoints = detect(image.gray, Detector(of_each, "random", seed))
        cut.append(sample_patches(image.gray, keypoints, spec.support))
        if REGIONAL in spec.files:
            images.append({"image": regional_image(image, spec.regional_max_side)})
    rows = np.concatenate(cut)[:patches]
    if not len(rows):
        raise InputError("the photographs have no keypoints to calibrate on; give richer ones")
    batches = [{"patches": rows[start : start + BATCH]} for start in range(0, len(rows), BATCH)]
    return {LOCAL: batches if LOCAL in spec.files else [], REGIONAL: images}


def quantise_network(source: Path, target: Path, feeds: Feeds) -> None:
    """Write the 8-bit variant of an ONNX file, with ranges of activations as `feeds` make them."""
    with tempfile.TemporaryDirectory() as temporary:
        prepared = Path(temporary) / "prepared.onnx"
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)  # folds what is constant
        proto = onnx.load(str(prepared))
    nodes = proto.graph.node
    first = next((place for place, node in enumerate(nodes) if node.op_type == "Conv"), -1)
    quantize_static(
        proto,
        str(target),
        _Reader(feeds),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=list(_OPERATORS),
        nodes_to_exclude=[node.name for node in nodes[: first + 1]],
        extra_options={"OpTypesToExcludeOutputQuantization": list(_FLOAT_OUTPUT)},
    )
    proto = onnx.load(str(target))
    domains = {node.domain for node in proto.graph.node}
    needed = [known for known in proto.opset_import if known.domain in domains]
    del proto.opset_import[:]
    proto.opset_import.extend(needed)
    onnx.checker.check_model(proto)
    onnx.save(proto, str(target))


class _Reader(CalibrationDataReader):  # type: ignore[misc]  # ONNX Runtime has no types
    def __init__(self, feeds: Feeds) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        return next(self._feeds, None)


class _Trial:
    """A copy of a model beside its 8-bit networks, to measure any choice of them.

    Args:
        draft: the copy's folder.
        empty: what its `int8.json` says before anything is known.
        files: networks that have an 8-bit variant there, with its SHA-256.
    """

    def __init__(self, draft: Path, empty: Int8Spec, files: Mapping[str, str]) -> None:
        self.draft, self.empty, self.files = draft, empty, files
        self.choices: list[Chosen] = [c for n in range(len(files) + 1) for c in combinations(files, n)]

    def spec_of(self, chosen: Chosen) -> Int8Spec:
        return replace(self.empty, files={int8_file(name): self.files[name] for name in chosen})

    def load(self, chosen: Chosen, threads: int = 0) -> ContextDesc:
        write_int8(self.draft, self.spec_of(chosen))
        return load(self.draft, precision="int8", device="cpu", threads=threads)

    def recalls(self, kind: str, pairs: PairSet, limit: int | None, quiet: bool) -> Recalls:
        """Recall of pairs with each choice of 8-bit networks; of `limit` pairs, evenly spread."""
        models = {chosen: self.load(chosen) for chosen in (self.choices[0], self.choices[-1])}
        count = min(len(pairs), limit or len(pairs))
        found: dict[Chosen, list[float]] = {chosen: [] for chosen in self.choices}
        with progress(f"held-out {kind}", count, quiet=quiet) as advance:
            for index in np.linspace(0, len(pairs) - 1, count).round().astype(int):
                pair = pairs[index]
                sides = [
                    self._described(models, read(pairs.views[view]), Keypoints.from_array(keypoints))
                    for view, keypoints in zip(pairs.views_of(index), pair.keypoints, strict=True)
                ]
                for chosen in self.choices:
                    found[chosen].append(pair_recall(pair, sides[0][chosen], sides[1][chosen]))
                advance()
        return {chosen: np.array(values) for chosen, values in found.items()}

    def _described(
        self, models: Mapping[Chosen, ContextDesc], image: Image, keypoints: Keypoints
    ) -> dict[Chosen, NDArray[np.float32]]:
        """Descriptors (N, 128) by choice; every network runs once in each precision."""
        exact, quick = models[self.choices[0]], models[self.choices[-1]]
        raw = {False: exact.raw(image, keypoints)}
        raw[True] = quick.raw(image, keypoints) if LOCAL in self.files else raw[False]
        grids = {}
        if REGIONAL in self.files:
            grids = {False: exact.regional(image), True: quick.regional(image)}
        return {
            chosen: exact.augment(
                raw[LOCAL in chosen][0], keypoints, image.size, regional=grids.get(REGIONAL in chosen),
                matchability=raw[LOCAL in chosen][1],
            )
            for chosen in self.choices
        }  # fmt: skip

    def describe_speed(self, image: Image) -> dict[Chosen, dict[str, Any]]:
        """How many times faster than in full precision an image is described, with each choice."""
        keypoints = detect(image.gray, Detector(TIMED_KEYPOINTS, contrast=0.0067))
        found: dict[Chosen, dict[str, Any]] = {
            chosen: {"image": list(image.size), "keypoints": len(keypoints), "rounds": ROUNDS, "threads": {}}
            for chosen in self.choices
        }
        for threads in _threads():
            models = {chosen: self.load(chosen, threads) for chosen in self.choices}
            works = {c: partial(m.describe, image, keypoints) for c, m in models.items()}
            for chosen, numbers in _ratios(works, self.choices[0]).items():
                found[chosen]["threads"][str(threads)] = numbers
        return found


def network_speed(exact: Path, quick: Path, feeds: Feeds) -> dict[str, Any]:
    """How many times faster a network is in 8 bits, by its number of threads."""
    name = next(iter(feeds[0]))
    rows = feeds[0] if name != "patches" else {name: np.concatenate([f[name] for f in feeds])[:TIMED_PATCHES]}
    found: dict[str, Any] = {"input": list(rows[name].shape), "rounds": ROUNDS, "threads": {}}
    for threads in _threads():
        engines = {path: Engine(path, "cpu", threads) for path in (exact, quick)}
        works = {path: partial(engine.run, **rows) for path, engine in engines.items()}
        found["threads"][str(threads)] = _ratios(works, exact)[quick]
    return found


def _threads() -> list[int]:
    return sorted({1, available_cores()})


def _ratios(works: Mapping[Any, Callable[[], object]], baseline: Any) -> dict[Any, dict[str, Any]]:
    """Milliseconds of each work, and how many times faster than the baseline it is, round by round."""
    for work in works.values():
        work()
    times = [{key: timed(work) for key, work in works.items()} for _ in range(ROUNDS)]
    found = {}
    for key in works:
        cpu, clock = ([of[baseline][kind] / of[key][kind] for of in times] for kind in (0, 1))
        found[key] = {
            "milliseconds": asdict(Spread.of([of[key][1] for of in times])),
            "ratio": asdict(Spread.of(clock)),
            "ratio_of_cpu_time": asdict(Spread.of(cpu)),
        }
    return found


def _reason(
    recalls: Mapping[str, Recalls], chosen: Chosen, speed: Mapping[str, Any], tolerance: float
) -> str | None:
    """Why a choice of 8-bit networks is not worth it; None if it is."""
    for kind, of in recalls.items():
        lost = _lost(of, chosen)
        if lost.mean < -tolerance:
            return (
                f"recall on held-out {kind} changes by {lost.mean:.2f} points "
                f"({lost.low:.2f} to {lost.high:.2f}), allowed are {-tolerance:g}"
            )
    saved = 1 - 1 / speed["threads"]["1"]["ratio_of_cpu_time"]["median"]
    if saved < WORTH:
        return f"saves {saved:.1%} of an image's description, less than {WORTH:.0%}"
    return None


def _lost(recalls: Recalls, chosen: Chosen) -> Difference:
    return difference(recalls[chosen], recalls[()])


def _facts(recalls: Recalls, chosen: Chosen) -> dict[str, Any]:
    return {
        "pairs": len(recalls[chosen]),
        "fp32": float(recalls[()].mean()),
        "int8": float(recalls[chosen].mean()),
        "difference": asdict(_lost(recalls, chosen)),
    }


def _install(draft: Path, folder: Path, spec: Int8Spec) -> None:
    """Put the files of a variant beside the model, in place of an older one; `int8.json` comes last."""
    for old in _variant(folder):
        old.unlink()
    for name in spec.files:
        with replacing(folder / name) as temporary:
            shutil.copyfile(draft / name, temporary)
    write_int8(folder, spec)


def _variant(folder: Path) -> Iterator[Path]:
    yield from folder.glob("int8.json")
    yield from folder.glob("*.int8.onnx")
