"""Building: images come in, an index of them goes out; a run that was killed goes on where it stopped.

Described images are kept in a journal in the index's folder until all are done. Then the vocabulary is
trained, unless there is one, and the index takes the images from the journal in one step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contextdesc.errors import InputError
from contextdesc.journal import Journal
from contextdesc.modelfile import REGIONAL
from contextdesc.overlap import process_into
from contextdesc.progress import progress
from contextdesc.report import Report
from contextdesc.retrieval.extraction import Described, Extraction, describe
from contextdesc.retrieval.index import Index
from contextdesc.retrieval.keeping import KeptFeatures
from contextdesc.retrieval.manifest import JOURNAL, MANIFEST
from contextdesc.retrieval.options import WORDS, Options
from contextdesc.retrieval.segment import Entry
from contextdesc.retrieval.vocabulary import SAMPLE_PER_WORD, Vocabulary
from contextdesc.retrieval.words import words_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from contextdesc.formats.shards import ArrayShards
    from contextdesc.model import ContextDesc
    from contextdesc.retrieval.distributed import DescribedShards
    from contextdesc.scale.run import Workers


def build_index(
    model: ContextDesc,
    images: Mapping[str, Path],
    folder: Path,
    options: Options | None = None,
    *,
    words: int = WORDS,
    seed: int = 0,
    vocabulary: Vocabulary | None = None,
    strict: bool = False,
    restart: bool = False,
    quiet: bool = False,
    workers: Workers | None = None,
) -> Report:
    """Build an index of images by name; images that it holds already are left alone.

    Args:
        folder: of the index.
        words: size of the vocabulary that is trained on the images.
        seed: of that training.
        vocabulary: one that there is, instead.
        strict: raise at the first image that fails, instead of listing it.
        restart: forget an unfinished run.
        workers: other processes that describe and quantise, here or on a cluster.
    """
    options = options or Options()
    if folder.is_file():
        raise InputError(f"{folder}: is a file; an index is a folder")
    if options.pooling != "none" and REGIONAL not in model.spec.files:
        raise InputError(f"{model.spec.name} has no regional network; give pooling none (--global none)")
    if vocabulary is not None and vocabulary.model != model.source:
        raise InputError(f"a vocabulary of {vocabulary.model}, not of {model.source}; train another")
    if (folder / MANIFEST).exists():
        index = Index.open(folder)
        _check_same(index, options, words, seed, vocabulary)
        return add_images(model, images, index, strict=strict, restart=restart, quiet=quiet, workers=workers)
    extraction = Extraction.of(model)
    report, described = _describe_all(model, images, folder, options, strict, restart, quiet, workers)
    index = create_from(described, list(images), folder, extraction, options, words, seed, vocabulary)
    add_from(described, images, index, quiet, workers)
    return report


def add_images(
    model: ContextDesc,
    images: Mapping[str, Path],
    index: Index,
    *,
    strict: bool = False,
    restart: bool = False,
    quiet: bool = False,
    workers: Workers | None = None,
) -> Report:
    """Add images by name to an index; those that it holds already are left alone."""
    index.extraction.check(model, index.folder)
    if Extraction.of(model) != index.extraction:
        raise InputError(
            f"{index.folder}: its images were extracted with other settings of the detector or another "
            "max_side; leave these options alone"
        )
    known = set(index.names)
    waiting = {name: path for name, path in images.items() if name not in known}
    report, described = _describe_all(
        model, waiting, index.folder, index.options, strict, restart, quiet, workers
    )
    report.before += len(images) - len(waiting)
    add_from(described, waiting, index, quiet, workers)
    return report


def open_journal(folder: Path, extraction: Extraction, options: Options, restart: bool = False) -> Journal:
    """The journal of an index's folder, with whatever an unfinished run left in it."""
    if restart:
        (folder / JOURNAL).unlink(missing_ok=True)
    return Journal(folder / JOURNAL, {"extraction": asdict(extraction), "options": asdict(options)})


