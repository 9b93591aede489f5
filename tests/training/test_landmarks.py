"""The regional network as a landmark classifier: its crops, its frozen part, and MAC retrieval."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from contextdesc.errors import InputError
from contextdesc.image import Image
from contextdesc.training.landmarks import (
    LandmarkClassifier,
    LandmarkConfig,
    LandmarkData,
    LandmarkTask,
    augment,
    average_precision,
    freeze_leading,
    mac,
    retrieval_map,
)
from contextdesc.training.parts import Parts
from contextdesc.training.regional import EfficientNetLite0, ResNet50
from contextdesc.training.stages import RegionalStage

SMALL = LandmarkConfig(side=64, validation_side=64, images=8, frozen_blocks=1)


class SmallNetwork(nn.Module):
    """A stem and two blocks at stride 32, named as in EfficientNet-Lite0."""

    channels = 16

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 8, 8), nn.BatchNorm2d(8), nn.ReLU())
        first = nn.Sequential(nn.Conv2d(8, 16, 2, 2), nn.BatchNorm2d(16), nn.ReLU())
        second = nn.Sequential(nn.Conv2d(16, 16, 2, 2), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.Sequential(first, second)

    def forward(self, image: Tensor) -> Tensor:
        return self.blocks(self.stem((image - 127.0) / 128.0))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four scenes of three photographs, crops of scikit-image's pictures; and a folder that is no scene."""
    from skimage import data

    folder = tmp_path_factory.mktemp("scenes")
    (folder / "notes").mkdir()
    pictures = {"astronaut": data.astronaut(), "cat": data.chelsea(), "cup": data.coffee()}
    for name, rgb in (pictures | {"rocket": data.rocket()}).items():
        (folder / name / "images").mkdir(parents=True)
        for shift in range(3):
            crop = rgb[30 * shift : 30 * shift + 200, 40 * shift : 40 * shift + 260]
            cv2.imwrite(str(folder / name / "images" / f"{shift}.jpg"), crop[..., ::-1])
    return folder


def plain_png(path: Path, rgb: tuple[int, int, int]) -> Path:
    cv2.imwrite(str(path), np.full((64, 96, 3), rgb[::-1], np.uint8))
    return path


@pytest.mark.parametrize(
    ("relevant", "expected"),
    [
        ([1, 1, 0, 0], 1.0),
        ([0, 1, 0, 1], (1 / 2 + 2 / 4) / 2),
        ([1, 0, 0, 1, 1], (1 + 2 / 4 + 3 / 5) / 3),
        ([0, 0, 0], 0.0),
    ],
)
def test_average_precision_by_hand(relevant: list[int], expected: float) -> None:
    assert average_precision(np.array(relevant, np.bool_)) == pytest.approx(expected)


def test_mac_is_the_largest_response_of_each_channel() -> None:
    grid = torch.zeros(1, 2, 3, 4)
    grid[0, 0, 2, 1], grid[0, 1, 0, 3] = 3.0, 4.0
    assert mac(grid)[0].tolist() == pytest.approx([0.6, 0.8])


def test_retrieval_of_colours_by_hand(tmp_path: Path) -> None:
    # Angles in the red-green plane: 0, 27.5, 90 and 36.9 degrees. The two in the middle confuse each other.
    colours = [(255, 0, 0), (230, 120, 0), (0, 255, 0), (200, 150, 0)]
    paths = [plain_png(tmp_path / f"{i}.png", colour) for i, colour in enumerate(colours)]
    expected = (1 + 1 / 2 + 1 + 1 / 3) / 4
    assert retrieval_map(nn.AvgPool2d(32), paths, [0, 0, 1, 1], 96) == pytest.approx(expected)
    # A scene of one photograph is a distractor, not a query.
    assert retrieval_map(nn.AvgPool2d(32), paths, [0, 0, 1, 2], 96) == pytest.approx((1 + 1 / 2) / 2)
    with pytest.raises(InputError, match="two photographs"):
        retrieval_map(nn.AvgPool2d(32), paths, [0, 1, 2, 3], 96)


