"""Retrieval: average precision by hand, both layouts in miniature, broken ground truth, and the report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from contextdesc.benchmarks import retrieval
from contextdesc.benchmarks.methods import build_methods
from contextdesc.benchmarks.protocol import Request
from contextdesc.benchmarks.report import Report
from contextdesc.benchmarks.retrieval import Score, score, summarise
from contextdesc.benchmarks.retrieval_tasks import cropped, find_task
from contextdesc.errors import InputError
from contextdesc.image import Image
from tests.cli.test_cli import run

ROOT = Path(__file__).parent.parent.parent


def test_average_precision_by_hand() -> None:
    """Right, wrong, right, with two right answers.

    Precision by recall goes from (0, 1) to (1/2, 1), (1/2, 1/2) and (1, 2/3); trapezoids of width 1/2 and
    mean heights 1 and (1/2 + 2/3) / 2 = 7/12 have the area 1/2 + 7/24 = 19/24.
    """
    assert score(["a", "x", "b"], {"a", "b"}, set()) == Score(pytest.approx(100 * 19 / 24), 1)
    assert score(["a", "b", "x"], {"a", "b"}, set()) == Score(pytest.approx(100), 1)


def test_a_wrong_answer_first_by_hand() -> None:
    """From (0, 1) to (0, 0), which has no width, and to (1, 1/2): the area is (0 + 1/2) / 2."""
    assert score(["x", "a"], {"a"}, set()) == Score(pytest.approx(25), 2)


def test_junk_does_not_count_by_hand() -> None:
    """As if it were not there: the ranks after it move up."""
    ranked = ["junk", "a", "x", "junk2", "b"]
    assert score(ranked, {"a", "b"}, {"junk", "junk2"}) == score(["a", "x", "b"], {"a", "b"}, set())


def test_right_answers_that_were_not_returned_count() -> None:
    """Half of the right answers, all in front: the area is that of half the width."""
    assert score(["a"], {"a", "b"}, set()) == Score(pytest.approx(50), 1)
    assert score(["x"], {"a"}, set()) == Score(0, None)
    assert score([], {"a"}, set()) == Score(0, None)


def test_recall_at_a_rank() -> None:
    assert [Score(0, 5).found(rank) for rank in (4, 5, 10)] == [0, 100, 100]
    assert Score(0, None).found(100) == 0


def test_means_are_over_scenes() -> None:
    """Two queries of 40 and 60 and a scene with one of 100: (50 + 100) / 2; not the mean of the queries."""

    def answer(precision: float, first: int | None) -> dict[str, Score]:
        return {"before": Score(precision, first), "after": Score(100, 1)}

    ours = {"castle": [answer(40, 2), answer(60, None)], "rock": [answer(100, 1)]}
    other = {"castle": [answer(30, 2), answer(30, None)], "rock": [answer(100, 1)]}
    found = summarise(ours, other)
    assert found["before"]["map"]["mean"] == 75
    assert found["before"]["scenes"] == {"castle": 50, "rock": 100}
    assert [found["before"]["recall"][k] for k in ("1", "2", "5")] == [50, 75, 75]
    assert found["before"]["difference"]["mean"] == 10
    assert (found["before"]["difference"]["low"], found["before"]["difference"]["high"]) == (0, 20)
    assert found["after"]["map"]["mean"] == 100
    assert "difference" not in summarise(ours, ours)["before"]


def write(path: Path, rgb: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.ascontiguousarray(rgb[:, :, ::-1]))


@pytest.fixture(scope="module")
def pictures() -> dict[str, np.ndarray]:
    from skimage import data

    return {
        "astronaut": data.astronaut(),
        "coffee": data.coffee(),
        "rocket": data.rocket(),
        "chelsea": data.chelsea(),
    }


@pytest.fixture
def oxford(tmp_path: Path, pictures: dict[str, np.ndarray]) -> Path:
    """Oxford's layout: three views of an astronaut, one of them junk, and pictures of other things."""
    folder = tmp_path / "oxford"
    face = pictures["astronaut"]
    views = {"face_000001": face, "face_000002": face[:400, 20:420], "face_000003": face[::2, ::2]}
    others = {f"{name}_000001": rgb for name, rgb in pictures.items() if name != "astronaut"}
    for name, rgb in (views | others).items():
        write(folder / "images" / f"{name}.png", rgb)
    lists = {"query": "oxc1_face_000001 60.5 20.2 400 380.1", "good": "face_000001\nface_000002\n"}
    for kind, text in {**lists, "ok": "", "junk": "face_000003\n"}.items():
        (folder / "gt").mkdir(exist_ok=True)
        (folder / "gt" / f"face_1_{kind}.txt").write_text(text)
    return folder


