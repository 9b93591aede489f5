"""HPatches: tasks worked out by hand, the recipe of its patches, its files, and a run on cut patches."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from contextdesc.benchmarks import hpatches, hpatches_strips
from contextdesc.benchmarks.hpatches_splits import SPLITS
from contextdesc.benchmarks.hpatches_strips import (
    NAMES,
    NOISES,
    Noise,
    cut_strips,
    overlap,
    perturbations,
    read_strips,
)
from contextdesc.benchmarks.hpatches_tasks import (
    Pairs,
    Patches,
    Tasks,
    average_precision,
    draw_tasks,
    matching,
    pools,
    ranked_precision,
    retrieval,
)
from contextdesc.benchmarks.methods import build_method, build_methods
from contextdesc.benchmarks.protocol import Request
from contextdesc.benchmarks.sequences import OXFORD, read_sequence
from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.image import Image
from contextdesc.patches import sample_patches
from tests.benchmarks.test_methods import network_file
from tests.cli.test_cli import run


def at(*cosines: float) -> np.ndarray:
    """Unit vectors in the plane whose cosines with (1, 0) are these."""
    x = np.array(cosines)
    return np.stack([x, np.sqrt(1 - x**2)], -1).astype(np.float32)


def test_average_precision_by_hand() -> None:
    """Right, wrong, right, wrong: 1/2 of recall at precision 1, the other from 1/2 up to 2/3."""
    similarity, right = np.array([0.6, 0.9, 0.8, 0.7]), np.array([False, True, False, True])
    assert average_precision(similarity, right) == pytest.approx(1 / 2 + (1 / 2 + 2 / 3) / 4)
    assert average_precision(similarity, right, positives=4) == pytest.approx(1 / 4 + (1 / 2 + 2 / 3) / 8)


def test_matching_by_hand() -> None:
    """Three places; in image 1 all are found, in image 2 two are swapped and more similar than the third."""
    descriptors = np.repeat(np.eye(3, dtype=np.float32)[None], len(NAMES), 0)
    slanted = np.array([0, 0.6, 0.8], np.float32)
    descriptors[NAMES.index("e2")] = [[0, 1, 0], [1, 0, 0], slanted]
    found = matching(descriptors, "easy")
    assert found[0] == 1
    assert found[1] == pytest.approx((0 + 1 / 3) / 2 / 3)  # one of three found, after two wrong ones


def test_retrieval_by_hand() -> None:
    """Three of five come first; a distractor is before the others, one of the own sequence counts not."""
    descriptors = np.zeros((len(NAMES), 4, 2), np.float32)
    descriptors[0] = at(1, 1, 0.5, 0.1)
    for image, cosine in enumerate([0.4, 0.9, 0.9, 0.4, 0.9], 1):
        descriptors[NAMES.index(f"e{image}"), 0] = at(cosine)
    patches = Patches(("a", "b"), np.array([2, 2]), np.ones(4, bool))
    tasks = Tasks({}, np.array([0]), np.array([1, 2, 3]), "")
    assert pools(patches, tasks) == (7,)
    expected = (1 + 1 + 1 + (3 / 4 + 4 / 5) / 2 + (4 / 5 + 5 / 6) / 2) / 5
    np.testing.assert_allclose(retrieval(descriptors, ["easy"], patches, tasks), [[expected]])


def test_ranks_give_the_area_of_the_whole_list() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        right, wrong = -np.sort(-random.normal(1, 1, 5)), random.normal(0, 1, 30)
        before = (wrong > right[:, None]).sum(1)
        area = average_precision(np.concatenate([right, wrong]), np.arange(35) < 5)
        assert ranked_precision(before[None, :, None])[0, 0] == pytest.approx(area)


def test_verification_by_hand() -> None:
    """One positive of cosine 0.5; among five intra negatives one is nearer, among the inter ones none."""
    descriptors = np.repeat(at(0.5, 0.9, 0.1, 0.1, 0.1)[None], len(NAMES), 0)
    descriptors[NAMES.index("ref")] = [1, 0]
    images = np.tile([0, 1], (5, 1))
    second = {"positive": [0] * 5, "intra": [1, 2, 2, 2, 2], "inter": [3] * 5}
    pairs = {kind: Pairs(np.array([(0, row) for row in rows]), images) for kind, rows in second.items()}
    patches = Patches(("a", "b"), np.array([3, 2]), np.ones(5, bool))
    tasks = Tasks(pairs, np.array([0, 3]), np.array([1, 4]), "")
    found = {
        name: hpatches.Described(descriptors[:, rows], np.ones(len(rows), bool))
        for name, rows in (("a", [0, 1, 2]), ("b", [3, 4]))
    }
    scores = hpatches.evaluate(found, patches, tasks)["verification"]
    intra, inter = (0 + 1 / 2) / 2, 1
    for noise in (*NOISES, hpatches.ALL):
        assert scores[noise].value == pytest.approx(100 * (intra + inter) / 2)
        assert scores[noise].mean.low == pytest.approx(scores[noise].value)  # all pairs are of one sequence


def test_matching_is_the_mean_of_both_kinds() -> None:
    """30 and 50 of illumination, 90 of viewpoint: (40 + 90) / 2; draws of one kind alone count for it."""
    weights = np.array([[1, 1, 1], [3, 0, 0], [0, 0, 3]], float)
    found = hpatches._matching(np.array([30.0, 50, 90]), ("i_a", "i_b", "v_c"), weights)
    assert found.value == 65
    assert found.draws.tolist() == [65, 30, 90]
    other = hpatches._matching(np.array([30.0, 50, 90]), ("a", "b", "v_c"), weights)
    assert other.value == pytest.approx(170 / 3)


def test_tasks_are_drawn_by_the_rule() -> None:
    textured = np.arange(900) % 10 > 0
    patches = Patches(("a", "b", "c"), np.array([200, 300, 400]), textured)
    tasks = draw_tasks(patches, 2000)
    of = {kind: patches.sequence_of(pairs.rows) for kind, pairs in tasks.pairs.items()}
    for pairs in tasks.pairs.values():
        assert (pairs.images[:, 0] != pairs.images[:, 1]).all()
        assert set(pairs.images.ravel()) == {0, 1, 2, 3, 4}
    assert (tasks.pairs["positive"].rows[:, 0] == tasks.pairs["positive"].rows[:, 1]).all()
    assert (tasks.pairs["intra"].rows[:, 0] != tasks.pairs["intra"].rows[:, 1]).all()
    assert (of["intra"][:, 0] == of["intra"][:, 1]).all()
    assert (of["inter"][:, 0] != of["inter"][:, 1]).all()
    assert np.bincount(of["positive"][:, 0]).min() > 600  # sequences are equally likely, whatever their size
    assert len(tasks.queries) == 300
    assert textured[tasks.queries].all()
    assert textured[tasks.distractors].all()
    assert not set(tasks.queries) & set(tasks.distractors)
    np.testing.assert_array_equal(draw_tasks(patches, 2000).queries, tasks.queries)


def test_splits_are_the_published_ones() -> None:
    assert {name: len(names) for name, names in SPLITS.items()} == {
        "a": 40, "b": 40, "c": 40, "illum": 57, "view": 59, "full": 116,
    }  # fmt: skip
    assert all(set(names) <= set(SPLITS["full"]) for names in SPLITS.values())
    assert all(len(set(names)) == len(names) for names in SPLITS.values())


def test_overlap_of_circles_by_hand() -> None:
    """The same, one of half the radius within, one that touches, and one through the other's centre."""
    lens = 2 * (np.pi / 3 - np.sqrt(3) / 4)
    found = overlap(np.array([0.0, 0.2, 2, 1]), np.array([1, 0.5, 1, 1]), 1.0)
    np.testing.assert_allclose(found, [1, 0.25, 0, lens / (2 * np.pi - lens)], atol=1e-7)


