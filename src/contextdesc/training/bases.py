"""Base descriptors that context is trained on: a model's local network, RootSIFT, or a user's function."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from contextdesc.engine import Engine
from contextdesc.errors import InputError
from contextdesc.keypoints import Keypoints
from contextdesc.model import Precision
from contextdesc.modelfile import LOCAL, int8_file, packaged_models, read_int8, read_spec, resolve
from contextdesc.rootsift import rootsift
from contextdesc.training.networks import DESCRIPTOR

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.image import Image


class Base(Protocol):
    """Frozen raw descriptors."""

    kind: Literal["local", "rootsift", "given"]  # as in model.json
    key: str  # changes with what it computes
    has_score: bool  # whether it tells matchability

    def describe(
        self, view: Callable[[], Image], keypoints: Keypoints, patches: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """Raw descriptors (N, C), not normalised, and matchability scores (N,) if the base has them."""


class LocalBase:
    """The local network of an exported model, or with `int8` that of 8-bit integers."""

    kind: Literal["local", "rootsift", "given"] = "local"
    has_score = True

    def __init__(self, model: str, precision: Precision = "fp32") -> None:
        self.folder = resolve(model)
        spec, checksum = read_spec(self.folder)
        if spec.base != "local":
            raise InputError(f"{model}: has base {spec.base}, so there is no local network in it")
        self.key, self.spec = checksum, spec
        network = LOCAL
        if precision == "int8":
            network = int8_file(LOCAL)
            quantised = read_int8(self.folder, spec, checksum).files
            if network not in quantised:
                raise InputError(f"{model}: no {network}, so base_precision can only be fp32")
            self.key += quantised[network]
        self._engine = Engine(self.folder / network)

    def describe(
        self, view: Callable[[], Image], keypoints: Keypoints, patches: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        raw, score = self._engine.run_batched(patches=patches)
        return raw, score


class RootSiftBase:
    kind: Literal["local", "rootsift", "given"] = "rootsift"
    key = "rootsift"
    has_score = False

    def describe(
        self, view: Callable[[], Image], keypoints: Keypoints, patches: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        return rootsift(view().gray, keypoints), None


class FunctionBase:
    """`package.module:function` of the user's: (gray (H, W) uint8, keypoints (N, 4)) -> (N, 128).

    Keypoints are rows of x, y, size, angle. The function is looked for in the current folder too.
    """

    kind: Literal["local", "rootsift", "given"] = "given"
    has_score = False

    def __init__(self, path: str) -> None:
        self.path = path
        self._function = _import(path)
        module = sys.modules[path.partition(":")[0]]  # the function may call others of it
        source = _source(module) + _source(self._function)
        self.key = f"{path} {hashlib.sha256(source.encode()).hexdigest()[:16]}"

    def describe(
        self, view: Callable[[], Image], keypoints: Keypoints, patches: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        rows = np.column_stack([keypoints.xy, keypoints.size, keypoints.angle])
        raw = np.asarray(self._function(view().gray, rows), np.float32)
        if raw.shape != (len(keypoints), DESCRIPTOR):
            expected = (len(keypoints), DESCRIPTOR)
            raise InputError(f"base {self.path} returned an array of shape {raw.shape}, not {expected}")
        if not (np.abs(raw) <= np.finfo(np.float16).max).all():  # the cache holds half precision
            raise InputError(f"base {self.path} returned values that are not finite, or above 65504")
        return raw, None


def build_base(base: str, precision: Precision = "fp32") -> Base:
    """The base of a config: `rootsift`, a model (its name or folder), or `module:function`."""
    if base != "rootsift" and (base in packaged_models() or Path(base).exists() or ":" not in base):
        return LocalBase(base, precision)
    if precision != "fp32":
        raise InputError(f"base_precision is {precision}: {base} is no model, so there is nothing in 8 bits")
    return RootSiftBase() if base == "rootsift" else FunctionBase(base)


def _import(path: str) -> Callable[..., Any]:
    module_name, _, name = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does
    try:
        function = getattr(importlib.import_module(module_name), name)
    except Exception as error:  # the module is the user's: it may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"base {path}: cannot be imported ({reason})") from None
    if not callable(function):
        raise InputError(f"base {path}: not a function")
    return function


def _source(thing: Any) -> str:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):  # compiled, or an object with a __call__
        return ""
