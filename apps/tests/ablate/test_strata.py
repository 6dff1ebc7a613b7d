"""Scores over groups of test items, as the report shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from isoattn.ablate.records import CellResult
from isoattn.ablate.report import write_report
from isoattn.ablate.summary import summarise

from .fake_results import change, diverged, make_results, make_study


def with_groups(cell: CellResult) -> CellResult:
    """The score of a whole run in two groups, one of which is harder for all but Softmax."""
    if cell.stage != "confirm":
        return cell
    score = cell.metrics["test/accuracy"]
    hard = score if cell.arm == "Softmax" else score - 0.1
    groups = {"< 10": {"items": 30.0, "accuracy": score}, "≥ 10": {"items": 20.0, "accuracy": hard}}
    return change(cell, strata={"rotation": groups})


def test_groups_are_compared_with_the_baseline_by_seed() -> None:
    study = make_study(factors={})
    rows = summarise(study, make_results(study, spoil=with_groups))["strata"]
    assert len(rows) == 2 * len(study.arms)
    found = {(row["group"], row["arm"]): row for row in rows}
    assert found["< 10", "Softmax"]["difference"] is None
    easy, hard = (found[group, "Linear"]["difference"]["mean"] for group in ("< 10", "≥ 10"))
    assert hard - easy == pytest.approx(-0.1)
    assert found["≥ 10", "Linear"]["items"] == 20 and found["≥ 10", "Linear"]["n"] == 6


def test_a_diverged_run_has_no_groups_and_no_pair() -> None:
    study = make_study(factors={})

    def spoil(cell: CellResult) -> CellResult:
        lost = (cell.arm, cell.stage, cell.seed) == ("Softmax", "confirm", 0)
        return diverged(cell) if lost else with_groups(cell)

    rows = summarise(study, make_results(study, spoil=spoil))["strata"]
    (row,) = [r for r in rows if (r["arm"], r["group"]) == ("Linear", "< 10")]
    assert row["n"] == 6 and row["difference"]["n"] == 5


def test_the_report_has_a_chart_and_a_table(tmp_path: Path) -> None:
    study = make_study()
    paths = write_report(study, make_results(study, spoil=with_groups), tmp_path)
    text = paths.markdown.read_text(encoding="utf-8")
    block = text.partition("## By stratum")[2].partition("\n## ")[0]
    assert "| rotation | items | arm | runs |" in block
    assert block.count("| ≥ 10 | 20 | Linear |") == 2  # at both levels of the factor
    svg = (tmp_path / "figures" / "strata.svg").read_text(encoding="utf-8")
    assert "rotation, lpi" in svg and "≥ 10" in svg


def test_no_strata_no_section(tmp_path: Path) -> None:
    study = make_study()
    text = write_report(study, make_results(study), tmp_path).markdown.read_text(encoding="utf-8")
    assert "stratum" not in text
