from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from contextdesc.engine import Engine, available_cores, providers
from contextdesc.errors import ContextDescError, InputError
from contextdesc.modelfile import MATCHABILITY


def test_batches_give_what_one_run_gives(rootsift_model: Path) -> None:
    raw = np.random.default_rng(0).random((103, 128)).astype(np.float32)
    engine = Engine(rootsift_model / MATCHABILITY, threads=1)
    (whole,), (batched,) = engine.run(raw=raw), engine.run_batched(batch=10, raw=raw)
    assert whole.shape == (103,)
    np.testing.assert_allclose(batched, whole, atol=1e-5)


def test_the_cpu_is_always_there() -> None:
    assert providers("cpu") == ["CPUExecutionProvider"]
    assert providers("auto")[-1] == "CPUExecutionProvider"
    assert available_cores() >= 1
    if providers("auto") == ["CPUExecutionProvider"]:
        with pytest.raises(InputError, match="device cuda: this ONNX Runtime has no CUDA"):
            providers("cuda")


def test_a_file_that_is_no_network(tmp_path: Path) -> None:
    path = tmp_path / "fake.onnx"
    path.write_bytes(b"nonsense")
    with pytest.raises(ContextDescError, match=r"fake.onnx: ONNX Runtime cannot load it"):
        Engine(path)
