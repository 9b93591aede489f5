"""The regional network as a landmark classifier (appendix A.1), and MAC retrieval to judge it.

Photographs come in as crops with the scene they show as their class; out comes a regional network whose
largest responses per channel (MAC: Tolias, Sicre and Jegou, 2016) tell scenes apart. It starts from
ImageNet weights, and its leading layers keep them: a few hundred photographs would only spoil those.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contextdesc.errors import InputError
from contextdesc.image import find_images, read
from contextdesc.model import regional_image
from contextdesc.training.regional import STRIDE, ResNet50

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

STORED_SIDE = 1.5  # longer side of a photograph in memory, over the side of a crop
# Start of the class vectors. Only their direction counts, so short ones turn faster under one learning rate:
# with long ones the network bends to random classes before these have learnt anything, and retrieval suffers.
VECTOR_LENGTH = 0.1


@dataclass(frozen=True)
class LandmarkConfig:
    side: int = 320  # pixels of the square training crops, a multiple of 32
    validation_side: int = 480  # pixels of the longer side for retrieval
    images: int = 16  # per step
    frozen_blocks: int = 11  # leading blocks (ResNet-50: layer groups, 0 to 4) that stay as they are
    update_statistics: bool = False  # of the batch norms behind them; from batches this small it does harm
    scale: float = 16.0  # of the cosine logits
    photo_classes: bool = True  # each single photograph is a class of its own
    smoothing: float = 0.1  # of the labels


class LandmarkClassifier(nn.Module):
    """Cosine classifier on the MAC descriptor of a regional grid."""

    def __init__(self, channels: int, classes: int, scale: float = 16.0, smoothing: float = 0.1) -> None:
        super().__init__()
        self.scale, self.smoothing = scale, smoothing
        self.vectors = nn.Parameter(VECTOR_LENGTH * F.normalize(torch.randn(classes, channels), dim=1))

    def forward(self, grid: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, classes) logits."""
        return self.scale * mac(grid) @ F.normalize(self.vectors, dim=1).T

    def loss(self, grid: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of a grid (B, C, h, w) with labels (B,) int64."""
        return self.loss_of_logits(self(grid), labels)

    def loss_of_logits(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, label_smoothing=self.smoothing)


def mac(grid: Tensor) -> Tensor:
    """(B, C, h, w) -> (B, C): the largest response of each channel, L2-normalised."""
    return F.normalize(grid.amax((2, 3)), dim=1)


class LandmarkData:
    """Photographs by class, kept in memory once they were drawn.

    Args:
        scenes: folder of NAME/images/, each a class; tracks are not needed.
        photos: single photographs, each a class of its own if `config.photo_classes`, else unused.
        held_out_scenes: names below `scenes` that only validate.

    Attributes:
        classes: names of the classes, in the order of their labels.
        held_out_images, held_out_labels: the photographs of the held-out scenes.
    """

    def __init__(
        self,
        scenes: Path | None,
        photos: list[Path],
        config: LandmarkConfig,
        held_out_scenes: Sequence[str] = (),
    ) -> None:
        if config.side < STRIDE or config.side % STRIDE:
            raise InputError(f"side is {config.side}: give a multiple of {STRIDE}")
        self.config = config
        found = {} if scenes is None else _find_scene_images(scenes)
        for name in held_out_scenes:
            if name not in found:
                raise InputError(f"{scenes}: no scene called {name}, which is to be held out")
        by_class = {name: images for name, images in found.items() if name not in held_out_scenes}
        if config.photo_classes:
            by_class |= {str(path): [path] for path in photos}
        if len(by_class) < 2:
            raise InputError(f"{len(by_class)} landmark classes to train on: give 2 or more scenes or photos")
        self.classes = list(by_class)
        self._images = list(by_class.values())
        weight = np.sqrt([len(images) for images in self._images])
        self._probability = weight / weight.sum()
        self._pixels: dict[Path, NDArray[np.uint8]] = {}
        held_out = [(path, label) for label, name in enumerate(held_out_scenes) for path in found[name]]
        self.held_out_images = [path for path, _ in held_out]
        self.held_out_labels = [label for _, label in held_out]

    def batch(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Crops (B, 3, side, side) float32 RGB in 0 to 255, and their labels (B,) int64."""
        # Between uniform over photographs, where large scenes rule, and over classes, where they starve.
        labels = rng.choice(len(self.classes), self.config.images, p=self._probability)
        crops = []
        for label in labels:
            images = self._images[label]
            crops.append(augment(self._read(images[rng.integers(len(images))]), self.config.side, rng))
        images_first = np.stack(crops).transpose(0, 3, 1, 2)
        return torch.from_numpy(np.ascontiguousarray(images_first)), torch.from_numpy(labels.astype(np.int64))

    def _read(self, path: Path) -> NDArray[np.uint8]:
        if path not in self._pixels:
            self._pixels[path] = read(path, max_side=round(STORED_SIDE * self.config.side)).rgb
        return self._pixels[path]


def _find_scene_images(folder: Path) -> dict[str, list[Path]]:
    """Photographs of every scene (folder with `images/`), by name."""
    scenes = sorted(path.parent for path in folder.glob("*/images") if path.is_dir())
    if not scenes:
        raise InputError(f"{folder}: no scenes in it (folders NAME/images/ with photographs)")
    return {scene.name: list(find_images([scene / "images"]).values()) for scene in scenes}


def augment(rgb: NDArray[np.uint8], side: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """A random view of a photograph (H, W, 3): (side, side, 3) float32 in 0 to 255."""
    left, top, width, height = _random_box(rgb.shape[1], rgb.shape[0], rng)
    crop = rgb[top : top + height, left : left + width]
    shrinks = min(width, height) > side
    pixels = cv2.resize(crop, (side, side), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
    if rng.random() < 0.5:
        pixels = pixels[:, ::-1]
    return _jitter(np.ascontiguousarray(pixels, np.float32), rng)


def _random_box(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Left, top, width, height of a box with 0.3 to 1 of the area and an aspect of 3/4 to 4/3."""
    for _ in range(10):
        area = width * height * rng.uniform(0.3, 1.0)
        aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1)), w, h
    square = min(width, height)  # a very long photograph holds no such box
    return int(rng.integers(width - square + 1)), int(rng.integers(height - square + 1)), square, square


def _jitter(pixels: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Other light and another camera: (H, W, 3) float32 in 0 to 255."""
    saturation = 0.0 if rng.random() < 0.1 else rng.uniform(0.6, 1.4)  # sometimes gray
    contrast, brightness = rng.uniform(0.6, 1.4), rng.uniform(-40, 40)
    gain = rng.uniform(0.85, 1.15, 3)
    gray = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    mean = float(gray.mean())
    # All of it is one linear map per pixel: saturation about its gray, then contrast about the mean.
    slope = (contrast * saturation * gain).astype(np.float32)
    of_gray = (contrast * (1 - saturation) * gain).astype(np.float32)
    offset = ((mean * (1 - contrast) + brightness) * gain).astype(np.float32)
    jittered = pixels * slope + gray[..., None] * of_gray + offset
    if rng.random() < 0.2:
        jittered = np.asarray(cv2.GaussianBlur(jittered, (0, 0), rng.uniform(0.5, 2.0)), np.float32)
    return np.clip(jittered, 0, 255)


def retrieval_map(network: nn.Module, images: list[Path], labels: Sequence[int], side: int) -> float:
    """Mean average precision, 0 to 1, of finding the other photographs of a scene by MAC descriptors.

    Args:
        network: regional network, (1, 3, H, W) -> (1, C, H/32, W/32).
        images, labels: photographs and their scenes; each one is a query against all others.
        side: pixels of the longer side, as the network sees them.
    """
    scenes = np.asarray(labels)
    descriptors = mac_descriptors(network, images, side)
    similarity = descriptors @ descriptors.T
    precisions = []
    for query in range(len(images)):
        others = np.delete(np.arange(len(images)), query)
        relevant = scenes[others] == scenes[query]
        if relevant.any():
            order = np.argsort(-similarity[query, others], kind="stable")
            precisions.append(average_precision(relevant[order]))
    if not precisions:
        raise InputError("retrieval needs a scene with two photographs or more")
    return float(np.mean(precisions))


@torch.no_grad()
def mac_descriptors(network: nn.Module, images: list[Path], side: int) -> NDArray[np.float32]:
    """(N, C) float32, L2-normalised; the network's modules are in evaluation mode meanwhile."""
    parameter = next(network.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        descriptors = []
        for path in images:
            pixels = torch.from_numpy(regional_image(read(path, max_side=side), side)).to(device)
            descriptors.append(mac(network(pixels.contiguous(memory_format=torch.channels_last)))[0])
    finally:
        for module in training:  # not network.train(), which would wake frozen parts
            module.training = True
    return torch.stack(descriptors).cpu().numpy()


def average_precision(relevant: NDArray[np.bool_]) -> float:
    """Mean of the precision at each relevant rank, of (N,) bool, best rank first; 0 if none is."""
    ranks = np.flatnonzero(relevant) + 1
    return float(np.mean(np.arange(1, len(ranks) + 1) / ranks)) if len(ranks) else 0.0


def freeze_leading(network: nn.Module, count: int) -> list[nn.Module]:
    """Stop the gradients of the stem and `count` leading blocks, and return these parts.

    The caller keeps them in evaluation mode, which keeps their batch-norm statistics.
    """
    parts = leading(network, count)
    for part in parts:
        part.requires_grad_(False)
    return parts


def leading(network: nn.Module, count: int) -> list[nn.Module]:
    """The stem of a regional network and its `count` leading blocks."""
    stem: list[nn.Module]
    blocks: list[nn.Module]
    if isinstance(network, ResNet50):
        stem = [network.conv1, network.bn1]
        blocks = [network.layer1, network.layer2, network.layer3, network.layer4]
    else:
        stem = [network.get_submodule("stem")]
        blocks = list(network.get_submodule("blocks").children())
    if not 0 <= count <= len(blocks):
        raise InputError(f"frozen_blocks is {count}: {type(network).__name__} takes 0 to {len(blocks)}")
    return stem + blocks[:count]


def keep_statistics(network: nn.Module) -> None:
    """Put the batch norms of a network in evaluation mode: their weights train, their statistics stay."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()


class LandmarkTask(nn.Module):
    """Landmark classifier of a regional network, on crops of photographs.

    The network itself belongs to a stage, which passes it in.
    """

    def __init__(self, channels: int, data: LandmarkData, config: LandmarkConfig, seed: int) -> None:
        super().__init__()
        self.config, self.data, self.seed = config, data, seed
        self.classifier = LandmarkClassifier(channels, len(data.classes), config.scale, config.smoothing)

    def prepare(self, network: nn.Module) -> None:
        """Freeze the leading layers of the network, for good."""
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        freeze_leading(network, self.config.frozen_blocks)

    def keep_frozen(self, network: nn.Module) -> None:
        """Put what is frozen back into evaluation mode, after `network.train()`."""
        for part in leading(network, self.config.frozen_blocks):
            part.eval()
        if not self.config.update_statistics:
            keep_statistics(network)

    def loss(self, network: nn.Module, step: int, part: int = 0) -> dict[str, Tensor]:
        """Loss and accuracy of the batch of a step; each part of a step draws its own."""
        images, labels = self.data.batch(np.random.default_rng([self.seed, step, part]))
        device = self.classifier.vectors.device
        images, labels = images.to(device, memory_format=torch.channels_last), labels.to(device)
        logits = self.classifier(network(images))
        loss = self.classifier.loss_of_logits(logits, labels)
        accuracy = (logits.detach().argmax(1) == labels).float().mean()
        return {"loss": loss, "classification": loss, "accuracy": accuracy}

    def recall(self, network: nn.Module) -> dict[str, float]:
        """Mean average precision of retrieval among the held-out scenes; nothing if there are none."""
        data = self.data
        if not data.held_out_images:
            return {}
        side = self.config.validation_side
        return {"mac_map": retrieval_map(network, data.held_out_images, data.held_out_labels, side)}
