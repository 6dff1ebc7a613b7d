"""Processes: killed, interrupted, orphaned, two at once; the result must be the same."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from isoattn.ablate.cells import attempts, crashes, read_record
from isoattn.ablate.engine import Engine, RunSettings, load_results
from isoattn.ablate.study import study_from_dict
from isoattn.ablate.worker import claim

from .conftest import Finished
from .tiny import (
    OPTIONS,
    ablate,
    alive,
    descendants,
    gone,
    kill,
    outcome,
    rows,
    scraps,
    two_cells,
    write_study,
)

Process = subprocess.Popen[str]


@pytest.fixture
def started() -> Iterator[list[Process]]:
    """What a test started; ended, with all below it, when the test is over."""
    processes: list[Process] = []
    yield processes
    for process in processes:
        kill([*descendants(process.pid), process.pid])
        process.wait(10)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def wait_for(condition: object, process: Process, seconds: float = 240.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def records(folder: Path) -> int:
    return len(list(folder.glob("cells/*/cell.json")))


def drill(finished: Finished, root: Path, started: list[Process], kills: int, seed: int) -> None:
    """Kill a study at random moments, the main process alone or all of it, until it is through."""
    chance = random.Random(seed)
    folder = root / "out"
    argv = ("run", str(finished.file), "--out", str(folder), "--jobs", "2", "--tracker", "none")
    ever: list[int] = []
    for number in range(kills):
        process = ablate(*argv, cwd=root)
        started.append(process)
        wait_for((folder / "registered.json").exists, process)
        if number:
            wait_for((folder / "cells").exists, process)
        target = records(folder) + chance.randrange(3)
        wait_for(lambda target=target: records(folder) >= target or records(folder) > 12, process)
        time.sleep(chance.uniform(0.0, 1.5))
        below = descendants(process.pid)
        ever += below
        kill([process.pid])
        if number % 2:
            kill(below)
        process.wait(10)
    last = ablate(*argv, cwd=root)
    started.append(last)
    out, err = last.communicate(timeout=300)
    assert last.returncode == 0, err
    assert rows(folder) == rows(finished.folder)
    assert outcome(folder) == outcome(finished.folder)
    assert scraps(folder) == []
    assert gone(ever, 30.0), "a process outlived its study"
    check_attempts(folder, finished)


def check_attempts(folder: Path, finished: Finished) -> None:
    cells = [*finished.results.cells, *finished.results.references]
    with (folder / "cells.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert len({row["cell"] for row in table}) == len(table) == len(cells)
    assert {path.name for path in (folder / "cells").iterdir()} == {row["cell"] for row in table}
    for row in table:
        cell = folder / "cells" / row["cell"]
        assert int(row["attempts"]) == attempts(cell) >= 1
        assert crashes(cell) == []  # lost with the study is no fault of the cell


def test_a_study_that_is_killed_comes_to_the_same_result(
    finished: Finished, tmp_path: Path, started: list[Process]
) -> None:
    drill(finished, tmp_path, started, kills=2, seed=1)


@pytest.mark.slow
def test_a_study_that_is_killed_among_its_references_comes_to_the_same_result(
    beside_trained: Finished, tmp_path: Path, started: list[Process]
) -> None:
    """The arms are through, a reference is not; killed there, then gone on with."""
    folder = Path(shutil.copytree(beside_trained.folder, tmp_path / "out"))
    lost = [folder / "cells" / cell.cell for cell in beside_trained.results.references]
    for cell in lost:
        shutil.rmtree(cell)
    (folder / "reference_rates.json").unlink()
    argv = ("run", str(beside_trained.file), f"--out={folder}", "--jobs=1", "--tracker=none")
    process = ablate(*argv, cwd=tmp_path)
    started.append(process)
    wait_for(lambda: any((cell / "attempts.log").exists() for cell in lost), process)
    below = descendants(process.pid)
    kill([process.pid, *below])
    process.wait(10)
    assert load_results(beside_trained.study, folder).unfinished > 0
    last = ablate(*argv, cwd=tmp_path)
    started.append(last)
    out, err = last.communicate(timeout=300)
    assert last.returncode == 0, err
    assert "Beside, not judged: another network" in out
    assert rows(folder) == rows(beside_trained.folder)
    assert outcome(folder) == outcome(beside_trained.folder)
    assert scraps(folder) == []
    check_attempts(folder, beside_trained)
    assert gone(below, 30.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_a_study_that_is_killed_often_comes_to_the_same_result(
    finished: Finished, tmp_path: Path, started: list[Process], seed: int
) -> None:
    drill(finished, tmp_path, started, kills=6, seed=seed)


LONG = {**OPTIONS, "trainer.max_epochs": 4000}


def long_study(root: Path, started: list[Process]) -> tuple[Process, Path, list[int]]:
    """A study whose cells train for minutes, with its processes, once two cells are training."""
    file = write_study(root, two_cells(overrides=LONG))
    process = ablate("run", str(file), "--out", "out", "--jobs", "2", "--tracker=none", cwd=root)
    started.append(process)
    folder = root / "out"
    wait_for(lambda: len(list(folder.glob("cells/*/checkpoints/last.ckpt"))) == 2, process)
    return process, folder, descendants(process.pid)


def cell_pids(folder: Path) -> dict[Path, int]:
    return {
        file.parent: int(file.read_text().split()[-1])
        for file in folder.glob("cells/*/attempts.log")
    }


def test_ctrl_c_ends_a_study_and_all_its_cells_with_one_line(
    tmp_path: Path, started: list[Process]
) -> None:
    process, folder, below = long_study(tmp_path, started)
    assert set(cell_pids(folder).values()) <= set(below)
    begun = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to every process
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - begun < 30
    assert process.returncode == 130
    assert "Traceback" not in err
    said = [line for line in err.splitlines() if line.startswith("isoattn:")]
    assert len(said) == 1
    assert "Go on with: isoattn ablate run" in said[0]
    assert gone(below, 15.0)
    for cell in cell_pids(folder):
        assert read_record(cell) is None
        assert crashes(cell) == []
        assert json.loads((cell / "result.json").read_text())["status"] == "interrupted"
    assert scraps(folder) == []


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_killed_cell_and_a_killed_fork_server_cost_one_attempt(
    tmp_path: Path, started: list[Process]
) -> None:
    process, folder, below = long_study(tmp_path, started)
    (one, pid), (other, other_pid) = cell_pids(folder).items()
    kill([pid])
    wait_for(lambda: attempts(one) == 2, process)
    assert crashes(one) == ["signal 9"]
    assert attempts(other) == 1
    # Without the server of all cells nobody would learn how they end: they end and go on anew.
    server = parent_of(other_pid)
    assert server in below
    assert server != process.pid
    kill([server])
    wait_for(lambda: attempts(other) == 2, process)
    assert not alive([other_pid])
    assert crashes(other) == []
    # Killed itself, a study leaves nothing running for long.
    everything = [*below, *descendants(process.pid), *cell_pids(folder).values()]
    kill([process.pid])
    process.wait(10)
    assert gone(everything, 30.0), f"still running: {alive(everything)}"


@pytest.mark.slow
def test_two_runs_of_one_folder_share_the_work(
    finished: Finished, tmp_path: Path, started: list[Process]
) -> None:
    folder = tmp_path / "out"
    argv = ("run", str(finished.file), "--out", str(folder), "--jobs", "1", "--tracker", "none")
    processes = [ablate(*argv, cwd=tmp_path) for _ in range(2)]
    started += processes
    for process in processes:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert "Tiny" in out
    assert rows(folder) == rows(finished.folder)
    assert outcome(folder) == outcome(finished.folder)
    assert scraps(folder) == []
    check_attempts(folder, finished)
    assert all(attempts(cell) == 1 for cell in (folder / "cells").iterdir())


def test_a_cell_that_another_process_holds_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An orphan of a killed study: its cell is not run a second time beside it."""
    study = study_from_dict(two_cells(), where="x")
    engine = Engine(study, tmp_path, RunSettings(jobs=2, tracker="none"))
    engine.app.costs = lambda cases: []  # type: ignore[method-assign]
    held = engine.plan.confirm_cells([], (0.006,))[0]
    folder = engine.cell_folder(held)
    folder.mkdir(parents=True)
    said: list[str] = []

    def say(text: str, style: str | None = None) -> None:
        said.append(text)
        if "1/2" in text:  # the other cell is through, this one is all there is left
            signal.setitimer(signal.ITIMER_REAL, 2.5)

    def stop(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(engine.speaker, "say", say)
    before = signal.signal(signal.SIGALRM, stop)
    try:
        with claim(folder) as mine, pytest.raises(TimeoutError):
            assert mine
            engine.run()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert attempts(folder) == 0
    assert crashes(folder) == []
    results = engine.run()
    assert {cell.attempts for cell in results.cells} == {1}
