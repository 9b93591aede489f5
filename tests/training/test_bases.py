"""Bases: RootSIFT, the local network of a model, a function of the user's, and what is wrong with others."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from contextdesc.detection import Detector, detect
from contextdesc.engine import Engine
from contextdesc.errors import InputError
from contextdesc.image import Image
from contextdesc.keypoints import Keypoints
from contextdesc.model import Precision
from contextdesc.modelfile import INT8, LOCAL, ModelSpec, resolve, write_spec
from contextdesc.patches import sample_patches
from contextdesc.rootsift import rootsift
from contextdesc.training.bases import Base, FunctionBase, LocalBase, RootSiftBase, build_base


@pytest.fixture(scope="module")
def keypoints(photo: Image) -> Keypoints:
    return detect(photo.gray, Detector(40))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder that is not on the path; what a test adds to the path goes with it."""
    monkeypatch.chdir(tmp_path)
    kept = [entry for entry in sys.path if entry not in ("", str(tmp_path))]
    monkeypatch.setattr(sys, "path", kept)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


def described(base: Base, photo: Image, keypoints: Keypoints) -> np.ndarray:
    raw, score = base.describe(lambda: photo, keypoints, sample_patches(photo.gray, keypoints))
    assert (score is not None) == base.has_score
    return raw


def refused(base: str, precision: Precision = "fp32") -> str:
    with pytest.raises(InputError) as raised:
        build_base(base, precision)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_rootsift_reads_the_view(photo: Image, keypoints: Keypoints) -> None:
    base = build_base("rootsift")
    assert isinstance(base, RootSiftBase)
    assert (base.kind, base.has_score) == ("rootsift", False)
    np.testing.assert_array_equal(described(base, photo, keypoints), rootsift(photo.gray, keypoints))


def test_a_base_in_8_bits(photo: Image, keypoints: Keypoints) -> None:
    whole, fast = build_base("contextdesc"), build_base("contextdesc", "int8")
    assert whole.key != fast.key  # the cache keeps them apart
    raw, quantised = described(whole, photo, keypoints), described(fast, photo, keypoints)
    assert 0.9 < (raw * quantised).sum(1).min() < (raw * quantised).sum(1).max() < 1


def test_8_bits_are_asked_only_of_models_that_have_them(small_model: Path) -> None:
    assert not (small_model / INT8).exists()
    assert "contextdesc quantise" in refused(str(small_model), "int8")
    assert "rootsift is no model" in refused("rootsift", "int8")


