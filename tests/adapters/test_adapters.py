"""Adapters: the same features as the model's own, behind the interfaces of OpenCV, LightGlue and hloc."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from contextdesc.adapters.hloc import register
from contextdesc.adapters.lightglue import Extractor
from contextdesc.adapters.opencv import Feature2D
from contextdesc.detection import Detector
from contextdesc.errors import InputError
from contextdesc.features import Features
from contextdesc.image import Image
from contextdesc.model import ContextDesc, load
from tests.conftest import CI

torch = __import__("torch") if CI else pytest.importorskip("torch")


@pytest.fixture(scope="module")
def model(rootsift_model: Path) -> ContextDesc:
    return load(rootsift_model, detector=Detector(100))


@pytest.fixture(scope="module")
def expected(model: ContextDesc, photo: Image) -> Features:
    return model.extract(photo)


# OpenCV


def test_detect_and_compute_takes_bgr(model: ContextDesc, photo: Image, expected: Features) -> None:
    feature = Feature2D.create(model)
    keypoints, descriptors = feature.detectAndCompute(cv2.cvtColor(photo.rgb, cv2.COLOR_RGB2BGR), None)
    assert all(isinstance(keypoint, cv2.KeyPoint) for keypoint in keypoints)
    np.testing.assert_allclose(cv2.KeyPoint.convert(keypoints), expected.keypoints.xy)
    np.testing.assert_array_equal(descriptors, expected.descriptors)
    with_alpha = cv2.cvtColor(photo.rgb, cv2.COLOR_RGB2BGRA)
    np.testing.assert_array_equal(feature.detectAndCompute(with_alpha)[1], descriptors)
    gray = feature.detectAndCompute(photo.gray)[0]
    np.testing.assert_allclose(cv2.KeyPoint.convert(gray), expected.keypoints.xy)
    assert len(feature.detect(photo.gray)) == len(keypoints)


def test_opencv_matches_with_what_the_object_says(
    model: ContextDesc, photo: Image, expected: Features
) -> None:
    feature = Feature2D(model)
    assert (feature.defaultNorm(), feature.descriptorType()) == (cv2.NORM_L2, cv2.CV_32F)
    assert feature.descriptorSize() == expected.descriptors.shape[1]
    assert not feature.empty()
    assert feature.getDefaultName() == "Feature2D.rootsift"
    matcher = cv2.BFMatcher(feature.defaultNorm(), crossCheck=True)
    found = matcher.match(expected.descriptors, expected.descriptors)
    assert [m.trainIdx for m in sorted(found, key=lambda m: m.queryIdx)] == list(range(len(expected)))


def test_compute_keeps_every_keypoint(model: ContextDesc, photo: Image) -> None:
    given = [*cv2.FastFeatureDetector.create(60).detect(photo.gray)[:20], cv2.KeyPoint(-5, 600, 7)]
    assert given[0].angle == -1
    kept, descriptors = Feature2D(model).compute(photo.gray, given)
    assert kept == given
    assert descriptors.shape == (21, 128)
    np.testing.assert_allclose(np.linalg.norm(descriptors, axis=1), 1, atol=1e-5)


def test_opencv_masks_and_images_without_keypoints(model: ContextDesc, photo: Image) -> None:
    mask = np.zeros(photo.gray.shape, np.uint8)
    mask[:, :200] = 1
    keypoints, _ = Feature2D(model).detectAndCompute(photo.gray, mask)
    assert 0 < max(keypoint.pt[0] for keypoint in keypoints) <= 200
    keypoints, descriptors = Feature2D(model).detectAndCompute(np.zeros((40, 50, 3), np.uint8))
    assert keypoints == []
    assert descriptors.shape == (0, 128)


def test_model_options_reach_the_model(rootsift_model: Path, photo: Image) -> None:
    feature = Feature2D.create(rootsift_model, context="none", detector=Detector(7))
    assert len(feature.detect(photo.gray)) == 7


# LightGlue


def test_tensors_give_tensors(model: ContextDesc, photo: Image, expected: Features) -> None:
    tensor = torch.from_numpy(photo.rgb.transpose(2, 0, 1) / 255).float()
    features = Extractor(model).eval().to("cpu").extract(tensor)
    rows = len(expected)
    shapes = {key: tuple(value.shape) for key, value in features.items()}
    assert shapes == {
        "keypoints": (1, rows, 2), "descriptors": (1, rows, 128), "keypoint_scores": (1, rows),
        "scales": (1, rows), "oris": (1, rows), "image_size": (1, 2),
    }  # fmt: skip
    assert all(value.dtype == torch.float32 for value in features.values())
    np.testing.assert_allclose(features["keypoints"][0], expected.keypoints.xy)
    np.testing.assert_array_equal(features["descriptors"][0], expected.descriptors)
    np.testing.assert_allclose(features["scales"][0], expected.keypoints.size / 2)
    np.testing.assert_allclose(features["oris"][0], np.deg2rad(expected.keypoints.angle), rtol=1e-6)
    assert features["image_size"].tolist() == [[512, 512]]
    batch = Extractor(model)({"image": tensor[None].half()})
    assert batch["keypoints"].dtype == torch.float32
    assert batch["keypoints"].shape == (1, rows, 2)


def test_arrays_and_paths_give_arrays(model: ContextDesc, photo: Image, tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "photo.png"), photo.rgb[:, :, ::-1])
    for source in (photo.rgb, tmp_path / "photo.png", str(tmp_path / "photo.png")):
        features = Extractor(model).extract(source)
        assert isinstance(features["keypoints"], np.ndarray)
        assert features["keypoints"].shape == (1, 100, 2)


def test_resize_keeps_the_coordinates_of_the_original(model: ContextDesc, photo: Image) -> None:
    features = Extractor(model).extract(photo.rgb, resize=200)
    assert features["image_size"].tolist() == [[512, 512]]
    assert features["keypoints"].max() > 250


@pytest.mark.parametrize(
    ("shape", "scale", "message"),
    [
        ((2, 3, 8, 8), 1, "expected one image"),
        ((8, 8), 1, "expected one image"),
        ((1, 5, 8, 8), 1, "expected one image"),
        ((1, 3, 8, 8), 255, "outside of 0 to 1"),
        ((1, 3, 8, 8), float("nan"), "outside of 0 to 1"),
    ],
)
def test_bad_tensors(model: ContextDesc, shape: tuple[int, ...], scale: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Extractor(model).extract(torch.ones(shape) * scale)


def test_adapters_do_not_import_torch() -> None:
    code = (
        "import sys, contextdesc.adapters.opencv, contextdesc.adapters.lightglue, contextdesc.adapters.hloc\n"
        "print('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "False\n"


# hloc: not on the package index, so a package that keeps its protocol stands in for it

BASE_MODEL = """
import inspect
from abc import ABCMeta, abstractmethod
from torch import nn

