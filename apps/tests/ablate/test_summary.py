from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import numpy as np
import pytest

from isoattn.ablate.records import StudyResults
from isoattn.ablate.report.appendix import controls
from isoattn.ablate.report.wording import Scale, level_text, p_text, plain_number, rate_text
from isoattn.ablate.study import Metric, level_name
from isoattn.ablate.summary import final_table, plain, summarise, timing_table

from .fake_results import change, diverged, failed, make_results, make_study

MEASURED = ("costs", "timing")


def test_a_summary_is_json_without_nan() -> None:
    study = make_study(confirm_seeds=[0])
    summary = summarise(study, make_results(study))
    text = json.dumps(summary, allow_nan=False)
    assert json.loads(text) == summary
    assert summary["results"][1]["difference"]["low"] is None, "one pair bounds nothing"


def test_order_and_time_change_nothing_but_what_is_measured() -> None:
    study = make_study()
    results = make_results(study)
    cells = [change(cell, seconds=cell.seconds * 1.7, attempts=2) for cell in results.cells]
    random.Random(0).shuffle(cells)
    one = summarise(study, results)
    two = summarise(study, dataclasses.replace(results, cells=cells, costs=results.costs[::-1]))
    assert final_table(one) == final_table(two)
    assert timing_table(one) != timing_table(two)
    for key in one:
        if key not in MEASURED:
            assert one[key] == two[key], key


def test_final_table_has_a_row_per_level_set_and_arm_and_no_time() -> None:
    study = make_study()
    table = final_table(summarise(study, make_results(study)))
    assert len(table) == 10
    assert list(table[0]) == [
        *("levels", "arm", "rate", "runs", "accuracy (%)", "SD", "difference", "95 % interval"),
        *("pairs", "p sign-flip", "p Holm", "verdict"),
    ]
    assert table[0]["arm"] == "Softmax (baseline)"
    assert (table[1]["verdict"], table[1]["p sign-flip"]) == ("worse", ".0312")
    assert float(table[0]["accuracy (%)"]) == pytest.approx(91.6, abs=1)
    assert len(timing_table(summarise(study, make_results(study)))) == 10


def test_parameters_are_compared_with_the_baseline_and_flagged_above_two_percent() -> None:
    study = make_study(factors={})
    results = make_results(
        study, spoil=lambda c: change(c, parameters=170_000) if c.arm == "Linear" else c
    )
    rows = {row["arm"]: row for row in summarise(study, results)["parameters"]}
    assert rows["Softmax"]["percent"] == 0
    assert rows["CrossCovariance"]["attention_parameters"] == 12
    assert not rows["CrossCovariance"]["flagged"]
    assert rows["Linear"]["percent"] == pytest.approx(100 * (170_000 / 161_290 - 1))
    assert rows["Linear"]["flagged"]


def test_baselines_say_who_beats_them() -> None:
    study = make_study(factors={})
    results = dataclasses.replace(make_results(study), baselines={})
    results.baselines["all"] = {"1-NN": 0.999, "chance": 0.1}
    first, second = summarise(study, results)["baselines"]
    assert first == {"name": "1-NN", "level": "all", "value": 0.999, "beaten_by": []}
    assert len(second["beaten_by"]) == 5


def test_a_baseline_of_one_level_is_compared_with_the_runs_of_that_level() -> None:
    study = make_study()
    level = level_name(study.level_sets[0])
    results = dataclasses.replace(make_results(study), baselines={level: {"chance": 0.1}})
    summary = summarise(study, results)
    (only,) = summary["baselines"]
    assert {row["level"] for row in only["beaten_by"]} == {level} and len(only["beaten_by"]) == 5
    (_, bullets) = controls(summary, Scale.of(study.metric))
    assert any(f"chance ({level_text(level)}): 10.0 %" in line for line in bullets.items)


def test_troubles_are_listed() -> None:
    study = make_study(factors={})

    def spoil(cell):  # type: ignore[no-untyped-def]
        where = cell.arm, cell.stage, cell.seed
        if where == ("Linear", "confirm", 2):
            return failed(cell)
        if where == ("Mean", "search", 100):
            return diverged(cell)
        return change(cell, batch_hashes=["x"] * 12) if where == ("Zero", "confirm", 1) else cell

    results = make_results(study, spoil=spoil)
    stray = change(results.cells[-1], learning_rate=0.123)
    results = dataclasses.replace(
        results, cells=[*results.cells, stray], unfinished=3, deviations=["margin: .01 -> .02"]
    )
    summary = summarise(study, results)
    found = summary["troubles"]
    assert [c["seed"] for c in found["failed"]] == [2]
    assert len(found["diverged"]) == 5
    assert found["void"] == [
        {"arm": "Zero", "level": "all", "seed": 1, "reason": "batches differ from epoch 0 on"}
    ]
    assert [c["rate"] for c in found["other_rate"]] == [0.123]
    assert not summary["status"]["registered"]
    assert summary["status"]["planned"] == len(results.cells) + 3
    assert "unfinished: 81 of 84 cells" in summary["status"]["warnings"]