@pytest.mark.parametrize("given", ["name", "folder"])
def test_a_model_describes_patches(given: str, small_model: Path, photo: Image, keypoints: Keypoints) -> None:
    base = build_base("contextdesc" if given == "name" else str(small_model))
    assert isinstance(base, LocalBase)
    assert (base.kind, base.has_score) == ("local", True)
    assert base.folder == (resolve("contextdesc") if given == "name" else small_model)
    patches = sample_patches(photo.gray, keypoints)

    def unread() -> Image:
        raise AssertionError("the local network reads patches, not the view")

    raw, score = base.describe(unread, keypoints, patches)
    expected, expected_score = Engine(base.folder / LOCAL).run(patches=patches)
    np.testing.assert_allclose(raw, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(score, expected_score, rtol=1e-5, atol=1e-5)
    assert raw.shape == (40, 128)


def test_models_have_keys_of_their_own(small_model: Path) -> None:
    assert build_base("contextdesc").key == build_base("contextdesc").key
    assert len({build_base(base).key for base in ("contextdesc", str(small_model), "rootsift")}) == 3


def test_a_function_of_the_current_folder(here: Path, photo: Image, keypoints: Keypoints) -> None:
    (here / "of_here.py").write_text(
        "import numpy as np\n"
        "def describe(gray, keypoints):\n"
        "    raw = np.zeros((len(keypoints), 128))\n"
        "    raw[:, :4], raw[:, 4:6] = keypoints, gray.shape\n"
        "    return raw\n"
    )
    base = build_base("of_here:describe")
    assert isinstance(base, FunctionBase)
    assert (base.kind, base.has_score) == ("given", False)
    raw = described(base, photo, keypoints)
    np.testing.assert_allclose(raw[:, :2], keypoints.xy)
    np.testing.assert_allclose(raw[:, 2], keypoints.size)
    np.testing.assert_allclose(raw[:, 3], keypoints.angle)
    assert (raw[:, 4:6] == 512).all()
    assert raw.dtype == np.float32


@pytest.mark.parametrize(
    ("old", "new"),
    [("return 1", "return 22"), ("SCALE = 1", "SCALE = 22")],
    ids=["the function", "what it reads"],
)
def test_the_key_of_a_function_is_of_its_source(here: Path, old: str, new: str) -> None:
    source = "SCALE = 1\ndef describe(gray, keypoints):\n    return 1\n"
    module = here / "of_a_key.py"

    def key() -> str:
        sys.modules.pop("of_a_key", None)
        return build_base("of_a_key:describe").key

    module.write_text(source)
    before = key()
    assert key() == before
    module.write_text(source.replace(old, new))
    assert key() != before
    module.write_text(source)
    assert key() == before


@pytest.mark.parametrize(
    ("path", "source", "message"),
    [
        ("nowhere_to_be_found:describe", None, "No module named 'nowhere_to_be_found'"),
        ("without_it:describe", "x = 1", "has no attribute 'describe'"),
        ("without_name:", "x = 1", "has no attribute ''"),
        (":describe", None, "Empty module name"),
        ("..up:describe", None, "relative import"),
        ("no_python:describe", "def describe(:\n", "SyntaxError"),
        ("raises_itself:describe", "raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
    ],
)
def test_what_cannot_be_imported_is_named(here: Path, path: str, source: str | None, message: str) -> None:
    if source is not None:
        (here / f"{path.partition(':')[0]}.py").write_text(source)
    said = refused(path)
    assert said.startswith(f"base {path}: cannot be imported (")
    assert message in said


def test_what_is_no_function_is_named(here: Path) -> None:
    (here / "a_constant.py").write_text("describe = 3")
    assert refused("a_constant:describe") == "base a_constant:describe: not a function"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("np.zeros((len(keypoints), 64))", r"returned an array of shape \(40, 64\), not \(40, 128\)"),
        ("np.zeros((len(keypoints) - 1, 128))", r"returned an array of shape \(39, 128\), not \(40, 128\)"),
        ("None", r"returned an array of shape \(\), not \(40, 128\)"),
        ("np.full((len(keypoints), 128), np.nan)", "returned values that are not finite"),
        ("np.full((len(keypoints), 128), -np.inf)", "returned values that are not finite"),
        ("np.full((len(keypoints), 128), 1e5)", "returned values that are not finite, or above 65504"),
    ],
)
def test_wrong_descriptors_are_named(
    here: Path, photo: Image, keypoints: Keypoints, value: str, message: str
) -> None:
    sys.modules.pop("wrong_values", None)
    (here / "wrong_values.py").write_text(
        f"import numpy as np\ndef describe(gray, keypoints):\n    return {value}\n"
    )
    base = build_base("wrong_values:describe")
    with pytest.raises(InputError, match=f"^base wrong_values:describe {message}[^\n]*$"):
        described(base, photo, keypoints)


def test_models_that_are_no_base_are_named(tmp_path: Path) -> None:
    write_spec(tmp_path, ModelSpec("m", "rootsift", {}))
    assert refused(str(tmp_path)) == f"{tmp_path}: has base rootsift, so there is no local network in it"
    (tmp_path / "empty").mkdir()
    assert refused(str(tmp_path / "empty")) == (
        f"{tmp_path / 'empty'}: no model.json in it, so it is not a model"
    )
    packaged = "contextdesc, sift-context"
    assert refused("no-such-model") == f"no-such-model: neither a packaged model ({packaged}) nor a folder"