@pytest.fixture
def scenes(tmp_path: Path, pictures: dict[str, np.ndarray]) -> Path:
    """Three scenes of three views each, one in a folder `images` as training data has it, and one more."""
    for number, (name, rgb) in enumerate(pictures.items()):
        folder = tmp_path / "scenes" / name / ("images" if number == 0 else "")
        for view in range(3):
            write(folder / f"{view}.png", rgb[20 * view : 20 * view + 240, 30 * view : 30 * view + 340])
    return tmp_path / "scenes"


def test_ground_truth_of_oxford(oxford: Path) -> None:
    task = find_task(oxford)
    assert task.layout == "Oxford/Paris"
    assert set(task.images) == {
        "face_000001", "face_000002", "face_000003", "coffee_000001", "rocket_000001", "chelsea_000001"
    }  # fmt: skip
    (query,) = task.queries
    assert (query.name, query.scene, query.image) == ("face_1", "face", "face_000001")
    assert (query.right, query.ignored) == ({"face_000001", "face_000002"}, {"face_000003"})
    assert query.box == (60.5, 20.2, 400, 380.1)
    assert task.vocabulary == "the searched images themselves"
    assert task.vocabulary_images == task.images


def test_paris_has_folders_and_no_prefix(tmp_path: Path, pictures: dict[str, np.ndarray]) -> None:
    for landmark in ("defense", "louvre"):
        write(tmp_path / landmark / f"paris_{landmark}_000605.jpg", pictures["coffee"])
    texts = {
        "query": "paris_defense_000605 0 0 100 100",
        "good": "paris_defense_000605",
        "ok": "",
        "junk": "",
    }
    for kind, text in texts.items():
        (tmp_path / f"defense_2_{kind}.txt").write_text(text)
    (query,) = find_task(tmp_path).queries
    assert (query.image, query.scene) == ("paris_defense_000605", "defense")


def test_a_query_is_cut_out_of_its_image() -> None:
    rgb = np.zeros((50, 100, 3), np.uint8)
    rgb[10:30, 20:70] = 255
    image = Image(rgb, (100, 50), "there.png")
    part = cropped(image, (20.2, 9.8, 69.9, 30.3))
    assert part.size == (50, 20)
    assert part.rgb.min() == 255
    assert cropped(image, (-5, -5, 1000, 1000)).size == (100, 50)
    assert cropped(image, None) is image
    with pytest.raises(InputError, match=r"there\.png: the box .* lies outside of its 100 x 50 pixels"):
        cropped(image, (200, 0, 300, 10))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            "face_1_query.txt",
            "oxc1_face_000001 1 2 3",
            "expected an image's name and the four numbers of a box",
        ),
        ("face_1_query.txt", "oxc1_face_000001 1 2 3 x", "expected an image's name and the four numbers"),
        ("face_1_query.txt", "", "expected an image's name"),
        ("face_1_query.txt", "oxc1_nobody 1 2 3 4", "its image nobody is not among the images"),
        ("face_1_good.txt", "", "has no right answers in its _good and _ok files"),
        ("face_1_junk.txt", None, "face_1_junk.txt: is missing"),
    ],
)
def test_broken_ground_truth_is_named(oxford: Path, file: str, text: str | None, message: str) -> None:
    """The query is left out; if it is the only one, there is nothing to do."""
    for kind in ("query", "good", "ok", "junk"):
        (oxford / "gt" / f"face_2_{kind}.txt").write_text((oxford / "gt" / f"face_1_{kind}.txt").read_text())
    path = oxford / "gt" / file
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    task = find_task(oxford)
    assert [query.name for query in task.queries] == ["face_2"]
    assert message in task.skipped["face_1"]
    (oxford / "gt" / "face_2_query.txt").unlink()
    with pytest.raises(InputError, match="no query can be used; the first: "):
        find_task(oxford)


