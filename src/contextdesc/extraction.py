"""Features of many images to one file (hloc's HDF5), a folder (other formats) or shards (many processes).

A run that was stopped goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from contextdesc.errors import InputError
from contextdesc.formats import aachen, eth, hloc, imw, manifest, npz, openmvg
from contextdesc.formats.stems import check_stems
from contextdesc.journal import Journal
from contextdesc.keypoints import Keypoints
from contextdesc.overlap import process, process_into, streams_of
from contextdesc.scale.loading import Loading

if TYPE_CHECKING:
    import h5py

    from contextdesc.features import Features
    from contextdesc.image import Location
    from contextdesc.model import ContextDesc
    from contextdesc.report import Report
    from contextdesc.scale.run import Workers

Format = Literal["h5", "npz", "eth", "imw", "aachen", "openmvg"]


class _FolderFormat(Protocol):
    """A format of a file or two per image in a folder."""

    def write_to(self, folder: Path, name: str, features: Features) -> None: ...
    def written_by(self, folder: Path, name: str, model: str) -> str | None: ...


_FOLDER_FORMATS: dict[str, _FolderFormat] = {"npz": npz, "eth": eth, "aachen": aachen, "openmvg": openmvg}
_BY_STEM = ("imw", "openmvg")

IMAGES_A_SHARD = 32


def extract_images(
    model: ContextDesc,
    images: Mapping[str, Location],
    output: Path,
    *,
    format: Format = "h5",
    masks: Path | None = None,
    keypoints: Path | None = None,
    strict: bool = False,
    restart: bool = False,
    quiet: bool = False,
    workers: Workers | None = None,
    shard_size: int = IMAGES_A_SHARD,
) -> Report:
    """Extract the features of images by name.

    Finished images are kept in a journal beside the output until all are done, so a run that was killed
    goes on where it stopped. Images that an existing output already holds are not extracted again.

    Args:
        output: `.h5` file, or for the other formats and with `workers` a folder.
        masks: folder of masks, `NAME.png` for the image NAME (as COLMAP names them), or NAME itself.
        keypoints: folder of `NAME.txt` or `NAME.npy` with rows (x, y) or (x, y, size, angle), or of
            `NAME.bin` as the ETH evaluation has them: describe these instead of detecting.
        strict: raise at the first image that fails, instead of listing it.
        restart: forget an unfinished run.
        workers: other processes that do it, here or on a cluster; the output is a folder of shards, each
            of `shard_size` images, which every reader opens as one set.
    """
    if workers is not None:
        return _extract_to_shards(
            model, images, output, format, masks, keypoints, strict, restart, quiet, workers, shard_size
        )
    if format != "h5" and output.is_file():
        raise InputError(f"{output}: is a file; format {format} writes a folder")
    if format in _BY_STEM:
        check_stems(images, format)
    if format in _FOLDER_FORMATS:
        target = _FOLDER_FORMATS[format]
        return _extract_to_folder(model, images, output, target, masks, keypoints, strict, quiet)
    if format == "h5" and (output / manifest.FILE).exists():
        raise InputError(f"{output}: is a folder of shards; go on with --workers or --cluster")
    if format == "h5" and output.is_dir():
        raise InputError(f"{output}: is a folder; name a file such as {output / 'features.h5'}")
    journal_path = (
        output / "features.journal" if format == "imw" else output.with_name(f"{output.name}.journal")
    )
    if restart:
        journal_path.unlink(missing_ok=True)
    finished = _finished(output, format, model)
    journal = Journal(journal_path, _settings(model, masks, keypoints))
    waiting = {n: p for n, p in images.items() if n not in journal and n not in finished}
    report = process_into(
        journal, model, waiting,
        lambda sharing, name, path: npz.to_arrays(_features(sharing, name, path, masks, keypoints)),
        title="extract", before=len(images) - len(waiting), strict=strict, quiet=quiet,
    )  # fmt: skip
    if report.done or not _exists(output, format) or len(journal):
        write = imw.write if format == "imw" else hloc.write
        write(output, _everything(output, format, finished, journal, images))
    journal.delete()
    return report


def _everything(
    output: Path, format: Format, finished: set[str], journal: Journal, images: Mapping[str, Location]
) -> Iterator[tuple[str, Features]]:
    """What the output held before and what the journal adds, by name, so that the order of work is lost."""
    old = _open(output, format) if finished else None
    for name in sorted(finished | {name for name in images if name in journal}):
        if name in journal:
            yield name, npz.from_arrays(journal[name], name)
        elif old is not None:
            yield name, old[name]


def _extract_to_folder(
    model: ContextDesc,
    images: Mapping[str, Location],
    output: Path,
    target: _FolderFormat,
    masks: Path | None,
    keypoints: Path | None,
    strict: bool,
    quiet: bool,
) -> Report:
    before = set()
    for name in images:
        source = target.written_by(output, name, model.spec.name)
        if source is not None:
            _check_source(source, model, output / name)
            before.add(name)
    streams = streams_of(model)
    return process(
        {name: path for name, path in images.items() if name not in before},
        partial(_features, model.shared_by(streams), masks=masks, keypoints=keypoints),
        partial(target.write_to, output),
        title="extract",
        before=len(before),
        streams=streams,
        strict=strict,
        quiet=quiet,
    )


def _extract_to_shards(
    model: ContextDesc,
    images: Mapping[str, Location],
    output: Path,
    format: Format,
    masks: Path | None,
    keypoints: Path | None,
    strict: bool,
    restart: bool,
    quiet: bool,
    workers: Workers,
    shard_size: int,
) -> Report:
    from contextdesc.scale.run import run

    if format != "h5":
        raise InputError(f"format {format}: shards are h5; leave out --workers and --cluster")
    workers = workers.for_model(model)
    folders = [None if folder is None else folder.absolute() for folder in (masks, keypoints)]
    task = ExtractTask(Loading.of(model, workers.threads), *folders)
    located = {name: path.absolute() if isinstance(path, Path) else path for name, path in images.items()}
    return run(
        task, located, output, workers, kind="features", settings=_settings(model, masks, keypoints),
        shard_size=shard_size, strict=strict, restart=restart, quiet=quiet, title="extract",
    )  # fmt: skip


@dataclass(frozen=True)
class ExtractTask:
    """Extraction in other processes, each of which loads the model once."""

    loading: Loading
    masks: Path | None
    keypoints: Path | None

    def open(self) -> Callable[[str, Location], Features]:
        model = self.loading.load()
        return lambda name, image: _features(model, name, image, self.masks, self.keypoints)

    def write(self, file: h5py.File, name: str, result: Features) -> None:
        hloc.write_group(file, name, result)


def _features(
    model: ContextDesc, name: str, path: Location, masks: Path | None, keypoints: Path | None
) -> Features:
    if keypoints is not None:
        return model.describe(path, read_keypoints(keypoints, name))
    return model.extract(path, None if masks is None else _mask_of(masks, name))


def read_keypoints(folder: Path, name: str) -> Keypoints:
    """Keypoints of an image from `NAME.npy`, `NAME.txt` or the ETH evaluation's `NAME.bin` in a folder."""
    if (folder / f"{name}.bin").is_file():
        return eth.read_keypoints(folder / f"{name}.bin")
    for path in (folder / f"{name}.npy", folder / f"{name}.txt"):
        if path.is_file():
            try:
                if path.suffix == ".npy":
                    rows = np.load(path, allow_pickle=False)
                else:
                    rows = np.loadtxt(path, np.float32, ndmin=2) if path.stat().st_size else np.zeros((0, 2))
                return Keypoints.from_array(rows)
            except InputError as error:
                raise InputError(f"{path}: {error}") from None
            except (OSError, ValueError) as error:
                raise InputError(
                    f"{path}: not keypoints ({error}); give rows x y or x y size angle"
                ) from None
    raise InputError(f"{folder / name}.npy, .txt or .bin: no keypoints for {name}")


