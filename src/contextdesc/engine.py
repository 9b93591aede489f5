"""ONNX Runtime: one session per network, on the CPU or a GPU, in batches of bounded memory."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnxruntime as ort

from contextdesc.errors import ContextDescError, InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Device = Literal["auto", "cpu", "cuda"]

BATCH = 512  # rows per run; part of what makes results reproducible bit for bit


class Engine:
    """A loaded network.

    Args:
        path: ONNX file.
        device: `cuda` needs onnxruntime-gpu; `auto` takes it where present.
        threads: of one run; 0 for every core that this process may use.
    """

    def __init__(self, path: Path, device: Device = "auto", threads: int = 0) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads or available_cores()
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Threads that wait for the next run take cores from detection and from the next network
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if eight_bit_products_saturate():
            options.add_session_config_entry("session.x64quantprecision", "1")  # slower, and right
        try:
            self._session = ort.InferenceSession(str(path), options, providers=providers(device))
        except InputError:
            raise
        except Exception as error:  # ONNX Runtime raises many types, all of them unreadable
            raise ContextDescError(f"{path}: ONNX Runtime cannot load it: {error}") from error

    def run(self, **inputs: NDArray[Any]) -> list[NDArray[np.float32]]:
        """All outputs, in the file's order."""
        return list(self._session.run(None, inputs))

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of what the network reads."""
        return tuple(node.name for node in self._session.get_inputs())

    def run_named(self, **inputs: NDArray[Any]) -> list[NDArray[np.float32]]:
        """As `run`, of those inputs that the network reads."""
        return self.run(**{name: inputs[name] for name in self.inputs if name in inputs})

    def run_batched(self, batch: int = BATCH, **inputs: NDArray[Any]) -> list[NDArray[np.float32]]:
        """Run rows of the inputs in batches, for networks that treat each row alone; at least one row."""
        rows = len(next(iter(inputs.values())))
        parts = [
            self.run(**{name: value[start : start + batch] for name, value in inputs.items()})
            for start in range(0, rows, batch)
        ]
        return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]


def providers(device: Device) -> list[str]:
    """Execution providers for a device, best first."""
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"device is {device!r}: one of auto, cpu, cuda")
    has_cuda = "CUDAExecutionProvider" in ort.get_available_providers()
    if device == "cuda" and not has_cuda:
        raise InputError(
            "device cuda: this ONNX Runtime has no CUDA; pip install onnxruntime-gpu, or use cpu"
        )
    if device != "cpu" and has_cuda:
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]
    return ["CPUExecutionProvider"]


@cache
def eight_bit_products_saturate() -> bool:
    """Whether the fast 8-bit kernels of this CPU may overflow: x86 without VNNI, or not known to have it."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    try:
        return "vnni" not in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True


def available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
