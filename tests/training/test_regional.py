"""Regional networks that stack feature maps of several strides: shapes, values, weights and export."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from contextdesc.config import from_dict
from contextdesc.engine import Engine
from contextdesc.errors import InputError
from contextdesc.training.export import export_regional
from contextdesc.training.grids import NetworkGrids
from contextdesc.training.parts import PREFIX, Parts, load_parts
from contextdesc.training.regional import EfficientNetLite0, RegionalConfig, build_regional, registry_weights

IMAGE = torch.rand(1, 3, 96, 160, generator=torch.Generator().manual_seed(0)) * 255


@pytest.fixture(scope="module")
def whole() -> EfficientNetLite0:
    """The published network, up to and with its head."""
    network = EfficientNetLite0()
    network.load_registry_weights(registry_weights())
    return network.eval()


@pytest.fixture(scope="module")
def maps(whole: EfficientNetLite0) -> dict[int, Tensor]:
    """The last feature map of each stride inside the whole network, before the head, of `IMAGE`."""
    outputs: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda _, __, out: outputs.append(out)) for block in whole.blocks]
    with torch.no_grad():
        whole(IMAGE)
    for hook in hooks:
        hook.remove()
    last = {160 // out.shape[3]: out for out in outputs}
    assert {stride: out.shape[1] for stride, out in last.items()} == {2: 16, 4: 24, 8: 40, 16: 112, 32: 320}
    return last


def stacked(
    whole: EfficientNetLite0, levels: tuple[int, ...], stride: int, head: bool = False, octaves: int = 1
) -> Tensor:
    network = EfficientNetLite0(head, levels, stride, octaves).eval()
    network.load_state_dict(whole.state_dict())
    with torch.no_grad():
        grid: Tensor = network(IMAGE)
    assert grid.shape == (1, network.channels, 96 // stride, 160 // stride)
    return grid


@pytest.mark.parametrize("level", [4, 8, 16, 32])
def test_a_level_is_the_last_map_of_its_stride(
    whole: EfficientNetLite0, maps: dict[int, Tensor], level: int
) -> None:
    assert maps[level].std() > 0.1
    torch.testing.assert_close(stacked(whole, (level,), level), maps[level])


def test_finer_levels_are_averaged(whole: EfficientNetLite0, maps: dict[int, Tensor]) -> None:
    for level, stride in ((4, 8), (4, 32), (8, 16), (8, 32), (16, 32)):
        side = stride // level
        cells = maps[level].unflatten(3, (-1, side)).unflatten(2, (-1, side))  # (1, C, h, side, w, side)
        torch.testing.assert_close(stacked(whole, (level,), stride), cells.mean((3, 5)))


def test_coarser_levels_are_interpolated(whole: EfficientNetLite0, maps: dict[int, Tensor]) -> None:
    for level, stride in ((32, 16), (32, 8), (16, 8)):
        size = (160 // stride, 96 // stride)
        expected = np.stack([cv2.resize(channel.numpy(), size) for channel in maps[level][0]])
        np.testing.assert_allclose(stacked(whole, (level,), stride)[0], expected, atol=1e-4)


def test_levels_are_stacked_from_fine_to_coarse(whole: EfficientNetLite0) -> None:
    for head, channels in ((False, (40, 112, 320)), (True, (40, 112, 1280))):
        grid = stacked(whole, (32, 8, 16), 16, head)
        assert grid.shape[1] == sum(channels)
        for level, part in zip((8, 16, 32), grid.split(channels, 1), strict=True):
            torch.testing.assert_close(part, stacked(whole, (level,), 16, head))
    assert EfficientNetLite0(levels=(16, 8, 16)).channels == 152  # no level twice


def test_octaves_are_the_levels_of_smaller_images(whole: EfficientNetLite0) -> None:
    first, second = stacked(whole, (4, 8, 16), 8, octaves=2).split(176, 1)
    torch.testing.assert_close(first, stacked(whole, (4, 8, 16), 8))
    half = IMAGE.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).mean((3, 5))
    alone = EfficientNetLite0(False, (4, 8, 16), 4).eval()  # 4 pixels of the half are 8 of the image
    alone.load_state_dict(whole.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(second, alone(half), atol=1e-4, rtol=0)


def test_a_network_ends_at_its_coarsest_level() -> None:
    sizes = [
        sum(p.numel() for p in EfficientNetLite0(levels=levels).parameters())
        for levels in ((8,), (8, 16), (8, 16, 32))
    ]
    assert all(2 * fewer < more for fewer, more in pairwise(sizes))
    without_head = EfficientNetLite0(levels=(8, 16))
    assert without_head.channels == EfficientNetLite0(head=False, levels=(8, 16)).channels == 152
    assert not any(name.startswith("head.") for name in without_head.state_dict())


def test_registry_weights_load_into_a_shorter_network(maps: dict[int, Tensor]) -> None:
    network = EfficientNetLite0(levels=(16,), stride=16).eval()
    network.load_registry_weights(registry_weights())
    with torch.no_grad():
        torch.testing.assert_close(network(IMAGE), maps[16])


def test_a_whole_checkpoint_loads_into_a_shorter_network(
    whole: EfficientNetLite0, maps: dict[int, Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.safetensors"
    save_file({f"{PREFIX}regional.{name}": value for name, value in whole.state_dict().items()}, path)
    parts = Parts(regional=EfficientNetLite0(levels=(8,), stride=8)).eval()
    assert load_parts(path, parts) == {"regional"}
    assert parts.regional is not None
    with torch.no_grad():
        torch.testing.assert_close(parts.regional(IMAGE), maps[8])
    nested = Parts(regional=EfficientNetLite0(levels=(8,), stride=8))
    nested.load_state_dict(Parts(regional=whole).state_dict())
    torch.testing.assert_close(nested.state_dict(), parts.state_dict())


@pytest.mark.parametrize(
    "foreign", ["classifier.weight", "blocks.3.more.weight", "blocks.16.0.weight", "stem.7.bias"]
)
def test_foreign_and_missing_weights_are_refused(whole: EfficientNetLite0, foreign: str) -> None:
    weights = whole.state_dict()
    short = EfficientNetLite0(levels=(8,), stride=8)
    with pytest.raises(RuntimeError, match=f"(?s)Unexpected key.*{foreign}"):
        short.load_state_dict({**weights, foreign: torch.zeros(1)})
    with pytest.raises(RuntimeError, match=r"(?s)Unexpected key.*head.more"):
        EfficientNetLite0().load_state_dict({**weights, "head.more": torch.zeros(1)})
    with pytest.raises(RuntimeError, match=r"(?s)Missing key.*head"):
        EfficientNetLite0().load_state_dict(EfficientNetLite0(head=False).state_dict())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"levels": []}, r"levels is \[\]: choose from \[4, 8, 16, 32\]"),
        ({"levels": [8, 64]}, r"levels is \[8, 64\]: choose from \[4, 8, 16, 32\]"),
        ({"levels": [8], "stride": 2}, r"stride is 2: one of \[4, 8, 16, 32\]"),
        ({"octaves": 2}, r"octaves is 2: from 1 to 1 with levels \[32\]"),
        ({"levels": [4, 16], "octaves": 3}, r"octaves is 3: from 1 to 2 with levels \[4, 16\]"),
        ({"levels": [4, 16], "octaves": 0}, r"octaves is 0: from 1 to 2 with levels \[4, 16\]"),
    ],
)
def test_wrong_levels_are_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}$"):
        build_regional(from_dict(RegionalConfig, values, "config"))


def test_levels_of_a_config(whole: EfficientNetLite0) -> None:
    values = {"levels": [8, 16], "stride": 8, "head": False, "octaves": 2}
    config = from_dict(RegionalConfig, values, "config")
    network = build_regional(config)
    assert isinstance(network, EfficientNetLite0)
    assert (network.levels, network.stride, network.channels) == ((8, 16), 8, 304)
    assert from_dict(RegionalConfig, network.shape, "model.json") == config  # as a model records it


@pytest.mark.slow
@pytest.mark.parametrize(
    ("levels", "stride", "octaves", "channels"), [((8, 16, 32), 16, 1, 472), ((4, 8, 16), 8, 2, 352)]
)
def test_the_onnx_file_of_a_stacked_network(
    whole: EfficientNetLite0,
    tmp_path: Path,
    levels: tuple[int, ...],
    stride: int,
    octaves: int,
    channels: int,
) -> None:
    network = EfficientNetLite0(False, levels, stride, octaves).eval()
    network.load_state_dict(whole.state_dict())
    export_regional(network, tmp_path / "regional.onnx")
    engine = Engine(tmp_path / "regional.onnx")
    for size in ((64, 96), (160, 32)):
        image = torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(1)) * 255
        with torch.no_grad():
            expected = network(image)[0].numpy()
        assert expected.shape == (channels, size[0] // stride, size[1] // stride)
        np.testing.assert_allclose(
            engine.run(image=image.numpy())[0], expected, atol=1e-4 * np.abs(expected).max()
        )


def test_grids_know_their_shape_and_levels(whole: EfficientNetLite0, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contextdesc.training.grids.export_regional", lambda network, path: None)
    monkeypatch.setattr("contextdesc.training.grids.Engine", lambda path: None)  # shapes and keys alone
    keys = set()
    for levels, stride, octaves in (
        ((16,), 8, 1), ((16,), 16, 1), ((16,), 32, 1), ((8, 16), 16, 1), ((8, 16), 16, 2),
    ):  # fmt: skip
        network = EfficientNetLite0(levels=levels, stride=stride, octaves=octaves)
        network.load_state_dict(whole.state_dict())
        grids = NetworkGrids(network, 160)
        assert grids.shape(Path(), np.array([160, 96])) == (96 // stride, 160 // stride)
        assert grids.channels == network.channels
        keys.add(grids.key)
    assert len(keys) == 5
