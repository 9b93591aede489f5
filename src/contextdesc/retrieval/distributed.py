"""Describing and quantising in many processes; shards of both lie in the index's folder until it has them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contextdesc.formats.shards import ArrayShards, write_arrays
from contextdesc.report import Report
from contextdesc.retrieval.extraction import Extraction, describe
from contextdesc.retrieval.index import Index
from contextdesc.retrieval.keeping import KeptFeatures
from contextdesc.retrieval.manifest import VOCABULARY
from contextdesc.retrieval.options import Options
from contextdesc.retrieval.vocabulary import Vocabulary
from contextdesc.retrieval.words import words_of
from contextdesc.scale.loading import Loading
from contextdesc.scale.run import Workers, run

if TYPE_CHECKING:
    import h5py
    from numpy.typing import NDArray

    from contextdesc.image import Location
    from contextdesc.model import ContextDesc

_DESCRIBED, _WORDS = "described", "words"  # folders of shards
_IMAGES_A_SHARD = 32


class DescribedShards(ArrayShards):
    """Described images in shards, with the face of the journal that one process keeps them in."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / _DESCRIBED, "described")

    def close(self) -> None:
        self.__exit__()

    def delete(self) -> None:
        """Remove them, and the words that were found for them."""
        self.close()
        _forget(self.path.parent)


@dataclass(frozen=True)
class DescribeTask:
    """Describing in other processes, each of which loads the model once."""

    loading: Loading
    options: Options

    def open(self) -> Callable[[str, Location], Mapping[str, NDArray[Any]]]:
        from contextdesc.retrieval.building import to_arrays

        model = self.loading.load()
        return lambda _, image: to_arrays(describe(model, image, self.options))

    def write(self, file: h5py.File, name: str, result: Mapping[str, NDArray[Any]]) -> None:
        write_arrays(file, name, result)


@dataclass(frozen=True)
class QuantiseTask:
    """Quantising in other processes, each of which loads the vocabulary once.

    Attributes:
        folder: of the index.
    """

    folder: Path
    options: Options

    def open(self) -> Callable[[str, None], Mapping[str, NDArray[Any]]]:
        vocabulary, described = Vocabulary.load(self.folder / VOCABULARY), DescribedShards(self.folder)

        def quantise(name: str, _: None) -> Mapping[str, NDArray[Any]]:
            kept = KeptFeatures.from_arrays(described[name])
            words, weights = words_of(vocabulary, kept.descriptors, self.options)
            return {"words": words, "weights": weights}

        return quantise

    def write(self, file: h5py.File, name: str, result: Mapping[str, NDArray[Any]]) -> None:
        write_arrays(file, name, result)


def describe_images(
    model: ContextDesc, images: Mapping[str, Location], folder: Path, options: Options, workers: Workers, *,
    strict: bool, restart: bool, quiet: bool,
) -> tuple[Report, DescribedShards]:  # fmt: skip
    """Describe images by name for an index in a folder; what an earlier run finished is kept."""
    workers = workers.for_model(model)
    if restart:
        _forget(folder)
    located = {name: path.absolute() if isinstance(path, Path) else path for name, path in images.items()}
    report = run(
        DescribeTask(Loading.of(model, workers.threads), options), located, folder / _DESCRIBED, workers,
        kind="described", settings={"extraction": asdict(Extraction.of(model)), "options": asdict(options)},
        shard_size=_IMAGES_A_SHARD, strict=strict, quiet=quiet, title="describe",
    )  # fmt: skip
    return report, DescribedShards(folder)


def quantise_images(index: Index, names: Iterable[str], workers: Workers, quiet: bool) -> ArrayShards:
    """The words and weights of described images, as `words_of` returns them."""
    folder = index.folder.absolute()
    settings = {
        "vocabulary": index.vocabulary.checksum, "options": asdict(index.options),
        "extraction": asdict(index.extraction),
    }  # fmt: skip
    run(
        QuantiseTask(folder, index.options), dict.fromkeys(names), folder / _WORDS, workers, kind="words",
        settings=settings, shard_size=_IMAGES_A_SHARD, quiet=quiet, title="quantise",
    )  # fmt: skip
    return ArrayShards(folder / _WORDS, "words")


def _forget(folder: Path) -> None:
    for name in (_WORDS, _DESCRIBED):
        shutil.rmtree(folder / name, ignore_errors=True)
