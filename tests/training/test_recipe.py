"""`train --photos`: a folder becomes a model, an interrupted run goes on, mistakes are named."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from contextdesc import modelfile
from contextdesc.cli import main
from contextdesc.detection import Detector
from contextdesc.errors import InputError
from contextdesc.image import Image, read
from contextdesc.matching import match
from contextdesc.model import load
from contextdesc.training.data.cache import Cache
from contextdesc.training.logs import read_log
from contextdesc.training.recipe import train_on_photos

Tell = Callable[[str], None]


@pytest.fixture(scope="session")
def recipe_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recipe-cache")


@pytest.fixture(scope="session")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine photographs with enough texture for every pair."""
    from skimage import data

    folder = tmp_path_factory.mktemp("album")
    pictures = [data.astronaut(), data.coffee()]
    for number in range(9):
        rgb = pictures[number % 2]
        crop = rgb[2 * number : 2 * number + 380, 10 * number : 10 * number + 420]
        cv2.imwrite(str(folder / f"{number}.png"), crop[..., ::-1])
    return folder


def steps(folder: Path) -> list[int]:
    return [line["step"] for line in read_log(folder / "log.jsonl")]


def right_matches(model: Path, photo: Image) -> int:
    """Matches of a photograph with itself turned by 20 degrees that are right."""
    size = photo.size
    matrix = cv2.getRotationMatrix2D((size[0] / 2, size[1] / 2), 20, 1.0)
    turned = read(cv2.warpAffine(photo.rgb, matrix, size))
    loaded = load(model, detector=Detector(300))
    first, second = loaded.extract(photo), loaded.extract(turned)
    rows = match(first, second).indices
    moved = first.keypoints.xy[rows[:, 0]] @ matrix[:, :2].T + matrix[:, 2]
    error = np.linalg.norm(moved - second.keypoints.xy[rows[:, 1]], axis=1)
    return int((error < 3).sum())


@pytest.mark.slow
def test_the_packaged_model_is_fine_tuned_and_an_interrupted_run_goes_on(
    album: Path, recipe_cache: Path, photo: Image, tmp_path: Path
) -> None:
    said: list[str] = []
    work, output = tmp_path / "model.work", tmp_path / "model"

    def run(say: Tell) -> modelfile.ModelSpec:
        return train_on_photos(album, output, work, Cache(recipe_cache), 0.1, say=say)

    def stop(line: str) -> None:
        if line.startswith('{"step"') and (work / "local-model").exists():
            raise KeyboardInterrupt  # the second stage began

    with pytest.raises(KeyboardInterrupt):
        run(stop)
    assert not output.exists()
    first = (work / "local" / "checkpoint.safetensors").read_bytes()
    base = (work / "local-model" / "model.json").read_bytes()
    spec = run(said.append)
    # What was finished was not touched again, and so the context stands on the same network.
    assert (work / "local" / "checkpoint.safetensors").read_bytes() == first
    assert json.loads((work / "local-model" / "model.json").read_bytes()) == json.loads(base)
    assert max(steps(work / "context")) > 0
    for stage in ("local", "context"):
        (line,) = (line for line in said if line.startswith(f"{stage}: recall on held-out"))
        before, after = (float(word) for word in line.split() if word.replace(".", "").isdigit())
        assert before > 40  # percent: it starts from the packaged model
        assert after > 40
    assert spec.base == "local"
    assert spec.terms == ("visual", "geometric")
    assert spec.training["summary"].startswith("fine-tuned from contextdesc on homographies of 7 photographs")
    assert 0.5 <= spec.ratio <= 1.0
    stored = modelfile.read_spec(output)[0]
    assert (stored.files, stored.ratio) == (spec.files, spec.ratio)
    assert right_matches(output, photo) > 100
    assert said[-1].startswith(f"model: {output} (ratio {spec.ratio}); try: contextdesc match --model")
    # Other settings are another run.
    with pytest.raises(InputError, match=r"model.work: of a run with other settings \(minutes 0.1\)"):
        train_on_photos(album, output, work, Cache(recipe_cache), 0.2, say=said.append)
    with pytest.raises(InputError, match=r"other settings \(init .*contextdesc\): give those, or delete it"):
        train_on_photos(album, output, work, Cache(recipe_cache), 0.1, "nothing", say=said.append)


