"""References: what is shown of them, and that nothing that is judged reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isoattn.ablate.records import CellResult, StudyResults
from isoattn.ablate.report import write_report
from isoattn.ablate.selection import edges
from isoattn.ablate.study import Study
from isoattn.ablate.summary import final_table, reference_table, summarise

from .fake_results import change, diverged, failed, make_results, make_study

BESIDE: dict[str, Any] = {
    "references": {
        "GCN": {"model.network": "isoattn.graph.models.GCN"},
        "MLP": {"model.network": "isoattn.graph.models.MLP", "model.network.init_args.hidden": 8},
    },
    "reference_levels": {"GCN": {"lpi": "off"}},
}
SKILL = {"Softmax": 0.92, "CrossCovariance": 0.82, "Linear": 0.915, "Mean": 0.41, "Zero": 0.42}
SKILLS = {**SKILL, "GCN": 0.87, "MLP": 0.6}


def beside(
    spoil: Callable[[CellResult], CellResult] = lambda cell: cell, **changes: Any
) -> tuple[Study, StudyResults]:
    study = make_study(**{**BESIDE, **changes})
    return study, make_results(study, skill=SKILLS, spoil=spoil)


def row_of(summary: dict[str, Any], name: str, level: str = "lpi=off") -> dict[str, Any]:
    (row,) = [r for r in summary["references"] if (r["arm"], r["level"]) == (name, level)]
    return dict(row)


def only(name: str, spoil: Callable[[CellResult], CellResult]) -> Callable[[CellResult], Any]:
    return lambda cell: spoil(cell) if cell.arm == name else cell


JUDGED = ("verdict", "level_verdicts", "results", "search", "usage", "gauges", "interactions")
JUDGED += ("self_checks", "items", "parameters", "baselines", "curves")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda cell: cell,
        failed,
        diverged,
        lambda cell: change(cell, metrics={k: -5.0 for k in cell.metrics}),
        lambda cell: change(cell, batch_hashes=["x"], parameters=7),
    ],
    ids=["as it is", "failed", "diverged", "worse than the worst", "other batches"],
)
def test_whatever_becomes_of_a_reference_the_arms_are_judged_the_same(
    spoil: Callable[[CellResult], CellResult],
) -> None:
    """An arm diverged, so that the worst result counts; the reference must not make it worse."""

    def both(cell: CellResult) -> CellResult:
        if cell.arm in BESIDE["references"]:
            return spoil(cell)
        return diverged(cell) if (cell.arm, cell.seed) == ("Linear", 1) else cell

    alone = make_study()
    study, results = beside(both)
    with_them = summarise(study, results)
    without = summarise(alone, make_results(alone, skill=SKILLS, spoil=both))
    for key in JUDGED:
        assert with_them[key] == without[key], key
    assert with_them["costs"] == without["costs"]
    assert final_table(with_them) == final_table(without)


def test_a_reference_has_its_own_rate_and_a_difference_to_the_baseline() -> None:
    study, results = beside()
    row = row_of(summarise(study, results), "MLP")
    assert (row["rate"], row["n"], row["missing"], row["void"]) == (3e-3, 6, [], {})
    assert [point["rate"] for point in row["search"]["curve"]] == list(study.search.values)
    assert row["mean"] == pytest.approx(0.596, abs=0.01)
    assert row["difference"]["mean"] == pytest.approx(-0.32, abs=0.01)
    assert row["difference"]["low"] < row["difference"]["mean"] < row["difference"]["high"]
    assert row["parameters"] == 161_290
    assert row["costs"]["step_ms"] > 0
    assert row["options"] == BESIDE["references"]["MLP"]


def test_the_grid_of_a_reference_grows_by_its_own_best_rate_alone() -> None:
    study, results = beside(factors={}, reference_levels={})
    rates = study.search.values
    at_edge = [
        change(c, metrics={"val/accuracy": 0.9 - c.learning_rate})
        for c in results.references
        if c.arm == "MLP" and c.stage == "search"
    ]
    assert edges(study.of_reference("MLP"), at_edge, rates) == {"low"}
    assert edges(study.of_reference("GCN"), results.references, rates) == set()
    assert edges(study, [*results.cells, *at_edge], rates) == set()


def test_a_reference_at_one_level_stands_beside_the_others_too() -> None:
    study, results = beside()
    assert {level for c in results.references if c.arm == "GCN" for level in c.levels.items()} == {
        ("lpi", "off")
    }
    summary = summarise(study, results)
    off, on = row_of(summary, "GCN"), row_of(summary, "GCN", "lpi=on")
    assert off["run_at"] == on["run_at"] == "lpi=off"
    assert off["values"] == on["values"]
    # Paired with the baseline of its own level set, which the factor helps.
    assert on["difference"]["mean"] < off["difference"]["mean"]
    assert row_of(summary, "MLP", "lpi=on")["run_at"] == "lpi=on"


def test_a_reference_is_paired_by_its_batches_whatever_its_weights() -> None:
    study, results = beside(
        lambda c: change(c, batch_hashes=["x"] * 12) if (c.arm, c.seed) == ("MLP", 2) else c
    )
    own = {c.init_hash for c in results.references} & {c.init_hash for c in results.cells}
    assert not own
    row = row_of(summarise(study, results), "MLP")
    assert row["void"] == {"2": "batches differ from epoch 0 on"}
    assert (row["n"], row["difference"]["n"]) == (6, 5)


def test_a_reference_that_failed_is_listed_and_one_that_diverged_counts_as_the_worst() -> None:
    def spoil(cell: CellResult) -> CellResult:
        if (cell.arm, cell.stage, cell.seed) == ("GCN", "confirm", 3):
            return failed(cell)
        return (
            diverged(cell) if (cell.arm, cell.stage, cell.seed) == ("MLP", "confirm", 0) else cell
        )

    study, results = beside(spoil, factors={}, reference_levels={})
    summary = summarise(study, results)
    gcn, mlp = (row_of(summary, name, "all") for name in ("GCN", "MLP"))
    assert [cell["seed"] for cell in gcn["failed"]] == [3]
    assert (gcn["n"], gcn["difference"]["n"]) == (5, 5)
    assert (mlp["diverged"], mlp["values"]["0"]) == ([0], 0.0)
    assert summary["troubles"]["failed"] == summary["troubles"]["diverged"] == []
    assert summary["results"][2]["verdict"] != "blocked"


def test_no_run_yet_is_shown_as_such() -> None:
    study, results = beside()
    nothing = dataclasses.replace(results, references=[], costs=[], unfinished=30)
    summary = summarise(study, nothing)
    row = row_of(summary, "MLP")
    assert (row["rate"], row["n"], row["mean"], row["difference"]) == (None, 0, None, None)
    assert row["missing"] == list(range(6))
    assert reference_table(summary)[0]["rate"] == "–"
    assert "unfinished: 160 of 190 cells" in summary["status"]["warnings"]


def test_the_table_beside_has_a_row_per_level_set_and_reference() -> None:
    study, results = beside()
    table = reference_table(summarise(study, results))
    assert [(row["levels"], row["reference"]) for row in table] == [
        *(("lpi=off", "GCN"), ("lpi=off", "MLP"), ("lpi=on", "GCN"), ("lpi=on", "MLP")),
    ]
    assert {"accuracy (%)", "difference", "95 % interval", "rate", "parameters"} < set(table[0])
    assert not {"verdict", "p Holm", "p sign-flip"} & set(table[0])


def test_the_report_has_a_block_of_its_own_under_the_effects(tmp_path: Path) -> None:
    study, results = beside(lambda c: failed(c) if (c.arm, c.seed) == ("GCN", 3) else c)
    paths = write_report(study, results, tmp_path)
    text = paths.markdown.read_text(encoding="utf-8")
    heads = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert heads[:3] == ["Effect", "Beside, not judged", "Is the attention used?"]
    block = text.partition("## Beside, not judged")[2].partition("\n## ")[0]
    for words in (
        "Beside, not judged: another network.",
        "MLP: model.network=isoattn.graph.models.MLP, model.network.init\\_args.hidden=8.",
        "GCN (lpi=on): run at lpi=off, which it stands for.",
        "Failed on every attempt: gcn-lpi=off",
        "RuntimeError: out of memory",
        "5, 1 failed",
        "161,290",
        "figures/reference_rates.svg",
    ):
        assert words in block, words
    assert "GCN" not in text.replace(block, "").partition("## Arms")[0]
    svg = (tmp_path / "figures" / "reference_rates.svg").read_text(encoding="utf-8")
    assert all(name in svg for name in ("GCN", "MLP", "Softmax"))
    assert "Linear" not in svg
    cells = paths.csv.read_text(encoding="utf-8")
    assert cells.count("\nmlp-") == 2 * (10 + 6)


def test_a_study_without_references_says_nothing_of_them(tmp_path: Path) -> None:
    study = make_study()
    paths = write_report(study, make_results(study), tmp_path)
    assert "Beside" not in paths.markdown.read_text(encoding="utf-8")
    assert not (tmp_path / "figures" / "reference_rates.svg").exists()
