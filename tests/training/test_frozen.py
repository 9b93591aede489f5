"""Frozen outputs: the numbers of the networks themselves, kept, continued and found by index."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from contextdesc.engine import Engine
from contextdesc.errors import InputError
from contextdesc.image import find_images, read
from contextdesc.keypoints import Keypoints
from contextdesc.model import regional_image
from contextdesc.modelfile import LOCAL
from contextdesc.patches import sample_patches
from contextdesc.rootsift import rootsift
from contextdesc.training.bases import LocalBase, RootSiftBase
from contextdesc.training.data.cache import DONE, FINISHED, Cache
from contextdesc.training.data.frozen import Examples, Grids, Mixture, freeze
from contextdesc.training.data.hard import Hard, find_hard
from contextdesc.training.data.pairs import (
    Pair,
    PairConfig,
    PairSet,
    build_homography_pairs,
    fill_pair_set,
    no_pair,
    no_progress,
)
from contextdesc.training.grids import FileGrids, NetworkGrids
from contextdesc.training.regional import ResNet50

PAIRS = PairConfig(keypoints=64, min_corresponding=16, per_photo=2)


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def pairs(photo_folder: Path, own_cache: Path) -> PairSet:
    photos = list(find_images([photo_folder]).values())[:2]
    found = build_homography_pairs(photos, Cache(own_cache), PAIRS)
    assert len(found) == 4
    return found


def arrays(folder: Path) -> dict[str, np.ndarray]:
    return {path.name: np.load(path) for path in folder.glob("*.npy")}


def entry(cache: Path, kind: str) -> Path:
    return max(cache.glob(f"{kind}-*"), key=lambda path: (path / DONE).stat().st_mtime_ns)


def test_patches_are_those_of_the_stored_views(pairs: PairSet) -> None:
    for index in range(len(pairs)):
        pair = pairs[index]
        for side, view in enumerate(pairs.views_of(index)):
            picture = read(pairs.views[view])
            keypoints = Keypoints.from_array(pair.keypoints[side])
            np.testing.assert_array_equal(pair.patches[side], sample_patches(picture.gray, keypoints))
            np.testing.assert_array_equal(pair.size[side], picture.size)


def test_rootsift_of_the_stored_views(pairs: PairSet, tmp_path: Path) -> None:
    examples = freeze(pairs, Cache(tmp_path), RootSiftBase())
    for index in range(len(pairs)):
        example = examples[index]
        assert example.raw.dtype == np.float16
        assert example.score is None
        assert example.grids is None
        for side in (0, 1):
            keypoints = Keypoints.from_array(example.pair.keypoints[side])
            expected = rootsift(read(example.views[side]).gray, keypoints)
            np.testing.assert_allclose(example.raw[side], expected, rtol=1e-3, atol=1e-6)
            assert np.linalg.norm(expected, axis=1).min() > 0.99


def test_the_local_network_on_the_stored_patches(pairs: PairSet, small_model: Path, tmp_path: Path) -> None:
    examples = freeze(pairs, Cache(tmp_path), LocalBase(str(small_model)))
    engine = Engine(small_model / LOCAL)
    for index in range(len(pairs)):
        example = examples[index]
        for side in (0, 1):
            expected, score = engine.run_batched(patches=pairs[index].patches[side])
            np.testing.assert_allclose(example.raw[side], expected, rtol=1e-3, atol=1e-7)
            np.testing.assert_allclose(example.score[side], score, rtol=1e-4, atol=1e-5)
            assert expected.std() > 1e-4
            assert score.std() > 1e-4


def test_an_interrupted_computation_goes_on(pairs: PairSet, small_model: Path, tmp_path: Path) -> None:
    base = LocalBase(str(small_model))
    freeze(pairs, Cache(tmp_path), base)
    folder = entry(tmp_path, "raw")
    whole = arrays(folder)
    (folder / DONE).unlink()
    for name, value in {"raw.npy": 0, "score.npy": 0, FINISHED: 0}.items():
        array = np.load(folder / name, mmap_mode="r+")
        array[1:3] = value
        array.flush()
    told: list[tuple[int, int]] = []
    freeze(pairs, Cache(tmp_path), base, progress=lambda what: lambda done, total: told.append((done, total)))
    assert told == [(2, 4), (3, 4)]  # the other two were done
    again = arrays(folder)
    assert again.keys() == whole.keys() == {"raw.npy", "score.npy", FINISHED}
    for name in whole:
        np.testing.assert_array_equal(again[name], whole[name])
    assert (folder / DONE).exists()


def test_a_second_call_reads_the_cache(pairs: PairSet, network_grids: NetworkGrids, own_cache: Path) -> None:
    first = freeze(pairs, Cache(own_cache), RootSiftBase(), network_grids)
    folders = [entry(own_cache, kind) for kind in ("raw", "grids")]
    files = [path for folder in folders for path in folder.glob("*.npy")]
    assert len(files) == 6
    times = [path.stat().st_mtime_ns for path in files]

    def fail(what: str) -> Callable[[int, int], None]:
        def computed(done: int, total: int) -> None:
            raise AssertionError(f"{what} computed again")

        return computed

    second = freeze(pairs, Cache(own_cache), RootSiftBase(), network_grids, fail)
    assert [path.stat().st_mtime_ns for path in files] == times
    np.testing.assert_array_equal(first[3].raw, second[3].raw)
    np.testing.assert_array_equal(first[3].grids[1], second[3].grids[1])


def test_damaged_outputs_are_named(pairs: PairSet, tmp_path: Path) -> None:
    freeze(pairs, Cache(tmp_path), RootSiftBase())
    file = entry(tmp_path, "raw") / "raw.npy"
    raw = np.load(file)
    for wrong in (raw[:3], raw[:, :, :-1], raw.astype(np.float32)):
        np.save(file, wrong)
        with pytest.raises(InputError, match=r"raw.npy: damaged cache \(.*\); delete the folder .*raw-"):
            freeze(pairs, Cache(tmp_path), RootSiftBase())


class Small(torch.nn.Module):
    """A regional network that exports in a second: one convolution for each halving, random weights."""

    channels, stride = 24, 32

    def __init__(self) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = []
        for inputs, outputs in itertools.pairwise((3, 8, 8, 16, 16, self.channels)):
            layers += [torch.nn.Conv2d(inputs, outputs, 3, 2, 1), torch.nn.BatchNorm2d(outputs)]
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.layers(image / 255)


@pytest.fixture(scope="module")
def network() -> Small:
    torch.manual_seed(0)
    network = Small()
    with torch.no_grad():
        network(torch.rand(4, 3, 64, 64) * 255)  # batch norms that are not the identity
    return network.eval()


@pytest.fixture(scope="module")
def network_grids(network: Small) -> NetworkGrids:
    return NetworkGrids(network, 160)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def uneven(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> PairSet:
    """Four pairs of three photographs of different sizes; the second and the last could not be made."""
    folder = tmp_path_factory.mktemp("uneven") / "pairs"
    folder.mkdir()
    picture = cv2.imread(str(photo_folder / "a" / "00.png"))
    for name, (height, width) in {"wide": (96, 320), "tall": (250, 100), "small": (64, 64)}.items():
        cv2.imwrite(str(folder.parent / f"{name}.png"), picture[:height, :width])
    names = [["wide", "tall"], ["tall", "small"], ["tall", "wide"], ["small", "tall"]]
    views = [[str(folder.parent / f"{name}.png") for name in pair] for pair in names]
    return fill_pair_set(folder, [0, 1, 2, 3], lambda job: [made(views[job], job)], views, 8, 1, no_progress)


def made(views: list[str], seed: int) -> Pair:
    if seed in (1, 3):
        return no_pair(8)
    pictures = [read(view) for view in views]
    rng = np.random.default_rng(seed)
    rows = [np.column_stack([rng.uniform(0, p.size, (8, 2)), np.full(8, 5), rng.uniform(0, 360, 8)])
            for p in pictures]  # fmt: skip
    patches = [sample_patches(p.gray, Keypoints.from_array(r)) for p, r in zip(pictures, rows, strict=True)]
    sizes = np.array([picture.size for picture in pictures], np.float32)
    unknown, place = np.full(8, np.nan, np.float32), np.full((8, 2), np.nan, np.float32)
    return Pair(np.stack(patches), np.float32(rows), sizes, 4 + seed, unknown, place)


def test_grids_are_those_of_the_network(
    uneven: PairSet, network: Small, network_grids: NetworkGrids, tmp_path: Path
) -> None:
    """The view `tall` is of two pairs that could not be made, too."""
    examples = freeze(uneven, Cache(tmp_path), regional=network_grids)
    assert network_grids.channels == 24
    shapes = set()
    for index in range(len(examples)):
        example = examples[index]
        for view, grid in zip(example.views, example.grids, strict=True):
            with torch.no_grad():
                expected = network(torch.from_numpy(regional_image(read(view), 160)))[0].numpy()
            assert grid.dtype == np.float32
            assert grid.shape == expected.shape
            np.testing.assert_allclose(grid, expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())
            shapes.add(grid.shape)
    assert shapes == {(24, 2, 5), (24, 5, 2)}
    small = [view.name for view in uneven.views].index("small.png")
    assert Grids(entry(tmp_path, "grids"))[small].size == 0  # no pair shows it


def test_interrupted_grids_go_on(uneven: PairSet, network_grids: NetworkGrids, tmp_path: Path) -> None:
    freeze(uneven, Cache(tmp_path), regional=network_grids)
    folder = entry(tmp_path, "grids")
    whole = arrays(folder)
    (folder / DONE).unlink()
    finished = np.load(folder / FINISHED, mmap_mode="r+")
    values = np.load(folder / "grids.npy", mmap_mode="r+")
    finished[1], values[24 * 2 * 5 :] = 0, 0
    finished.flush()
    values.flush()
    told: list[tuple[int, int]] = []
    freeze(
        uneven,
        Cache(tmp_path),
        regional=network_grids,
        progress=lambda what: lambda *counts: told.append(counts),
    )
    assert told == [(2, 2)]
    again = arrays(folder)
    for name in whole:
        np.testing.assert_array_equal(again[name], whole[name])
    assert whole["grids.npy"].any()


def test_the_key_of_grids_is_of_all_that_they_depend_on(
    network: Small, network_grids: NetworkGrids, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contextdesc.training.grids.export_regional", lambda network, path: None)
    monkeypatch.setattr("contextdesc.training.grids.Engine", lambda path: None)  # keys alone
    assert NetworkGrids(network, 160).key == network_grids.key
    assert NetworkGrids(network, 192).key != network_grids.key
    torch.manual_seed(0)
    before, after = ResNet50(final_relu=False), ResNet50(final_relu=True)
    after.load_state_dict(before.state_dict())
    assert NetworkGrids(before, 160).key != NetworkGrids(after, 160).key
    with torch.no_grad():
        after.conv1.weight[0, 0, 0, 0] += 1
    assert NetworkGrids(after, 160).key != NetworkGrids(ResNet50(final_relu=True), 160).key


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "grids"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, shape in {"wide": (7, 2, 5), "tall": (7, 4, 1), "small": (7, 1, 1)}.items():
        np.save(folder / f"{name}.npy", rng.normal(size=shape))
    return folder


def test_grids_of_files(uneven: PairSet, files: Path, tmp_path: Path) -> None:
    source = FileGrids(files)
    assert source.channels == 7
    example = freeze(uneven, Cache(tmp_path), regional=source)[1]
    assert [view.stem for view in example.views] == ["tall", "wide"]
    for view, grid in zip(example.views, example.grids, strict=True):
        np.testing.assert_allclose(grid, np.load(files / f"{view.stem}.npy"), rtol=1e-3, atol=1e-4)
    np.save(files / "tall.npy", np.zeros((7, 4, 1)))
    assert FileGrids(files).key != source.key


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "wide.npy").unlink(), "wide.npy: missing; .* need one for the image .*wide.png"),
        (lambda f: np.save(f / "wide.npy", np.ones((6, 2, 2))), "wide.npy: 6 channels, the other .* 7"),
        (lambda f: (f / "wide.npy").write_text("no"), "wide.npy: not a readable array"),
        (lambda f: np.save(f / "wide.npy", np.ones((7, 10))), r"wide.npy: shape \(7, 10\), expected \(ch"),
        (lambda f: np.save(f / "wide.npy", np.ones((7, 0, 2))), "wide.npy: "),
        (lambda f: np.save(f / "wide.npy", np.full((7, 2, 5), np.nan)), "wide.npy: .* not finite"),
    ],
    ids=["missing", "channels", "no array", "shape", "empty", "not finite"],
)
def test_wrong_files_are_named(
    uneven: PairSet, files: Path, tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    change(files)
    with pytest.raises(InputError, match=f"^{files}/{message}[^\n]*$"):
        freeze(uneven, Cache(tmp_path / "cache"), regional=FileGrids(files))


def test_a_folder_without_grids_is_named(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match=f"^{folder}: no .npy files in it, one per image"):
            FileGrids(folder)


def test_pairs_that_could_not_be_made_are_passed_over(uneven: PairSet, tmp_path: Path) -> None:
    examples = freeze(uneven, Cache(tmp_path), RootSiftBase())
    assert len(examples) == len(uneven) == 2
    second = examples[1]
    assert second.pair.count == 6
    assert [view.name for view in second.views] == ["tall.png", "wide.png"]
    keypoints = Keypoints.from_array(second.pair.keypoints[0])
    np.testing.assert_allclose(second.raw[0], rootsift(read(second.views[0]).gray, keypoints), atol=1e-3)
    with pytest.raises(IndexError):
        examples[2]


def test_a_mixture_is_its_parts_in_turn(pairs: PairSet, uneven: PairSet, tmp_path: Path) -> None:
    empty = build_homography_pairs([pairs.views[0]], Cache(tmp_path), dataclasses.replace(
        PAIRS, min_corresponding=100_000, per_photo=1
    ))  # fmt: skip
    assert len(empty) == 0
    parts = [Examples(uneven), Examples(empty), Examples(pairs)]
    mixture = Mixture(parts)
    assert len(mixture) == 6
    expected = [parts[0][0], parts[0][1], *(parts[2][i] for i in range(4))]
    for index, example in enumerate(expected):
        assert mixture[index].views == example.views
        assert mixture[index].pair.count == example.pair.count
        np.testing.assert_array_equal(mixture[index].pair.xy, example.pair.xy)
    with pytest.raises(IndexError):
        mixture[6]
    with pytest.raises(IndexError):
        mixture[-1]


def test_a_mixture_draws_a_share_of_its_last_part(pairs: PairSet, uneven: PairSet) -> None:
    mixture = Mixture([Examples(uneven), Examples(pairs)])  # 2 and 4 examples

    def shares(last_share: float | None) -> list[float]:
        drawn = mixture.draw(np.random.default_rng(0), 6000, last_share)
        return (np.bincount(drawn, minlength=6) / 6000).tolist()

    assert shares(None) == pytest.approx([1 / 6] * 6, abs=0.02)
    assert shares(0.2) == pytest.approx([0.4] * 2 + [0.05] * 4, abs=0.02)
    assert shares(0.0)[2:] == [0] * 4
    assert shares(1.0)[:2] == [0] * 2
    alone = Mixture([Examples(pairs)]).draw(np.random.default_rng(0), 6000, 0.2)
    assert set(alone.tolist()) == {0, 1, 2, 3}


def test_a_mixture_draws_hard_pairs_more_often(pairs: PairSet, uneven: PairSet) -> None:
    """As often as their keypoints stand on the boundary: all of a pair, or a fifth of them."""
    keypoints = pairs.keypoints.shape[2]
    margin = np.full((len(pairs), keypoints), 10.0, np.float32)
    margin[0] = 0
    for index, share in ((1, 0.2), (2, 0.2), (3, 0.4)):
        margin[index, : round(share * pairs[index].count)] = 0
    hard = Hard(margin, np.zeros(margin.shape, np.int32))
    chances = Examples(pairs, hard=hard).weights
    assert chances == pytest.approx([1, 0.2, 0.2, 0.4], abs=0.02)  # counts are not multiples of five
    mixture = Mixture([Examples(uneven), Examples(pairs, hard=hard)])
    drawn = mixture.draw(np.random.default_rng(0), 6000, 0.9)
    expected = [0.05] * 2 + (0.9 * chances / chances.sum()).tolist()
    assert (np.bincount(drawn, minlength=6) / 6000).tolist() == pytest.approx(expected, abs=0.02)


def test_what_is_hard_is_computed_once(pairs: PairSet, tmp_path: Path) -> None:
    first = freeze(pairs, Cache(tmp_path), RootSiftBase(), hard=4.0)
    assert first[0].raw is None
    found = first[0].hard
    assert found is not None
    raw = freeze(pairs, Cache(tmp_path), RootSiftBase())[0].raw
    assert raw is not None
    expected = find_hard(pairs[0], raw, 4.0)
    np.testing.assert_array_equal(found.margin, expected.margin)
    np.testing.assert_array_equal(found.rival, expected.rival)
    (folder,) = tmp_path.glob("hard-*")
    np.save(folder / "margin.npy", np.zeros_like(np.load(folder / "margin.npy")))
    again = freeze(pairs, Cache(tmp_path), RootSiftBase(), hard=4.0)[0].hard
    assert again is not None
    assert not again.margin.any()  # read, not computed
    (folder / "rival.npy").write_bytes(b"")
    with pytest.raises(InputError, match=r"rival\.npy: damaged cache"):
        freeze(pairs, Cache(tmp_path), RootSiftBase(), hard=4.0)
