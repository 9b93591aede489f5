"""Training on real photographs: pairs that truly correspond, a loss that falls, a resume that is exact."""

from __future__ import annotations

import dataclasses
import itertools
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from contextdesc.detection import Detector, detect
from contextdesc.errors import ContextDescError, InputError
from contextdesc.image import Image, find_images
from contextdesc.matching import match
from contextdesc.model import load
from contextdesc.training.config import StageConfig
from contextdesc.training.data.cache import Cache
from contextdesc.training.data.homography import (
    HomographyConfig,
    corresponding,
    two_views,
    warp_keypoints,
    warp_points,
)
from contextdesc.training.data.pairs import PairConfig, build_homography_pairs
from contextdesc.training.logs import read_log
from contextdesc.training.loop import Mean, schedule, train
from contextdesc.training.networks import LocalNetwork
from contextdesc.training.parts import Parts, load_parts
from contextdesc.training.stages import PairStage, near_partner, warp_unit_square

PAIRS = PairConfig(keypoints=64, min_corresponding=16, per_photo=2)


@pytest.mark.parametrize("seed", range(6))
def test_the_homography_maps_one_view_to_the_other(photo: Image, seed: int) -> None:
    plain = HomographyConfig(blur=0, noise=0, jpeg=0)
    first, second, homography = two_views(photo.gray, np.random.default_rng(seed), plain)
    smooth = [cv2.GaussianBlur(view, (0, 0), 2).astype(float) for view in (first, second)]
    size = second.shape[::-1]
    warped = cv2.warpPerspective(smooth[0], homography, size)
    seen = cv2.warpPerspective(np.ones_like(smooth[0]), homography, size) > 0.99
    assert seen.mean() > 0.1
    ranks = [np.argsort(np.argsort(values[seen])) for values in (warped, smooth[1])]  # blind to gamma
    assert np.corrcoef(ranks)[0, 1] > 0.9


def test_a_still_camera_shakes_a_little(photo: Image) -> None:
    config = HomographyConfig(still=1)
    for seed in range(5):
        first, second, homography = two_views(photo.gray, np.random.default_rng(seed), config)
        assert first.shape == second.shape
        size = np.array(first.shape[::-1])
        corners = np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) * (size - 1)
        shift = np.abs(warp_points(corners, homography) - corners) / size
        assert 0.001 < shift.max() < 0.04
        assert np.abs(first.astype(int) - second).mean() > 3  # another light


def test_corresponding_keypoints_agree_in_place_scale_and_angle(photo: Image) -> None:
    config = HomographyConfig()
    first, second, homography = two_views(photo.gray, np.random.default_rng(3), config)
    found = [detect(view, Detector(None, contrast=0.02)) for view in (first, second)]
    pairs = corresponding(found[0], found[1], homography, config)
    assert len(pairs) > 50
    assert len(np.unique(pairs[:, 0])) == len(np.unique(pairs[:, 1])) == len(pairs)
    warped, partner = warp_keypoints(found[0][pairs[:, 0]], homography), found[1][pairs[:, 1]]
    assert np.linalg.norm(warped.xy - partner.xy, axis=1).max() <= config.max_distance
    assert np.abs(np.log2(warped.size / partner.size)).max() <= config.max_scale
    assert np.abs((warped.angle - partner.angle + 180) % 360 - 180).max() <= config.max_angle


def test_keypoints_turn_and_grow_with_a_similarity() -> None:
    from contextdesc.keypoints import Keypoints

    angle, zoom = np.deg2rad(40), 1.5
    cos, sin = zoom * np.cos(angle), zoom * np.sin(angle)
    homography = np.array([[cos, -sin, 5], [sin, cos, -3], [0, 0, 1]])
    warped = warp_keypoints(Keypoints.from_array([[10, 20, 6, 350]]), homography)
    np.testing.assert_allclose(warped.xy, warp_points(np.array([[10, 20]]), homography), rtol=1e-6)
    assert warped.size[0] == pytest.approx(9, rel=1e-4)
    assert warped.angle[0] == pytest.approx(30, abs=1e-2)


def test_pair_sets_are_reproducible_and_resume(photo_folder: Path, tmp_path: Path) -> None:
    photos = list(find_images([photo_folder]).values())[:4]
    whole = build_homography_pairs(photos, Cache(tmp_path / "one"), PAIRS, workers=2)
    assert len(whole) >= 6
    assert (whole.count[whole.usable] >= 16).all()
    other = build_homography_pairs(photos, Cache(tmp_path / "two"), PAIRS)
    (other.folder / "done").unlink()
    finished = np.load(other.folder / "finished.npy", mmap_mode="r+")
    patches = np.load(other.folder / "patches.npy", mmap_mode="r+")
    finished[2], patches[4:6] = 0, 0  # as if killed before the third photograph was written
    finished.flush()
    patches.flush()
    again = build_homography_pairs(photos, Cache(tmp_path / "two"), PAIRS)
    np.testing.assert_array_equal(again.patches, whole.patches)
    changed = build_homography_pairs(photos, Cache(tmp_path / "one"), dataclasses.replace(PAIRS, seed=1))
    assert changed.folder != whole.folder


