"""Speed: ratios and targets on worked-out times, rivals that compute the same, and a tiny run."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from contextdesc.benchmarks import peak_memory, speed, speed_report, speed_rivals
from contextdesc.benchmarks.graph_cost import GraphCost
from contextdesc.benchmarks.methods.method import unit
from contextdesc.benchmarks.protocol import Request
from contextdesc.benchmarks.speed_report import GEMM_SHARE, PRODUCT, workload_numbers
from contextdesc.benchmarks.targets import Target, target_table
from contextdesc.benchmarks.timing import Workload, filled, limited_threads
from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.image import Image
from contextdesc.matching import match_descriptors
from contextdesc.modelfile import DEFAULT, LOCAL, int8_file, resolve
from contextdesc.patches import sample_patches


def spread(median: float) -> dict[str, float]:
    return {"median": median, "least": median, "most": median}


def test_ratios_are_of_the_same_round() -> None:
    """Two rounds, the second on a machine half as fast: eager PyTorch takes 3 times as long in both. The
    faster library makes the peak: 2 x 2048^3 operations in 100 ms are 171.8 GFLOP/s, of which 12 GFLOP in
    100 ms are 0.698."""
    first = {
        "local network": 100.0, "eager PyTorch, local network": 300.0, "patches": 4.0, "both contexts": 2.0,
        PRODUCT + "NumPy": 150.0, PRODUCT + "PyTorch": 100.0, "copy in memory": 50.0,
    }  # fmt: skip
    second = {name: 2 * value for name, value in first.items()}
    costs = dict.fromkeys(first) | {"local network": GraphCost(12 * 10**9, 10, 10**9)}
    found = workload_numbers(costs, [first, second])
    assert found["ratios"]["eager PyTorch / local network"] == spread(3)
    assert found["ratios"]["patches / local network"] == spread(0.04)
    assert found["ratios"][GEMM_SHARE]["median"] == pytest.approx(0.6985, abs=1e-4)
    assert found["ratios"][GEMM_SHARE]["least"] == pytest.approx(found["ratios"][GEMM_SHARE]["most"])
    assert found["gemm_gflops"]["most"] == pytest.approx(171.8, abs=0.1)
    assert found["gemm_gflops"]["least"] == pytest.approx(171.8 / 2, abs=0.1)
    assert found["copy_gb_per_s"]["most"] == pytest.approx(2 * 4 * 2**26 / 0.05 / 1e9)
    assert found["times"]["local network"]["ms"] == {"median": 150, "least": 100, "most": 200}
    assert found["times"]["local network"]["flops"] == 12 * 10**9
    assert "kornia / contextdesc, end to end" not in found["ratios"]  # was not timed


def test_short_work_is_repeated_within_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """80, 20 and 120 ms are more than 200 together: the median is 80, the fastest 20, which a share of a
    quarter makes 80. Long work runs once."""

    def timed_as(*milliseconds: float) -> None:
        waiting = iter(milliseconds)
        monkeypatch.setattr(speed, "timed", lambda run: (0.0, next(waiting)))

    timed_as(80, 20, 120, 999)
    assert speed.Work("median", lambda: None).milliseconds() == 80
    timed_as(80, 20, 120, 999)
    assert speed.Work("best", lambda: None, share=0.25, best=True).milliseconds() == 80
    timed_as(300, 1)
    assert speed.Work("long", lambda: None).milliseconds() == 300


def test_every_second_round_goes_backwards(tmp_path: Path) -> None:
    ran: list[str] = []

    def work(name: str) -> speed.Work:
        return speed.Work(name, lambda: ran.append(name))

    def prepared(size: tuple[int, int], *names: str) -> speed.Prepared:
        return speed.Prepared(Workload(size, 1), tmp_path, Detector(1), 1, [work(name) for name in names])

    times = speed.take_turns([prepared((8, 8), "large", "larger"), prepared((4, 4), "a", "b")], 2, quiet=True)
    assert ran[:2] == ["a", "b"], "the smallest picture first, untimed"
    rounds = ["large", "larger", "a", "b", "larger", "large", "b", "a"]
    assert [name for name, before in zip(ran[2:], ran[1:], strict=False) if name != before] == rounds
    assert [[set(one) for one in of] for of in times] == [[{"large", "larger"}] * 2, [{"a", "b"}] * 2]


def test_targets_are_judged_by_medians() -> None:
    small, large = Workload((640, 480), 2048), Workload((4000, 3000), 8000)
    found = {
        str(small): {"speedup": spread(2.4), "share": spread(0.05)},
        str(large): {"speedup": {"median": 2.6, "least": 2.1, "most": 2.9}, "share": spread(0.09)},
    }
    assert Target("a", "speedup", 2.5, at_least=True).met(found) == "1 of 2"
    assert Target("a", "speedup", 2.5, at_least=True, at=large).met(found) == "yes"
    assert Target("a", "speedup", 2.5, at_least=True, at=small).met(found) == "no"
    assert Target("a", "speedup", 2.0, at_least=True).met(found) == "yes"
    assert Target("b", "share", 0.04, at_least=False).met(found) == "no"
    assert Target("b", "share", 0.1, at_least=False).met(found) == "yes"
    assert Target("c", "int8", 1.4, at_least=True).met(found) == "not measured"
    rows = target_table("", [Target("a", "speedup", 2.5, at_least=True, at=large)], found).rows
    assert rows == [["a", f"at least 2.5 at {large}", "2.4", "2.6 (2.1 to 2.9)", "yes"]]


def test_every_target_of_the_ratios_exists() -> None:
    """A target whose ratio nobody computes would be "not measured" for ever."""
    assert {target.ratio for target in speed_report.TARGETS} <= {GEMM_SHARE, *speed_report.RATIOS}
    assert Workload.parse(speed.SIZES.split(",")[0]) == speed_report.TYPICAL
    assert Workload.parse(speed.SIZES.split(",")[2]) == speed_report.MATCHED


def test_matchers_agree() -> None:
    """What is compared is the same work: mutual nearest neighbours of real numbers, without ties."""
    rng = np.random.default_rng(3)
    first = unit(rng.standard_normal((300, 128)).astype(np.float32))
    second = unit(first[::-1] + 0.3 * rng.standard_normal((300, 128)).astype(np.float32))[:280]
    ours = match_descriptors(first, second).indices
    assert 100 < len(ours) <= 280
    for rival in (speed_rivals.opencv_mutual, speed_rivals.faiss_mutual):
        np.testing.assert_array_equal(sorted(rival(first, second).tolist()), ours)


def test_kornia_cuts_the_patches_that_we_cut(photo: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pipeline reads the same part of the image, the same way up, as ours."""
    import kornia.feature
    import torch

    seen: list[torch.Tensor] = []
    cut = kornia.feature.extract_patches_from_pyramid
    monkeypatch.setattr(
        kornia.feature,
        "extract_patches_from_pyramid",
        lambda *args: seen.append(cut(*args)) or seen[-1],  # type: ignore[func-returns-value]
    )
    detector = Detector(80)
    descriptors = speed_rivals.kornia_pipeline(detector)(photo.gray)
    assert descriptors.shape == (len(seen[0][0]), 128)
    keypoints = detect(photo.gray, detector)
    theirs = 255 * seen[0][0, :, 0].numpy()
    found = speed_rivals.plain_sift(detector).detect(photo.gray, None)
    places = np.array([k.pt for k in found], np.float32)
    compared = 0
    for xy, patch in zip(keypoints.xy, sample_patches(photo.gray, keypoints), strict=True):
        rows = np.flatnonzero(np.abs(places - xy).max(1) < 1e-3)
        if len(rows) == 1:  # else a blob with several orientations
            correlation = np.corrcoef(patch.ravel(), theirs[rows[0]].ravel())[0, 1]
            assert correlation > 0.9, xy
            compared += 1
    assert compared > 15


