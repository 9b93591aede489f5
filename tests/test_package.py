"""The package as a stranger gets it."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

import contextdesc

ROOT = Path(__file__).parent.parent


def test_public_names_load_and_nothing_else_is_public() -> None:
    for name in contextdesc.__all__:
        assert getattr(contextdesc, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        contextdesc.nonsense  # noqa: B018


def test_importing_is_free() -> None:
    heavy = ("cv2", "numpy", "onnxruntime", "torch")
    code = f"import sys, contextdesc; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.slow
def test_without_torch_everything_but_training_works(tmp_path: Path) -> None:
    """A fresh environment with the default install and the sample pair, from a built wheel."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=600, check=False
        )

    installed = run("-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), f"{ROOT}[samples]")
    assert installed.returncode == 0, installed.stderr
    assert run("-c", "import torch").returncode == 1
    code = (
        "import contextdesc as cd\n"
        "from contextdesc.samples import sample_pair\n"
        "left, right, _ = sample_pair()\n"
        "model = cd.load()\n"
        "a, b = model.extract(left), model.extract(right)\n"
        "result = cd.verify(a, b, cd.match(a, b))\n"
        "cd.draw_matches(left, right, result).save('matches.png')\n"
        "print(result.inlier_count)\n"
    )
    out = run("-c", code)
    assert out.returncode == 0, out.stderr
    assert int(out.stdout) > 100
    assert (tmp_path / "matches.png").stat().st_size > 100_000
    out = run("-m", "contextdesc", "train", str(ROOT / "configs" / "contextdesc" / "1-local.toml"), "-o", "x")
    assert out.returncode == 2
    assert "pip install 'contextdesc[train]'" in out.stderr