def test_two_images_of_one_name_are_refused(oxford: Path) -> None:
    (oxford / "more").mkdir()
    shutil.copy(oxford / "images" / "face_000001.png", oxford / "more" / "face_000001.png")
    with pytest.raises(InputError, match="ground-truth files could mean either"):
        find_task(oxford)


def test_each_image_of_a_scene_asks_for_the_others(scenes: Path) -> None:
    task = find_task(scenes)
    assert len(task.queries) == len(task.images) == 12
    query = next(q for q in task.queries if q.name == "astronaut/images/1.png")
    assert query.scene == "astronaut"
    assert query.right == {"astronaut/images/0.png", "astronaut/images/2.png"}
    assert query.ignored == {"astronaut/images/1.png"}


def test_other_scenes_train_the_vocabulary_or_are_searched_too(scenes: Path) -> None:
    """Of chelsea and rocket the first trains and the second distracts; neither is asked about."""
    task = find_task(scenes, ["astronaut", "coffee"], per_scene=2, per_other=1)
    assert task.scenes == ["astronaut", "coffee"]
    assert len(task.queries) == 4
    assert set(task.vocabulary_images) == {"chelsea/0.png"}
    assert [name.partition("/")[0] for name in task.images] == ["astronaut"] * 2 + ["coffee"] * 2 + ["rocket"]
    assert task.vocabulary == "1 other scenes"
    own = find_task(scenes, ["astronaut", "coffee"], vocabulary=scenes / "rocket")
    assert set(own.vocabulary_images) == {"0.png", "1.png", "2.png"}
    assert {name.partition("/")[0] for name in own.images} == {"astronaut", "coffee", "chelsea", "rocket"}
    assert own.vocabulary == "images of rocket"


def test_folders_without_scenes_are_refused(scenes: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"has no scenes castle \(it has astronaut, chelsea, coffee, rocket\)"
    ):
        find_task(scenes, ["castle"])
    with pytest.raises(InputError, match=r"neither ground-truth files .* nor a folder of images per scene"):
        find_task(scenes / "coffee")
    for name in ("1.png", "2.png"):
        (scenes / "coffee" / name).unlink()
    assert "one image alone has no right answers" in find_task(scenes).skipped["coffee"]
    with pytest.raises(InputError, match="no scene has two images"):
        find_task(scenes, ["coffee"])


def asked(data: Path, methods: str = "sift", **settings: str | int) -> Report:
    few: dict[str, str | int] = {"words": 64, "budget": 300, "verify": 4, **settings}
    return retrieval.run(Request(data, build_methods(methods, 1), baseline="sift", settings=few))


def test_oxford_s_layout_from_images_to_numbers(oxford: Path) -> None:
    """The two right answers are found before pictures of other things, and junk does not matter."""
    report = asked(oxford)
    assert report.skipped == {}
    assert report.numbers["layout"] == "Oxford/Paris"
    assert (report.numbers["queries"], report.numbers["images"]) == (1, 6)
    assert report.numbers["ratio"] == {"sift": 0.8}
    found = report.numbers["methods"]["sift"]
    assert found["before"]["map"]["mean"] == found["after"]["map"]["mean"] == 100
    assert found["before"]["scenes"] == {"face": 100}


