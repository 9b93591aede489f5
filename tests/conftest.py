"""Shared inputs: real photographs out of scikit-image's wheel, and small models with random weights."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from contextdesc.image import Image
from contextdesc.modelfile import ModelSpec
from tests.browser import browser  # noqa: F401  # a fixture; one for all, since Playwright starts only once

CI = os.environ.get("CI") == "true"

# Where the tests run in the background of a shell, SIGINT is ignored, and so it would be in the processes
# that they start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder that CONTEXTDESC_DATA names, with `train/photos` and `eval/oxford-affine`."""
    folder = Path(os.environ.get("CONTEXTDESC_DATA", "no-data"))
    if not folder.is_dir():
        reason = "CONTEXTDESC_DATA names no folder of photographs (train/photos, eval/oxford-affine)"
        if CI:
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


@pytest.fixture(scope="session")
def photo() -> Image:
    """A real photograph, 512 x 512."""
    from skimage.data import astronaut

    rgb = astronaut()
    return Image(rgb, (rgb.shape[1], rgb.shape[0]), "astronaut")


@pytest.fixture(scope="session")
def photo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve photographs as files: crops of scikit-image's pictures, in two folders."""
    import cv2
    from skimage import data

    folder = tmp_path_factory.mktemp("photos")
    pictures = [data.astronaut(), data.coffee(), data.chelsea(), data.rocket()]
    for number in range(12):
        rgb = pictures[number % 4]
        crop = rgb[10 * number : 10 * number + 250, 5 * number : 5 * number + 320]
        path = folder / ("a" if number < 6 else "b") / f"{number:02}.png"
        path.parent.mkdir(exist_ok=True)
        cv2.imwrite(str(path), cv2.cvtColor(np.ascontiguousarray(crop), cv2.COLOR_RGB2BGR))
    return folder


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory, photo: Image) -> Path:
    """A model with every part: random local, geometric and visual networks, a real regional network."""
    from contextdesc.training.export import export_model
    from contextdesc.training.networks import LocalNetwork, VisualConfig, VisualContext
    from contextdesc.training.parts import Parts
    from contextdesc.training.regional import EfficientNetLite0, registry_weights
    from contextdesc.training.variants import ContextNormContext

    torch = pytest.importorskip("torch") if not CI else __import__("torch")
    torch.manual_seed(0)
    regional = EfficientNetLite0(head=False)
    regional.load_registry_weights(registry_weights())
    visual = VisualConfig(regional_channels=320, grid_widths=(64, 32), fusion_widths=(64, 128))
    geometric = ContextNormContext()
    torch.nn.init.normal_(geometric.last.weight, std=0.02)
    parts = Parts(LocalNetwork(), None, VisualContext(visual), geometric, None, regional)
    spec = ModelSpec(
        name="small", base="local", files={}, regional="efficientnet-lite0", regional_channels=320,
        regional_max_side=320, interpolation="mean3", matchability="map",
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("models") / "small"
    export_model(parts, spec, folder, photo)
    return folder


def random_base_model(folder: Path, base: str, photo: Image) -> Path:
    """A model on RootSIFT or on given descriptors, with matchability and geometric context."""
    import torch

    from contextdesc.training.export import export_model
    from contextdesc.training.networks import Matchability
    from contextdesc.training.parts import Parts
    from contextdesc.training.variants import ContextNormContext

    torch.manual_seed(1)
    geometric = ContextNormContext()
    torch.nn.init.normal_(geometric.last.weight, std=0.02)
    parts = Parts(matchability=Matchability(), geometric=geometric)
    export_model(parts, ModelSpec(name=base, base=base, files={}), folder, photo)
    return folder


@pytest.fixture(scope="session")
def rootsift_model(tmp_path_factory: pytest.TempPathFactory, photo: Image) -> Path:
    return random_base_model(tmp_path_factory.mktemp("models") / "rootsift", "rootsift", photo)


@pytest.fixture(scope="session")
def given_model(tmp_path_factory: pytest.TempPathFactory, photo: Image) -> Path:
    return random_base_model(tmp_path_factory.mktemp("models") / "given", "given", photo)