def regional_stage(
    network: nn.Module, data: LandmarkData, config: LandmarkConfig, seed: int
) -> RegionalStage:
    parts = Parts(regional=network)  # type: ignore[arg-type]
    return RegionalStage(parts, LandmarkTask(int(network.channels), data, config, seed))  # type: ignore[arg-type]


def test_retrieval_leaves_the_network_as_it_was(scenes: Path) -> None:
    stage = regional_stage(SmallNetwork(), LandmarkData(scenes, [], SMALL, ["cat", "cup"]), SMALL, 0)
    stage.train()
    before = {name: value.clone() for name, value in stage.state_dict().items()}
    modes = [module.training for module in stage.modules()]
    assert 0 <= stage.recall()["mac_map"] <= 1
    assert [module.training for module in stage.modules()] == modes
    assert all(torch.equal(before[name], value) for name, value in stage.state_dict().items())


def test_classes_are_scenes_and_photographs_but_not_what_is_held_out(scenes: Path, tmp_path: Path) -> None:
    photo = plain_png(tmp_path / "red.png", (255, 0, 0))
    data = LandmarkData(scenes, [photo], SMALL, ["cup"])
    assert data.classes == ["astronaut", "cat", "rocket", str(photo)]
    assert [path.parent.parent.name for path in data.held_out_images] == ["cup"] * 3
    assert data.held_out_labels == [0, 0, 0]
    without = LandmarkConfig(side=64, photo_classes=False)
    assert LandmarkData(scenes, [photo], without).classes == ["astronaut", "cat", "cup", "rocket"]


def test_a_label_names_the_photograph_it_comes_with(tmp_path: Path) -> None:
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    paths = [plain_png(tmp_path / f"{i}.png", colour) for i, colour in enumerate(colours)]
    images, labels = LandmarkData(None, paths, LandmarkConfig(side=32, images=40)).batch(
        np.random.default_rng(0)
    )
    mean = images.mean((2, 3))
    coloured = mean.std(1) > 20  # not the gray ones
    assert 0 < (~coloured).sum() < 20
    assert torch.equal(mean.argmax(1)[coloured], labels[coloured])
    assert set(labels.tolist()) == {0, 1, 2}


def test_classes_are_drawn_by_the_root_of_their_size(scenes: Path, tmp_path: Path) -> None:
    photo = plain_png(tmp_path / "red.png", (255, 0, 0))
    data = LandmarkData(scenes, [photo], LandmarkConfig(side=32, images=2000))
    _, labels = data.batch(np.random.default_rng(1))
    share = float((labels == data.classes.index(str(photo))).float().mean())
    assert share == pytest.approx(1 / (1 + 4 * 3**0.5), abs=0.025)


def test_a_batch_depends_on_its_generator_alone(scenes: Path) -> None:
    used = LandmarkData(scenes, [], SMALL)
    used.batch(np.random.default_rng(0))
    images, labels = used.batch(np.random.default_rng([7, 3]))
    again, same_labels = LandmarkData(scenes, [], SMALL).batch(np.random.default_rng([7, 3]))
    assert torch.equal(images, again)
    assert torch.equal(labels, same_labels)
    other, _ = used.batch(np.random.default_rng([7, 4]))
    assert not torch.equal(images, other)
    assert images.shape == (8, 3, 64, 64)
    assert images.dtype == torch.float32
    assert images.min() >= 0
    assert 64 < images.max() <= 255


@pytest.mark.parametrize("shape", [(313, 471), (20, 400), (400, 20), (1, 1)])
def test_photographs_of_any_shape_are_cropped(photo: Image, shape: tuple[int, int]) -> None:
    rgb = cv2.resize(photo.rgb, shape[::-1]).astype(np.uint8)
    for seed in range(20):
        crop = augment(rgb, 64, np.random.default_rng(seed))
        assert crop.shape == (64, 64, 3)
        assert np.isfinite(crop).all()


