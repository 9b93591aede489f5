"""The tasks of HPatches: pairs to verify, queries to retrieve, and average precision of each task.

Definitions are those of the hpatches-benchmark project. Its lists of pairs and queries can be read; without
them they are drawn by the rule that made them, with a fixed seed.

- Verification: pairs of patches of two images of a sequence. Positives show one place, negatives two places
  of the same sequence (intra) or of two sequences (inter); five negatives to one positive.
- Matching: nearest neighbours of the reference's patches among those of an image, ranked by similarity;
  patches whose nearest neighbour is wrong count as not found.
- Retrieval: the five other images' patches of a query, among distractors of other sequences.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contextdesc.benchmarks.hpatches_strips import IMAGES, NAMES, REFERENCE, strip_name
from contextdesc.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

NEGATIVES = ("intra", "inter")
POSITIVES = 0.2  # of a negative, in verification
QUERIES, DISTRACTORS = 10_000, 20_000
POOLS = (100, 500, 1000, 5000, 10_000, 15_000, 20_000)  # patches, over which retrieval is averaged
SEED = 0
_BLOCK = 65_536  # pairs whose descriptors are held at a time


@dataclass(frozen=True, eq=False)
class Patches:
    """Where the patches of all sequences are in one array: those of a sequence in consecutive rows.

    Attributes:
        names: of the sequences.
        counts: (S,) patches of each.
        textured: (total,) whether a reference patch has enough contrast for retrieval.
    """

    names: tuple[str, ...]
    counts: NDArray[np.int64]
    textured: NDArray[np.bool_]

    @property
    def starts(self) -> NDArray[np.int64]:
        return np.cumsum(self.counts) - self.counts

    def sequence_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self.starts, rows, "right") - 1


@dataclass(frozen=True, eq=False)
class Pairs:
    """Rows and images (0 to 5) of the two patches of each pair, (P, 2) each."""

    rows: NDArray[np.int64]
    images: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Tasks:
    """What a method is asked.

    Attributes:
        pairs: by `positive` and `NEGATIVES`.
        queries, distractors: rows of reference patches.
        origin: where the lists are from, for the report.
    """

    pairs: Mapping[str, Pairs]
    queries: NDArray[np.int64]
    distractors: NDArray[np.int64]
    origin: str


def draw_tasks(patches: Patches, count: int) -> Tasks:
    """Tasks by the rule of the published lists, with `count` pairs of each kind.

    Of fewer patches than the published lists need, a third are queries and the others distractors.
    """
    random = np.random.default_rng(SEED)
    sequences = random.integers(len(patches.names), size=count)
    first, second = _two_of(patches.counts[sequences], random)
    images = np.stack(_two_of(np.full(count, IMAGES), random), 1)  # 0 to 4, as the published lists have it
    others = (sequences + random.integers(1, len(patches.names), size=count)) % len(patches.names)
    elsewhere = patches.starts[others] + random.integers(patches.counts[others])
    anchors = patches.starts[sequences] + first
    pairs = {
        "positive": np.stack([anchors, anchors], 1),
        "intra": np.stack([anchors, patches.starts[sequences] + second], 1),
        "inter": np.stack([anchors, elsewhere], 1),
    }
    queries = _textured(patches, min(QUERIES, len(patches.textured) // 3), 4, random)
    distractors = _textured(patches, DISTRACTORS, 10, random, without=queries)
    return Tasks(
        {kind: Pairs(rows, images) for kind, rows in pairs.items()},
        queries,
        distractors,
        f"drawn, seed {SEED}",
    )


def _two_of(
    counts: NDArray[np.int64], random: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Two different numbers below each count."""
    first = random.integers(counts)
    return first, (first + random.integers(1, counts)) % counts


