"""From photographs to a reconstruction: every stage leaves a file, and a run goes on after the last.

They are `features.h5`, `pairs.txt`, `matches.h5`, `database.db`, `sparse/`, and of the result `points.ply`,
`summary.json` and `index.html`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contextdesc.errors import InputError
from contextdesc.extraction import extract_images
from contextdesc.formats import hloc
from contextdesc.formats.atomic import replacing
from contextdesc.formats.manifest import FILE as MANIFEST
from contextdesc.formats.shards import merge, open_features
from contextdesc.image import find_images, read
from contextdesc.journal import Journal
from contextdesc.match_set import match_pairs, read_pairs
from contextdesc.sfm.binding import import_pycolmap
from contextdesc.sfm.cameras import CameraConfig, group_cameras
from contextdesc.sfm.database import ImageRows, Pair, write_database
from contextdesc.sfm.disk import told_when_full
from contextdesc.sfm.mapping import MapConfig, run_mapping
from contextdesc.sfm.pairs import PairConfig, choose_pairs
from contextdesc.sfm.settings import feature_settings, fingerprint, forget_after, prepare
from contextdesc.sfm.summary import colour_points, summarise
from contextdesc.sfm.verification import verify_pairs

if TYPE_CHECKING:
    from contextdesc.features import Features
    from contextdesc.model import ContextDesc


@dataclass(frozen=True)
class SfmConfig:
    """How a reconstruction is made.

    Attributes:
        ratio: of the ratio test; None for the model's own.
        mutual: keep a match only if both are each other's nearest.
        mapper: `incremental` or `global`.
    """

    pairs: PairConfig = field(default_factory=PairConfig)
    ratio: float | None = None
    mutual: bool = True
    cameras: CameraConfig = field(default_factory=CameraConfig)
    mapping: MapConfig = field(default_factory=MapConfig)


@dataclass(frozen=True)
class Given:
    """Files that take the place of a stage, or add to it.

    Attributes:
        masks: folder of masks, `NAME.png` for the image NAME, black where no keypoint may lie.
        features: an hloc file of features, or a folder of shards, instead of extracting them.
        pairs: a list of pairs, two names a line.
    """

    masks: Path | None = None
    features: Path | None = None
    pairs: Path | None = None

    def __post_init__(self) -> None:
        for path, kind in ((self.masks, "folder"), (self.feature_file, "file"), (self.pairs, "file")):
            if path is not None and not (path.is_dir() if kind == "folder" else path.is_file()):
                raise InputError(f"{path}: no such {kind}")
        if self.masks is not None and self.features is not None:
            raise InputError("masks are for extraction: features that are given keep all their keypoints")

    @property
    def feature_file(self) -> Path | None:
        """The file that changes with the features: of a folder of shards, its manifest."""
        if self.features is not None and self.features.is_dir():
            return self.features / MANIFEST
        return self.features


@dataclass
class Outcome:
    """What a run did: the summary's numbers, and files that could not be read with their reason."""

    summary: dict[str, Any]
    failed: dict[str, str]


def reconstruct(
    model: ContextDesc,
    images: Path,
    output: Path,
    config: SfmConfig | None = None,
    given: Given | None = None,
    *,
    strict: bool = False,
    restart: bool = False,
    update: bool = False,
    quiet: bool = False,
) -> Outcome:
    """Reconstruct the scene that photographs show; what an earlier run finished is kept.

    Args:
        images: folder of photographs; their names are relative to it.
        output: folder of the results.
        strict: stop at the first photograph that cannot be read, instead of listing it.
        restart: begin anew.
        update: redo the stages that changed settings or added photographs touch, instead of refusing.
    """
    config, given = config or SfmConfig(), given or Given()
    import_pycolmap(*(["global_mapping"] if config.mapping.mapper == "global" else []))
    if not images.is_dir():
        raise InputError(f"{images}: no such folder of photographs")
    if output.resolve() == images.resolve() or images.resolve() in output.resolve().parents:
        raise InputError(f"{output}: is among the photographs; choose a folder outside {images}")
    found = find_images([images])
    _enough(images, len(found), len(found))
    with told_when_full(output), _alone(output):
        prepare(output, _settings(model, found, config, given), restart=restart, update=update)
        failed = _features(model, found, output, given, strict, quiet)
        copies = _copies(output / "features.h5")
        with open_features(output / "features.h5") as file:
            used = {name: found[name] for name in file.names if name in found and name not in copies}
        _enough(images, len(used), len(found))
        pairs = _pairs(model, used, set(found), output, config.pairs, given, quiet)
        if not (output / "matches.h5").exists():
            match_pairs(
                output / "features.h5", pairs, output / "matches.h5", ratio=config.ratio,
                mutual=config.mutual, quiet=quiet,
            )  # fmt: skip
        _database(used, pairs, output, config, quiet)
        _map(images, used, output, config, quiet)
        summary = _results(images, output, len(found), failed, copies)
    return Outcome(summary, failed)


@contextmanager
def _alone(output: Path) -> Iterator[None]:
    """One run at a time in a folder: an empty journal, whose lock goes with the process."""
    running = Journal(output / ".running", {})
    try:
        yield
    finally:
        running.delete()


