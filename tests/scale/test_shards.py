"""Folders of shards: made by many processes, they are to every reader what one file is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from contextdesc.detection import Detector
from contextdesc.errors import InputError
from contextdesc.extraction import extract_images
from contextdesc.features import Features
from contextdesc.formats import hloc
from contextdesc.formats.manifest import read_manifest
from contextdesc.formats.shards import merge, open_features
from contextdesc.image import find_images
from contextdesc.match_set import all_pairs, match_pairs
from contextdesc.model import ContextDesc, load
from contextdesc.scale.loading import Loading
from contextdesc.scale.run import Workers, run
from tests.scale.tasks import PoisonedExtract
from tests.test_extraction import arrays_equal


@pytest.fixture(scope="module")
def model() -> ContextDesc:
    """Patches, regional grid and both kinds of context, in one thread as each worker."""
    return load(detector=Detector(80), threads=1)


@pytest.fixture(scope="module")
def images(photo_folder: Path) -> dict[str, Path]:
    return find_images([photo_folder])


@pytest.fixture(scope="module")
def plain(model: ContextDesc, images: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features of twelve photographs in one file, made by this process."""
    path = tmp_path_factory.mktemp("plain") / "features.h5"
    extract_images(model, images, path, quiet=True)
    return path


@pytest.fixture(scope="module")
def sharded(model: ContextDesc, images: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in shards of five, made by two processes."""
    folder = tmp_path_factory.mktemp("sharded") / "features"
    report = extract_images(model, images, folder, workers=Workers(2), shard_size=5, quiet=True)
    assert report.done == list(images)
    return folder


def checksums(folder: Path) -> list[str | None]:
    return [shard.sha256 for shard in read_manifest(folder).shards]


def test_arrays_are_those_of_one_process_bit_for_bit(
    model: ContextDesc, images: dict[str, Path], plain: Path, sharded: Path, tmp_path: Path
) -> None:
    with open_features(plain) as one, open_features(sharded) as many:
        assert one.names == many.names == list(images)
        for name in one.names:
            first, second = one[name], many[name]
            np.testing.assert_array_equal(first.descriptors, second.descriptors)
            np.testing.assert_array_equal(first.keypoints.xy, second.keypoints.xy)
            np.testing.assert_array_equal(first.matchability, second.matchability)
            assert first.source == second.source
    single = tmp_path / "single"
    extract_images(model, images, single, workers=Workers(1), shard_size=5, quiet=True)
    assert checksums(single) == checksums(sharded)
    manifest = read_manifest(sharded)
    assert [len(shard.names) for shard in manifest.shards] == [5, 5, 2]
    assert manifest.settings["checksum"] == model.checksum


def test_merge_writes_the_file_that_one_process_writes(
    plain: Path, sharded: Path, images: dict[str, Path], tmp_path: Path
) -> None:
    merge(sharded, tmp_path / "merged.h5", quiet=True)
    arrays_equal(tmp_path / "merged.h5", plain, list(images))


def test_one_image_of_a_folder_of_shards(plain: Path, sharded: Path) -> None:
    one, other = Features.load(sharded, "b/07.png"), Features.load(plain, "b/07.png")
    np.testing.assert_array_equal(one.descriptors, other.descriptors)
    with pytest.raises(InputError, match="holds 12 images; say which one"):
        Features.load(sharded)
    with open_features(sharded) as features:
        assert "b/07.png" in features
        with pytest.raises(InputError, match=r"no image called c.png"):
            features["c.png"]


def test_matches_in_shards_are_those_of_one_file(
    plain: Path, sharded: Path, images: dict[str, Path], tmp_path: Path
) -> None:
    pairs = all_pairs(list(images))
    match_pairs(plain, pairs, tmp_path / "plain.h5", ratio=1, geometry="homography", quiet=True)
    report = match_pairs(
        sharded, pairs, tmp_path / "shards", ratio=1, geometry="homography", quiet=True,
        workers=Workers(2), shard_size=20,
    )  # fmt: skip
    assert (len(report.done), report.failed) == (66, {})
    assert len(checksums(tmp_path / "shards")) == 4
    merge(tmp_path / "shards", tmp_path / "merged.h5", quiet=True)
    found = 0
    for first, second in pairs:
        expected = hloc.read_matches(tmp_path / "plain.h5", first, second)
        found += len(expected)
        for path in (tmp_path / "shards", tmp_path / "merged.h5"):
            matches = hloc.read_matches(path, first, second)
            np.testing.assert_array_equal(matches.indices, expected.indices)
            np.testing.assert_array_equal(matches.similarity, expected.similarity)
    assert found > 100
    turned = hloc.read_matches(tmp_path / "shards", pairs[0][1], pairs[0][0])
    assert len(turned) == len(hloc.read_matches(tmp_path / "shards", *pairs[0]))
    with pytest.raises(InputError, match=r"no pair a/00.png a/00.png"):
        hloc.read_matches(tmp_path / "shards", "a/00.png", "a/00.png")
    with pytest.raises(InputError, match="holds matches, not features"):
        open_features(tmp_path / "shards")


def test_an_image_that_crashes_the_decoder(
    model: ContextDesc, images: dict[str, Path], sharded: Path, tmp_path: Path
) -> None:
    task = PoisonedExtract(Loading.of(model, threads=1), None, None, poison="a/03.png")
    report = run(
        task,
        images,
        tmp_path / "features",
        Workers(2),
        kind="features",
        settings={},
        shard_size=5,
        quiet=True,
    )
    assert list(report.failed) == ["a/03.png"]
    assert "died, 3 times (killed by SIGABRT)" in report.failed["a/03.png"]
    assert report.done == [name for name in images if name != "a/03.png"]
    assert checksums(tmp_path / "features")[1:] == checksums(sharded)[1:]
    with open_features(tmp_path / "features") as features, open_features(sharded) as undisturbed:
        np.testing.assert_array_equal(features["a/04.png"].descriptors, undisturbed["a/04.png"].descriptors)


def test_damage_is_told_by_readers(sharded: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sharded, tmp_path / "features"))
    shard = folder / "shard-000001.h5"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(InputError, match=r"shard-000001.h5: checksum differs from manifest.json; run the"):
        merge(folder, tmp_path / "merged.h5", quiet=True)
    assert not (tmp_path / "merged.h5").exists()
    shard.write_bytes(content[:-10])
    with open_features(folder) as features, pytest.raises(InputError, match=r"bytes, manifest.json says"):
        features["b/06.png"]
    shard.unlink()
    with open_features(folder) as features, pytest.raises(InputError, match=r"shard-000001.h5: missing"):
        features["b/06.png"]
    (folder / "manifest.json").write_text('{"format": 2}')
    with pytest.raises(InputError, match="format 2, this version reads 1"):
        open_features(folder)
    (folder / "manifest.json").write_text('{"format": 1, "kind"')
    with pytest.raises(InputError, match="damaged"):
        open_features(folder)
    with pytest.raises(InputError, match=r"no manifest.json in it, so it is not a folder of shards"):
        open_features(tmp_path)


def test_outputs_that_do_not_fit_are_refused(
    model: ContextDesc, images: dict[str, Path], sharded: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"of which `contextdesc merge` makes one file"):
        extract_images(model, images, tmp_path / "features.h5", workers=Workers(1), quiet=True)
    with pytest.raises(InputError, match=r"of which `contextdesc merge` makes one file"):
        match_pairs(sharded, [], tmp_path / "matches.h5", workers=Workers(1), quiet=True)
    with pytest.raises(InputError, match=r"is a folder; name a file, or write shards"):
        match_pairs(sharded, [], sharded, quiet=True)
    with pytest.raises(InputError, match=r"format npz: shards are h5"):
        extract_images(model, images, tmp_path / "out", format="npz", workers=Workers(1), quiet=True)
    with pytest.raises(InputError, match=r"is a folder of shards; go on with --workers or --cluster"):
        extract_images(model, images, sharded, quiet=True)
    other = load(model.folder, detector=Detector(50), threads=1)
    with pytest.raises(InputError, match=r"was made with other settings \(detector\)"):
        extract_images(other, images, sharded, workers=Workers(1), quiet=True)
    assert read_manifest(sharded).finished


def contextdesc(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "contextdesc", *map(str, arguments)]


def test_the_command_line(photo_folder: Path, tmp_path: Path) -> None:
    """extract, match-set and merge; one image is damaged, so the run ends with 1 and lists it."""
    photos = Path(shutil.copytree(photo_folder / "a", tmp_path / "photos"))
    (photos / "02.png").write_bytes((photos / "02.png").read_bytes()[:5000])
    base = ["extract", photos, "--model", "sift-context", "--max-keypoints", "200", "--workers", "2"]
    extract = contextdesc(*base, "--shard-size", "2", "-o", tmp_path / "features")
    out = subprocess.run(extract, capture_output=True, text=True)
    assert out.returncode == 1
    assert out.stdout == f"{tmp_path / 'features'}: 5 images\n"
    assert "extract: 6 of 6, " in out.stderr
    assert "/s, 1 failed, 0 s left" in out.stderr
    assert "failed: 02.png: " in out.stderr

    match = contextdesc(
        "match-set", tmp_path / "features", "--workers", "1", "-o", tmp_path / "matches", "-q"
    )
    subprocess.run(match, check=True, capture_output=True)
    merge_it = contextdesc("merge", tmp_path / "matches", "-o", tmp_path / "matches.h5", "--json")
    out = subprocess.run(merge_it, check=True, capture_output=True, text=True)
    assert json.loads(out.stdout) == {"output": str(tmp_path / "matches.h5"), "count": 10, "failed": {}}
    assert len(hloc.read_matches(tmp_path / "matches.h5", "00.png", "04.png")) > 10

    out = subprocess.run(contextdesc(*base, "-o", tmp_path / "x.h5"), capture_output=True, text=True)
    assert out.returncode == 2
    assert out.stderr.startswith("error: ")
    assert "name a folder" in out.stderr


def test_ctrl_c_stops_driver_and_workers_and_keeps_what_is_finished(
    photo_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "features"
    command = contextdesc("extract", photo_folder, "--workers", 2, "--shard-size", 1, "-o", folder)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while process.poll() is None and len(list(folder.glob("shard-*.h5"))) < 3:  # one of them is recorded
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, message = process.communicate(timeout=60)
    assert process.returncode == 130
    assert message.splitlines()[-1] == "error: stopped; what was finished is kept, the same command goes on"
    assert "Traceback" not in message
    again = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    numbers = json.loads(again.stdout)
    assert numbers["before"] >= 1
    assert numbers["before"] + numbers["done"] == 12
