"""What a context term adds: arithmetic by hand, a real model on real views, records of the packaged ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from skimage import data

from contextdesc.benchmarks import terms
from contextdesc.benchmarks.statistics import Difference
from contextdesc.errors import InputError
from contextdesc.image import find_images, read
from contextdesc.keypoints import Keypoints
from contextdesc.model import load
from contextdesc.modelfile import packaged_models, read_spec, resolve, write_spec
from contextdesc.training.data.cache import Cache
from contextdesc.training.data.pairs import PairConfig, PairSet, build_homography_pairs
from tests.cli.test_cli import run


@pytest.fixture(scope="module")
def pairs(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> PairSet:
    photos = list(find_images([photo_folder]).values())[:3]
    config = PairConfig(keypoints=64, min_corresponding=16, per_photo=1)
    return build_homography_pairs(photos, Cache(tmp_path_factory.mktemp("cache")), config)


def test_gains_compare_a_term_on_with_it_off() -> None:
    recalls = {"none": np.array([10.0, 20]), "visual": np.array([11.0, 20]), "both": np.array([14.0, 22])}
    found = terms.gains(recalls)
    assert {what: gain.mean for what, gain in found.items()} == {
        "visual - none": 0.5, "both - visual": 2.5, "both - none": 3.0,
    }  # fmt: skip


def test_recall_is_that_of_described_views(pairs: PairSet, small_model: Path) -> None:
    recalls = terms.measure(small_model, pairs)
    assert list(recalls) == ["none", "visual", "geometric", "both"]
    model = load(small_model)
    for index, recall in enumerate(recalls["both"]):
        pair = pairs[index]
        described = [
            model.describe(read(pairs.views[view]), Keypoints.from_array(pair.keypoints[side])).descriptors
            for side, view in enumerate(pairs.views_of(index))
        ]
        right = []
        for place, found in zip(pair.place, (described[0] @ described[1].T).argmax(1), strict=True):
            apart = np.linalg.norm(pair.xy[1] - place, axis=1)
            if apart.min() <= 2.5:
                right.append(apart[found] <= 2.5)
        assert len(right) >= pair.count
        assert recall == pytest.approx(100 * np.mean(right))
    assert not np.array_equal(recalls["none"], recalls["both"])


def test_recall_of_networks_in_8_bits(pairs: PairSet, small_model: Path) -> None:
    recalls = terms.measure("contextdesc", pairs, precision="int8")
    model, pair = load(precision="int8"), pairs[0]
    described = [
        model.describe(read(pairs.views[view]), Keypoints.from_array(pair.keypoints[side])).descriptors
        for side, view in enumerate(pairs.views_of(0))
    ]
    assert recalls["both"][0] == terms.pair_recall(pair, *described)
    with pytest.raises(InputError, match=r"small has no int8\.json"):
        terms.measure(small_model, pairs, precision="int8")


@pytest.fixture(scope="module")
def large_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two photographs with enough texture for the pairs of the protocol."""
    folder = tmp_path_factory.mktemp("large") / "photos"
    folder.mkdir()
    for name, rgb in (("a", data.stereo_motorcycle()[0]), ("b", data.astronaut())):
        cv2.imwrite(str(folder / f"{name}.png"), cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR))
    return folder


def telling(model: Path, folder: Path, held_out: int) -> Path:
    """A model that says how many photographs it never saw, in `folder`."""
    folder.mkdir(parents=True)
    for file in model.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "model.json").unlink()
    write_spec(folder, replace(read_spec(model)[0], training={"held_out": held_out}))
    return folder


def test_only_what_a_model_says_it_never_saw_is_used(
    small_model: Path, photo_folder: Path, large_photos: Path, tmp_path: Path
) -> None:
    cache = Cache(tmp_path / "cache")
    with pytest.raises(InputError, match=r"no photos/ or scenes/ with data that small was not trained on"):
        terms.held_out_pairs(small_model, tmp_path, cache)
    told = telling(small_model, tmp_path / "told", 1)
    (tmp_path / "photos").symlink_to(photo_folder)
    with pytest.raises(InputError, match=r"photos: no pair of what small was not trained on has enough"):
        terms.held_out_pairs(told, tmp_path, cache)
    found, others = (
        terms.held_out_pairs(told, large_photos.parent, cache, seed=seed)["photos"] for seed in (100, 101)
    )
    assert len(found.count) == terms.PHOTO_PAIRS.per_photo
    assert found.folder != others.folder
    (photo,) = list(find_images([large_photos]).values())[-1:]
    for seed, pairs in ((terms.SEED, found), (101, others)):
        settings = replace(terms.PHOTO_PAIRS, seed=seed).settings([photo])
        assert pairs.folder == cache.entry("homography", settings)


def test_models_in_folders_are_compared_by_the_names_of_their_folders(
    small_model: Path, large_photos: Path, tmp_path: Path
) -> None:
    folders = [telling(small_model, tmp_path / "runs" / name, 1) for name in ("before", "after")]
    methods, output = ",".join(map(str, folders)), tmp_path / "terms.json"
    out = run("benchmark", "terms", "--data", large_photos.parent, "--methods", methods, "-q", "-o", output)
    assert out.returncode == 0, out.stderr
    numbers = json.loads(output.read_text())
    assert list(numbers["models"]) == ["before", "after"]
    assert {gain["mean"] for gain in numbers["compared"]["after - before"]["photos"].values()} == {0.0}


def test_models_are_compared_on_pairs_that_they_share() -> None:
    recalls = {
        "a": {
            "photos": {"none": np.array([10.0, 20]), "both": np.array([30.0, 30])},
            "scenes": {"none": np.ones(1)},
        },
        "b": {"photos": {"none": np.array([11.0, 20])}, "scenes": {"none": np.zeros(1)}},
    }
    drawn = {
        "a": {"photos": Path("draw"), "scenes": Path("scenes")},
        "b": {"photos": Path("draw"), "scenes": Path("others")},
    }
    compared = terms.compare(recalls, drawn)
    assert compared == {"b - a": {"photos": {"none": Difference(0.5, 0.0, 1.0)}}}
    report = terms.report(recalls, compared)
    assert report.tables[1].rows == [("b - a", "photos", "none", "+0.50", "+0.00 to +1.00")]
    assert report.numbers["compared"]["b - a"]["photos"]["none"]["mean"] == 0.5
    assert terms.compare({}, {}) == {}


@pytest.mark.parametrize("name", packaged_models())
def test_every_term_of_a_packaged_model_gained_where_its_card_says_so(name: str) -> None:
    record = Path(__file__).parents[2] / "docs" / "results" / f"terms-{name}.json"
    found = json.loads(record.read_text(encoding="utf-8"))
    checksum = read_spec(resolve(name))[1]
    assert checksum in found["origin"]["methods"][name]  # these weights were measured
    assert found["models"][name].keys() == {"photos", "scenes"}
    for numbers in found["models"][name].values():
        assert len(numbers["gain"]) == len(terms.COMPARISONS)
        assert min(gain["low"] for gain in numbers["gain"].values()) > 0
