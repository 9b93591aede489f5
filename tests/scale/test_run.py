"""Many processes: the same shards whoever makes them, and nothing lost or done twice whatever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from contextdesc.errors import ContextDescError, InputError
from contextdesc.scale.local import LocalPool
from contextdesc.scale.run import Workers
from contextdesc.scale.task import Task
from tests.scale.tasks import (
    NUMBERS,
    Square,
    Unopenable,
    began,
    processes,
    prove,
    square_all,
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All squares, made by one process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    square_all(folder / "shards", Square(folder / "notes"), Workers(1))
    prove(folder / "shards")
    return folder / "shards"


def equal(folder: Path, other: Path) -> None:
    assert (folder / "manifest.json").read_bytes() == (other / "manifest.json").read_bytes()


def wait_until(true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def test_shards_hold_names_in_their_order_and_each_process_opens_once(
    undisturbed: Path, tmp_path: Path
) -> None:
    in_flight: set[int] = set()
    watched = threading.Event()

    def watch() -> None:
        while not watched.wait(0.005):
            in_flight.add(len(list((tmp_path / "shards").glob(".shard-*.part"))))

    watcher = threading.Thread(target=watch)
    watcher.start()
    report = square_all(tmp_path / "shards", Square(tmp_path / "notes", 0.02), Workers(2))
    watched.set()
    watcher.join()
    assert max(in_flight) == 2  # a shard per process, however many there are to make
    assert report.done == sorted(NUMBERS)
    manifest = prove(tmp_path / "shards")
    assert [shard.names[0] for shard in manifest.shards] == sorted(NUMBERS)[::4]
    assert len(processes(tmp_path / "notes")) == 2
    assert sorted(began(tmp_path / "notes")) == sorted(NUMBERS)
    equal(tmp_path / "shards", undisturbed)


def test_a_worker_is_killed_in_the_middle(undisturbed: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    killed = []

    def kill() -> None:
        wait_until(lambda: len(began(notes)) > 10)
        killed.append(processes(notes)[0])
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    report = square_all(tmp_path / "shards", Square(notes, 0.1), Workers(2))
    killer.join()
    assert killed
    assert len(processes(notes)) == 3
    assert (report.done, report.failed) == (sorted(NUMBERS), {})
    prove(tmp_path / "shards")
    equal(tmp_path / "shards", undisturbed)


def test_a_poison_item_is_given_up_and_its_neighbours_are_done(tmp_path: Path) -> None:
    task = Square(tmp_path / "notes", deadly={"item05": 1000, "item06": 2, "item30": 1})
    report = square_all(tmp_path / "shards", task, Workers(2), NUMBERS | {"negative": -1})
    assert report.failed == {
        "item05": "the process that worked on it died, 3 times (killed by SIGABRT)",
        "negative": "-1 is negative",
    }
    assert report.done == sorted(set(NUMBERS) - {"item05"})
    assert began(tmp_path / "notes").count("item05") == 4  # the first time nobody knew which one it was
    manifest = prove(tmp_path / "shards", NUMBERS | {"negative": -1})
    assert manifest.failed == report.failed
    assert manifest.shards[1].names == ("item04", "item06", "item07")


def test_the_driver_is_killed_and_started_again(undisturbed: Path, tmp_path: Path) -> None:
    folder, notes = tmp_path / "shards", tmp_path / "notes"
    command = [sys.executable, "-m", "tests.scale.tasks", str(folder), str(notes)]
    root = Path(__file__).parents[2]
    process = subprocess.Popen(command, cwd=root)
    wait_until(lambda: len(list(folder.glob("shard-*.h5"))) >= 3)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    orphans = processes(notes)
    wait_until(lambda: not any(Path(f"/proc/{orphan}").exists() for orphan in orphans))
    finished = {path: path.stat().st_mtime_ns for path in folder.glob("shard-*.h5")}
    assert not (folder / "shard-000009.h5").exists()
    with pytest.raises(InputError, match="unfinished; the command that began it goes on with it"):
        prove(folder)

    report = square_all(folder, Square(notes), Workers(2))
    assert report.before >= 4 * (len(finished) - 1)  # the last may not have been recorded
    assert report.before + len(report.done) == len(NUMBERS)
    prove(folder)
    equal(folder, undisturbed)
    kept = [path for path, when in finished.items() if path.stat().st_mtime_ns == when]
    assert len(kept) * 4 == report.before


def test_damaged_shards_are_found_and_made_again(undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    square_all(folder, Square(tmp_path / "notes"), Workers(1))
    truncated, changed, gone = (folder / f"shard-{number:06}.h5" for number in (1, 3, 6))
    truncated.write_bytes(truncated.read_bytes()[:-100])
    content = bytearray(changed.read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    gone.unlink()
    others = set(folder.glob("shard-*.h5")) - {truncated, changed, gone}
    times = {path: path.stat().st_mtime_ns for path in others}
    report = square_all(folder, Square(tmp_path / "again"), Workers(1))
    lost = [f"item{number:02}" for shard in (1, 3, 6) for number in range(4 * shard, 4 * shard + 4)]
    assert report.done == began(tmp_path / "again") == lost
    assert report.before == 28
    prove(folder)
    equal(folder, undisturbed)
    assert times == {path: path.stat().st_mtime_ns for path in others}


def test_a_finished_set_is_left_alone(undisturbed: Path, tmp_path: Path) -> None:
    report = square_all(undisturbed, Square(tmp_path / "notes"), Workers(2))
    assert (report.done, report.before) == ([], 40)
    assert not processes(tmp_path / "notes")  # nobody opened the task
    prove(undisturbed)


def test_what_failed_is_tried_again_and_new_items_get_shards_of_their_own(tmp_path: Path) -> None:
    folder, some = tmp_path / "shards", dict(list(NUMBERS.items())[5:15])
    square_all(folder, Square(tmp_path / "notes"), Workers(1), some | {"item07": -7, "item08": -8})
    before = prove(folder, some | {"item07": -7, "item08": -8})
    assert len(before.failed) == 2
    for _ in range(2):  # what fails again and again leaves no empty shards behind
        report = square_all(folder, Square(tmp_path / "notes"), Workers(1), NUMBERS | {"item07": -7})
        assert report.failed == {"item07": "-7 is negative"}
    manifest = prove(folder, NUMBERS | {"item07": -7})
    assert manifest.shards[1].names == before.shards[1].names
    report = square_all(folder, Square(tmp_path / "notes"), Workers(1), some | {"item07": -7})
    assert (report.before, report.done, list(report.failed)) == (9, [], ["item07"])
    report = square_all(folder, Square(tmp_path / "notes"), Workers(1), {"item30": 30})
    assert (report.before, report.failed) == (1, {})
    assert prove(folder, NUMBERS | {"item07": -7}) == manifest  # of what is not given, nothing is forgotten
    report = square_all(folder, Square(tmp_path / "notes"), Workers(1))
    assert report.done == ["item07"]
    prove(folder)


def test_an_interrupted_run_keeps_its_plan(undisturbed: Path, tmp_path: Path) -> None:
    """Strictly, a run stops at the first failure; what was finished is kept."""
    folder = tmp_path / "shards"
    with pytest.raises(InputError, match="item20: -20 is negative"):
        square_all(folder, Square(tmp_path / "notes"), Workers(1), NUMBERS | {"item20": -20}, strict=True)
    with pytest.raises(InputError, match=r"unfinished work with other settings \(power\).*--restart"):
        square_all(folder, Square(tmp_path / "notes"), Workers(1), settings={"power": 3})
    report = square_all(folder, Square(tmp_path / "notes"), Workers(1), shard_size=100)
    assert report.before == 20
    prove(folder)
    equal(folder, undisturbed)
    with pytest.raises(InputError, match=r"was made with other settings \(power\); choose another folder"):
        square_all(folder, Square(tmp_path / "notes"), Workers(1), settings={"power": 3}, restart=True)
    prove(folder)


def test_restart_forgets_an_unfinished_run(tmp_path: Path) -> None:
    folder, task = tmp_path / "shards", Square(tmp_path / "notes")
    with pytest.raises(InputError, match="negative"):
        square_all(folder, task, Workers(1), NUMBERS | {"item20": -20}, strict=True)
    options = {"settings": {"power": 2.0}, "shard_size": 10, "restart": True}
    assert len(square_all(folder, task, Workers(1), **options).done) == 40
    assert len(prove(folder).shards) == 4


def test_work_that_cannot_be_done_at_all_ends(tmp_path: Path) -> None:
    with pytest.raises(ContextDescError, match="no such model"):
        square_all(tmp_path / "a", Unopenable(tmp_path / "notes"), Workers(2))
    with pytest.raises(ContextDescError, match=r"workers die, and not on single items: killed by SIGABRT"):
        square_all(tmp_path / "b", Square(tmp_path / "notes", fatal=True), Workers(2), {"one": 1})


def test_workers_must_see_the_folder(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Elsewhere(Workers):
        def pool(self, task: Task, folder: Path) -> LocalPool:
            other = tmp_path / "other"
            other.mkdir()
            return LocalPool(task, other, 1, 1)

    with pytest.raises(
        InputError, match="the output must be a folder that all nodes see under the same path"
    ):
        square_all(tmp_path / "shards", Square(tmp_path / "notes"), Elsewhere())


def test_folders_that_are_not_ours_are_refused(tmp_path: Path) -> None:
    task = Square(tmp_path / "notes")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file; shards are written to a folder"):
        square_all(tmp_path / "file", task, Workers(1))
    with pytest.raises(InputError, match="holds files that are no shards"):
        square_all(tmp_path, task, Workers(1))
    with pytest.raises(InputError, match="give 1 or more"):
        Workers(0)


def test_a_second_run_keeps_out(tmp_path: Path) -> None:
    folder, task = tmp_path / "shards", Square(tmp_path / "notes", 0.5)
    first = threading.Thread(
        target=square_all, args=(folder, task, Workers(1), dict(list(NUMBERS.items())[:4]))
    )
    first.start()
    wait_until((folder / "manifest.json").exists)
    with pytest.raises(InputError, match="another run is writing it"):
        square_all(folder, task, Workers(1))
    first.join()


def test_one_line_tells_rate_failures_and_time_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = {"one": 1, "two": -2, "three": 3}
    square_all(
        tmp_path / "shards", Square(tmp_path / "notes"), Workers(2), items, quiet=False, title="square"
    )
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "two: -2 is negative"
    assert lines[-1].startswith("square: 3 of 3, ")
    assert lines[-1].endswith("/s, 1 failed, 0 s left")
