"""What is exported is what was trained: ONNX Runtime against PyTorch on real inputs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from contextdesc import modelfile
from contextdesc.detection import Detector, detect
from contextdesc.engine import Engine
from contextdesc.errors import ContextDescError
from contextdesc.image import Image
from contextdesc.model import load
from contextdesc.modelfile import ModelSpec
from contextdesc.patches import sample_patches
from contextdesc.training import export
from contextdesc.training.assembly import assemble
from contextdesc.training.export import PARITY, export_model
from contextdesc.training.networks import LocalNetwork, VisualConfig, VisualContext
from contextdesc.training.parts import Parts
from contextdesc.training.variants import ContextNormContext


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def local_with_statistics(patches: torch.Tensor) -> LocalNetwork:
    """A random network whose batch norms have seen real patches."""
    network = LocalNetwork()
    with torch.no_grad():
        for _ in range(50):
            network(patches)
    return network.eval()


def test_local_network_agrees_on_real_patches(photo: Image, tmp_path: Path) -> None:
    patches = sample_patches(photo.gray, detect(photo.gray, Detector(300)))
    network = local_with_statistics(torch.from_numpy(patches[:64]))
    export_model(Parts(local=network), ModelSpec("m", "local", {}), tmp_path / "m", photo)
    raw, score = Engine(tmp_path / "m" / modelfile.LOCAL).run(patches=patches)
    with torch.no_grad():
        expected, expected_score = network(torch.from_numpy(patches))
    cosine = (F.normalize(torch.from_numpy(raw)) * F.normalize(expected)).sum(1)
    assert cosine.min() > 1 - 1e-5  # all that half precision of the weights costs
    torch.testing.assert_close(torch.from_numpy(score), expected_score, atol=0.02, rtol=0.02)
    stored = (tmp_path / "m" / modelfile.LOCAL).stat().st_size
    assert stored < 2.1 * sum(p.numel() for p in network.parameters())  # two bytes a weight


def test_the_committed_checkpoint_is_the_packaged_local_network(photo: Image) -> None:
    (checkpoint,) = (Path(__file__).parents[2] / "checkpoints").glob("*.safetensors")
    network = assemble([checkpoint], "local").parts.local
    assert network is not None
    patches = sample_patches(photo.gray, detect(photo.gray, Detector(300)))
    with torch.no_grad():
        expected, _ = network(torch.from_numpy(patches))
    raw, _ = Engine(modelfile.resolve("contextdesc") / modelfile.LOCAL).run(patches=patches)
    assert (F.normalize(torch.from_numpy(raw)) * F.normalize(expected)).sum(1).min() > 1 - 1e-4


def test_a_model_that_disagrees_is_not_written(
    photo: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "m"
    network = local_with_statistics(
        torch.from_numpy(sample_patches(photo.gray, detect(photo.gray, Detector(64))))
    )
    export_model(Parts(local=network), ModelSpec("m", "local", {}), folder, photo)
    before = (folder / "model.json").read_bytes()
    honest = export._export

    def off_by_a_little(module: torch.nn.Module, inputs: dict[str, torch.Tensor], path: Path) -> None:
        honest(module, inputs, path)
        with torch.no_grad():
            next(module.parameters()).mul_(1.01)

    monkeypatch.setattr(export, "_export", off_by_a_little)
    with pytest.raises(
        ContextDescError, match=r"local.onnx: ONNX Runtime and PyTorch differ by .* not written"
    ):
        export_model(Parts(local=network), ModelSpec("other", "local", {}), folder, photo)
    assert (folder / "model.json").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize(
    "options",
    [
        {"interpolation": "mean3"},
        {"interpolation": "idw3", "interpolate": "before"},
        {"interpolation": "bilinear", "fusion_context_norm": True},
        {"interpolation": "bilinear", "final_relu": False, "gate": True, "grid_context_norm": False},
        {"grid_widths": (), "fusion_widths": (128,), "unit": True, "final_relu": False},
    ],
    ids=str,
)
def test_visual_variants_agree_at_any_size(options: dict[str, object], tmp_path: Path, photo: Image) -> None:
    small = VisualConfig(16, (32, 16), fusion_widths=(32, 128))
    network = VisualContext(replace(small, **options)).eval()  # type: ignore[arg-type]
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    spec = ModelSpec("v", "rootsift", {}, regional_channels=16)
    export_model(Parts(visual=network), spec, tmp_path / "v", photo)
    engine = Engine(tmp_path / "v" / modelfile.VISUAL)
    for size, keypoints in (((4, 9), 33), ((1, 1), 1), ((20, 12), 500)):
        grid, xy, raw = torch.randn(16, *size), torch.rand(keypoints, 2) * 2 - 1, torch.randn(keypoints, 128)
        (term,) = engine.run(grid=grid.numpy(), xy=xy.numpy(), raw=raw.numpy())
        with torch.no_grad():
            expected = network(grid[None], xy[None], raw[None])[0].T
        torch.testing.assert_close(torch.from_numpy(term), expected, atol=2e-2, rtol=2e-2)


def test_geometric_context_agrees_for_any_number_of_keypoints(small_model: Path) -> None:
    model = load(small_model)
    engine = Engine(small_model / modelfile.GEOMETRIC)
    for keypoints in (1, 2, 777):
        xy = np.random.default_rng(0).uniform(-1, 1, (keypoints, 2)).astype(np.float32)
        (term,) = engine.run(xy=xy, score=xy[:, 0])
        assert term.shape == (keypoints, 128)
        assert np.isfinite(term).all()
    assert model.spec.terms == ("visual", "geometric")


def test_the_folder_is_what_the_contract_says(small_model: Path) -> None:
    values = json.loads((small_model / "model.json").read_text())
    assert values["format"] == modelfile.FORMAT
    assert set(values["files"]) == {"local.onnx", "geometric.onnx", "visual.onnx", "regional.onnx"}
    for name, checksum in values["files"].items():
        assert modelfile.sha256(small_model / name) == checksum
    for file in small_model.glob("*.onnx"):
        content = file.read_bytes()
        assert b"site-packages" not in content
        assert b".py" not in content  # no trace of the machine that exported it


def test_geometric_part_is_checked_too(tmp_path: Path, photo: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "PARITY", -1.0)
    assert PARITY == 1e-4
    network = ContextNormContext()
    with pytest.raises(ContextDescError, match=r"geometric.onnx"):
        export_model(Parts(geometric=network), ModelSpec("g", "rootsift", {}), tmp_path / "g", photo)
    assert not (tmp_path / "g").exists()
