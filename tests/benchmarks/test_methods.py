"""Methods by name: what each adapter describes, how its descriptors compare, and what bad names say."""

from __future__ import annotations

import pickle
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from contextdesc.benchmarks import heinly
from contextdesc.benchmarks.methods import Method, build_method, build_methods, opencv
from contextdesc.benchmarks.methods.method import from_bits
from contextdesc.benchmarks.methods.opencv import available
from contextdesc.benchmarks.protocol import OWN, Request
from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.extraction import extract_images
from contextdesc.image import Image, find_images, read
from contextdesc.keypoints import Keypoints
from contextdesc.model import load
from contextdesc.patches import sample_patches


@pytest.fixture(scope="module")
def keypoints(photo: Image) -> Keypoints:
    return detect(photo.gray, Detector(80))


def network_file(folder: Path, network: str, suffix: str) -> Path:
    """Random weights of one of kornia's networks."""
    import kornia.feature
    from safetensors.torch import save_file

    torch.manual_seed(0)
    weights = getattr(kornia.feature, network)(pretrained=False).state_dict()
    path = folder / f"{network}{suffix}"
    if suffix == ".safetensors":
        save_file(weights, path)
    else:
        torch.save(weights, path)
    return path


def unit_length(descriptors: np.ndarray) -> bool:
    return np.allclose(np.linalg.norm(descriptors, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("network", "suffix"), [("HardNet", ".pth"), ("SOSNet", ".safetensors"), ("HyNet", ".pth")]
)
def test_kornia_s_networks_describe_our_patches(
    network: str, suffix: str, tmp_path: Path, photo: Image, keypoints: Keypoints
) -> None:
    import kornia.feature

    path = network_file(tmp_path, network, suffix)
    method = build_method(f"kornia:{network}={path}")
    found = method(photo, keypoints, True)
    assert found.shape == (80, 128)
    assert unit_length(found)
    torch.manual_seed(0)
    module = getattr(kornia.feature, network)(pretrained=False).eval()
    patches = sample_patches(photo.gray, keypoints)[:, None].astype(np.float32) / 255
    with torch.inference_mode():
        np.testing.assert_allclose(found, module(torch.from_numpy(patches)).numpy(), atol=1e-5)
    assert method(photo, Keypoints.empty(), True).shape == (0, 128)
    wider = build_method(f"kornia:{network}={path}@1.13")
    assert not np.allclose(wider(photo, keypoints, True), found, atol=1e-3)
    assert wider.identity != method.identity


def test_weights_are_read_as_they_were_published(tmp_path: Path, photo: Image, keypoints: Keypoints) -> None:
    """HardNet's are of a PyTorch that did not count batches, and nested in what its training wrote."""
    path = network_file(tmp_path, "HardNet", ".pth")
    expected = build_method(f"kornia:HardNet={path}")(photo, keypoints, True)
    weights = torch.load(path, weights_only=True)
    old = {name: value for name, value in weights.items() if not name.endswith("num_batches_tracked")}
    torch.save({"epoch": 10, "state_dict": old}, path, _use_new_zipfile_serialization=False)
    found = build_method(f"kornia:HardNet={path}")(photo, keypoints, True)
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(InputError, match="no weights of SOSNet"):
        build_method(f"kornia:SOSNet={path}")


def test_an_identity_changes_with_the_weights(tmp_path: Path) -> None:
    path = network_file(tmp_path, "HardNet", ".pth")
    before = build_method(f"kornia:HardNet={path}").identity
    weights = torch.load(path, weights_only=True)
    next(iter(weights.values()))[0] += 1
    torch.save({"state_dict": weights}, path)  # as training scripts nest it
    assert build_method(f"kornia:HardNet={path}").identity != before


def test_every_feature_of_opencv_describes_its_own_keypoints(photo: Image) -> None:
    assert {"ORB", "SIFT"} <= set(available())
    for name in available():
        method = build_method(f"opencv:{name}")
        found = method.own(photo, Detector(70))
        assert 0 < len(found.keypoints) == len(found.descriptors) <= 70, name
        assert unit_length(found.descriptors), name
        assert method.metric == ("cosine" if name in ("SIFT", "KAZE") else "hamming"), name
        black = method.own(Image(np.zeros((64, 64, 3), np.uint8), (64, 64)), Detector(70))
        assert len(black.keypoints) == 0
        assert black.descriptors.shape == (0, found.descriptors.shape[1])


def test_orb_by_the_number_of_keypoints_asked_for(photo: Image) -> None:
    """OpenCV's own default is 500."""
    orb = build_method("opencv:ORB")
    assert len(orb.own(photo, Detector(1500)).keypoints) > 1000
    draws = [orb.own(photo, Detector(100, "random", seed)).keypoints.xy for seed in (0, 1)]
    assert len(draws[0]) == len(draws[1]) == 100
    assert not np.array_equal(draws[0], draws[1])


def test_rows_of_opencv_s_descriptors_are_those_of_the_keypoints(photo: Image) -> None:
    """One keypoint so near to the border that ORB drops it, and the others out of their order."""
    orb = build_method("opencv:ORB")
    own = orb.own(photo, Detector(40))
    shuffled = own.keypoints[np.random.default_rng(0).permutation(len(own.keypoints))]
    edge = Keypoints.from_array([[2.0, 2.0, 31.0, 0.0]])
    found = orb(photo, Keypoints.concatenate([edge, shuffled]), True)
    assert not found[0].any()
    assert unit_length(found[1:])
    matches = orb.match(own.descriptors, found[1:])
    moved = own.keypoints.xy[matches.indices[:, 0]] - shuffled.xy[matches.indices[:, 1]]
    assert (np.abs(moved).max(1) < 1e-3).mean() > 0.9
    assert orb(photo, Keypoints.empty(), True).shape == (0, 256)
    sift = build_method("opencv:SIFT")
    expected = build_method("sift")
    keypoints = detect(photo.gray, Detector(30, precise_upscale=False))
    np.testing.assert_allclose(sift(photo, keypoints, False), expected(photo, keypoints, False), atol=1e-6)


def test_codes_compare_by_hamming_distance() -> None:
    """Of 8 bits: the first row is 1 bit from one code and 3 from the other."""
    bits = np.array([[0, 0, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0]], bool)
    codes = from_bits(bits)
    assert unit_length(codes)
    np.testing.assert_allclose(codes[0] @ codes[1:].T, [1 - 2 * 1 / 8, 1 - 2 * 3 / 8])
    orb = build_method("opencv:ORB")
    kept = [len(orb.match(codes[:1], codes[1:], ratio, mutual=False)) for ratio in (0.34, 0.33)]
    assert kept == [1, 0]  # the ratio is 1 / 3
    kept = [
        len(build_method("sift").match(codes[:1], codes[1:], ratio, mutual=False)) for ratio in (0.58, 0.57)
    ]
    assert kept == [1, 0]  # of Euclidean distances it is the root of that


def test_features_of_a_file(scene: Path, tmp_path: Path) -> None:
    model = load("sift-context", context="geometric", detector=Detector(150))
    path = tmp_path / "features.h5"
    extract_images(model, find_images([scene.parent]), path, quiet=True)
    method = build_method(f"h5:{path}")
    assert method.ratio == model.spec.ratio
    image = read(scene / "img1.png")
    expected = model.extract(image)
    np.testing.assert_allclose(method(image, expected.keypoints, True), expected.descriptors, atol=1e-6)
    with pytest.raises(InputError, match="not the shared ones; give --keypoints own"):
        method(image, expected.keypoints[:-1], True)
    few = method.own(image, Detector(40))
    np.testing.assert_array_equal(few.keypoints.xy, expected.keypoints.xy[:40])
    np.testing.assert_allclose(few.descriptors, expected.descriptors[:40], atol=1e-6)
    request = Request(scene.parent, {f"h5{OWN}": method}, (0,), keypoints="own")
    assert heinly.run(request).numbers["recall"][f"h5{OWN}"]["shift"] > 60


def test_a_file_answers_for_one_image_by_each_name(scene: Path, tmp_path: Path) -> None:
    path = tmp_path / "features.h5"
    images = {"img1.png": scene / "img1.png", "img2.png": scene / "img2.png"}
    extract_images(load("sift-context", context="none", detector=Detector(20)), images, path, quiet=True)
    method = build_method(f"h5:{path}")
    image = read(scene / "img1.png")
    assert len(method.own(image, Detector()).keypoints) == 20
    with pytest.raises(InputError, match=r"img1.png would stand for .* extract the features of their common"):
        method.own(Image(image.rgb, image.original_size, "elsewhere/img1.png"), Detector())
    with pytest.raises(InputError, match=r"no features of .*img3.png"):
        method.own(read(scene / "img3.png"), Detector())
    with pytest.raises(InputError, match="another size"):
        method.own(Image(image.rgb[:50], (300, 50), "img2.png"), Detector())


FUNCTIONS = """
import numpy as np

def mean_colour(image, keypoints):
    assert image.dtype == np.uint8 and image.shape[2] == 3 and keypoints.shape[1] == 4
    column, row = np.rint(keypoints[:, :2]).astype(int).T
    return image[row, column].astype(float) + 1

def bright(image, keypoints):
    column, row = np.rint(keypoints[:, :2]).astype(int).T
    return np.unpackbits(image[row, column], axis=1) == 1

def short(image, keypoints):
    return np.ones((1, 3)) if len(keypoints) > 1 else np.ones((len(keypoints), 3))

def broken(image, keypoints):
    raise KeyError("no such layer")

number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_descriptors.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    return "my_descriptors"


def test_a_function_by_its_path(module: str, photo: Image, keypoints: Keypoints) -> None:
    method = build_method(f"python:{module}.mean_colour")
    column, row = np.rint(keypoints.xy).astype(int).T
    colours = photo.rgb[row, column].astype(float) + 1
    expected = colours / np.linalg.norm(colours, axis=1, keepdims=True)
    np.testing.assert_allclose(method(photo, keypoints, True), expected, atol=1e-6)
    assert (method.metric, method.identity) == ("cosine", None)
    codes = build_method(f"python:{module}.bright")
    assert codes.metric == "hamming"
    assert codes(photo, keypoints, True).shape == (80, 24)
    with pytest.raises(InputError, match=r"\(1, 3\) descriptors of 80 keypoints"):
        build_method(f"python:{module}.short")(photo, keypoints, True)
    with pytest.raises(InputError, match="broken' failed: KeyError: 'no such layer'"):
        build_method(f"python:{module}.broken")


def test_a_method_is_built_again_in_another_process(photo: Image, keypoints: Keypoints) -> None:
    method = build_method("sift-context:geometric", threads=1)
    again: Method = pickle.loads(pickle.dumps(method))
    assert (again.name, again.threads, again.identity) == (method.name, 1, method.identity)
    assert pickle.loads(pickle.dumps(method)) is again  # once only
    np.testing.assert_array_equal(again(photo, keypoints, True), method(photo, keypoints, True))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "surf",
            r"surf: neither a packaged model \(contextdesc, .* nor a folder; other methods: sift,",
        ),
        (
            "contextdesc:most",
            "after the colon one of all, both, visual, geometric, none; other methods",
        ),
        ("kornia:TFeat=x.pth", "one of HardNet, SOSNet, HyNet and a file of weights"),
        ("kornia:HardNet", "kornia:NETWORK=FILE"),
        ("kornia:HardNet=nowhere.pth", "nowhere.pth: no such file of weights"),
        ("kornia:HardNet=bad.pth", "bad.pth: no weights of HardNet"),
        ("opencv:SURF", "this OpenCV has .*ORB, SIFT"),
        ("opencv:FastFeatureDetector", "this OpenCV has .*ORB"),
        ("h5:nowhere.h5", "nowhere.h5: no such file"),
        ("python:describe", "python:MODULE.FUNCTION"),
        ("python:nowhere.describe", "cannot be imported"),
        ("python:my_descriptors.number", "number is no function"),
    ],
)
def test_bad_names_say_what_there_is(
    name: str, message: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.pth").write_bytes(b"no weights")
    with pytest.raises(InputError, match=message):
        build_method(name)


def test_a_feature_that_needs_its_own_keypoints_says_so(
    photo: Image, keypoints: Keypoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As AKAZE, which not every OpenCV has."""
    monkeypatch.setattr(opencv, "_ONLY_OWN", ("ORB",))
    with pytest.raises(InputError, match="ORB: describes its own keypoints only; give --keypoints own"):
        build_method("opencv:ORB")(photo, keypoints, True)


def test_names_are_separated_by_commas() -> None:
    assert list(build_methods(" sift, rootsift,sift")) == ["sift", "rootsift"]
    with pytest.raises(InputError, match="no methods: give some of sift, rootsift, contextdesc"):
        build_methods(" , ")
    assert cv2.__version__ in str(build_method("sift").identity)