def test_scenes_from_images_to_numbers(scenes: Path) -> None:
    """Crops of one picture find each other; RootSIFT is compared with SIFT on the same scenes."""
    report = asked(scenes, "sift,rootsift", scenes="astronaut,coffee")
    numbers = report.numbers
    assert numbers["vocabulary"] == {"trained on": "1 other scenes", "images": 3}
    assert (numbers["queries"], numbers["images"], numbers["scenes"]) == (6, 9, ["astronaut", "coffee"])
    assert "difference" not in numbers["methods"]["sift"]["after"]
    for method in ("sift", "rootsift"):
        found = numbers["methods"][method]
        assert found["after"]["map"]["mean"] > 95
        assert found["after"]["recall"]["1"] == 100
        assert found["before"]["map"]["mean"] > 60
    less = numbers["methods"]["rootsift"]["after"]["difference"]["mean"]
    maps = [numbers["methods"][method]["after"]["map"]["mean"] for method in ("rootsift", "sift")]
    assert less == pytest.approx(maps[0] - maps[1])
    assert "| rootsift | re-ranked |" in report.markdown
    assert "mAP less sift's" in report.markdown
    assert [curves.name for curves in report.curves] == ["recall-before", "recall-after"]


def test_re_ranking_puts_verified_answers_first(oxford: Path) -> None:
    """With a vocabulary of one word every image is alike; verification alone finds the right ones."""
    found = asked(oxford, words=1, verify=6).numbers["methods"]["sift"]
    assert found["before"]["map"]["mean"] < 90
    assert found["after"]["map"]["mean"] == 100
    nothing = asked(oxford, words=1, verify=0).numbers["methods"]["sift"]
    assert nothing["after"] == nothing["before"] == found["before"]


def test_what_cannot_be_read_is_named_and_counts_as_not_found(scenes: Path) -> None:
    broken = scenes / "coffee" / "2.png"
    broken.write_bytes(broken.read_bytes()[:1000])
    report = asked(scenes, scenes="astronaut,coffee")
    assert list(report.skipped) == [str(broken)]
    assert "damaged or truncated" in report.skipped[str(broken)]
    assert report.numbers["queries"] == 5
    found = report.numbers["methods"]["sift"]["after"]["scenes"]
    assert found["astronaut"] > 95
    assert found["coffee"] <= 50  # one of the two right answers is missing


def test_images_without_keypoints_are_no_trouble(scenes: Path) -> None:
    write(scenes / "coffee" / "blank.png", np.full((60, 80, 3), 128, np.uint8))
    report = asked(scenes, scenes="coffee")
    assert report.numbers["queries"] == 4
    assert 0 < report.numbers["methods"]["sift"]["after"]["map"]["mean"] < 80


def test_the_command_tells_what_it_skipped(oxford: Path, tmp_path: Path) -> None:
    for kind in ("query", "good", "ok", "junk"):
        (oxford / "gt" / f"face_2_{kind}.txt").write_text((oxford / "gt" / f"face_1_{kind}.txt").read_text())
    (oxford / "gt" / "face_2_query.txt").write_text("oxc1_face_000001 60 20")
    output = tmp_path / "numbers.json"
    arguments = (
        "benchmark",
        "retrieval",
        "--data",
        oxford,
        "--methods",
        "sift",
        "--no-cache",
        "--workers",
        1,
    )
    out = run(*arguments, "--set", "words=64", "--set", "budget=300", "-q", "-o", output)
    assert out.returncode == 0, out.stderr
    assert "face_2_query.txt: expected an image's name and the four numbers of a box" in out.stdout
    numbers = json.loads(output.read_text())
    assert list(numbers["skipped"]) == ["face_2"]
    assert numbers["methods"]["sift"]["after"]["map"]["mean"] == 100
    out = run(*arguments, "--set", "scenes=face")
    assert out.returncode == 2
    assert "scenes are chosen of scene folders" in out.stderr