PREPARING = """
import sys
from pathlib import Path
from contextdesc.image import find_images
from contextdesc.training.data.cache import Cache
from contextdesc.training.data.pairs import PairConfig, build_homography_pairs

if __name__ == "__main__":
    photos = list(find_images([Path(sys.argv[1])]).values())
    build_homography_pairs(photos, Cache(Path("cache")), PairConfig(per_photo=50), workers=2)
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_preparation_leaves_no_process(
    sent: signal.Signals, photo_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "preparing.py").write_text(PREPARING)
    with subprocess.Popen([sys.executable, "preparing.py", str(photo_folder)], cwd=tmp_path) as process:
        deadline = time.monotonic() + 120
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while len(started := children.read_text().split()) < 3 and time.monotonic() < deadline:
            time.sleep(0.1)  # two workers, and what multiprocessing keeps beside them
        assert process.poll() is None
        time.sleep(2)  # they work
        process.send_signal(sent)
        assert process.wait(60) == -sent
    assert len(started) == 3
    while any(Path("/proc", pid).exists() for pid in started) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(Path("/proc", pid).exists() for pid in started)


def test_a_damaged_cache_is_named(photo_folder: Path, tmp_path: Path) -> None:
    photos = list(find_images([photo_folder]).values())[:2]
    pairs = build_homography_pairs(photos, Cache(tmp_path), PAIRS)
    (pairs.folder / "done").unlink()
    np.save(pairs.folder / "keypoints.npy", np.zeros((3, 3)))
    with pytest.raises(InputError, match=r"keypoints.npy: damaged cache .*; delete the folder"):
        build_homography_pairs(photos, Cache(tmp_path), PAIRS)


def test_keypoints_at_the_partner_s_place_are_no_negatives() -> None:
    xy = np.float32([[[0, 0], [50, 0], [90, 0]], [[10, 10], [11, 10], [80, 0]]])
    near = near_partner(xy, np.array([True, True, False]), distance=4)
    expected = np.zeros((3, 3), bool)
    expected[0, 1] = expected[1, 0] = True  # their partners lie on one spot of the second image
    np.testing.assert_array_equal(near, expected)


def test_coordinates_move_by_at_most_the_shift() -> None:
    corners = torch.tensor([[-1.0, -1], [1, -1], [1, 1], [-1, 1]])
    moved = warp_unit_square(corners, np.random.default_rng(0), 0.3)
    assert 0.01 < (moved - corners).abs().max() <= 0.3


@pytest.fixture
def config(photo_folder: Path) -> StageConfig:
    return StageConfig(
        stage="local", steps=12, photos=str(photo_folder), held_out=2, keypoints=32, warmup=2,
        validate_every=6, checkpoint_every=6, pairs=PAIRS,
    )  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"average": 0.7, "keep_start": 0.2}], ids=["plain", "averaged"])
def test_resume_is_exact(config: StageConfig, tmp_path: Path, options: dict[str, float]) -> None:
    """Stopped after step 6 and resumed: the same weights, bit for bit, as an undisturbed run."""
    config = dataclasses.replace(config, **options)  # the average begins with step 5
    straight = train(config, tmp_path / "straight", Cache(tmp_path / "cache"), log=lambda line: None)

    def stop(line: str) -> None:
        if '"step": 6' in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "stopped", Cache(tmp_path / "cache"), log=stop)
    stopped = train(config, tmp_path / "stopped", Cache(tmp_path / "cache"), log=lambda line: None)
    first, second = load_file(straight), load_file(stopped)
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def test_a_run_ends_with_the_average_of_its_last_weights(config: StageConfig, tmp_path: Path) -> None:
    """The last 4 of 12 steps, two of them for the warm-up: 1 - 0.4 of the other ten are over."""
    cache = Cache(tmp_path / "cache")

    def ended(folder: str, **options: float) -> dict[str, torch.Tensor]:
        changed = dataclasses.replace(config, checkpoint_every=1, **options)
        tensors = load_file(train(changed, tmp_path / folder, cache, log=lambda line: None))
        return {name: value for name, value in tensors.items() if value.is_floating_point()}

    weights: list[dict[str, torch.Tensor]] = []
    honest = Mean.add

    def add(self: Mean, values: dict[str, torch.Tensor]) -> None:
        weights.append({name: value.clone() for name, value in values.items()})
        honest(self, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mean, "add", add)
        averaged = ended("averaged", average=0.4)
    plain = ended("plain")
    assert len(weights) == 4
    moved = "parts.local.last.weight"
    assert torch.equal(weights[-1][moved], plain[f"model.{moved}"])
    for name in (name.removeprefix("model.") for name in plain if name.startswith("model.")):
        mean = torch.stack([of[name] for of in weights]).mean(0)
        torch.testing.assert_close(averaged[f"model.{name}"], mean, rtol=1e-4, atol=1e-6)
        assert torch.equal(averaged[f"mean.{name}"], averaged[f"model.{name}"])
    assert not torch.allclose(averaged[f"model.{moved}"], plain[f"model.{moved}"], rtol=1e-4)
    longer = ended("averaged", average=0.1, steps=20)  # continued: the first average is over
    assert not torch.allclose(longer[f"mean.{moved}"], averaged[f"mean.{moved}"], rtol=1e-4)
    with pytest.raises(InputError, match=r"^average is 1: at least 0 and below 1$"):
        dataclasses.replace(config, average=1.0).check()


def test_a_loss_that_is_not_finite_stops_the_run(
    config: StageConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = PairStage.loss

    def broken(self: PairStage, step: int, part: int, of: int) -> dict[str, torch.Tensor]:
        values = honest(self, step, part, of)
        return {**values, "loss": values["loss"] * float("nan")} if step == 8 else values

    monkeypatch.setattr(PairStage, "loss", broken)
    with pytest.raises(ContextDescError, match="the loss is not finite at step 8"):
        train(config, tmp_path / "run", Cache(tmp_path / "cache"), log=lambda line: None)
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_the_learning_rate_warms_up_and_falls(config: StageConfig) -> None:
    factors = [schedule(step, config) for step in range(config.steps)]
    assert factors[0] == 0.5
    assert factors[1] == 1.0
    assert all(a >= b for a, b in itertools.pairwise(factors[2:]))
    assert factors[-1] < 0.1


def test_mistakes_are_named(config: StageConfig, tmp_path: Path) -> None:
    quiet = {"log": lambda line: None}
    with pytest.raises(InputError, match="12 photographs, and 30 of them are held out"):
        train(dataclasses.replace(config, held_out=30), tmp_path / "a", Cache(tmp_path / "cache"), **quiet)
    with pytest.raises(InputError, match="stage context needs 'base': rootsift, a model, or module:function"):
        train(
            dataclasses.replace(config, stage="context"), tmp_path / "a", Cache(tmp_path / "cache"), **quiet
        )
    (tmp_path / "bad.safetensors").write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"bad.safetensors: (damaged|not a readable) checkpoint"):
        load_parts(tmp_path / "bad.safetensors", Parts(LocalNetwork()))


@pytest.mark.slow
def test_the_smoke_config_learns_and_becomes_a_model(
    photo_folder: Path, photo: Image, tmp_path: Path
) -> None:
    """On the command line: the loss falls, held-out recall rises, the export matches a turned photograph."""

    def contextdesc(*arguments: str | Path) -> str:
        command = [sys.executable, "-m", "contextdesc", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    smoke = Path(__file__).parents[2] / "configs" / "smoke.toml"
    contextdesc("train", smoke, "--photos", photo_folder, "-o", tmp_path / "run", "--workers", "1")
    log = read_log(tmp_path / "run" / "log.jsonl")
    losses = [line["n_pair"] for line in log if "n_pair" in line]
    quarter = len(losses) // 4
    assert quarter >= 10
    assert np.mean(losses[-quarter:]) < 0.7 * np.mean(losses[:quarter])
    recalls = [line["held_out_recall"]["raw"] for line in log if "held_out_recall" in line]
    assert recalls[-1] > recalls[0]  # of 58 keypoints; by how much depends on the processor
    model = tmp_path / "model"
    contextdesc("export", tmp_path / "run" / "checkpoint.safetensors", "-o", model)
    images = [tmp_path / "a.png", tmp_path / "b.png"]
    cv2.imwrite(str(images[0]), photo.rgb[..., ::-1])
    cv2.imwrite(str(images[1]), np.rot90(photo.rgb[..., ::-1]).copy())
    contextdesc("match", "--model", model, *images)
    loaded = load(model, detector=Detector(300))
    assert len(match(*(loaded.extract(path) for path in images))) > 100
