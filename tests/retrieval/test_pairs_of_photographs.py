"""Pairs of real photographs: nearly all partners that matching all pairs would find, for a part of the work.

`scripts/retrieval_pairs.py` measures the same on all photographs of the scene.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from contextdesc.detection import Detector
from contextdesc.journal import Journal
from contextdesc.model import load
from contextdesc.retrieval.building import build_index
from contextdesc.retrieval.index import Index
from contextdesc.retrieval.linking import link
from contextdesc.retrieval.searching import FLOOR

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "retrieval_pairs.py"
SCENE, PHOTOGRAPHS, DISTRACTORS = "brandenburg_gate", 30, 10
TOP = 8


@pytest.mark.slow
@pytest.mark.data
def test_nearly_all_partners_for_a_part_of_the_work(data: Path, tmp_path: Path) -> None:
    script = runpy.run_path(str(SCRIPT))
    everything = script["photographs"](data / "train" / "scenes", SCENE, DISTRACTORS)
    own = [name for name in everything if name.startswith(SCENE)]
    images = {name: path for name, path in everything.items() if name not in own[PHOTOGRAPHS:]}
    model = load("sift-context", context="none", detector=Detector(1024), threads=1)
    build_index(model, images, tmp_path / "index", words=4096, quiet=True)
    index = Index.open(tmp_path / "index")
    assert len(index) == PHOTOGRAPHS + DISTRACTORS
    links = link(index, TOP, candidates=8, expansion=2, quiet=True)
    journal = Journal(tmp_path / "journal", {})
    counts = script["exhaustive"](index, links.inliers, journal)
    assert len(counts) == links.possible
    partners = script["partners_of"](counts, index.names, TOP)
    assert sum(map(bool, partners.values())) >= PHOTOGRAPHS - 4
    assert all(counts[tuple(sorted((name, other)))] >= FLOOR for name in partners for other in partners[name])
    assert np.mean(script["shares"](links.pairs, partners)) >= 0.95
    assert len(links.inliers) < 0.6 * links.possible
    assert not any(first.startswith(SCENE) != second.startswith(SCENE) for first, second in links.pairs)
