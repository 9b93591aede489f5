"""Measure how retrieval grows: `python scripts/retrieval_scale.py --images DIR`.

Two indexes grow step by step, each step in a process of its own whose peak memory is measured:

- `full`: up to 20,000 images whose descriptors are quantised, each those of a photograph of DIR with noise;
- `words`: up to 1 million images of 100 visual words each, drawn as often as the photographs have them.

Times are CPU time of one thread, without that of drawing.

Writes `docs/results/retrieval-scale.json` and `docs/images/retrieval-scale.png`; `scripts/retrieval_page.py`
then writes the table of `docs/retrieval.md`. A run that was stopped goes on. `--work` is deleted in the end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "docs" / "results" / "retrieval-scale.json"
PLOT = ROOT / "docs" / "images" / "retrieval-scale.png"

STEPS = {"full": (1_000, 2_000, 5_000, 10_000, 20_000), "words": (10_000, 100_000, 300_000, 1_000_000)}
TITLES = {"full": "200 descriptors an image, quantised", "words": "100 visual words an image"}
PHOTOGRAPHS = 50  # that descriptors are drawn around
VOCABULARY = 16_384  # words
DESCRIPTORS = 200  # of an image of `full`
WORDS = 100  # of an image of `words`
NOISE = 0.04  # standard deviation in each of 128 dimensions: a cosine of about 0.91
KEPT = 0.8  # share of an image's descriptors that a query for it repeats
QUERIES = 50
CHUNK = 1_000  # images that are drawn with one seed


@dataclass(frozen=True)
class World:
    """What images are drawn from: descriptors of photographs, row by row, and how often each word occurs."""

    descriptors: NDArray[np.float16]
    ends: NDArray[np.int64]
    occurrence: NDArray[np.float64]

    @classmethod
    def load(cls, work: Path) -> World:
        return cls(*(np.load(work / f"{name}.npy", mmap_mode="r") for name in cls.__annotations__))

    def descriptors_of(self, image: int, seed: int, count: int) -> NDArray[np.float32]:
        """(count, 128) unit vectors around those of one of the photographs; other noise with another seed."""
        rng = np.random.default_rng([image])
        photograph = int(rng.integers(len(self.ends)))
        start = int(self.ends[photograph - 1]) if photograph else 0
        rows = start + rng.integers(int(self.ends[photograph]) - start, size=DESCRIPTORS)[:count]
        noise = np.random.default_rng([image, seed]).normal(0, NOISE, (len(rows), 128))
        noisy = self.descriptors[rows] + noise
        return (noisy / np.linalg.norm(noisy, axis=1, keepdims=True)).astype(np.float32)

    def drawn(self, kind: str, start: int, stop: int) -> Iterator[tuple[str, Any]]:
        """Names of images with their descriptors, or with their words."""
        for image in range(start, stop):
            if kind == "full":
                yield _name(image), self.descriptors_of(image, 0, DESCRIPTORS)
            elif image % CHUNK == 0:
                words = self.words_of_chunk(image // CHUNK)
                yield from ((_name(image + row), found) for row, found in enumerate(words))

    def words_of_chunk(self, chunk: int) -> list[NDArray[np.int32]]:
        """Words of `CHUNK` images, `WORDS` different ones each."""
        rng = np.random.default_rng([chunk])
        drawn = np.searchsorted(np.cumsum(self.occurrence)[:-1], rng.random((CHUNK, 2 * WORDS)))
        return [_first_different(row) for row in drawn.astype(np.int32)]


def _first_different(row: NDArray[np.int32]) -> NDArray[np.int32]:
    values, first = np.unique(row, return_index=True)
    return np.sort(values[np.argsort(first)[:WORDS]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=Path, help="folder of photographs")
    parser.add_argument("--work", type=Path, default=Path("retrieval-scale"))
    parser.add_argument("--most", type=int, default=1_000_000, help="largest number of images")
    parser.add_argument("--step", nargs="+", help=argparse.SUPPRESS)  # a step, in a process of its own
    parser.add_argument("--draw-only", action="store_true", help="only draw what was measured")
    arguments = parser.parse_args()
    if arguments.step:
        print(json.dumps(step(arguments.work, *arguments.step)))
        return
    if not arguments.draw_only:
        measured = measure(arguments.images, arguments.work, arguments.most)
        RESULT.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    draw(json.loads(RESULT.read_text(encoding="utf-8")))


def measure(images: Path, work: Path, most: int) -> dict[str, Any]:
    """Every step of both experiments; steps that a stopped run finished are not measured again."""
    work.mkdir(parents=True, exist_ok=True)
    prepared = _in_process(work, "prepare", str(images))
    steps: dict[str, list[dict[str, Any]]] = {kind: [] for kind in STEPS}
    for kind, sizes in STEPS.items():
        for start, stop in pairwise((0, *(size for size in sizes if size <= most))):
            found = _in_process(work, "grow", kind, str(start), str(stop))
            found["build_seconds"] += steps[kind][-1]["build_seconds"] if steps[kind] else 0
            steps[kind].append({"images": stop, **found, **_in_process(work, "ask", kind, str(stop))})
            print(kind, json.dumps(steps[kind][-1]), flush=True)
    shutil.rmtree(work)
    settings = {
        "words_of_vocabulary": VOCABULARY, "descriptors": DESCRIPTORS, "words": WORDS, "noise": NOISE,
        "query_repeats": KEPT, "queries": QUERIES,
    }  # fmt: skip
    return {"machine": machine(), "settings": settings, **prepared, "steps": steps}


def machine() -> dict[str, Any]:
    import faiss

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    models = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return {
        "processor": models[0] if models else platform.machine(), "cores": os.cpu_count(),
        "memory_gb": round(memory / 1e9), "python": platform.python_version(), "numpy": np.__version__,
        "faiss": faiss.__version__,
    }  # fmt: skip


def _in_process(work: Path, *what: str) -> dict[str, Any]:
    finished = work / f"{'-'.join(what[:1] if what[0] == 'prepare' else what)}.json"
    if finished.exists():
        return dict(json.loads(finished.read_text(encoding="utf-8")))
    command = [sys.executable, __file__, "--work", str(work), "--step", *what]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=one_thread)
    finished.write_text(out.stdout.splitlines()[-1], encoding="utf-8")
    return _in_process(work, *what)


def step(work: Path, what: str, *details: str) -> dict[str, Any]:
    if what == "prepare":
        return prepare(work, Path(details[0]))
    if what == "grow":
        return grow(work, details[0], int(details[1]), int(details[2]))
    return ask(work, details[0], int(details[1]))


def prepare(work: Path, folder: Path) -> dict[str, Any]:
    """Descriptors of photographs, a vocabulary of them, and how often its words occur."""
    import contextdesc
    from contextdesc.image import find_images
    from contextdesc.retrieval.vocabulary import Vocabulary

    paths = list(find_images([folder]).values())
    chosen = paths[:: max(1, len(paths) // PHOTOGRAPHS)][:PHOTOGRAPHS]
    model = contextdesc.load()
    found = [model.extract(path).descriptors for path in chosen]
    descriptors = np.concatenate(found)
    vocabulary = Vocabulary.train(descriptors, VOCABULARY, seed=0, model=model.source)
    vocabulary.save(work / "vocabulary.npz")
    words = vocabulary.quantise(descriptors)[0].ravel()
    occurrence = np.bincount(words, minlength=len(vocabulary)) + 1.0
    np.save(work / "descriptors.npy", descriptors.astype(np.float16))
    np.save(work / "ends.npy", np.cumsum([len(part) for part in found if len(part)]))
    np.save(work / "occurrence.npy", occurrence / occurrence.sum())
    return {"photographs": len(chosen), "their_descriptors": len(descriptors), "model": model.source}


def grow(work: Path, kind: str, start: int, stop: int) -> dict[str, Any]:
    """Add the images from `start` to `stop` to an index, which is created at 0."""
    from contextdesc.retrieval.index import Index
    from contextdesc.retrieval.options import Options
    from contextdesc.retrieval.vocabulary import Vocabulary
    from contextdesc.retrieval.words import words_of

    world = World.load(work)
    options = Options(pooling="none", features="none")
    if start == 0:
        Index.create(work / kind, Vocabulary.load(work / "vocabulary.npz"), options)
    index = Index.open(work / kind)
    drawn = Timed(world.drawn(kind, start, stop))

    def entries() -> Iterator[tuple[Any, ...]]:
        ones = np.ones(WORDS, np.float32)
        for name, what in drawn:
            words = words_of(index.vocabulary, what, options) if kind == "full" else (what, ones[: len(what)])
            yield (name, *words, None)

    begun = time.process_time()
    with Memory() as memory:
        index.add(entries())
    return {
        "build_seconds": time.process_time() - begun - drawn.seconds, "build_own_mb": memory.own,
        "build_resident_mb": memory.resident, "disk_mb": index.disk_bytes / 1e6,
    }  # fmt: skip


class Timed:
    """Passes items on, and adds up the CPU time that it takes to make them."""

    def __init__(self, items: Iterator[tuple[str, Any]]) -> None:
        self.items, self.seconds = items, 0.0

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        while True:
            begun = time.process_time()
            item = next(self.items, None)
            self.seconds += time.process_time() - begun
            if item is None:
                return
            yield item


def ask(work: Path, kind: str, images: int) -> dict[str, Any]:
    """Ask for images that the index has, by part of what they show; times of one search in milliseconds."""
    from contextdesc.retrieval.index import Index
    from contextdesc.retrieval.words import words_of

    world = World.load(work)
    seconds, right = [], 0
    wanted = np.random.default_rng(images).integers(images, size=QUERIES + 1).tolist()
    with Memory() as memory:
        begun = time.thread_time()
        index = Index.open(work / kind)
        opened = time.thread_time() - begun
        for image in wanted:
            if kind == "full":
                descriptors = world.descriptors_of(image, 1, round(KEPT * DESCRIPTORS))
                words, weights = words_of(index.vocabulary, descriptors, index.options)
            else:
                words = world.words_of_chunk(image // CHUNK)[image % CHUNK]
                words = np.random.default_rng([image]).permutation(words)[: round(KEPT * WORDS)]
                weights = np.ones(len(words), np.float32)
            begun = time.thread_time()
            answers = index.search(words, weights, 20)
            seconds.append(time.thread_time() - begun)
            right += answers[0][0] == _name(image)
    times = 1000 * np.array(seconds[1:])  # the first one maps the files
    return {
        "open_ms": 1000 * opened, "first_query_ms": 1000 * seconds[0],
        "query_ms": float(np.median(times)), "query_95_ms": float(np.percentile(times, 95)),
        "query_resident_mb": memory.resident, "query_own_mb": memory.own,
        "found_first": 100 * right / len(wanted),
    }  # fmt: skip


def _name(image: int) -> str:
    return f"{image:07d}.jpg"


class Memory:
    """Peaks of the process's memory in a `with` block, in MB: resident, and of that what is not mapped files.

    Pages of mapped files stay resident as long as nobody else needs the memory.
    """

    def __enter__(self) -> Memory:
        self.own = 0.0
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watcher.join()
        self.resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6

    def _watch(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE") / 1e6
        while True:
            _, resident, mapped = map(int, Path("/proc/self/statm").read_text().split()[:3])
            self.own = max(self.own, (resident - mapped) * page)
            if self._done.wait(0.02):
                break


def draw(measured: dict[str, Any]) -> None:
    """Four panels by number of images, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    panels = {
        "build_seconds": "build time, s", "disk_mb": "disk, MB",
        "build_own_mb": "peak memory of a step of the build, MB", "query_ms": "time of a query, ms",
    }  # fmt: skip
    styles = {"full": ("#0072b2", "o", "-"), "words": ("#d55e00", "s", "--")}
    figure, axes = pyplot.subplots(2, 2, figsize=(9, 6.8), layout="constrained")
    for panel, (key, title) in zip(axes.flat, panels.items(), strict=True):
        for kind, steps in measured["steps"].items():
            colour, marker, dash = styles[kind]
            panel.plot(
                [s["images"] for s in steps], [s[key] for s in steps],
                color=colour, marker=marker, linestyle=dash, label=TITLES[kind],
            )  # fmt: skip
        panel.set(xscale="log", yscale="log", xlabel="images", title=title)
        if key == "build_own_mb":  # which should look as flat as it is beside the others
            panel.set_ylim(10, 1000)
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
            axis.set_minor_formatter(NullFormatter())
        panel.grid(color="#d7dbe2", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(PLOT, dpi=120)


if __name__ == "__main__":
    main()