@pytest.mark.slow
def test_from_nothing_on_the_command_line(
    album: Path, photo: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    output = tmp_path / "model"
    arguments = ["--photos", album, "-o", output, "--minutes", "1", "--init", "nothing", "--workers", "1"]
    code, error = command(monkeypatch, capsys, "train", *arguments)
    assert (code, error) == (0, "")
    spec = modelfile.read_spec(output)[0]
    assert spec.terms == ("visual", "geometric")
    assert spec.training["summary"].startswith("from nothing on homographies of 7 photographs in 1 minutes")
    assert (tmp_path / "model.work" / "local" / "curves.png").stat().st_size > 10_000
    assert right_matches(output, photo) > 50


def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, str]:
    """Exit code and standard error of a command."""
    monkeypatch.setattr(sys, "argv", ["contextdesc", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0), capsys.readouterr().err


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run `contextdesc train`, which must refuse its input in one line."""

    def run(*arguments: object) -> str:
        code, error = command(monkeypatch, capsys, "train", *arguments)
        assert code == 2, error
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        return error

    return run


Fails = Callable[..., str]


def test_folders_that_are_no_training_data(
    fails: Fails, album: Path, few_photos: Path, tmp_path: Path, given_model: Path
) -> None:
    output = ("-o", tmp_path / "model", "--minutes", "0.1")
    assert "few0: 4 photographs; training wants 8 or more" in fails("--photos", few_photos, *output)
    for number in range(10):
        (tmp_path / "same").mkdir(exist_ok=True)
        shutil.copy(few_photos / "00.png", tmp_path / "same" / f"{number}.png")
    assert "1 different images among 10" in fails("--photos", tmp_path / "same", *output)
    assert "no such file or folder" in fails("--photos", tmp_path / "missing", *output)
    assert "nothing to train: give a CONFIG, or --photos" in fails(*output)
    assert "--steps goes with a CONFIG" in fails("--photos", album, *output, "--steps", "5")
    assert "neither a packaged model" in fails("--photos", album, *output, "--init", "no-model")
    assert "descriptors of your own" in fails("--photos", album, *output, "--init", given_model)
    assert "lies among the photographs" in fails("--photos", album, "-o", album / "model")
    (tmp_path / "diary").mkdir()
    (tmp_path / "diary" / "monday.txt").write_text("rain")
    assert "exists and is no model" in fails("--photos", album, "-o", tmp_path / "diary")
    assert (tmp_path / "diary" / "monday.txt").exists()
    assert not (tmp_path / "model").exists()


def test_a_model_without_context_is_refused_before_the_training(
    fails: Fails, album: Path, tmp_path: Path
) -> None:
    packaged = modelfile.resolve("contextdesc")
    shutil.copytree(packaged, tmp_path / "plain")
    spec = modelfile.read_spec(packaged)[0]
    only = {name: checksum for name, checksum in spec.files.items() if name == modelfile.LOCAL}
    modelfile.write_spec(tmp_path / "plain", replace(spec, name="plain", files=only))
    message = fails("--photos", album, "-o", tmp_path / "model", "--init", tmp_path / "plain")
    assert "plain: a model without context; start from another one, or from 'nothing'" in message
    assert not (tmp_path / "model.work" / "local").exists()


def test_torchrun_is_for_configs(
    fails: Fails, album: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "torchrun goes with a CONFIG" in fails("--photos", album, "-o", tmp_path / "model")


def test_configs_with_mistakes(
    fails: Fails, few_photos: Path, cache_folder: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    config = tmp_path / "config.toml"

    def write(text: str) -> Path:
        pairs = "[pairs]\nkeypoints = 64\nmin_corresponding = 16\nper_photo = 1\n"
        config.write_text(
            f'steps = 1\nheld_out = 1\nkeypoints = 32\nphotos = "{few_photos}"\n{text}\n{pairs}'
        )
        return config

    rest = ("-o", tmp_path / "run", "--cache", cache_folder, "--workers", "1")
    message = fails(write('stage = "local"\nlerning_rate = 1'), *rest)
    assert "unknown key 'lerning_rate'; did you mean 'learning_rate'?" in message
    assert "stage is 'global': one of local, context" in fails(write('stage = "global"'), *rest)
    assert "precision fp16 is for GPUs" in fails(write('stage = "local"\nprecision = "fp16"'), *rest)
    with monkeypatch.context() as environment:
        environment.setenv("CXX", "no-such-compiler")
        message = fails(write('stage = "local"\ncompile = true'), *rest)
    assert "there is no C++ compiler: install one" in message
    assert "nothing.toml: cannot be read" in fails(tmp_path / "nothing.toml", *rest)
    assert "nowhere: no such file" in fails(write('stage = "local"'), *rest, "--photos", "nowhere")
    code, error = command(monkeypatch, capsys, "train", write('stage = "local"'), *rest)
    assert code == 0, error
    saved = (tmp_path / "run" / "checkpoint.safetensors").read_bytes()
    other = fails(write('stage = "local"\nlocal = { matchability = "raw" }'), *rest)
    assert "a checkpoint of another shape, so not of this config" in other
    other = fails(write('stage = "local"\noptimiser = "adamw"'), *rest)
    assert "a checkpoint of optimiser sgd, and the config says adamw" in other
    assert (tmp_path / "run" / "checkpoint.safetensors").read_bytes() == saved