def test_eager_pytorch_is_the_local_network(photo: Image) -> None:
    patches = sample_patches(photo.gray, detect(photo.gray, Detector(20)))
    for channels_last in (False, True):
        assert speed_rivals.eager_local(channels_last)(patches).shape == (20, 128)


def test_small_photographs_are_mirrored() -> None:
    rgb = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)  # two pixels
    wide = filled(Image(rgb, (2, 1), "made"), (5, 1))
    assert wide.rgb[0, :, 0].tolist() == [0, 3, 3, 0, 0]
    assert wide.size == (5, 1)
    assert filled(Image(np.zeros((100, 300, 3), np.uint8), (300, 100), "made"), (50, 50)).size == (50, 50)


def test_sizes_that_are_none() -> None:
    assert Workload.parse(" 640x480:2048") == Workload((640, 480), 2048)
    for text in ("640x480", "640:2048", "640x480:0", "axb:1", ""):
        with pytest.raises(InputError, match="not a size such as 640x480:2048"):
            Workload.parse(text)


def test_threads_are_limited_and_given_back() -> None:
    from threadpoolctl import threadpool_info

    before = cv2.getNumThreads()
    with limited_threads(1):
        assert cv2.getNumThreads() == 1
        assert {library["num_threads"] for library in threadpool_info()} == {1}
    assert cv2.getNumThreads() == before


