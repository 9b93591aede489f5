"""The notebook in the documentation runs, and what it prints is right."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

TOUR = Path(__file__).parent.parent / "docs" / "tour.ipynb"


def test_the_tour_is_stored_without_outputs() -> None:
    """They hold photographs of others."""
    cells = nbformat.read(TOUR, as_version=4).cells
    assert len(cells) > 10
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.mark.slow
def test_the_tour_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(TOUR, as_version=4)
    client = NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert int(re.search(r"(\d+) inliers, same scene", printed)[1]) > 350
    assert int(re.search(r"confirms (\d+)% of them", printed)[1]) >= 90
    sift, raw, context = (int(count) for count in re.findall(r"matches, (\d+) inliers", printed))
    assert raw > sift > 200
    assert context > sift
    assert "500 keypoints, descriptors of shape (500, 128)" in printed
    shown = [output.data for output in outputs if output.output_type == "execute_result"]
    assert sum("image/png" in data for data in shown) == 6
    assert sum("text/html" in data for data in shown) == 3
