"""A model on disk: a folder with `model.json` and its ONNX files, verified by checksum when loaded.

Networks in 8-bit integers are an add-on: `local.int8.onnx` beside `local.onnx`, and `int8.json`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from contextdesc.config import from_dict
from contextdesc.errors import InputError
from contextdesc.formats.atomic import replacing

FORMAT = 1
PACKAGED = Path(__file__).parent / "weights"
DEFAULT = "contextdesc"
RECALLS = PACKAGED / "recall.json"  # mean recall of RootSIFT and packaged models on Oxford's affine scenes

LOCAL, MATCHABILITY = "local.onnx", "matchability.onnx"
GEOMETRIC, VISUAL, REGIONAL = "geometric.onnx", "visual.onnx", "regional.onnx"
AGGREGATION = "aggregation.onnx"
INT8 = "int8.json"


@dataclass(frozen=True)
class ModelSpec:
    """What `model.json` says.

    `local.onnx`: patches (N, 32, 32) uint8 -> raw (N, 128), score (N,).
    `matchability.onnx` (bases without a patch network): raw (N, 128) -> score (N,).
    `geometric.onnx`: xy (N, 2) in [-1, 1], score (N,) -> term (N, 128).
    `regional.onnx`: image (1, 3, H, W) float RGB 0 to 255, sides multiples of 32 -> grid (C, h, w)
        of the network's stride, 4 to 32.
    `visual.onnx`: grid (C, h, w), xy (N, 2), raw (N, 128) -> term (N, 128).
    `aggregation.onnx` (learned aggregation): raw and the terms by name, (N, 128) each -> descriptor.

    A file may leave out inputs that its network does not read; `geometric.onnx` may read raw too.
    """

    name: str
    base: Literal["local", "rootsift", "given"]
    files: dict[str, str]  # file name to SHA-256
    format: int = FORMAT
    support: float = 10.6  # patch side over keypoint size
    descriptor_size: int = 128
    raw_size: int = 128  # of the base's descriptors
    aggregation: Literal["sum", "concat", "learned"] = "sum"
    ratio: float = 0.8  # threshold of the ratio test
    matchability: Literal["map", "raw"] = "raw"
    regional: str | None = None  # name of the regional network
    regional_channels: int | None = None
    regional_max_side: int = 1024  # pixels, longer side of the image that the regional network sees
    interpolation: str | None = None
    networks: dict[str, Any] = field(default_factory=dict)  # settings of the encoders, to train on from
    training: dict[str, Any] = field(default_factory=dict)  # data, command, seed, commit, ...

    @property
    def terms(self) -> tuple[str, ...]:
        """Context terms that the model has."""
        return tuple(n for n, f in (("visual", VISUAL), ("geometric", GEOMETRIC)) if f in self.files)


@dataclass(frozen=True)
class Int8Spec:
    """What `int8.json` says: networks of one model in 8-bit integers, and what they are worth.

    A network that it does not name stays as `model.json` has it.
    """

    model: str  # checksum of the model
    files: dict[str, str]  # file name to SHA-256
    recall: dict[str, Any]  # on held-out pairs, by kind of pair
    networks: dict[str, Any]  # each that was tried: its speed, what it costs in recall, whether it is used
    speed: dict[str, Any]  # of an image's description
    calibration: dict[str, Any]  # data, counts, seed, command
    format: int = FORMAT


def int8_file(name: str) -> str:
    """Name of the 8-bit variant of a network's file."""
    return f"{Path(name).stem}.int8.onnx"


def resolve(model: str | Path) -> Path:
    """The folder of a packaged model's name, or of a path."""
    packaged = PACKAGED / str(model)
    if isinstance(model, str) and (packaged / "model.json").is_file():
        return packaged
    folder = Path(model)
    if (folder / "model.json").is_file():
        return folder
    if folder.exists():
        raise InputError(f"{folder}: no model.json in it, so it is not a model")
    raise InputError(f"{model}: neither a packaged model ({', '.join(packaged_models())}) nor a folder")


def packaged_models() -> list[str]:
    return sorted(path.parent.name for path in PACKAGED.glob("*/model.json"))


def read_spec(folder: Path) -> tuple[ModelSpec, str]:
    """Read `model.json`, verify the files beside it, and return the spec and the model's checksum."""
    path = folder / "model.json"
    content, spec = _read(path, ModelSpec, "fetch the model again")
    return spec, hashlib.sha256(content).hexdigest()[:16]


def read_int8(folder: Path, spec: ModelSpec, checksum: str) -> Int8Spec:
    """Read `int8.json` of the model of that spec and checksum, and verify the files beside it."""
    path = folder / INT8
    if not path.is_file():
        raise InputError(
            f"precision int8: {spec.name} has no {INT8}; use fp32, or make it with contextdesc quantise"
        )
    _, found = _read(path, Int8Spec, "make it again with contextdesc quantise")
    if found.model != checksum:
        raise InputError(
            f"{path}: made of another model ({found.model}, this is {checksum}); "
            "make it again with contextdesc quantise"
        )
    return found


Spec = TypeVar("Spec", ModelSpec, Int8Spec)


def _read(path: Path, cls: type[Spec], remedy: str) -> tuple[bytes, Spec]:
    """A spec and the bytes of its file, after its files were compared with their checksums."""
    try:
        content = path.read_bytes()
        values = json.loads(content)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({error}); {remedy}") from None
    version = values.get("format") if isinstance(values, dict) else None
    if version != FORMAT:
        raise InputError(f"{path}: model format {version}, this version of contextdesc reads {FORMAT}")
    spec = from_dict(cls, values, str(path))
    for name, expected in spec.files.items():
        if Path(name).name != name:
            raise InputError(f"{path}: file name {name!r} points outside of the model's folder")
        file = path.parent / name
        if not file.is_file():
            raise InputError(f"{file}: missing; {remedy}")
        if sha256(file) != expected:
            raise InputError(f"{file}: checksum differs from {path.name}; {remedy}")
    return content, spec


def write_spec(folder: Path, spec: ModelSpec) -> None:
    (folder / "model.json").write_text(_json(spec), encoding="utf-8")


def write_int8(folder: Path, spec: Int8Spec) -> None:
    with replacing(folder / INT8) as temporary:
        temporary.write_text(_json(spec), encoding="utf-8")


def _json(spec: ModelSpec | Int8Spec) -> str:
    return json.dumps(asdict(spec), indent=2, sort_keys=True) + "\n"


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
