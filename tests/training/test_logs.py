"""The log of a run: what was written is read back, a resumed run says nothing twice, curves are drawn."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from matplotlib.figure import Figure

from contextdesc.errors import InputError
from contextdesc.training.logs import Log, _draw_accuracy, draw_curves, read_log

RECALL = [{"step": step, "held_out_recall": {"raw": 60.0 + step / 10}} for step in (0, 100, 200)]
LOCAL = [
    {"step": step, "loss": 50 / step, "n_pair": 30 / step, "quad": 20 / step, "temperature": 20 + step / 99}
    for step in range(10, 210, 10)
]


def write(path: Path, lines: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself shows of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def test_lines_are_appended_and_echoed(tmp_path: Path) -> None:
    said: list[str] = []
    with Log(tmp_path / "new" / "run", said.append) as log:
        log.write(0, held_out_recall={"raw": 59.87})
        log.write(20, loss=1.25, temperature=20)
    with Log(tmp_path / "new" / "run", said.append) as log:
        log.write(40, loss=1.0)
    assert log.path.read_text().splitlines() == said
    assert read_log(log.path) == [
        {"step": 0, "held_out_recall": {"raw": 59.87}},
        {"step": 20, "loss": 1.25, "temperature": 20},
        {"step": 40, "loss": 1.0},
    ]
    assert not (tmp_path / "new" / "run" / "tensorboard").exists()


def test_tensorboard_shows_every_number(tmp_path: Path) -> None:
    with Log(tmp_path, echo=lambda _: None, tensorboard=True) as log:
        log.write(20, loss=1.5, steps=3, note="warm-up", frozen=True)
        log.write(40, loss=0.5, held_out_recall={"raw": 90.25, "raw_scenes": 70.5})
    assert scalars(tmp_path / "tensorboard") == {
        "loss": [(20, 1.5), (40, 0.5)],
        "steps": [(20, 3.0)],
        "held_out_recall/raw": [(40, 90.25)],
        "held_out_recall/raw_scenes": [(40, 70.5)],
    }


def test_a_resumed_run_says_nothing_twice(tmp_path: Path) -> None:
    with Log(tmp_path, echo=lambda _: None, tensorboard=True) as log:
        for step in (20, 40, 60):
            log.write(step, loss=100.0 + step)
    with log.path.open("a") as file:
        file.write('{"step": 80, "lo')  # as a kill leaves it
    with Log(tmp_path, echo=lambda _: None, tensorboard=True) as log:
        log.rewind(40)
        log.write(60, loss=0.5)
    assert [(line["step"], line["loss"]) for line in read_log(log.path)] == [(20, 120), (40, 140), (60, 0.5)]
    assert scalars(tmp_path / "tensorboard") == {"loss": [(20, 120), (40, 140), (60, 0.5)]}
    assert {path.name for path in tmp_path.iterdir()} == {"log.jsonl", "tensorboard"}


def test_a_run_that_starts_again_forgets_everything(tmp_path: Path) -> None:
    with Log(tmp_path, echo=lambda _: None, tensorboard=True) as log:
        log.rewind(-1)  # nothing is there yet
        log.write(0, held_out_recall={"raw": 1.0})
        log.write(20, loss=1.0)
        log.rewind(-1)
        log.write(0, held_out_recall={"raw": 2.0})
    assert read_log(log.path) == [{"step": 0, "held_out_recall": {"raw": 2.0}}]
    assert scalars(tmp_path / "tensorboard")["held_out_recall/raw"] == [(0, 2.0)]


def test_only_a_cut_last_line_is_forgiven(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}')
    assert [line["step"] for line in read_log(path)] == [1, 2]
    path.write_text('{"step": 1}\n{"ste')
    assert [line["step"] for line in read_log(path)] == [1]
    path.write_text('{"step": 1}\n{"ste\n{"step": 3}\n')
    with pytest.raises(InputError, match=r"log.jsonl: line 2 is not JSON"):
        read_log(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"loss went down", "line 1 is not JSON"),
        (b"[1, 2]\n", "line 1 has no step"),
        (b'{"step": 1}\n{"loss": 2}\n', "line 2 has no step"),
        (b"\x89PNG\xff\xfe", "not text"),
    ],
)
def test_what_is_no_log_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "other.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"other.txt: .*{message}"):
        read_log(path)


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.jsonl: cannot be read \(No such file"):
        read_log(tmp_path / "none.jsonl")


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(InputError, match=r"run: cannot be written"):
        Log(tmp_path / "run")


def test_a_missing_tensorboard_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(InputError, match="pip install tensorboard"):
        Log(tmp_path, tensorboard=True)


@pytest.mark.parametrize(
    ("lines", "panels"),
    [
        (RECALL[:1], 1),  # a run that has just begun
        ([{"step": 20, "loss": 0.0}], 1),
        ([{"step": s, "loss": 1 / s, "n_pair": 1 / s} for s in range(1, 50)] + RECALL, 2),
        (LOCAL + RECALL, 3),
        (
            [
                {"step": s, "classification": 3 + s % 2, "raw_n_pair": float("nan"), "accuracy": 50 + s / 10,
                 "temperature_raw": 20, "temperature_regional": 20 + s}
                for s in range(0, 120_000, 5_000)
            ],
            3,
        ),
    ],
)  # fmt: skip
def test_each_kind_of_log_has_its_panels(tmp_path: Path, lines: list[dict[str, object]], panels: int) -> None:
    picture = tmp_path / "new" / "curves.png"
    draw_curves(write(tmp_path / "log.jsonl", lines), picture)
    with PIL.Image.open(picture) as image:
        assert image.format == "PNG"
        rgb = np.asarray(image.convert("RGB")).astype(int)
    assert rgb.shape[1] == 2400
    ink = (rgb < 250).any(2)
    assert ink[:, :5].sum() == ink[:, -5:].sum() == 0  # nothing is cut off
    spines = np.flatnonzero(ink.mean(0) > 0.6)  # one vertical axis a panel
    assert 1 + (np.diff(spines) > 20).sum() == panels
    assert list(picture.parent.iterdir()) == [picture]


def test_the_curve_is_where_the_values_are(tmp_path: Path) -> None:
    lines = [{"step": step, "temperature": step} for step in range(0, 101, 10)]
    draw_curves(write(tmp_path / "log.jsonl", lines), tmp_path / "curves.png")
    with PIL.Image.open(tmp_path / "curves.png") as image:
        rgb = np.asarray(image.convert("RGB")).astype(int)
    y, x = np.nonzero((rgb[..., 2] - rgb[..., 0]) > 120)  # blue
    assert np.ptp(x) > 2000
    assert np.ptp(y) > 400
    assert np.corrcoef(x, y)[0, 1] < -0.999  # a straight line that rises


def test_smoothing_keeps_a_level_and_calms_noise() -> None:
    from contextdesc.training.logs import _smooth

    np.testing.assert_allclose(_smooth(np.full(7, 3.0)), 3)
    np.testing.assert_allclose(_smooth(np.array([2.0])), 2)
    noise = np.random.default_rng(0).normal(size=400)
    assert _smooth(noise).std() < 0.3 * noise.std()


def test_a_log_without_curves_is_named(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", [{"step": 20, "steps_per_second": 0.6}])
    with pytest.raises(InputError, match=r"log.jsonl: nothing to draw"):
        draw_curves(log, tmp_path / "curves.png")
    assert not (tmp_path / "curves.png").exists()


def test_a_missing_matplotlib_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'contextdesc\[train\]'"):
        draw_curves(write(tmp_path / "log.jsonl", RECALL), tmp_path / "curves.png")


def test_a_term_has_one_colour_and_many_names_stand_below() -> None:
    steps = np.array([0.0, 10.0])
    recall = {
        f"held_out_recall/{term}{kind}": (steps, np.full(2, 50.0 + rank))
        for rank, (kind, term) in enumerate(
            (kind, term) for kind in ("", "_scenes") for term in ("raw", "visual", "geometric", "both")
        )
    }
    figure = Figure()
    axes = figure.subplots()
    _draw_accuracy(axes, recall)
    lines = {str(line.get_label()): line for line in axes.get_lines()}
    assert list(lines)[3] == "held out, both"
    for term in ("raw", "visual", "geometric", "both"):
        photos, scenes = lines[f"held out, {term}"], lines[f"held out, {term} scenes"]
        assert photos.get_color() == scenes.get_color()
        assert (photos.get_linestyle(), scenes.get_linestyle()) == ("-", "--")
    assert len({line.get_color() for line in lines.values()}) == 4
    figure.canvas.draw()
    legend = axes.get_legend()
    assert legend is not None
    assert legend.get_window_extent().y1 < axes.get_window_extent().y0  # it covers no line