def _settings(
    model: ContextDesc, found: Mapping[str, Path], config: SfmConfig, given: Given
) -> dict[str, dict[str, Any]]:
    """What each stage depends on."""
    features = feature_settings(model, found, given.masks)
    if given.feature_file is not None:
        features = {"images": features["images"], "features": fingerprint(given.feature_file)}
    listed = None if given.pairs is None else fingerprint(given.pairs)
    return {
        "features": features,
        "pairs": {**asdict(config.pairs), "list": listed},
        "matches": {"ratio": config.ratio, "mutual": config.mutual},
        "database": asdict(config.cameras),
        "mapping": asdict(config.mapping),
    }


def _enough(images: Path, usable: int, total: int) -> None:
    if usable < 2:
        among = "" if usable == total else f" among {total} files"
        raise InputError(
            f"{images}: {usable} usable picture{'s' * (usable != 1)}{among}; give at least 2 different "
            "photographs of the scene"
        )


def _features(
    model: ContextDesc, found: Mapping[str, Path], output: Path, given: Given, strict: bool, quiet: bool
) -> dict[str, str]:
    """`features.h5`; files that could not be read, with their reason."""
    target = output / "features.h5"
    if given.features is None:
        report = extract_images(model, found, target, masks=given.masks, strict=strict, quiet=quiet)
        if report.done:  # an earlier run may have gone on without them
            forget_after(output, "features")
        return report.failed
    with open_features(given.features) as file:
        missing = [name for name in found if name not in file]
    if missing and strict:
        raise InputError(f"{given.features}: no image called {missing[0]}")
    if not target.exists() and given.features.is_dir():
        merge(given.features, target, quiet)
    elif not target.exists():
        with replacing(target) as temporary:
            shutil.copyfile(given.features, temporary)
    return {name: f"{given.features}: no image called {name}" for name in missing}


def _copies(features: Path) -> dict[str, str]:
    """Images that show the very same picture as an earlier one, which is the value."""
    first: dict[str, str] = {}
    copies: dict[str, str] = {}
    with open_features(features) as file:
        for name in file.names:
            item: Features = file[name]
            if not len(item):
                continue
            digest = hashlib.sha256(item.keypoints.xy.tobytes() + item.descriptors.tobytes()).hexdigest()
            if first.setdefault(digest, name) != name:
                copies[name] = first[digest]
    return copies


def _pairs(
    model: ContextDesc, found: Mapping[str, Path], everything: set[str], output: Path, config: PairConfig,
    given: Given, quiet: bool,
) -> list[Pair]:  # fmt: skip
    """`pairs.txt`, names separated by a tab."""
    target = output / "pairs.txt"
    if target.exists():
        return read_pairs(target)
    journal = output / ".retrieval.journal"
    pairs = choose_pairs(model, found, everything, config, given.pairs, journal, quiet)
    with replacing(target) as temporary:
        temporary.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    journal.unlink(missing_ok=True)
    return pairs


def _database(
    found: Mapping[str, Path], pairs: list[Pair], output: Path, config: SfmConfig, quiet: bool
) -> None:
    """`database.db`: written under another name, verified, then named."""
    target, part = output / "database.db", output / ".database.db.part"
    if target.exists():
        return
    with open_features(output / "features.h5") as file:
        if not part.exists():
            sizes = {name: file[name].image_size for name in found}
            focals = {name: read(path).focal for name, path in found.items()}
            cameras = group_cameras(sizes, focals, config.cameras)
            rows = (ImageRows(name, file[name].keypoints, file[name].descriptors) for name in found)
            write_database(part, cameras, rows, _matches(output / "matches.h5", pairs))
    verify_pairs(part, pairs, quiet)
    os.replace(part, target)


def _matches(path: Path, pairs: list[Pair]) -> Iterator[tuple[Pair, Any]]:
    for first, second in pairs:
        yield (first, second), hloc.read_matches(path, first, second).indices


def _map(images: Path, found: Mapping[str, Path], output: Path, config: SfmConfig, quiet: bool) -> None:
    """`sparse/` with coloured points."""
    target, work, complete = output / "sparse", output / ".mapping", output / ".sparse.new"
    total = len(found)
    if target.exists():
        return
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(complete, ignore_errors=True)
    sizes = run_mapping(
        output / "database.db", images, work / "models", config.mapping, total, work / "colmap.log", quiet
    )
    if not sizes or sizes[0] < 2:
        raise InputError(
            f"{images}: none of the {total} images could be placed; the photographs must overlap and be "
            f"taken from different places (matches are kept in {output})"
        )
    model = import_pycolmap().Reconstruction(str(work / "models"))
    colour_points(model, found)
    complete.mkdir()
    model.write(str(complete))
    (complete / "models.json").write_text(json.dumps(sizes), encoding="utf-8")
    os.replace(complete, target)
    shutil.rmtree(work, ignore_errors=True)


def _results(
    images: Path, output: Path, total: int, failed: dict[str, str], copies: dict[str, str]
) -> dict[str, Any]:
    """`points.ply`, `summary.json` and `index.html`."""
    model = import_pycolmap().Reconstruction(str(output / "sparse"))
    if not (output / "points.ply").exists():
        with replacing(output / "points.ply") as temporary:
            model.export_PLY(str(temporary))
    models = json.loads((output / "sparse" / "models.json").read_text(encoding="utf-8"))
    summary = {
        "images": total, **summarise(model), "other_models": models[1:], "failed": failed, "copies": copies
    }  # fmt: skip
    with replacing(output / "summary.json") as temporary:
        temporary.write_text(json.dumps(summary, indent=1), encoding="utf-8")
    if not (output / "index.html").exists():
        from contextdesc.sfm_page import write_page

        write_page(output, images, output / "index.html")
    return summary
