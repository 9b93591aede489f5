"""Features of many images into one file (hloc's HDF5) or a folder of `.npz`; resumes where it stopped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import cv2
import numpy as np

from contextdesc.errors import ContextDescError, InputError
from contextdesc.formats import hloc, npz
from contextdesc.journal import Journal
from contextdesc.keypoints import Keypoints
from contextdesc.progress import progress

if TYPE_CHECKING:
    from contextdesc.features import Features
    from contextdesc.model import ContextDesc

Format = Literal["h5", "npz"]

# What one image may do without ending the run over many.
_FAILURES = (ContextDescError, cv2.error, MemoryError)


@dataclass
class Report:
    """What a run over many pieces did: names done now, done before, and failures with their reason."""

    done: list[str] = field(default_factory=list)
    before: int = 0
    failed: dict[str, str] = field(default_factory=dict)


def extract_images(
    model: ContextDesc,
    images: Mapping[str, Path],
    output: Path,
    *,
    format: Format = "h5",
    masks: Path | None = None,
    keypoints: Path | None = None,
    strict: bool = False,
    restart: bool = False,
    quiet: bool = False,
) -> Report:
    """Extract the features of images by name.

    Finished images are kept in a journal beside the output until all are done, so a run that was killed
    goes on where it stopped. Images that an existing output already holds are not extracted again.

    Args:
        output: `.h5` file, or for format `npz` a folder.
        masks: folder of masks, `NAME.png` for the image NAME (as COLMAP names them), or NAME itself.
        keypoints: folder of `NAME.txt` or `NAME.npy` with rows (x, y) or (x, y, size, angle): describe
            these instead of detecting.
        strict: raise at the first image that fails, instead of listing it.
        restart: forget an unfinished run.
    """
    if format == "npz":
        return _extract_to_folder(model, images, output, masks, keypoints, strict, quiet)
    if output.is_dir():
        raise InputError(f"{output}: is a folder; name a file such as {output / 'features.h5'}")
    journal_path = output.with_name(output.name + ".journal")
    if restart:
        journal_path.unlink(missing_ok=True)
    finished = _finished(output, model)
    journal = Journal(journal_path, _settings(model, masks, keypoints))
    report = Report(before=sum(name in journal or name in finished for name in images))
    waiting = {n: p for n, p in images.items() if n not in journal and n not in finished}
    with progress("extract", len(images), report.before, quiet) as advance:
        for name, path in waiting.items():
            try:
                features = _features(model, name, path, masks, keypoints)
            except _FAILURES as error:
                if strict:
                    journal.close()
                    raise
                report.failed[name] = str(error)
                advance(f"{name}: {error}")
                continue
            journal.append(name, npz.to_arrays(features))
            report.done.append(name)
            advance()
    if report.done or not output.exists() or len(journal):
        hloc.write(output, _everything(output, finished, journal, images))
    journal.delete()
    return report


def _everything(
    output: Path, finished: set[str], journal: Journal, images: Mapping[str, Path]
) -> Iterator[tuple[str, Features]]:
    """What the output held before and what the journal adds, by name, so that the order of work is lost."""
    old = hloc.FeatureFile(output) if finished else None
    for name in sorted(finished | {name for name in images if name in journal}):
        if name in journal:
            yield name, npz.from_arrays(journal[name], name)
        elif old is not None:
            yield name, old[name]


def _extract_to_folder(
    model: ContextDesc,
    images: Mapping[str, Path],
    output: Path,
    masks: Path | None,
    keypoints: Path | None,
    strict: bool,
    quiet: bool,
) -> Report:
    if output.is_file():
        raise InputError(f"{output}: is a file; format npz writes a folder")
    paths = {name: output / f"{name}.npz" for name in images}
    before = {name for name, path in paths.items() if path.exists()}
    for name in before:
        _check_source(npz.read(paths[name]), model, paths[name])
    report = Report(before=len(before))
    with progress("extract", len(images), len(before), quiet) as advance:
        for name in images.keys() - before:
            try:
                npz.write(paths[name], _features(model, name, images[name], masks, keypoints))
            except _FAILURES as error:
                if strict:
                    raise
                report.failed[name] = str(error)
                advance(f"{name}: {error}")
                continue
            report.done.append(name)
            advance()
    return report


def _features(
    model: ContextDesc, name: str, path: Path, masks: Path | None, keypoints: Path | None
) -> Features:
    if keypoints is not None:
        return model.describe(path, read_keypoints(keypoints, name))
    return model.extract(path, None if masks is None else _mask_of(masks, name))


def read_keypoints(folder: Path, name: str) -> Keypoints:
    """Keypoints of an image from `NAME.npy` or `NAME.txt` in a folder."""
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
    raise InputError(f"{folder / name}.npy or .txt: no keypoints for {name}")


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


def _finished(output: Path, model: ContextDesc) -> set[str]:
    """Names in an existing output, which must be of the same model."""
    if not output.exists():
        return set()
    with hloc.FeatureFile(output) as file:
        if file.names:
            _check_source(file[file.names[0]], model, output)
        return set(file.names)


def _check_source(features: Features, model: ContextDesc, path: Path) -> None:
    mine = (model.spec.name, model.checksum, model.context)
    if (features.model, features.checksum, features.context) != mine:
        raise InputError(
            f"{path}: holds features of {features.source}, not of {model.spec.name} "
            f"({model.checksum}, context {model.context}); choose another output"
        )
