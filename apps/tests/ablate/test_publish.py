"""A study in W&B, offline: what the runs hold, read back with W&B's own tool."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from isoattn.ablate import publish
from isoattn.ablate.engine import Engine, RunSettings, tracker_id
from isoattn.ablate.report import write_report
from isoattn.ablate.study import study_from_dict

from .conftest import Finished
from .tiny import OPTIONS, run_command, two_cells, write_study


def inspect(file: Path) -> dict[str, list[Any]]:
    """What ``wandb leet inspect`` reads in a run: kind of record -> records."""
    tool = Path(sys.executable).with_name("wandb")
    found = subprocess.run(
        [str(tool), "leet", "inspect", "--json", str(file)], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    records: dict[str, list[Any]] = {}
    for line in found.stdout.splitlines():
        record = json.loads(line)
        records.setdefault(record["type"], []).append(record[record["type"]])
    return records


@pytest.mark.slow
def test_cells_and_report_are_runs_of_one_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_key: None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staging"))
    write_study(tmp_path, two_cells(overrides={**OPTIONS, "trainer.max_epochs": 1}))
    argv = ("ablate", "run", "tiny.yaml", "--out", "out", "--tracker", "wandb-offline")
    result = run_command(*argv)
    assert result.code == 0, result.err
    assert "not sent to W&B" not in result.err
    records = [inspect(file) for file in sorted((tmp_path / "out").rglob("run-*.wandb"))]
    runs = {record["run"][0]["display_name"]: record["run"][0] for record in records}
    assert len(runs) == 3
    registered = json.loads((tmp_path / "out" / "registered.json").read_text())
    assert {run["run_group"] for run in runs.values()} == {f"tiny-full-{registered['hash']}"}
    kinds = {name: run.pop("job_type") for name, run in runs.items()}
    assert sorted(kinds.values()) == ["report", "train", "train"]
    cells = {name: run for name, run in runs.items() if kinds[name] == "train"}
    assert sorted(cells) == sorted(p.name for p in (tmp_path / "out" / "cells").iterdir())
    study = study_from_dict(registered["study"], where="registered")
    engine = Engine(study, tmp_path / "out", RunSettings())
    for name, run in cells.items():
        assert run["run_id"] == tracker_id(engine.group, name)
        assert {"vision", "confirm", "DigitsData"} < set(run["tags"])
        config = run["config"]["update"]
        assert config["model"]["network"]["init_args"]["embed_dim"] == 16
        assert config["model"]["optim"]["lr"] == 0.006


@pytest.mark.slow
def test_the_report_run_holds_table_verdict_and_files(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_key: None
) -> None:
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staging"))
    folder = Path(shutil.copytree(finished.folder, tmp_path / "out"))
    engine = Engine(finished.study, folder, RunSettings(tracker="wandb-offline"))
    paths = write_report(finished.study, finished.results, folder, differences="")
    publish.publish(engine, paths)
    (file,) = folder.rglob("run-*.wandb")
    text = json.dumps(inspect(file))
    for part in ("report.html", "report.md", "cells.csv", "summary.json", "results.table.json"):
        assert part in text
    assert "no claim" in text
    (run,) = inspect(file)["run"]
    assert (run["job_type"], run["run_id"]) == ("report", tracker_id(engine.group, "report"))
    assert run["config"]["update"]["study"]["arms"].keys() == finished.study.arms.keys()


def test_a_tracker_that_fails_does_not_fail_the_study(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(publish, "_publish", broken)
    settings = RunSettings(tracker="wandb-offline")
    engine = Engine(finished.study, finished.folder, settings)
    publish.publish(engine, None)  # type: ignore[arg-type]
    assert capsys.readouterr().err == "the report was not sent to W&B: no route\n"


def test_without_w_and_b_nothing_is_sent(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "_publish", lambda *_: pytest.fail("sent"))
    engine = Engine(finished.study, finished.folder, RunSettings(tracker="none"))
    publish.publish(engine, None)  # type: ignore[arg-type]


def test_ids_are_the_same_after_a_restart(tmp_path: Path) -> None:
    study = study_from_dict(two_cells(), where="x")
    options = []
    for _ in range(2):
        engine = Engine(study, tmp_path, RunSettings(tracker="wandb-offline"))
        cells = engine.plan.confirm_cells([], (0.006,))
        options.append([engine._identity(cell) for cell in cells])
    assert options[0] == options[1]
    assert len({o[0] for o in options[0]}) == 2