@pytest.mark.parametrize(("noise", "expected"), [("easy", 0.85), ("hard", 0.72)])
def test_noise_overlaps_as_the_page_of_the_data_says(noise: str, expected: float) -> None:
    """Median overlap of a region with itself after noise; a region reaches to 1/5 of its patch."""
    grid = np.stack(np.meshgrid(*[np.linspace(-0.5, 0.5, 120)] * 2), -1).reshape(-1, 2)
    inside = np.linalg.norm(grid, axis=1) <= 0.2
    found = []
    for matrix in perturbations(NOISES[noise], 300, np.random.default_rng(0)):
        back = np.linalg.inv(matrix)
        moved = np.linalg.norm(grid @ back[:2, :2].T + back[:2, 2], axis=1) <= 0.2
        found.append((inside & moved).sum() / (inside | moved).sum())
    assert np.median(found) == pytest.approx(expected, abs=0.04)


def test_patches_follow_the_homography(scene: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise every strip of a photograph that moves by whole pixels shows the same patches."""
    monkeypatch.setattr(hpatches_strips, "NOISES", dict.fromkeys(NOISES, Noise(0, 0, 0, 0)))
    strips = cut_strips(read_sequence(scene, OXFORD), "shift")
    assert set(strips) == set(NAMES)
    assert len(strips["ref"]) > 20
    assert strips["ref"].std((1, 2)).mean() > 15
    for patches in strips.values():
        assert np.abs(patches.astype(int) - strips["ref"]).mean() < 0.5


def test_noise_moves_patches_more_and_more(scene: Path) -> None:
    strips = cut_strips(read_sequence(scene, OXFORD), "shift")
    apart = [np.abs(strips[name].astype(int) - strips["ref"]).mean() for name in ("e1", "h1", "t1")]
    assert 1 < apart[0] < apart[1] < apart[2]
    again = cut_strips(read_sequence(scene, OXFORD), "shift")
    np.testing.assert_array_equal(strips["t3"], again["t3"])


@pytest.fixture
def release(scene: Path, tmp_path: Path) -> Path:
    """Two sequences of 40 patches in the release's layout; the second has those of the first mirrored."""
    strips = cut_strips(read_sequence(scene, OXFORD), "shift")
    for name, turn in (("i_one", 1), ("v_two", -1)):
        folder = tmp_path / "release" / name
        folder.mkdir(parents=True)
        for strip, patches in strips.items():
            cv2.imwrite(str(folder / f"{strip}.png"), patches[:40, ::turn].reshape(-1, 65))
    splits = {"mine": {"test": ["i_one", "v_two", "v_three"], "name": "mine"}}
    (tmp_path / "splits.json").write_text(json.dumps(splits))
    return tmp_path / "release"


def test_strips_of_the_release(release: Path) -> None:
    settings = {"split": "mine", "splits": str(release.parent / "splits.json"), "pairs": 2000}
    request = Request(release, build_methods("sift,rootsift"), settings=settings)
    report = hpatches.run(request)
    assert report.skipped == {"v_three": f"{release / 'v_three'}: missing"}
    assert report.numbers["strips"] == "as found in the data"
    assert report.numbers["tasks"] == "drawn, seed 0"
    for method in ("sift", "rootsift"):
        easy, tough = (
            [report.numbers["mAP"][method][task][noise]["mean"] for task in hpatches.TASKS]
            for noise in ("easy", "tough")
        )
        assert all(100 >= e > t > 0 for e, t in zip(easy, tough, strict=True))
        assert easy[1] > 60
    with pytest.raises(InputError, match="split=d: one of a, b, c, illum, view, full, any"):
        hpatches.run(Request(release, build_methods("sift"), settings={"split": "d"}))
    with pytest.raises(InputError, match="the least to tell apart, 0 found in split a; --set split=any"):
        hpatches.run(Request(release, build_methods("sift")))


def test_published_lists_are_read(release: Path, tmp_path: Path) -> None:
    """The drawn tasks, written as the benchmark writes its own, give the same numbers."""
    settings = {"split": "any", "pairs": 500}
    request = Request(release, build_methods("sift"), settings=settings)
    drawn = hpatches.run(request).numbers
    count = drawn["sequences"]["i_one"]
    textured = read_strips(release / "i_one")["ref"].std((1, 2)) > hpatches.CONTRAST
    patches = Patches(("i_one", "v_two"), np.array([count, count]), np.tile(textured, 2))
    tasks, folder = draw_tasks(patches, 500), tmp_path / "tasks"
    folder.mkdir()

    def place(row: int) -> tuple[str, int]:
        return patches.names[row // count], row % count

    def write(name: str, head: list[str], rows: list[tuple[object, ...]]) -> None:
        with (folder / f"{name}_split-any.csv").open("w", newline="") as file:
            csv.writer(file).writerows([head, *rows])

    for kind, stem in (("positive", "pos"), ("intra", "neg_intra"), ("inter", "neg_inter")):
        pairs = tasks.pairs[kind]
        rows = [
            (place(r[0])[0], t[0], place(r[0])[1], place(r[1])[0], t[1], place(r[1])[1])
            for r, t in zip(pairs.rows.tolist(), pairs.images.tolist(), strict=True)
        ]
        write(f"verif_{stem}", ["s1", "t1", "idx1", "s2", "t2", "idx2"], rows)
    for kind in ("queries", "distractors"):
        write(f"retr_{kind}", ["s", "idx"], [place(row) for row in getattr(tasks, kind).tolist()])
    listed = Request(release, build_methods("sift"), settings={"split": "any", "tasks": str(folder)})
    found = hpatches.run(listed).numbers
    assert found["tasks"] == "published lists of split any"
    assert found["mAP"] == drawn["mAP"]
    (folder / "retr_queries_split-any.csv").write_text("s,idx\nv_other,3\n")
    with pytest.raises(InputError, match="its lists name v_other, which is not in the data"):
        hpatches.run(listed)


def test_broken_strips_are_named(release: Path) -> None:
    folder = release / "i_one"
    strip = cv2.imread(str(folder / "h2.png"), 0)
    cv2.imwrite(str(folder / "h2.png"), strip[:-65])
    with pytest.raises(InputError, match=r"i_one/h2.png: \d+ patches, ref.png has \d+"):
        read_strips(folder)
    cv2.imwrite(str(folder / "h2.png"), strip[:-1])
    with pytest.raises(InputError, match=r"h2.png: 65 x \d+ pixels, not a column of 65 x 65 patches"):
        read_strips(folder)
    (folder / "h2.png").unlink()
    with pytest.raises(InputError, match=r"h2.png: missing"):
        read_strips(folder)
    request = Request(release, build_methods("sift"), settings={"split": "any"})
    with pytest.raises(InputError, match="one sequence could be used, two are the least"):
        hpatches.run(request)
    with pytest.raises(InputError, match=r"no strips of patches .* cut with --set cut=true"):
        hpatches.run(Request(release / "v_two", build_methods("sift")))


def test_command_cuts_patches_from_images(scene: Path, tmp_path: Path) -> None:
    """A model is described without context, which for one on RootSIFT is RootSIFT."""
    shutil.copytree(scene, scene.parent / "again")
    target = tmp_path / "report"
    result = run(
        "benchmark", "hpatches", "--data", scene.parent, "--methods", "rootsift,sift-context", "--baseline",
        "rootsift", "--set", "cut=true", "--set", "pairs=2000", "--workers", "1", "--report", target,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    numbers = json.loads((target / "numbers.json").read_text())
    assert numbers["strips"].startswith("cut from sequences")
    assert list(numbers["mAP"]) == ["rootsift", "sift-context:none"]
    assert numbers["difference"]["sift-context:none"]["matching"] == {"mean": 0, "low": 0, "high": 0}
    assert numbers["mAP"]["rootsift"]["verification"]["easy"]["mean"] > 80
    assert "Not the published strips" in (target / "report.md").read_text()
    assert (target / "map-matching.png").stat().st_size > 10_000


def test_methods_without_patches_are_refused(scene: Path) -> None:
    result = run(
        "benchmark", "hpatches", "--data", scene.parent, "--methods", "opencv:ORB", "--set", "cut=true"
    )
    assert result.returncode == 2
    assert "method opencv:ORB: describes keypoints of images, not patches" in result.stderr


@pytest.mark.parametrize("name", ["contextdesc:none", "contextdesc", "kornia:HardNet="])
def test_networks_describe_patches_as_they_do_keypoints(name: str, photo: Image, tmp_path: Path) -> None:
    """Of patches that are cut as the network itself cuts them; a model does without its context."""
    if name.endswith("="):
        name += str(network_file(tmp_path, "HardNet", ".pth"))
    keypoints = detect(photo.gray, Detector(30))
    route = build_method(name, threads=1).patches
    assert route is not None
    raw = build_method(route.name, threads=1)
    found = route.describe(sample_patches(photo.gray, keypoints))
    np.testing.assert_allclose(found, raw(photo, keypoints, True), atol=1e-5)
    assert route.describe(np.zeros((0, 65, 65), np.uint8)).shape == (0, 128)