def _touch(megabytes: int) -> float:
    return peak_memory.peak_mb(lambda: np.ones(megabytes * 2**18, np.float32))


@pytest.mark.skipif(not peak_memory.MEASURABLE, reason="Linux alone tells peaks")
def test_peaks_are_of_the_work_alone() -> None:
    """64 MB more are seen, also after a larger peak, which is forgotten."""
    small, large = (peak_memory.in_new_process(_touch, megabytes) for megabytes in (1, 65))
    assert large - small == pytest.approx(64, abs=8)
    _touch(200)
    assert _touch(1) < peak_memory.resident_mb() + 50


@pytest.mark.slow
def test_a_tiny_run(photo: Image, tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "photo.png"), photo.rgb[..., ::-1])
    settings = {"repetitions": 2, "threads": 1, "sizes": "200x150:30"}
    report = speed.run(Request(tmp_path, {}, settings=settings))
    numbers = json.loads(report.json)
    found = numbers["workloads"]["30 keypoints, 200 x 150"]
    assert found["detected"] == 30
    assert set(speed_report.STAGES) <= found["times"].keys()
    assert all(one["ms"]["least"] > 0 for one in found["times"].values())
    for name, ratio in found["ratios"].items():
        assert 0 < ratio["least"] <= ratio["median"] <= ratio["most"], name
    quantised = (resolve(DEFAULT) / int8_file(LOCAL)).is_file()
    assert ("local network: fp32 / int8" in found["ratios"]) == quantised
    assert numbers["machine"]["threads"] == 1
    assert numbers["photograph"] == {"name": "photo.png", "size": [512, 512]}
    if peak_memory.MEASURABLE:
        memory = found["memory"]
        assert all(of["peak_mb"] >= of["before_mb"] > 20 for of in memory["methods"].values())
        assert memory["methods"]["kornia"]["peak_mb"] > memory["methods"]["OpenCV SIFT"]["peak_mb"]
    assert numbers["targets"]["patches / local network"]["met"] in ("yes", "no")
    assert numbers["targets"]["OpenCV BFMatcher / mutual matching"]["met"] == "not measured"
    assert report.markdown.startswith("**Targets: ratios of times**")
    for plot in report.curves:
        for theme in ("light", "dark"):
            assert plot.png(theme).startswith(b"\x89PNG")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="repetitions=0: at least 1"):
        speed.run(Request(tmp_path, {}, settings={"repetitions": 0}))