def _mask_of(folder: Path, name: str) -> Path | None:
    candidates = (folder / f"{name}.png", folder / name, (folder / name).with_suffix(".png"))
    return next((path for path in candidates if path.is_file()), None)


def _settings(model: ContextDesc, masks: Path | None, keypoints: Path | None) -> dict[str, Any]:
    return {
        "model": model.spec.name,
        "checksum": model.checksum,
        "context": model.context,
        "detector": asdict(model.detector),
        "max_side": model.max_side,
        "masks": str(masks) if masks else None,
        "keypoints": str(keypoints) if keypoints else None,
    }


def _finished(output: Path, format: Format, model: ContextDesc) -> set[str]:
    """Names in an existing output, which must be of the same model."""
    if not _exists(output, format):
        return set()
    with _open(output, format) as file:
        if file.names:
            _check_source(file[file.names[0]].source, model, output)
        return set(file.names)


def _exists(output: Path, format: Format) -> bool:
    return (output / "keypoints.h5").exists() if format == "imw" else output.exists()


def _open(output: Path, format: Format) -> hloc.FeatureFile | imw.FeatureFolder:
    return imw.FeatureFolder(output) if format == "imw" else hloc.FeatureFile(output)


def _check_source(source: str, model: ContextDesc, path: Path) -> None:
    if source != model.source:
        raise InputError(f"{path}: holds features of {source}, not of {model.source}; choose another output")
