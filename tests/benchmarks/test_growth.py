"""Growth: lines, trends and targets on worked-out numbers; a command that is watched; a tiny run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contextdesc.benchmarks import growth, growth_images, growth_report
from contextdesc.benchmarks.growth_images import Sample, cores_busy, finished, memory_growth, thinned
from contextdesc.benchmarks.protocol import Request
from contextdesc.benchmarks.timing import Workload
from contextdesc.errors import ContextDescError, InputError


def points(power: int) -> list[dict[str, float]]:
    """Half a second, and a millisecond for each keypoint or for its square; 100 MB and 2 MB for each ten."""
    return [
        {"keypoints": n, "seconds": 0.5 * (power == 1) + 0.001 * n**power, "peak_mb": 100 + 0.2 * n}
        for n in (100, 1000, 10_000, 100_000)
    ]


def test_a_line_is_found_and_a_square_is_told_from_it() -> None:
    line = growth_report.fits(points(1), "keypoints")
    assert line["seconds"]["constant"] == pytest.approx(0.5)
    assert line["seconds"]["each"] == pytest.approx(0.001)
    assert line["seconds"]["departure"] < 1e-6
    assert line["peak_mb"]["each"] == pytest.approx(0.2)
    square = growth_report.fits(points(2), "keypoints")["seconds"]
    assert square["power"] == pytest.approx(2)
    assert square["departure"] > 0.5


def samples(leak: float, noise: float = 3.0) -> list[dict[str, float]]:
    """Twice per image: memory of 300 MB that wavers, with so many megabytes more for each image; in the first
    50 images it grows by 100 MB, as caches fill. Two cores, of which 1.8 are used."""
    rng = np.random.default_rng(0)
    found = []
    for index in range(1, 1001):
        image = index / 2
        memory = 300 + min(image, 50) * 2 + leak * image + noise * rng.standard_normal()
        found.append(vars(Sample(0.1 * index, image, memory, 0.18 * index)))
    return found


def test_a_leak_is_told_from_noise() -> None:
    """A megabyte in ten images is 50 MB in 500; without one the interval has 0 in it."""
    none, some = memory_growth(samples(0), 500), memory_growth(samples(0.1), 500)
    assert none["low_mb"] < 0 < none["high_mb"] < 2
    assert some["low_mb"] < 50 < some["high_mb"]
    assert some["low_mb"] > 45
    assert none["resident_mb"] == pytest.approx(400, abs=1)
    with pytest.raises(ContextDescError, match="give more images"):
        memory_growth(samples(0)[:20], 500)


def test_the_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth_images, "available_cores", lambda: 2)
    found = cores_busy(samples(0))
    assert found["share"] == pytest.approx(0.9)
    assert found["per_second"] == pytest.approx(5)


def test_images_are_counted_by_what_the_journal_gains() -> None:
    """A header of 100 bytes, then 50 bytes an image; what comes after the last one is not looked at."""
    seen = [Sample(t, size, 1.0, 1.0) for t, size in enumerate((100, 100, 150, 200, 300, 300))]
    counted = finished(seen, 4)
    assert [one["images"] for one in counted] == [1, 2, 4]
    assert counted[-1]["seconds"] == 4
    assert [one["images"] for one in thinned(counted, 2)] == [1, 4]
    assert thinned(counted, 100) == counted
    with pytest.raises(ContextDescError, match="too fast to be watched"):
        finished(seen[:2], 4)


def numbers() -> dict[str, Any]:
    return {
        "largest": {"pixels": 50_000_000, "asked": 50_000, "keypoints": 50_000, "peak_mb": 3 * 1024.0},
        "images": {"count": 500, "growth": memory_growth(samples(0), 500)},
        "busy": {"share": 0.91, "count": 60, "workload": "2,048 keypoints, 640 x 480"},
    }


def test_targets_follow_the_numbers() -> None:
    assert [of["met"] for of in growth_report.targets(numbers()).values()] == ["yes", "yes", "yes"]
    worse = numbers()
    worse["largest"]["peak_mb"] = 4.1 * 1024
    worse["images"]["growth"] = memory_growth(samples(0.1), 500)
    worse["busy"]["share"] = 0.89
    assert [of["met"] for of in growth_report.targets(worse).values()] == ["no", "no", "no"]
    smaller = numbers()
    smaller["largest"]["keypoints"] = 49_000
    assert next(iter(growth_report.targets(smaller).values()))["met"] == "not measured"


def test_a_process_and_its_children_are_watched() -> None:
    """A process that starts another, which takes 80 MB and a core: both are seen from outside."""
    child = "import time; held = b'x' * 80_000_000; end = time.time() + 60\nwhile time.time() < end: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent]) as process:
        family: list[int] = []
        try:
            deadline = time.monotonic() + 30
            memory = used = 0.0
            while (memory < 80 or used < 0.3) and time.monotonic() < deadline:
                time.sleep(0.1)
                memory, used = growth_images._usage(process.pid)
                family = list(growth_images._family(process.pid))
            assert memory > 80
            assert used >= 0.3
            assert len(family) == 2
        finally:
            for pid in family[1:]:
                subprocess.run(["kill", str(pid)], check=False)
            process.kill()


def test_a_failing_command_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "broken.jpg").write_bytes(b"no image")
    with pytest.raises(ContextDescError, match=r"extract .* failed: .*broken.jpg"):
        growth_images.watch(folder, Workload((64, 48), 10), 1)


def test_settings_that_make_no_curve(tmp_path: Path) -> None:
    for text, why in (
        ("1,x,3", "numbers, comma-separated"),
        ("1,2", "at least three"),
        ("0,1,2", "positive"),
    ):
        with pytest.raises(InputError, match=why):
            growth.run(Request(tmp_path, {}, settings={"keypoints": text}))


@pytest.mark.slow
def test_a_tiny_run(photo_folder: Path) -> None:
    few = {"keypoints": "10,20,40", "megapixels": "0.02,0.04,0.08", "images": 60, "busy": 3}
    report = growth.run(Request(photo_folder, {}, settings={"threads": 1, **few}))
    found = json.loads(report.json)
    assert [point["keypoints"] for point in found["describing"]["points"]] == [10, 20, 40]
    for point in found["extracting"]["points"]:
        parts = sum(point[f"{name}_seconds"] for name in ("read", "detect", "describe"))
        assert 0 < parts <= point["seconds"]
        assert point["peak_mb"] >= point["before_mb"] > 50
    assert found["images"]["samples"][-1]["images"] == 60
    assert found["busy"]["share"] > 0
    met = [of["met"] for of in found["targets"].values()]
    assert met[0] == "not measured"
    assert set(met[1:]) <= {"yes", "no"}
    for plot in report.curves:
        assert plot.png("dark").startswith(b"\x89PNG")
    assert "| target | needed | measured | met |" in report.markdown
