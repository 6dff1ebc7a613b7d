from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from isoattn.ablate.cells import (
    Cell,
    attempts,
    crashes,
    has_dotted,
    note,
    read_record,
    resolved_arm,
    set_dotted,
    write_cell,
    write_record,
)
from isoattn.ablate.domain import Scores
from isoattn.ablate.records import CellResult
from isoattn.ablate.worker import _record, claim, held, learning_curve

CELL = Cell("A", {"lpi": "on"}, 0.001, 3, "search", {"seed_everything": 3})


def result(folder: Path, **changes: Any) -> CellResult:
    values: dict[str, Any] = {
        "cell": folder.name,
        "arm": "A",
        "levels": {},
        "learning_rate": 0.001,
        "seed": 3,
        "stage": "confirm",
        "status": "done",
        "metrics": {"test/accuracy": 0.5},
        "predictions": folder / "predictions.npz",
        "folder": folder,
    }
    return CellResult(**{**values, **changes})


def test_a_record_comes_back_as_it_was_wherever_the_folder_is_moved(tmp_path: Path) -> None:
    folder = tmp_path / "here" / "cell"
    write_record(result(folder), folder)
    assert read_record(folder) == result(folder)
    moved = folder.rename(tmp_path / "cell")
    assert read_record(moved) == result(moved)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "{}",
        '{"cell": "cell"}',
        "\x00\x01",
        "NOT ONE CHARACTER LEFT",
    ],
)
def test_a_damaged_record_is_none(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "cell"
    write_record(result(folder), folder)
    (folder / "cell.json").write_text(text)
    assert read_record(folder) is None


@pytest.mark.parametrize("size", range(0, 400, 37))
def test_a_record_that_was_cut_off_is_none(tmp_path: Path, size: int) -> None:
    folder = tmp_path / "cell"
    write_record(result(folder), folder)
    file = folder / "cell.json"
    file.write_bytes(file.read_bytes()[:size])
    assert read_record(folder) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"cell": "another"},
        {"status": "half"},
        {"metrics": None},
        {"metrics": {"test/accuracy": "0.5"}},
        {"unknown": 1},
        {"swapped": ["Zero"]},
    ],
)
def test_a_record_of_another_kind_is_none(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = tmp_path / "cell"
    write_record(result(folder), folder)
    file = folder / "cell.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    assert read_record(folder) is None


def test_the_files_a_worker_needs_are_mended_and_not_written_twice(tmp_path: Path) -> None:
    write_cell(CELL, tmp_path)
    written = {name: (tmp_path / name).read_bytes() for name in ("plan.json", "cell.yaml")}
    times = {name: (tmp_path / name).stat().st_mtime_ns for name in written}
    write_cell(CELL, tmp_path)
    assert times == {name: (tmp_path / name).stat().st_mtime_ns for name in written}
    for name in written:
        (tmp_path / name).write_bytes(written[name][:7])
    write_cell(CELL, tmp_path)
    assert written == {name: (tmp_path / name).read_bytes() for name in written}
    assert json.loads(written["plan.json"])["cell"] == CELL.id


def test_swaps_are_in_the_plan_of_a_cell_and_not_in_its_id(tmp_path: Path) -> None:
    swaps = {"Zero": {"class_path": "isoattn.core.Zero", "init_args": {}}}
    cell = dataclasses.replace(CELL, swaps=swaps)
    assert cell.id == CELL.id
    write_cell(CELL, tmp_path)
    assert "swaps" not in json.loads((tmp_path / "plan.json").read_text())
    write_cell(cell, tmp_path)
    assert json.loads((tmp_path / "plan.json").read_text())["swaps"] == swaps


def test_a_swapped_score_that_is_not_finite_leaves_the_run_done(tmp_path: Path) -> None:
    swaps = {"Zero": {"class_path": "isoattn.core.Zero", "init_args": {}}}
    plan = {"cell": "c", "arm": "A", "levels": {}, "learning_rate": 0.1, "seed": 0}
    plan |= {"stage": "confirm", "swaps": swaps}
    metrics = {"test/accuracy": 0.5, "test/accuracy@Zero": math.nan}
    found = _record(plan, {}, tmp_path, "done", Scores(metrics, None, None))
    assert (found.status, found.metrics) == ("done", {"test/accuracy": 0.5})
    assert found.swapped == swaps
    assert found.scored_with("accuracy", "Zero") is None
    own = {"test/accuracy": math.nan, "test/accuracy@Zero": 0.5}
    assert _record(plan, {}, tmp_path, "done", Scores(own, None, None)).status == "diverged"


def test_a_record_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "cell"
    write_record(result(folder), folder)
    data = json.loads((folder / "cell.json").read_text())
    del data["swapped"]
    (folder / "cell.json").write_text(json.dumps(data))
    assert read_record(folder) == result(folder)


def test_attempts_and_crashes_are_counted_apart(tmp_path: Path) -> None:
    assert (attempts(tmp_path), crashes(tmp_path)) == (0, [])
    note(tmp_path, "attempts.log", "1")
    note(tmp_path, "attempts.log", "2")
    note(tmp_path, "crashes.log", "signal 9")
    assert (attempts(tmp_path), crashes(tmp_path)) == (2, ["signal 9"])


def test_a_claim_is_held_by_one_and_ends_with_its_holder(tmp_path: Path) -> None:
    assert not held(tmp_path)
    with claim(tmp_path) as first:
        assert first
        assert held(tmp_path)
        with claim(tmp_path) as second:
            assert not second
        assert held(tmp_path)  # asking does not let go
    assert not held(tmp_path)


def test_a_curve_has_a_row_an_epoch_and_finite_numbers_only(tmp_path: Path) -> None:
    assert learning_curve(tmp_path) == []
    (tmp_path / "metrics.csv").write_text(
        "epoch,step,lr-AdamW,train/loss_step,val/loss,val/accuracy,train/loss\n"
        "0,1,0.1,2.5,,,\n0,2,,,nan,0.5,\n0,2,,,,,1.5\n1,4,,,inf,0.25,\n1,4,,,,,0.5\n"
    )
    assert learning_curve(tmp_path) == [
        {"epoch": 0.0, "val/accuracy": 0.5, "train/loss": 1.5},
        {"epoch": 1.0, "val/accuracy": 0.25, "train/loss": 0.5},
    ]


def test_dotted_options_are_found_below_init_args() -> None:
    config: dict[str, Any] = {"data": {"class_path": "X", "init_args": {"batch_size": 1}}}
    set_dotted(config, "data.init_args.batch_size", 2)
    set_dotted(config, "model.optim.lr", 0.1)
    assert config == {
        "data": {"class_path": "X", "init_args": {"batch_size": 2}},
        "model": {"optim": {"lr": 0.1}},
    }


def test_an_arm_is_resolved_to_a_full_path_and_all_its_options() -> None:
    spec = {"class_path": "CrossCovariance", "init_args": {"temperature_init": 3.0}}
    assert resolved_arm(spec) == {
        "class_path": "isoattn.core.CrossCovariance",
        "init_args": {"temperature_init": 3.0, "learn_temperature": True},
    }


def test_a_cell_keeps_its_id_when_names_have_odd_characters() -> None:
    odd = dataclasses.replace(CELL, arm="a b/c:d")
    assert "/" not in odd.id
    assert " " not in odd.id
    assert odd.id.startswith("a_b_c_d-on-lr0.001-s3-")


def test_has_dotted_looks_into_the_options_of_classes() -> None:
    config = {"data": {"class_path": "X", "init_args": {"split": {"index": 0}}}, "seed": 1}
    assert has_dotted(config, "data.init_args.split.index")
    assert has_dotted(config, "data.split.index")
    assert has_dotted(config, "seed")
    assert not has_dotted(config, "data.split.fold")
    assert not has_dotted(config, "seed.more")