def test_items_are_compared_where_predictions_exist(tmp_path: Path) -> None:
    study = make_study(factors={})
    summary = summarise(study, make_results(study, folder=tmp_path))
    items = {item["arm"]: item for item in summary["items"]}
    assert set(items) == set(study.arms) - {"Softmax"}
    row = next(r for r in summary["results"] if r["arm"] == "CrossCovariance")
    item = items["CrossCovariance"]
    assert item["bootstrap"]["mean"] == pytest.approx(row["difference"]["mean"], abs=0.001)
    assert item["bootstrap"]["low"] < row["difference"]["mean"] < item["bootstrap"]["high"]
    assert (item["pooled"]["items"], item["pooled"]["p"]) == (6000, None)
    assert all(table["p"] < 0.05 for table in item["mcnemar"].values())


def test_predictions_of_other_items_or_broken_files_are_left_out(tmp_path: Path) -> None:
    study = make_study(factors={})
    results = make_results(study, folder=tmp_path)
    first = next(c for c in results.cells if c.predictions and c.arm == "Linear" and c.seed == 0)
    second = next(c for c in results.cells if c.predictions and c.arm == "Linear" and c.seed == 1)
    assert first.predictions is not None and second.predictions is not None
    np.savez(first.predictions, index=[1, 2], label=[0, 1], predicted=[0, 1])
    second.predictions.write_bytes(b"half a file")
    summary = summarise(study, results)
    linear = next(item for item in summary["items"] if item["arm"] == "Linear")
    assert set(linear["mcnemar"]) == {"2", "3", "4", "5"}


def test_equal_wall_clock_cuts_the_slower_arm() -> None:
    study = make_study(factors={})
    results = make_results(
        study, spoil=lambda c: change(c, seconds=200.0 if c.arm == "Softmax" else 50.0)
    )
    rows = {row["arm"]: row for row in summarise(study, results)["timing"]["arms"]}
    curve = [c.curve for c in results.cells if (c.arm, c.stage) == ("Softmax", "confirm")]
    expected = np.mean([rows[2]["val/accuracy"] for rows in curve])
    assert rows["Softmax"]["equal_time"] == pytest.approx(expected)
    assert rows["Linear"]["equal_time"] > rows["Softmax"]["equal_time"]


def test_dominated_arms_are_slower_and_worse() -> None:
    study = make_study(factors={})
    costs = {c["arm"]: c for c in summarise(study, make_results(study))["costs"]}
    assert costs["CrossCovariance"]["dominated_by"] == ["Linear"]
    assert costs["Softmax"]["dominated_by"] == []


def test_nothing_yet() -> None:
    study = make_study()
    summary = summarise(study, StudyResults(cells=[], unfinished=160))
    assert [row["verdict"] for row in final_table(summary)][:3] == [
        *("baseline", "unfinished", "unfinished"),
    ]
    assert summary["results"][0]["rate"] is None
    assert timing_table(summary) == []


# Numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "value", "signed", "amount"),
    [
        (Metric(), "93.4", "−10.1", "10.1 points"),
        (Metric(margin=0.005), "93.42", "−10.12", "10.12 points"),
        (Metric("val_loss", "min", 0.02), "0.934", "−0.101", "0.101 in val_loss"),
        (Metric("epe", "min", 0.0), "0.9342", "−0.1012", "0.1012 in epe"),
    ],
)
def test_scale(metric: Metric, value: str, signed: str, amount: str) -> None:
    scale = Scale.of(metric)
    assert scale.value(0.9342) == value
    assert scale.signed(-0.1012) == signed
    assert scale.amount(-0.1012) == amount
    assert scale.signed(0.0) == scale.value(0.0)
    assert scale.value(None) == scale.value(float("nan")) == "–"


def test_small_numbers() -> None:
    assert [p_text(p) for p in (0.03125, 0.25, 1.0, 1e-9, None)] == [
        *(".0312", ".25", "1.00", "< .0001", "–"),
    ]
    assert [rate_text(r) for r in (3e-3, 0.05, 1.0, None)] == ["3e-3", "5e-2", "1", "–"]
    assert plain_number(-0.04, 1) == "0.0"


def test_plain_data() -> None:
    value = plain({1: (np.float64(2), np.int64(3)), "path": Path("x"), "inf": float("inf")})
    assert value == {"1": [2.0, 3], "path": "x", "inf": None}
