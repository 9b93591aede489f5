"""Measure the pairs of `contextdesc retrieve pairs`: `python scripts/retrieval_pairs.py --scenes DIR`.

All pairs of the photographs of a scene and of distractors, one of each of other scenes, are matched and
verified. An image's partners are the 20 with most inliers, of those with at least `FLOOR`; what share of them
does the pair list hold, and how many pairs were matched for it? Writes `docs/results/retrieval-pairs.json`.
What is finished is kept in `--work`; the same command goes on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from contextdesc.image import find_images
from contextdesc.journal import Journal
from contextdesc.model import load
from contextdesc.progress import progress
from contextdesc.retrieval.building import build_index
from contextdesc.retrieval.index import Index
from contextdesc.retrieval.linking import Links, Pair, link, ordered
from contextdesc.retrieval.options import CANDIDATES, EXPANSION, ROUNDS
from contextdesc.retrieval.searching import FLOOR, inliers_of

RESULT = Path(__file__).parent.parent / "docs" / "results" / "retrieval-pairs.json"
PARTNERS = 20
DISTRACTORS = 38


def photographs(scenes: Path, scene: str, distractors: int) -> dict[str, Path]:
    """All of one scene, and the first of each of so many others, in order of name."""
    images = find_images([scenes / scene / "images"])
    found = {f"{scene}/{name}": path for name, path in images.items()}
    others = [folder for folder in sorted(scenes.iterdir()) if folder.is_dir() and folder.name != scene]
    for folder in others[:distractors]:
        name, path = next(iter(find_images([folder / "images"]).items()))
        found[f"{folder.name}/{name}"] = path
    return found


def exhaustive(index: Index, known: dict[Pair, int], journal: Journal) -> dict[Pair, int]:
    """Inliers of all pairs; those that are known are not counted again."""
    pairs = [ordered(*pair) for pair in combinations(index.names, 2)]
    features = {name: index.features(name) for name in index.names}
    counts = dict(known)
    with progress("all pairs", len(pairs), sum(pair in known for pair in pairs)) as advance:
        for pair in pairs:
            if pair in known:
                continue
            key = "\n".join(pair)
            if key not in journal:
                journal.append(key, {"inliers": np.array(inliers_of(*(features[name] for name in pair)))})
            counts[pair] = int(journal[key]["inliers"])
            advance()
    return counts


def partners_of(counts: dict[Pair, int], names: Iterable[str], top: int = PARTNERS) -> dict[str, list[str]]:
    """Of each image the best, by inliers, of those with at least `FLOOR`."""
    found: dict[str, list[tuple[int, str]]] = {name: [] for name in names}
    for (first, second), count in counts.items():
        if count >= FLOOR:
            found[first].append((-count, second))
            found[second].append((-count, first))
    return {name: [other for _, other in sorted(others)[:top]] for name, others in found.items()}


def shares(pairs: Iterable[Pair], partners: dict[str, list[str]]) -> list[float]:
    """Of each image that has partners, the share that the pairs hold."""
    held = set(pairs)
    return [
        sum(ordered(name, other) in held for other in others) / len(others)
        for name, others in partners.items()
        if others
    ]


def numbers(links: Links, partners: dict[str, list[str]]) -> dict[str, Any]:
    found = shares(links.pairs, partners)
    return {
        "pairs in the list": len(links.pairs),
        "pairs matched": len(links.inliers),
        "share of all pairs matched": round(len(links.inliers) / links.possible, 4),
        "share of partners, mean over images": round(float(np.mean(found)), 4),
        "share of partners, worst image": round(min(found), 4),
        "images with at least 95 % of their partners": sum(share >= 0.95 for share in found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scenes", type=Path, required=True, help="folder of scenes, photographs in images/")
    parser.add_argument("--scene", default="brandenburg_gate")
    parser.add_argument(
        "--work", type=Path, default=Path("retrieval-pairs"), help="folder of unfinished work"
    )
    arguments = parser.parse_args()
    images = photographs(arguments.scenes, arguments.scene, DISTRACTORS)
    model = load()
    build_index(model, images, arguments.work / "index")
    index = Index.open(arguments.work / "index")
    links = link(index, PARTNERS)
    journal = Journal(arguments.work / "all-pairs.journal", {"model": model.source, "images": sorted(images)})
    counts = exhaustive(index, links.inliers, journal)
    partners = partners_of(counts, index.names)
    words_only = link(index, PARTNERS, verify=False)
    result = {
        "scene": arguments.scene,
        "model": model.source,
        "images": len(index),
        "distractors": DISTRACTORS,
        "all pairs": links.possible,
        "inliers of a partner, at least": FLOOR,
        "images with a partner": sum(map(bool, partners.values())),
        "partners of an image, mean": round(float(np.mean([len(p) for p in partners.values() if p])), 2),
        "candidates": CANDIDATES,
        "expansion": EXPANSION,
        "rounds": ROUNDS,
        f"--top {PARTNERS}": numbers(links, partners),
        f"--top {PARTNERS} --no-verify": numbers(words_only, partners),
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