def _textured(
    patches: Patches,
    count: int,
    draws: int,
    random: np.random.Generator,
    without: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Rows of textured patches, each once: `count` of them, or what so many times as many draws find."""
    sequences = random.integers(len(patches.names), size=count * draws)
    rows = patches.starts[sequences] + random.integers(patches.counts[sequences])
    rows = rows[patches.textured[rows]]
    rows = rows[np.sort(np.unique(rows, return_index=True)[1])]
    return (rows if without is None else rows[~np.isin(rows, without)])[:count]


def read_tasks(folder: Path, split: str, patches: Patches) -> Tasks:
    """The published lists of a split: `verif_pos_split-a.csv` and so on."""
    files = {"positive": "verif_pos", "intra": "verif_neg_intra", "inter": "verif_neg_inter"}
    pairs = {}
    for kind, stem in files.items():
        rows = _read_rows(folder / f"{stem}_split-{split}.csv", ("s1", "t1", "idx1", "s2", "t2", "idx2"))
        places = [_places(rows, patches, f"s{i}", f"idx{i}", folder) for i in (1, 2)]
        images = np.array([(int(row["t1"]), int(row["t2"])) for row in rows], np.int64).reshape(-1, 2)
        pairs[kind] = Pairs(np.stack(places, 1), images)
    queries, distractors = (
        _places(
            _read_rows(folder / f"retr_{kind}_split-{split}.csv", ("s", "idx")), patches, "s", "idx", folder
        )
        for kind in ("queries", "distractors")
    )
    return Tasks(pairs, queries, distractors, f"published lists of split {split}")


def _read_rows(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); it is in the benchmark's tasks"
        ) from None
    if not rows or not set(columns) <= rows[0].keys():
        raise InputError(f"{path}: not a list with columns {', '.join(columns)}")
    return rows


def _places(
    rows: Sequence[Mapping[str, str]], patches: Patches, sequence: str, patch: str, folder: Path
) -> NDArray[np.int64]:
    """Rows of listed patches."""
    index = {name: i for i, name in enumerate(patches.names)}
    missing = {row[sequence] for row in rows} - index.keys()
    if missing:
        raise InputError(
            f"{folder}: its lists name {min(missing)}, which is not in the data; leave tasks out"
        )
    sequences = np.array([index[row[sequence]] for row in rows], np.int64)
    inner = np.array([int(row[patch]) for row in rows], np.int64)
    if (inner >= patches.counts[sequences]).any():
        raise InputError(f"{folder}: its lists name patches that the data lacks; they are of other strips")
    return np.asarray(patches.starts[sequences] + inner, np.int64)


def average_precision(
    similarity: NDArray[np.floating], right: NDArray[np.bool_], positives: int | None = None
) -> float:
    """Area under precision over recall, by trapezoids from precision 1 at recall 0.

    Args:
        similarity, right: (N,) of what was found.
        positives: that there are to find; by default those among `right`.
    """
    order = np.argsort(-similarity, kind="stable")
    found = np.cumsum(right[order])
    precision = np.concatenate([[1.0], found / np.arange(1, len(right) + 1)])
    recall = np.concatenate([[0], found]) / max(1, found[-1] if positives is None else positives)
    return float((np.diff(recall) * (precision[1:] + precision[:-1]) / 2).sum())


def pair_similarities(descriptors: NDArray[np.float32], pairs: Pairs, noise: str) -> NDArray[np.float32]:
    """(P,) cosines of pairs; `descriptors` are (16, total, D) by strip of `NAMES` and row."""
    strip = np.array([NAMES.index(strip_name(noise, image)) for image in range(IMAGES + 1)])
    found = np.empty(len(pairs.rows), np.float32)
    for start in range(0, len(found), _BLOCK):
        part = slice(start, start + _BLOCK)
        one, two = (descriptors[strip[pairs.images[part, i]], pairs.rows[part, i]] for i in (0, 1))
        found[part] = np.einsum("nd,nd->n", one, two)
    return found


def matching(descriptors: NDArray[np.float32], noise: str) -> list[float]:
    """Average precision by image of one sequence, of descriptors (16, N, D)."""
    reference = descriptors[NAMES.index(REFERENCE)]
    found = []
    for image in range(1, IMAGES + 1):
        similarity = reference @ descriptors[NAMES.index(strip_name(noise, image))].T
        nearest = similarity.argmax(1)
        rows = np.arange(len(reference))
        found.append(average_precision(similarity[rows, nearest], nearest == rows, len(rows)))
    return found


def pools(patches: Patches, tasks: Tasks) -> tuple[int, ...]:
    """Sizes of pools that there are enough distractors for; all that there are where it is not even one."""
    of = patches.sequence_of(tasks.distractors)
    asked = np.unique(patches.sequence_of(tasks.queries))
    fewest = min((int((of != sequence).sum()) for sequence in asked), default=0)
    if not fewest:
        raise InputError("no queries with distractors of other sequences: too few patches with contrast")
    return tuple(size for size in POOLS if size <= fewest + IMAGES) or (fewest + IMAGES,)


def retrieval(
    descriptors: NDArray[np.float32], noises: Sequence[str], patches: Patches, tasks: Tasks
) -> NDArray[np.float64]:
    """Average precision (queries, noises), mean over pools."""
    reference = descriptors[NAMES.index(REFERENCE)]
    ends = np.array(pools(patches, tasks)) - IMAGES
    strips = [[NAMES.index(strip_name(noise, image)) for image in range(1, IMAGES + 1)] for noise in noises]
    of_distractors, of_queries = (patches.sequence_of(rows) for rows in (tasks.distractors, tasks.queries))
    found = np.zeros((len(tasks.queries), len(noises)))
    for sequence in np.unique(of_queries):
        pool = reference[tasks.distractors[of_distractors != sequence][: ends[-1]]]
        for index in np.flatnonzero(of_queries == sequence):
            row = tasks.queries[index]
            wrong = pool @ reference[row]
            right = -np.sort(-descriptors[strips, row] @ reference[row], axis=1)  # (noises, 5), best first
            starts = np.concatenate([[0], ends[:-1]])
            before = np.add.reduceat(wrong > right[..., None], starts, axis=2, dtype=np.int64)
            found[index] = ranked_precision(np.cumsum(before, 2)).mean(1)
    return found


def ranked_precision(before: NDArray[np.int64]) -> NDArray[np.float64]:
    """Average precision (noises, pools) of wrong answers before each of five right ones, (noises, 5, pools).

    The same area as `average_precision`: recall only moves at right answers.
    """
    rank = np.arange(1, before.shape[1] + 1)[:, None]
    after = rank / (rank + before)
    ahead = np.where(before + rank == 1, 1.0, (rank - 1) / np.maximum(1, rank - 1 + before))
    return np.asarray((after + ahead).mean(1) / 2, np.float64)
