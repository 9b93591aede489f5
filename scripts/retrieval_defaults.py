"""Measure what the defaults of retrieval were chosen by: `python scripts/retrieval_defaults.py --scenes DIR`.

All photographs of the scenes that the packaged model was not trained on are indexed together; each is a
query. Right answers are the photographs of its scene (mAP), and its partners: the 20 of them with most
inliers, at least `FLOOR`. Pairs of two scenes are taken for unrelated; some are measured.
Writes `docs/results/retrieval-defaults.json`. What is finished is kept in `--work`.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from retrieval_pairs import partners_of, shares

from contextdesc.image import find_images
from contextdesc.journal import Journal
from contextdesc.model import load
from contextdesc.progress import progress
from contextdesc.retrieval import index as index_module
from contextdesc.retrieval.building import build_index
from contextdesc.retrieval.index import Index
from contextdesc.retrieval.linking import Pair, best, ordered, ranked_for_each, verified
from contextdesc.retrieval.options import Options
from contextdesc.retrieval.pooling import generalised_mean, maximum, mean
from contextdesc.retrieval.searching import FLOOR, inliers_of
from contextdesc.retrieval.segment import Entry
from contextdesc.retrieval.words import words_of

RESULT = Path(__file__).parent.parent / "docs" / "results" / "retrieval-defaults.json"
POOLINGS = {"mean": mean, "gem": generalised_mean, "mac": maximum}
VOCABULARIES = (4096, 16384)
GLOBAL_WEIGHTS = (0.1, 1.0)
WEIGHTINGS = (Options(burstiness="none"), Options(neighbours=3))
UNRELATED = 400  # pairs of two scenes
DEPTHS = (10, 20, 30, 40)
TOP = 20


def scene_of(name: str) -> str:
    return name.partition("/")[0]


def precision(ranked: dict[str, list[str]]) -> float:
    """Mean over images of average precision, their scene the right answers."""
    found = []
    for name, others in ranked.items():
        right = np.array([scene_of(other) == scene_of(name) for other in others])
        total = sum(scene_of(other) == scene_of(name) for other in ranked) - 1
        hits = np.flatnonzero(right)
        found.append(float(np.sum(np.arange(1, len(hits) + 1) / (hits + 1))) / total)
    return float(np.mean(found))


def row(ranked: dict[str, list[str]], partners: dict[str, list[str]]) -> dict[str, float]:
    found = {"mAP": round(precision(ranked), 4)}
    for depth in DEPTHS:
        held = [np.mean([p in ranked[name][:depth] for p in own]) for name, own in partners.items() if own]
        found[f"partners in {depth}"] = round(float(np.mean(held)), 4)
    return found


def count_inliers(index: Index, journal: Journal) -> tuple[dict[Pair, int], int]:
    """Inliers of all pairs of one scene, and the most of pairs of two scenes, some of them."""
    pairs = [ordered(*pair) for pair in combinations(index.names, 2)]
    mixed = [pair for pair in pairs if scene_of(pair[0]) != scene_of(pair[1])]
    drawn = np.random.default_rng(0).choice(len(mixed), min(UNRELATED, len(mixed)), replace=False)
    unrelated = [mixed[i] for i in drawn]
    wanted = [pair for pair in pairs if scene_of(pair[0]) == scene_of(pair[1])] + unrelated
    features = {name: index.features(name) for name in index.names}
    counts = {}
    with progress("pairs", len(wanted), 0) as advance:
        for pair in wanted:
            key = "\n".join(pair)
            if key not in journal:
                journal.append(key, {"inliers": np.array(inliers_of(*(features[name] for name in pair)))})
            counts[pair] = int(journal[key]["inliers"])
            advance()
    return counts, max(counts.pop(pair) for pair in unrelated)


def rankings(index: Index, partners: dict[str, list[str]], vectors: Journal, work: Path) -> dict[str, Any]:
    """Rankings by words, by each global descriptor, and by both."""
    words, images = len(index.vocabulary), len(index)
    found = {f"{words} words": row(ranked_for_each(index, images, "words"), partners)}
    for pooling in POOLINGS:
        chosen = variant(
            index,
            work / f"{words}-{pooling}",
            lambda e, p=pooling: (e.name, e.words, e.weights, vectors[e.name][p]),
        )
        found[pooling] = row(ranked_for_each(chosen, images, "global"), partners)
        found[f"{words} words, fused with {pooling}"] = row(
            ranked_for_each(chosen, images, "fused"), partners
        )
    return found


def fusions(index: Index, partners: dict[str, list[str]]) -> dict[str, Any]:
    """Rankings by both with other weights of the global descriptor than the default."""
    found = {}
    for weight in GLOBAL_WEIGHTS:
        with patch.object(index_module, "GLOBAL_WEIGHT", weight):
            ranked = ranked_for_each(index, len(index), "fused")
        found[f"{len(index.vocabulary)} words, fused with {weight:g} times mean"] = row(ranked, partners)
    return found


def weightings(index: Index, partners: dict[str, list[str]], work: Path) -> dict[str, Any]:
    """Rankings by words with other weightings than the default."""
    found = {}
    for number, options in enumerate(WEIGHTINGS):
        chosen = variant(
            index,
            work / f"weighting-{number}",
            lambda e, o=options: (
                e.name,
                *words_of(index.vocabulary, index.features(e.name).descriptors, o),
                None,
            ),
        )
        kind = f"{options.neighbours} a descriptor, sigma {options.sigma}, burstiness {options.burstiness}"
        found[f"{len(index.vocabulary)} words, {kind}"] = row(
            ranked_for_each(chosen, len(index), "words"), partners
        )
    return found


def variant(index: Index, folder: Path, entry: Callable[[Entry], tuple[Any, ...]]) -> Index:
    """An index of the same images and vocabulary, with other entries."""
    shutil.rmtree(folder, ignore_errors=True)
    chosen = Index.create(folder, index.vocabulary, Options(features="none"), index.extraction)
    chosen.add(map(entry, index.entries()))
    return chosen


def links(index: Index, counts: dict[Pair, int], partners: dict[str, list[str]]) -> dict[str, Any]:
    """Pairs with several numbers of candidates."""
    everything = ranked_for_each(index, max(DEPTHS), index.best_rank)
    found = {}
    for candidates in DEPTHS[1:]:
        some = {name: others[:candidates] for name, others in everything.items()}
        for expansion in (0, 2, 5, 10):
            inliers = verified(some, TOP, expansion, lambda a, b: counts.get((a, b), 0), quiet=True)
            share = shares(best(inliers, TOP), partners)
            found[f"{candidates} candidates, expansion {expansion}"] = {
                "share of all pairs matched": round(len(inliers) * 2 / len(index) / (len(index) - 1), 4),
                "share of partners, mean over images": round(float(np.mean(share)), 4),
                "share of partners, worst image": round(min(share), 4),
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scenes", type=Path, required=True, help="folder of scenes, photographs in images/")
    parser.add_argument("--work", type=Path, default=Path("retrieval-defaults"), help="for unfinished work")
    arguments = parser.parse_args()
    model, work = load(), arguments.work
    scenes = sorted(model.spec.training["held_out_scenes"])
    images = {
        f"{scene}/{name}": path
        for scene in scenes
        for name, path in find_images([arguments.scenes / scene / "images"]).items()
    }
    vectors = Journal(work / "vectors.journal", {"model": model.source})
    for name, path in images.items():
        if name not in vectors:
            grid = model.regional(path)
            vectors.append(name, {pooling: pool(grid) for pooling, pool in POOLINGS.items()})
    for words in VOCABULARIES:
        build_index(model, images, work / f"index-{words}", words=words)
    indexes = [Index.open(work / f"index-{words}") for words in VOCABULARIES]
    counts, most = count_inliers(indexes[-1], Journal(work / "pairs.journal", {"model": model.source}))
    partners = partners_of(counts, images, TOP)
    ranking: dict[str, Any] = {}
    for index in indexes:
        ranking |= rankings(index, partners, vectors, work)
    ranking |= fusions(indexes[-1], partners)
    ranking |= weightings(indexes[-1], partners, work)
    result = {
        "model": model.source, "images": len(images), "scenes": scenes,
        "inliers of a partner, at least": FLOOR, "pairs of two scenes": UNRELATED,
        "most inliers of them": most, "ranking": ranking, "pairs": links(indexes[-1], counts, partners),
    }  # fmt: skip
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