@pytest.mark.parametrize("statistics", [False, True])
def test_frozen_parts_stay_and_the_others_move(scenes: Path, statistics: bool) -> None:
    torch.manual_seed(0)
    config = LandmarkConfig(side=64, images=4, frozen_blocks=14, update_statistics=statistics)
    network = EfficientNetLite0(head=False)
    stage = regional_stage(network, LandmarkData(scenes, [], config), config, 0)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    optimiser = torch.optim.AdamW(stage.parameters(), 1e-3)
    stage.train()
    stage.loss(0)["loss"].backward()
    optimiser.step()
    moved = {name for name, value in network.state_dict().items() if not torch.equal(before[name], value)}
    assert {".".join(name.split(".")[:2]) for name in moved} == {"blocks.14", "blocks.15"}
    assert "blocks.15.project.0.weight" in moved
    assert "blocks.15.project.1.weight" in moved
    assert ("blocks.15.project.1.running_mean" in moved) == statistics
    trained = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    assert {name.split(".")[1] for name in trained} == {"14", "15"}
    assert not network.stem.training
    assert network.blocks[15].training


def test_the_leading_groups_of_resnet50_freeze() -> None:
    network = ResNet50()
    freeze_leading(network, 3)
    trained = {name.split(".")[0] for name, p in network.named_parameters() if p.requires_grad}
    assert trained == {"layer4"}
    with pytest.raises(InputError, match="frozen_blocks is 11: ResNet50 takes 0 to 4"):
        freeze_leading(network, 11)


def test_the_loss_falls(scenes: Path) -> None:
    torch.manual_seed(0)
    config = dataclasses.replace(SMALL, update_statistics=True)  # those of a random network are no use
    stage = regional_stage(SmallNetwork(), LandmarkData(scenes, [], config), config, 0)
    optimiser = torch.optim.AdamW(stage.parameters(), 1e-2)
    stage.train()
    history: list[tuple[float, float]] = []
    for step in range(100):
        values = stage.loss(step)
        optimiser.zero_grad()
        values["loss"].backward()
        optimiser.step()
        history.append((values["classification"].item(), values["accuracy"].item()))
    loss, accuracy = np.array(history).T
    assert loss[-20:].mean() < 0.6 * loss[:5].mean()
    assert accuracy[-20:].mean() > 0.7  # of four classes
    assert not values["accuracy"].requires_grad


def test_a_step_depends_on_its_number_alone(scenes: Path) -> None:
    torch.manual_seed(0)
    stage = regional_stage(SmallNetwork(), LandmarkData(scenes, [], SMALL), SMALL, 5).eval()
    first = stage.loss(3)["loss"].item()
    stage.loss(9)
    assert stage.loss(3)["loss"].item() == first
    assert stage.recall() == {}  # no scene is held out


def test_the_classifier_knows_its_own_vectors() -> None:
    torch.manual_seed(0)
    classifier = LandmarkClassifier(channels=64, classes=5, scale=16, smoothing=0)
    grid = 30 * classifier.vectors.detach()[:, :, None, None]
    logits = classifier(grid)
    assert logits.diagonal().tolist() == pytest.approx([16.0] * 5, abs=1e-4)
    labels = torch.arange(5)
    right, wrong = classifier.loss(grid, labels), classifier.loss(grid, labels.roll(1))
    assert right < 0.01
    assert wrong > 5
    smooth = LandmarkClassifier(channels=64, classes=5, scale=16, smoothing=0.1)
    smooth.load_state_dict(classifier.state_dict())
    assert smooth.loss(grid, labels) > right + 0.5


def test_too_little_to_learn_from_is_one_line(scenes: Path, tmp_path: Path) -> None:
    photo = plain_png(tmp_path / "red.png", (255, 0, 0))
    with pytest.raises(InputError, match=r"^1 landmark classes to train on: .*$"):
        LandmarkData(None, [photo], SMALL)
    with pytest.raises(InputError, match=r"^0 landmark classes"):
        LandmarkData(scenes, [], SMALL, ["astronaut", "cat", "cup", "rocket"])
    with pytest.raises(InputError, match="no scene called dog"):
        LandmarkData(scenes, [], SMALL, ["dog"])
    with pytest.raises(InputError, match="no scenes in it"):
        LandmarkData(tmp_path, [], SMALL)
    with pytest.raises(InputError, match="side is 100: give a multiple of 32"):
        LandmarkData(scenes, [], LandmarkConfig(side=100))
