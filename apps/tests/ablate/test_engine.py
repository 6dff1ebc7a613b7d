"""Whole studies: what a run leaves behind, what a second one does, what is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from isoattn.ablate.cells import read_record
from isoattn.ablate.engine import Engine, RunSettings, load_results, tracker_id
from isoattn.ablate.records import CellResult, StudyResults
from isoattn.ablate.report import write_report
from isoattn.ablate.study import StudyError, study_from_dict
from isoattn.ablate.summary import summarise
from isoattn.core.training.checkpoint import read_checkpoint

from .conftest import Finished
from .tiny import OPTIONS, outcome, rows, scraps, two_cells

PARTS = ("registered.json", "gate.json", "rates.json", "baselines.json", "costs.json")


def engine(raw: dict[str, Any], folder: Path, *, costs: bool = False, **settings: Any) -> Engine:
    study = study_from_dict(raw, where="test")
    made = Engine(study, folder, RunSettings(**{"jobs": 2, "tracker": "none", **settings}))
    if not costs:
        made.app.costs = lambda cases: []  # type: ignore[method-assign]
    return made


@pytest.fixture
def copy(finished: Finished, tmp_path: Path) -> Path:
    """The finished study in a folder that may be spoiled."""
    return Path(shutil.copytree(finished.folder, tmp_path / "copy"))


def by(results: StudyResults, stage: str) -> list[CellResult]:
    return [cell for cell in results.cells if cell.stage == stage]


# --- what a run leaves behind -------------------------------------------------------------------


def test_the_grid_grows_for_all_arms_when_the_best_rate_lies_at_its_edge(
    finished: Finished,
) -> None:
    assert finished.results.rates_tried == (0.001, 0.006, 0.036)
    tried = Counter(cell.learning_rate for cell in by(finished.results, "search"))
    assert tried == {0.001: 3, 0.006: 3, 0.036: 3}
    assert finished.results.unfinished == 0


def test_every_arm_is_confirmed_at_its_rate_and_scored_on_test_once(finished: Finished) -> None:
    confirmed = by(finished.results, "confirm")
    assert Counter(cell.arm for cell in confirmed) == {"Softmax": 2, "Again": 2, "Zero": 2}
    for cell in by(finished.results, "search"):
        assert not [name for name in cell.metrics if name.startswith("test/")]
    for cell in confirmed:
        assert 0 <= cell.metrics["test/accuracy"] <= 1
        judged = "test/accuracy_replaced" in cell.metrics
        assert judged == (cell.arm != "Zero")  # Zero has nothing to replace
        assert cell.replaced_by == ("Mean" if judged else None)
        assert cell.attempts == 1
        assert len(cell.curve) == 2


def test_predictions_are_those_of_the_test_metric(finished: Finished) -> None:
    for cell in by(finished.results, "confirm"):
        assert cell.predictions is not None
        with np.load(cell.predictions, allow_pickle=False) as data:
            right = float((data["label"] == data["predicted"]).mean())
            assert len(set(data["index"].tolist())) == len(data["index"])
        assert right == cell.metrics["test/accuracy"]


def test_baselines_costs_gate_and_report_are_there(finished: Finished) -> None:
    results = finished.results
    assert {k: set(v) for k, v in results.baselines.items()} == {"all": {"1-NN on pixels"}}
    assert {(cost.arm, cost.batch) for cost in results.costs} == {
        (arm, 64) for arm in finished.study.arms
    }
    assert all(cost.step_ms > 0 and cost.forward_flops > 0 for cost in results.costs)
    assert results.gate_failures == []
    for name in (*PARTS, "report.md", "report.html", "cells.csv", "summary.json"):
        assert (finished.folder / name).stat().st_size > 0, name
    assert scraps(finished.folder) == []
    assert len({row["cell"] for row in rows(finished.folder)}) == 15


# --- pairing (P3) -------------------------------------------------------------------------------


def test_cells_of_one_seed_are_paired_across_arms(finished: Finished) -> None:
    for seed in finished.study.confirm_seeds:
        of_seed = [c for c in by(finished.results, "confirm") if c.seed == seed]
        assert len({c.init_hash for c in of_seed}) == 1
        assert len({tuple(c.batch_hashes) for c in of_seed}) == 1
        assert len(of_seed[0].batch_hashes) == 2


def test_cells_of_two_seeds_differ(finished: Finished) -> None:
    one, two = (
        next(c for c in finished.results.cells if c.seed == seed and c.stage == "confirm")
        for seed in finished.study.confirm_seeds
    )
    assert one.init_hash != two.init_hash
    assert not set(one.batch_hashes) & set(two.batch_hashes)


def test_the_twin_of_the_baseline_comes_to_the_same_numbers(finished: Finished) -> None:
    """Same attention, same seed, another folder, another process: nothing may differ."""
    cells = {(c.arm, c.stage, c.seed, c.learning_rate): c for c in finished.results.cells}
    for (arm, *what), cell in cells.items():
        if arm == "Again":
            twin = cells["Softmax", *what]
            assert cell.metrics == twin.metrics
            assert cell.curve == twin.curve


# --- again --------------------------------------------------------------------------------------


def test_a_second_run_does_nothing_new_and_gives_the_same(
    finished: Finished, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {p: p.stat().st_mtime_ns for p in (copy / "cells").rglob("*") if p.is_file()}
    again = Engine(finished.study, copy, RunSettings(jobs=2, tracker="none"))
    results = again.run()
    write_report(finished.study, results, copy, differences="")
    after = {p: p.stat().st_mtime_ns for p in (copy / "cells").rglob("*") if p.is_file()}
    assert {p: t for p, t in after.items() if p.name != ".lock"} == {
        p: t for p, t in before.items() if p.name != ".lock"
    }
    assert rows(copy) == rows(finished.folder)
    assert outcome(copy) == outcome(finished.folder)
    said = capsys.readouterr().err.splitlines()
    assert "confirm: 6 of 6 cells are there already" in said
    assert not [line for line in said if "lr=" in line]


@pytest.mark.parametrize("name", ["gate.json", "rates.json", "baselines.json", "costs.json"])
@pytest.mark.parametrize("text", ["", "{", "[1", '"x"'])
def test_a_damaged_part_is_named_by_the_report(
    finished: Finished, copy: Path, name: str, text: str
) -> None:
    (copy / name).write_text(text)
    with pytest.raises(StudyError) as error:
        load_results(finished.study, copy)
    assert f"{name} is damaged" in str(error.value)
    assert f"isoattn ablate run {copy}" in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "{}"])
def test_a_damaged_registration_is_never_replaced(
    finished: Finished, copy: Path, text: str
) -> None:
    file = copy / "registered.json"
    file.write_text(text)
    for act in (
        Engine(finished.study, copy, RunSettings(tracker="none")).run,
        lambda: load_results(finished.study, copy),
    ):
        with pytest.raises(StudyError) as error:
            act()
        assert "registered.json is damaged" in str(error.value)
        assert "--out" in str(error.value)
    assert file.read_text() == text


def test_a_registration_that_was_edited_is_refused(finished: Finished, copy: Path) -> None:
    file = copy / "registered.json"
    data = json.loads(file.read_text())
    data["study"]["metric"]["margin"] = 0.2
    file.write_text(json.dumps(data))
    with pytest.raises(StudyError, match="registered.json is damaged"):
        load_results(finished.study, copy)


def test_what_is_damaged_is_made_anew_by_a_run(finished: Finished, copy: Path) -> None:
    """Half a file each; and a damaged record makes a cell unfinished, never a number."""
    parts = {name: (copy / name).read_bytes() for name in ("gate.json", "rates.json")}
    for name in parts:
        (copy / name).write_text("[")
    damages = ("cell.json", "plan.json", "cell.yaml", "result.json", "last.ckpt", "gone")
    spoiled = by(finished.results, "confirm")[: len(damages)]
    for before, damage in zip(spoiled, damages, strict=True):
        folder = copy / "cells" / before.cell
        (folder / "cell.json").write_text('{"cell": "Zero')
        if damage == "gone":
            shutil.rmtree(folder)
        elif damage != "cell.json":
            (file,) = folder.rglob(damage)
            file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(StudyError, match="rates.json"):
        load_results(finished.study, copy)
    results = Engine(finished.study, copy, RunSettings(tracker="none")).run()
    assert results.unfinished == 0
    assert parts == {name: (copy / name).read_bytes() for name in parts}
    same = ("metrics", "curve", "batch_hashes", "init_hash", "parameters", "status")
    for before, damage in zip(spoiled, damages, strict=True):
        after = read_record(copy / "cells" / before.cell)
        assert after is not None
        assert after.attempts == (1 if damage == "gone" else 2)
        assert [getattr(after, n) for n in same] == [getattr(before, n) for n in same], damage


def test_a_kill_between_the_last_and_the_best_checkpoint_selects_the_same(
    finished: Finished, copy: Path
) -> None:
    """The newest checkpoint was the best and did not come to be named so."""
    for before in finished.results.cells:
        checkpoints = copy / "cells" / before.cell / "checkpoints"
        state = read_checkpoint(checkpoints / "last.ckpt")
        if state["callbacks"]["RunCheckpoints"]["best_epoch"] == state["epoch"] == 1:
            break
    else:
        pytest.fail("no cell of the study is best at its end")
    shutil.copy(checkpoints / "last.previous.ckpt", checkpoints / "best.ckpt")
    (checkpoints.parent / "cell.json").unlink()
    Engine(finished.study, copy, RunSettings(tracker="none")).run()
    after = read_record(checkpoints.parent)
    assert after is not None
    assert after.metrics == before.metrics
    assert after.seconds == 0.0  # not known for a run that was taken up again


def test_a_damaged_record_counts_as_unfinished(finished: Finished, copy: Path) -> None:
    (copy / "cells" / finished.results.cells[-1].cell / "cell.json").write_text("{}")
    assert load_results(finished.study, copy).unfinished == 1


# --- registration (P0) --------------------------------------------------------------------------


def test_a_changed_study_is_refused_by_its_keys_and_amended_on_demand(tmp_path: Path) -> None:
    engine(two_cells(), tmp_path).register()
    engine(two_cells(), tmp_path).register()  # the same: nothing to say
    changed = two_cells(confirm_seeds=[0, 1], metric={"margin": 0.02})
    with pytest.raises(StudyError) as error:
        engine(changed, tmp_path).register()
    assert "confirm_seeds: [0] -> [0, 1]" in str(error.value)
    assert "metric.margin: 0.01 -> 0.02" in str(error.value)
    assert "--amend" in str(error.value)
    for name in ("gate.json", "costs.json"):
        (tmp_path / name).write_text("[]")
    engine(changed, tmp_path, amend=True).register()
    assert not (tmp_path / "gate.json").exists()  # of other arms, perhaps
    engine(changed, tmp_path).register()  # accepted from now on
    with pytest.raises(StudyError, match="--amend"):
        engine(two_cells(), tmp_path).register()  # back again is a change as well
    results = load_results(study_from_dict(changed, where="x"), tmp_path)
    assert len(results.deviations) == 2
    assert results.deviations[0].endswith("confirm_seeds: [0] -> [0, 1]")


def test_a_base_config_that_changed_is_a_changed_study(tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text("trainer: {gradient_clip_val: 1.0}\n")
    raw = two_cells(configs=["xcit_digits", str(base)])
    engine(raw, tmp_path / "out").register()
    base.write_text("trainer: {gradient_clip_val: 2.0}\n")
    with pytest.raises(StudyError) as error:
        engine(raw, tmp_path / "out").register()
    message = str(error.value)
    assert message.count("resolved config, trainer.gradient_clip_val: 1.0 -> 2.0") == 1


def test_a_study_whose_arms_differ_elsewhere_never_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = engine(two_cells(), tmp_path)
    study.plan.base("Zero", {})["trainer"]["max_epochs"] = 9
    with pytest.raises(StudyError, match=r"trainer.max_epochs \(2 against 9\)"):
        study.run()
    assert not (tmp_path / "cells").exists()


# --- cells that go wrong ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory, planted: str) -> tuple[Engine, StudyResults]:
    arms = {
        "Softmax": "isoattn.core.Softmax",
        **{name: f"{planted}.{name}" for name in ("Poison", "Raises", "Killed", "Leaky")},
    }
    raw = two_cells(arms=arms, overrides={**OPTIONS, "trainer.max_epochs": 1})
    study = engine(raw, tmp_path_factory.mktemp("troubled"), costs=True)
    # Measuring would lose its process to the attention that kills it; a study survives that too.
    return study, study.run()


def cell_of(results: StudyResults, arm: str) -> CellResult:
    (cell,) = [cell for cell in results.cells if cell.arm == arm]
    return cell


def test_a_cell_that_crashes_is_failed_after_three_attempts_and_the_study_ends(
    troubled: tuple[Engine, StudyResults],
) -> None:
    raised, killed = (cell_of(troubled[1], arm) for arm in ("Raises", "Killed"))
    assert (raised.status, raised.attempts) == ("failed", 3)
    assert raised.error == "exit status 1: IndexError: planted"
    assert (killed.status, killed.attempts) == ("failed", 3)
    assert killed.error.startswith("signal 9")
    assert troubled[1].unfinished == 0
    assert cell_of(troubled[1], "Softmax").status == "done"


def test_a_cell_that_diverges_is_recorded_once_and_never_tried_again(
    troubled: tuple[Engine, StudyResults],
) -> None:
    cell = cell_of(troubled[1], "Poison")
    assert (cell.status, cell.attempts) == ("diverged", 1)
    assert "NaN" in cell.error
    assert cell.metrics == {}


def test_a_study_without_its_cost_table_is_still_a_study(
    troubled: tuple[Engine, StudyResults],
) -> None:
    assert troubled[1].costs == []
    assert not (troubled[0].folder / "costs.json").exists()


def test_what_went_wrong_is_in_the_report_and_blocks_the_verdicts(
    troubled: tuple[Engine, StudyResults],
) -> None:
    study, results = troubled[0].study, troubled[1]
    paths = write_report(study, results, troubled[0].folder, differences="")
    text = paths.markdown.read_text(encoding="utf-8")
    assert "IndexError: planted" in text
    assert "signal 9" in text
    found = {row["arm"]: row for row in summarise(study, results)["results"]}
    assert found["Raises"]["verdict"] == found["Killed"]["verdict"] == "blocked"
    assert found["Leaky"]["verdict"] == "blocked"  # by the gate (P4)
    assert "conformance gate failed: Leaky" in str(found["Leaky"])
    assert found["Poison"]["verdict"] == "no claim"
    assert "Leaky" in (troubled[0].folder / "gate.json").read_text()


def test_a_diverged_cell_counts_as_the_worst_result(
    troubled: tuple[Engine, StudyResults],
) -> None:
    study, results = troubled[0].study, troubled[1]
    claim = dataclasses.replace(study, claim=True)
    row = {r["arm"]: r for r in summarise(claim, results)["results"]}["Poison"]
    baseline = cell_of(results, "Softmax").metrics["test/accuracy"]
    assert row["difference"]["mean"] == pytest.approx(0.0 - baseline)


def test_a_huge_rate_diverges_or_ends_but_never_fails(tmp_path: Path) -> None:
    options = {**OPTIONS, "trainer.gradient_clip_val": None}
    raw = two_cells(search={"values": [1e12], "seeds": []}, overrides=options)
    results = engine(raw, tmp_path).run()
    assert {cell.status for cell in results.cells} <= {"diverged", "done"}
    assert "diverged" in {cell.status for cell in results.cells}
    assert all(cell.attempts == 1 for cell in results.cells)


# --- settings -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_results_do_not_depend_on_the_number_of_jobs(finished: Finished, tmp_path: Path) -> None:
    study = dataclasses.replace(finished.study)
    results = Engine(study, tmp_path, RunSettings(jobs=2, tracker="none")).run()
    write_report(study, results, tmp_path, differences="")
    assert rows(tmp_path) == rows(finished.folder)
    assert outcome(tmp_path) == outcome(finished.folder)


def test_a_study_with_one_rate_searches_nothing(tmp_path: Path) -> None:
    """Also where an earlier, amended version of it did."""
    (tmp_path / "rates.json").write_text("[0.001, 0.01]")
    results = engine(two_cells(), tmp_path).run()
    assert results.rates_tried == (0.006,)
    assert [cell.stage for cell in results.cells] == ["confirm", "confirm"]
    assert results.unfinished == 0


def test_ids_of_a_tracker_are_never_read_as_numbers() -> None:
    """Some digests are: 123456e78901 is infinite."""
    ids = [tracker_id("group", str(number)) for number in range(2000)]
    assert len(set(ids)) == 2000
    assert all(isinstance(yaml.safe_load(one), str) and not one[0].isdigit() for one in ids)
