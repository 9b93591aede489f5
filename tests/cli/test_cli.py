"""The command line as a user meets it: a process, its output, its exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import PIL.Image
import pytest

INLIERS_AT_RELEASE = 907  # of the sample pair, packaged model with default options
HEAVY = ("cv2", "numpy", "onnxruntime", "torch", "h5py", "PIL")


def run(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "contextdesc", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["match", "--help"], ["extract", "--help"], ["benchmark", "--help"], ["--version"]],
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        f"import sys; sys.argv = ['contextdesc', *{arguments!r}]\n"
        "from contextdesc.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print('imported:', [name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.rstrip().endswith("imported: []")
    assert len(out.stdout) > 30


@pytest.fixture(scope="module")
def sample_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    folder = tmp_path_factory.mktemp("run")
    out = run("match", "--json", cwd=folder)
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout), folder


def test_match_without_arguments_runs_on_the_sample_pair(sample_run: tuple[dict, Path]) -> None:
    """At least 80 % of the inliers at release, and the disparity confirms 90 % of them."""
    import numpy as np

    from contextdesc.samples import disparity_precision, sample_pair

    result, folder = sample_run
    assert result["inliers"] >= 0.8 * INLIERS_AT_RELEASE
    assert result["verdict"] == "same scene"
    points = np.float32(result["points"])[np.array(result["inlier_mask"])]
    assert disparity_precision(points, sample_pair()[2]) >= 0.9
    picture = PIL.Image.open(folder / "matches.png")
    assert picture.size[0] > 2 * 700


def test_match_prints_counts_and_a_verdict(small_model: Path, photo_folder: Path, tmp_path: Path) -> None:
    first, second = photo_folder / "a" / "00.png", photo_folder / "a" / "04.png"
    out = run("match", first, second, "--model", small_model, "--context", "none", "-o", tmp_path / "m.jpg")
    assert out.returncode == 0, out.stderr
    assert "keypoints" in out.stdout
    assert "inliers" in out.stdout
    assert "verdict: same scene" in out.stdout
    assert PIL.Image.open(tmp_path / "m.jpg").format == "JPEG"


def test_relative_pose_needs_and_uses_a_focal_length(
    small_model: Path, photo_folder: Path, tmp_path: Path
) -> None:
    images = (photo_folder / "a" / "00.png", photo_folder / "a" / "04.png")
    options = ("--model", small_model, "--context", "none", "--no-picture", "--geometry", "essential")
    out = run("match", *images, *options)
    assert out.returncode == 2
    assert "no focal length in its EXIF data; give --focal" in out.stderr
    out = run("match", *images, *options, "--focal", "400", "--json")
    assert out.returncode == 0, out.stderr
    assert len(json.loads(out.stdout)["rotation"]) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["match", "only-one.jpg"], "match takes two images"),
        (["match", "a.jpg", "b.jpg"], "a.jpg: no such file"),
        (["match", "--model", "nope"], "nope: neither a packaged model"),
        (["match", "-o", "matches.gif"], "matches.gif: pictures are written as"),
        (["match", "--context", "some"], "'some' is not one of"),
        (["match", "--ratio", "3"], "ratio is 3.0"),
        (["match", "--domain-sizes", "big"], "--domain-sizes 'big': give numbers"),
        (["match", "--frobnicate"], "No such option: --frobnicate"),
        (["extract", "nowhere", "-o", "f.h5"], "nowhere: no such file or folder"),
        (["extract", ".", "-o", "f.h5"], "no images here"),
        (["match-set", "nowhere.h5", "-o", "m.h5"], "nowhere.h5: no such file"),
        (["benchmark", "heinly", "--data", "nowhere"], "nowhere: no such folder"),
        (["benchmark", "heinly", "--data", ".", "--methods", "surf"], "surf: neither a packaged model"),
        (["train", "nowhere.toml", "-o", "x"], "nowhere.toml: cannot be read"),
        (["frob"], "No such command 'frob'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    out = run(*arguments, cwd=tmp_path)
    assert out.returncode == 2, out.stderr
    assert message in out.stderr
    assert out.stderr.startswith("error: ")
    assert out.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    assert "Traceback" in run("--debug", "match", "a.jpg", "b.jpg", cwd=tmp_path).stderr
    assert "Traceback" in run("match", "a.jpg", "b.jpg", "--debug", cwd=tmp_path).stderr


def test_a_bad_file_among_many_exits_with_1_and_strict_with_2(
    rootsift_model: Path, photo_folder: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    arguments = ("extract", photo_folder / "a", bad, "--model", rootsift_model, "-q", "-o")
    out = run(*arguments, tmp_path / "f.h5")
    assert out.returncode == 1
    assert "f.h5: 6 images" in out.stdout
    assert "failed: bad.png" in out.stderr
    out = run(*arguments, tmp_path / "g.h5", "--strict")
    assert out.returncode == 2
    assert not (tmp_path / "g.h5").exists()


def test_unwritable_output(rootsift_model: Path, photo_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    out = run("extract", photo_folder, "--model", rootsift_model, "-q", "-o", tmp_path / "file" / "f.h5")
    assert out.returncode == 2
    assert "cannot be written" in out.stderr
    out = run("match", "--model", rootsift_model, "-o", tmp_path / "file" / "m.png")
    assert out.returncode == 2
    assert "cannot be written" in out.stderr


def test_models_and_doctor() -> None:
    models = json.loads(run("models", "--json").stdout)
    assert [m["name"] for m in models if m["default"]] == ["contextdesc"]
    assert all(model["seconds"] > 0 for model in models)
    assert "contextdesc (default)" in run("models", "--no-speed").stdout
    out = run("doctor")
    assert out.returncode == 0, out.stdout
    assert "model contextdesc: works" in out.stdout
    report = json.loads(run("doctor", "--json").stdout)
    assert report["problems"] == []
    right, total = (int(word) for word in report["models"]["contextdesc"].split() if word.isdigit())
    assert right > 0.8 * total > 20