class BaseModel(nn.Module, metaclass=ABCMeta):
    default_conf = {}
    required_inputs = []
    def __init__(self, conf):
        super().__init__()
        self.conf = {**self.default_conf, **conf}
        self._init(self.conf)
    def forward(self, data):
        assert all(key in data for key in self.required_inputs)
        return self._forward(data)
    @abstractmethod
    def _init(self, conf): ...
    @abstractmethod
    def _forward(self, data): ...

def dynamic_load(root, name):
    path = f"{root.__name__}.{name}"
    module = __import__(path, fromlist=[""])
    classes = [c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == path]
    classes = [c for c in classes if issubclass(c, BaseModel)]
    assert len(classes) == 1, classes
    return classes[0]
"""


@pytest.fixture
def hloc_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder `hloc` with the parts of hloc that an extractor meets."""
    for name in ("hloc", "hloc/utils", "hloc/extractors"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "hloc" / "utils" / "base_model.py").write_text(BASE_MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "hloc"
    for name in [name for name in sys.modules if name.split(".")[0] == "hloc"]:
        del sys.modules[name]


def run_hloc(conf: dict[str, object], photo: Image) -> dict[str, np.ndarray]:
    """What hloc's extract_features does with a configuration and an image."""
    dynamic_load = importlib.import_module("hloc.utils.base_model").dynamic_load
    found = dynamic_load(importlib.import_module("hloc.extractors"), conf["model"]["name"])
    extractor = found(conf["model"]).eval().to("cpu")
    image = torch.from_numpy((photo.rgb.astype(np.float32) / 255).transpose(2, 0, 1))[None]
    with torch.no_grad():
        prediction = extractor({"image": image})
    return {key: value[0].cpu().numpy() for key, value in prediction.items()}


def assert_hloc_features(found: dict[str, np.ndarray], expected: Features) -> None:
    np.testing.assert_allclose(found["keypoints"], expected.keypoints.xy)
    np.testing.assert_array_equal(found["descriptors"], expected.descriptors.T)
    np.testing.assert_allclose(found["scales"], expected.keypoints.size / 2)
    np.testing.assert_allclose(found["oris"], expected.keypoints.angle)
    np.testing.assert_allclose(found["scores"], expected.keypoints.response)


@pytest.mark.usefixtures("hloc_package")
def test_hloc_finds_the_registered_extractor(rootsift_model: Path, photo: Image, expected: Features) -> None:
    conf = register(weights=str(rootsift_model), max_keypoints=100)
    assert set(conf) == {"output", "model", "preprocessing"}
    assert_hloc_features(run_hloc(conf, photo), expected)


def test_three_lines_in_hloc_are_an_extractor(
    hloc_package: Path, rootsift_model: Path, photo: Image, expected: Features
) -> None:
    """The lines that the module's docstring tells to write."""
    import contextdesc.adapters.hloc as adapter

    lines = [line.strip() for line in inspect.getdoc(adapter).splitlines() if line.startswith("    ")]
    assert len(lines) == 3
    (hloc_package / "extractors" / "contextdesc.py").write_text("\n".join(lines))
    conf = {"model": {"name": "contextdesc", "weights": str(rootsift_model), "max_keypoints": 100}}
    assert_hloc_features(run_hloc(conf, photo), expected)


def test_hloc_settings_and_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="max_points: no setting of the extractor; it has weights, context"):
        register(max_points=3)
    monkeypatch.setitem(sys.modules, "hloc", None)
    with pytest.raises(InputError, match="hloc is not installed"):
        register()
