"""References and swaps in whole studies: run, stopped and gone on with, amended, damaged."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from isoattn.ablate.cells import attempts
from isoattn.ablate.engine import Engine, RunSettings, load_results
from isoattn.ablate.records import CellResult
from isoattn.ablate.report import write_report
from isoattn.ablate.study import StudyError, study_from_dict
from isoattn.ablate.summary import summarise

from .conftest import Finished
from .fake_runs import Stopped, fake_costs, fake_engine, fake_run_jobs, made_up
from .tiny import BESIDE, OPTIONS, outcome, rows, two_cells


@pytest.fixture
def copy(beside: Finished, tmp_path: Path) -> Path:
    """The finished study in a folder that may be spoiled."""
    return Path(shutil.copytree(beside.folder, tmp_path / "copy"))


def confirmed(cells: Sequence[CellResult], arm: str) -> CellResult:
    (cell,) = [c for c in cells if (c.arm, c.stage) == (arm, "confirm")]
    return cell


def test_a_reference_is_searched_and_confirmed_like_an_arm_with_a_grid_of_its_own(
    beside: Finished,
) -> None:
    results = beside.results
    assert results.unfinished == 0
    assert {cell.arm for cell in results.cells} == {"Softmax", "Zero"}
    assert {cell.arm for cell in results.references} == {"ViT"}
    assert results.rates_tried == (0.001, 0.006, 0.036)
    assert results.reference_rates == {"ViT": (0.000167, 0.001, 0.006)}
    tried = [c.learning_rate for c in results.references if c.stage == "search"]
    assert sorted(tried) == [0.000167, 0.001, 0.006]
    found = confirmed(results.references, "ViT")
    assert found.learning_rate == 0.000167
    assert set(found.metrics) == {"val/accuracy", "test/accuracy"}  # not asked, not swapped
    text = (beside.folder / "differences.txt").read_text()
    assert "Softmax -> ViT (all): beside, not judged: another network" in text


def test_a_reference_is_paired_costed_and_shown(beside: Finished) -> None:
    (row,) = summarise(beside.study, beside.results)["references"]
    assert (row["void"], row["n"], row["difference"]["n"]) == ({}, 1, 1)
    assert row["costs"] == {
        **{"forward_flops": 10, "step_ms": 2.0, "peak_mib": 3.0, "median_seconds": 1.0},
    }


def test_every_arm_is_scored_with_the_attention_of_the_others(beside: Finished) -> None:
    for cell in beside.results.cells:
        names = {name.partition("@")[2] for name in cell.metrics if "@" in name}
        others = {"Softmax": {"Zero"}, "Zero": {"Softmax"}}[cell.arm]
        assert names == set(cell.swapped) == (others if cell.stage == "confirm" else set())
    assert len(summarise(beside.study, beside.results)["swaps"]) == 2


def test_tags_tell_references_from_arms(beside: Finished) -> None:
    engine = Engine(beside.study, beside.folder, RunSettings(tracker="none"))
    (tags,) = {engine._identity(c)[1] for c in engine.plan.search_cells((0.1,), "ViT")}
    assert tags == '--wandb.tags=["ViT", "search", "reference"]'
    assert not [c for c in engine.plan.search_cells((0.1,)) if "ref" in engine._identity(c)[1]]


@pytest.mark.parametrize("ended", [0, 3, 8, 9, 11])
def test_a_study_that_was_stopped_anywhere_comes_to_the_same_result(
    beside: Finished, tmp_path: Path, ended: int
) -> None:
    """In a search, between arms and references, in a reference: no cell is run twice or lost."""
    raw = two_cells(**BESIDE)
    folder = tmp_path / "out"
    with fake_engine(raw, folder, fake_run_jobs(stop_after=ended)) as engine:
        with pytest.raises(Stopped):
            engine.run()
        part = engine.results()
        assert len(part.cells) + len(part.references) == ended
        assert part.unfinished > 0
    with fake_engine(raw, folder) as engine:
        results = engine.run()
    write_report(engine.study, results, folder)
    assert results == dataclasses.replace(
        beside.results,
        cells=[
            dataclasses.replace(c, folder=folder / "cells" / c.cell) for c in beside.results.cells
        ],
        references=[
            dataclasses.replace(c, folder=folder / "cells" / c.cell)
            for c in beside.results.references
        ],
        environment=results.environment,
    )
    assert rows(folder) == rows(beside.folder)
    assert outcome(folder) == outcome(beside.folder)
    assert {attempts(cell) for cell in (folder / "cells").iterdir()} == {1}


def test_a_swap_that_was_scored_with_other_options_does_not_count(
    beside: Finished, copy: Path
) -> None:
    """An arm that was amended since: its own cells are others, the scores with it stay behind."""
    cell = confirmed(beside.results.cells, "Softmax")
    file = copy / "cells" / cell.cell / "cell.json"
    data = json.loads(file.read_text())
    data["swapped"]["Zero"]["init_args"] = {"eps": 1.0}
    file.write_text(json.dumps(data))
    found = confirmed(load_results(beside.study, copy).cells, "Softmax")
    assert found.swapped == {}
    assert found.metrics == {k: v for k, v in cell.metrics.items() if k != "test/accuracy@Zero"}


def test_damaged_rates_of_references_are_named(beside: Finished, copy: Path) -> None:
    for text in ("", "[1", '{"ViT": 3}', '{"ViT": []}'):
        (copy / "reference_rates.json").write_text(text)
        with pytest.raises(StudyError, match=r"reference_rates.json is damaged"):
            load_results(beside.study, copy)


def test_a_study_that_has_run_can_be_amended_by_a_reference_and_swaps(
    beside: Finished, tmp_path: Path
) -> None:
    """Not one cell of an arm runs again, and the report says what was added."""
    plain = {k: v for k, v in BESIDE.items() if k not in ("references", "swaps")}
    with fake_engine(two_cells(**plain), tmp_path) as engine:
        before = engine.run()
    assert (before.references, before.reference_rates) == ([], {})
    assert [c.cell for c in before.cells] == [c.cell for c in beside.results.cells]
    times = {p: p.stat().st_mtime_ns for p in tmp_path.glob("cells/*/cell.json")}
    with (
        fake_engine(two_cells(**BESIDE), tmp_path) as engine,
        pytest.raises(StudyError, match=r"references: None -> {'ViT'"),
    ):
        engine.run()
    with fake_engine(two_cells(**BESIDE), tmp_path, amend=True) as engine:
        results = engine.run()
    after = {p: p.stat().st_mtime_ns for p in tmp_path.glob("cells/*/cell.json")}
    assert times.items() <= after.items()
    assert results.unfinished == 0
    assert [line.rpartition("00: ")[2] for line in results.deviations] == [
        "references: None -> {'ViT': {'model.network': 'isoattn.vision.ViT'}}",
        "swaps: None -> ['Softmax', 'Zero']",
    ]
    assert [c.metrics for c in results.references] == [c.metrics for c in beside.results.references]
    # Scored before the study named them.
    assert all(swap["unscored"] == [0] for swap in summarise(engine.study, results)["swaps"])


def test_a_reference_that_failed_blocks_nothing_and_its_cost_is_left_out(tmp_path: Path) -> None:
    def make(plan: dict[str, Any], controls: Sequence[str]) -> CellResult:
        cell = made_up(plan, controls)
        if plan["arm"] == "ViT":
            return dataclasses.replace(cell, status="failed", metrics={}, error="out of memory")
        return cell

    def costs(cases: Sequence[Any]) -> list[Any]:
        if any(name == "ViT" for name, _, _ in cases):
            raise RuntimeError("out of memory")
        return fake_costs(cases)

    with fake_engine(two_cells(**BESIDE), tmp_path, fake_run_jobs(make)) as engine:
        engine.app.costs = costs  # type: ignore[method-assign, assignment]
        said: list[str] = []
        engine.speaker.say = lambda text, style=None: said.append(text)  # type: ignore[method-assign]
        results = engine.run()
    assert "cost of references not measured: out of memory" in said
    assert {cost.arm for cost in results.costs} == {"Softmax", "Zero"}
    assert {cell.status for cell in results.references} == {"failed"}
    summary = summarise(engine.study, results)
    assert {row["verdict"] for row in summary["results"]} == {"baseline", "no claim"}
    text = write_report(engine.study, results, tmp_path).markdown.read_text(encoding="utf-8")
    assert "Failed on every attempt: ViT-lr0.001-s100" in text


@pytest.mark.slow
def test_another_network_sees_the_batches_of_the_arms(beside_trained: Finished) -> None:
    arm = confirmed(beside_trained.results.cells, "Softmax")
    other = confirmed(beside_trained.results.references, "ViT")
    assert other.batch_hashes == arm.batch_hashes
    assert other.init_hash != arm.init_hash
    assert "test/accuracy@Zero" in arm.metrics
    (row,) = summarise(beside_trained.study, beside_trained.results)["references"]
    assert (row["void"], row["difference"]["n"]) == ({}, 1)
    assert row["costs"]["step_ms"] > 0  # measured with the arms, interleaved


@pytest.mark.slow
def test_a_network_of_the_users_is_imported_by_its_cells(tmp_path: Path, planted: str) -> None:
    raw = two_cells(
        references={"Broken": {"model.network": f"{planted}.BrokenViT"}},
        overrides={**OPTIONS, "trainer.max_epochs": 1},
    )
    study = study_from_dict(raw, where="test")
    results = Engine(study, tmp_path, RunSettings(jobs=2, tracker="none")).run()
    (cell,) = results.references
    assert (cell.status, cell.attempts) == ("failed", 3)
    assert cell.error == "exit status 1: IndexError: planted network"