def to_arrays(described: Described) -> dict[str, NDArray[Any]]:
    """A described image as a journal keeps it."""
    arrays = described.features.to_arrays()
    return arrays if described.descriptor is None else {**arrays, "descriptor": described.descriptor}


def create_from(
    journal: Journal | DescribedShards, names: Sequence[str], folder: Path, extraction: Extraction,
    options: Options, words: int, seed: int, vocabulary: Vocabulary | None,
) -> Index:  # fmt: skip
    """An empty index, with a vocabulary that is trained on images of the journal unless it is given."""
    if vocabulary is None:
        described = [name for name in names if name in journal]
        if not described:
            raise InputError(f"none of {len(names)} images could be read, so there is nothing to index")
        quota = math.ceil(words * SAMPLE_PER_WORD / len(described))
        rng = np.random.default_rng(seed)
        parts = []
        for name in described:
            kept = KeptFeatures.from_arrays(journal[name])
            parts.append(kept.descriptors[rng.permutation(len(kept.codes))[:quota]])
        vocabulary = Vocabulary.train(np.concatenate(parts), words, seed=seed, model=extraction.source)
    return Index.create(folder, vocabulary, options, extraction)


def add_from(
    journal: Journal | DescribedShards, images: Mapping[str, Path], index: Index, quiet: bool,
    workers: Workers | None = None,
) -> None:  # fmt: skip
    """Add the images that the journal has to the index, and delete the journal."""
    entries = {name: path for name, path in images.items() if name in journal}
    if entries:
        quantised = None
        if workers is not None:
            from contextdesc.retrieval.distributed import quantise_images

            quantised = quantise_images(index, entries, workers, quiet)
        with progress("index", len(entries), 0, quiet) as advance:
            index.add(_entries(journal, entries, index, quantised, advance))
    journal.delete()


def _entries(
    journal: Journal | DescribedShards, images: Mapping[str, Path], index: Index,
    quantised: ArrayShards | None, advance: Callable[[], None],
) -> Iterator[Entry]:  # fmt: skip
    for name, path in images.items():
        arrays = journal[name]
        kept = KeptFeatures.from_arrays(arrays)
        if quantised is None:
            words, weights = words_of(index.vocabulary, kept.descriptors, index.options)
        else:
            found = quantised[name]
            words, weights = found["words"], found["weights"]
        stored = None if index.options.features == "none" else kept
        yield Entry(name, words, weights, arrays.get("descriptor"), str(path.resolve()), stored)
        advance()


def _describe_all(
    model: ContextDesc, images: Mapping[str, Path], folder: Path, options: Options, strict: bool,
    restart: bool, quiet: bool, workers: Workers | None,
) -> tuple[Report, Journal | DescribedShards]:  # fmt: skip
    """Describe the images that an unfinished run has not."""
    if workers is not None:
        from contextdesc.retrieval.distributed import describe_images

        return describe_images(
            model, images, folder, options, workers, strict=strict, restart=restart, quiet=quiet
        )
    journal = open_journal(folder, Extraction.of(model), options, restart)
    waiting = {name: path for name, path in images.items() if name not in journal}
    report = process_into(
        journal, model, waiting, lambda sharing, _, path: to_arrays(describe(sharing, path, options)),
        title="describe", before=len(images) - len(waiting), strict=strict, quiet=quiet,
    )  # fmt: skip
    return report, journal


def _check_same(index: Index, options: Options, words: int, seed: int, vocabulary: Vocabulary | None) -> None:
    """Refuse to build into an index that was asked for otherwise."""
    mine = index.vocabulary
    changed = [key for key, value in asdict(options).items() if value != getattr(index.options, key)]
    if vocabulary is not None and vocabulary.checksum != mine.checksum:
        changed.append("vocabulary")
    if vocabulary is None and (words, seed) != (mine.wanted, mine.seed):
        changed.append("words")
    if changed:
        raise InputError(
            f"{index.folder}: an index with other settings ({', '.join(changed)}); choose another folder, "
            "or add to it with contextdesc retrieve add"
        )
