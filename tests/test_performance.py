"""No regressions of speed: ratios to others on the same machine, with wide margins.

Both sides of a ratio run on one thread, take turns, and are timed by what they use of the CPU, so that a busy
machine does to both what it does to one. The median of the rounds counts. If one fails, something has become
much slower; `contextdesc benchmark speed` tells more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

import numpy as np
import pytest

from contextdesc.benchmarks import speed_rivals
from contextdesc.benchmarks.model_stages import BOTH, LOCAL, PATCHES, Stage, model_stages
from contextdesc.benchmarks.speed import second_view
from contextdesc.benchmarks.timing import CONTRAST, cropped, limited_threads, repeated, timed
from contextdesc.detection import Detector, detect
from contextdesc.image import Image
from contextdesc.keypoints import Keypoints
from contextdesc.matching import match_descriptors
from contextdesc.model import load
from contextdesc.modelfile import DEFAULT, resolve
from contextdesc.patches import sample_patches
from contextdesc.rootsift import rootsift

COUNT = 512  # keypoints that networks describe
MATCHED = 3000  # descriptors that are matched
DETECTOR = Detector(2048, contrast=CONTRAST)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    speed_rivals.import_rivals()
    with limited_threads(1):
        yield


@pytest.fixture(scope="module")
def picture(photo: Image) -> Image:
    return cropped(photo, (640, 480))


@pytest.fixture(scope="module")
def keypoints(picture: Image) -> Keypoints:
    return repeated(detect(picture.gray, DETECTOR), COUNT)


@pytest.fixture(scope="module")
def stages(picture: Image, keypoints: Keypoints) -> dict[str, Stage]:
    found = model_stages(resolve(DEFAULT), "all", picture, keypoints, threads=1)
    return {stage.name: stage for stage in found}


def ratio(over: Callable[[], object], under: Callable[[], object], rounds: int = 5) -> float:
    """Time of the one over that of the other."""
    for work in (over, under):  # a first time, which loads and allocates
        work()
    return median(timed(over)[0] / timed(under)[0] for _ in range(rounds))


def test_the_local_network_is_faster_than_eager_pytorch(
    picture: Image, keypoints: Keypoints, stages: dict[str, Stage]
) -> None:
    """Target: 2.5 times."""
    eager = speed_rivals.eager_local()
    patches = sample_patches(picture.gray, keypoints)
    assert ratio(lambda: eager(patches), stages[LOCAL].run) > 1.25


def test_cutting_patches_is_a_small_part(stages: dict[str, Stage]) -> None:
    """Target: 8 % of the local network's time; it takes 1 to 2 %."""
    assert ratio(stages[PATCHES].run, stages[LOCAL].run) < 0.08


def test_context_is_a_small_part(stages: dict[str, Stage]) -> None:
    """Target: 5 % of the local network's time; it takes 1 to 2 %."""
    assert ratio(stages[BOTH].run, stages[LOCAL].run) < 0.05


def test_detection_is_as_fast_as_plain_sift(picture: Image) -> None:
    """Target: not slower than OpenCV's."""
    sift = speed_rivals.plain_sift(DETECTOR)
    ours = ratio(lambda: detect(picture.gray, DETECTOR), lambda: sift.detect(picture.gray, None), rounds=9)
    assert ours < 1.5


def test_sift_context_costs_little_more_than_sift(picture: Image) -> None:
    """Target: 2 times OpenCV's detection and description."""
    model, sift = load("sift-context", detector=DETECTOR, threads=1), speed_rivals.plain_sift(DETECTOR)
    ours = ratio(
        lambda: model.extract(Image(picture.rgb, picture.size)),
        lambda: sift.detectAndCompute(picture.gray, None),
        rounds=9,
    )
    assert ours < 3


def test_matching_is_faster_than_opencv(picture: Image) -> None:
    """Target: 3 times OpenCV's matcher with cross-check."""
    first, second = (
        repeated_rows(rootsift(image.gray, detect(image.gray, DETECTOR)))
        for image in (picture, second_view(picture))
    )
    faster = ratio(
        lambda: speed_rivals.opencv_mutual(first, second), lambda: match_descriptors(first, second)
    )
    assert faster > 1.5


def repeated_rows(descriptors: np.ndarray) -> np.ndarray:
    """`MATCHED` rows, no two of them quite the same."""
    rows = np.resize(descriptors, (MATCHED, descriptors.shape[1]))
    noise = 0.01 * np.random.default_rng(0).standard_normal(rows.shape).astype(np.float32)
    return rows + noise
