"""Test-time swaps (P10): what a network scores with an attention it was not trained with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isoattn.ablate.records import CellResult
from isoattn.ablate.report import write_report
from isoattn.ablate.report.beside import swap_sentence
from isoattn.ablate.selection import chosen_rates, confirmed
from isoattn.ablate.study import Study
from isoattn.ablate.summary import scale_of, summarise
from isoattn.ablate.swaps import Swap, swaps

from .fake_results import change, diverged, make_results, make_study

SWAPS = ["Softmax", "Linear", "Zero"]


def swapped(study: Study, cells: list[CellResult]) -> dict[tuple[str, str], Swap]:
    choices = chosen_rates(study, cells, study.search.values)
    found = swaps(study, confirmed(study, cells, choices))
    return {(s.trained, s.evaluated): s for s in found if s.level == "all"}


def study_of(**changes: object) -> Study:
    return make_study(**{"factors": {}, "swaps": SWAPS, **changes})


def test_every_trained_arm_with_every_other_attention() -> None:
    study = study_of()
    found = swapped(study, make_results(study).cells)
    assert list(found) == [(t, e) for t in study.arms for e in SWAPS if t != e]
    one = found["Softmax", "Linear"]
    assert one.t is not None
    assert one.t.n == 6
    assert one.t.mean == pytest.approx(-0.005, abs=1e-9)
    assert one.swapped[0] == pytest.approx(one.own[0] - 0.005, abs=1e-4)
    assert found["Softmax", "Zero"].t is not None
    assert found["Softmax", "Zero"].t.mean == pytest.approx(-0.5, abs=1e-6)


def test_no_swaps_nothing_at_all(tmp_path: Path) -> None:
    study = study_of(swaps=[])
    results = make_results(study)
    assert summarise(study, results)["swaps"] == []
    text = write_report(study, results, tmp_path).markdown.read_text(encoding="utf-8")
    assert "wapped" not in text
    assert not (tmp_path / "figures" / "swapped.svg").exists()


def test_swaps_change_nothing_that_is_judged() -> None:
    """A swapped score is one more number of a run, and no other number reads it."""
    plain = study_of(swaps=[])
    one, two = (summarise(s, make_results(s)) for s in (study_of(), plain))
    for key in one:
        if key not in ("swaps", "study"):
            assert one[key] == two[key], key


def test_a_diverged_run_has_no_weights_to_swap_and_an_unscored_one_is_listed() -> None:
    study = study_of()

    def spoil(cell: CellResult) -> CellResult:
        if (cell.arm, cell.stage, cell.seed) == ("Softmax", "confirm", 0):
            return diverged(cell)
        if (cell.arm, cell.stage, cell.seed) == ("Softmax", "confirm", 1):
            kept = {k: v for k, v in cell.metrics.items() if not k.endswith("@Linear")}
            return change(cell, metrics=kept)
        return cell

    found = swapped(study, make_results(study, spoil=spoil).cells)
    assert found["Softmax", "Linear"].unscored == (1,)
    assert list(found["Softmax", "Linear"].own) == [2, 3, 4, 5]
    assert list(found["Softmax", "Zero"].own) == [1, 2, 3, 4, 5]


def test_a_score_without_the_attention_it_was_made_with_does_not_count() -> None:
    study = study_of()
    found = swapped(study, make_results(study, spoil=lambda c: change(c, swapped={})).cells)
    assert all(swap.t is None and len(swap.unscored) == 6 for swap in found.values())


def test_the_sentence_counts_what_loses_gains_and_is_open() -> None:
    study = study_of()
    summary = summarise(study, make_results(study))
    text = swap_sentence(summary, scale_of(summary))
    # Mean and Zero were not trained to attend and are left out; the others have 2 + 3 + 2 swaps.
    assert "of 7 swaps 7 lose, 0 gain and 0 are open" in text
    assert "the worst is Zero in place of Softmax (−50.0 points, −50.0 to −50.0)" in text


def test_one_seed_is_open() -> None:
    study = study_of(confirm_seeds=[0], claim=False)
    summary = summarise(study, make_results(study))
    assert "0 lose, 0 gain and 7 are open" in swap_sentence(summary, scale_of(summary))


def test_less_is_better_in_mode_min() -> None:
    metric = {"name": "accuracy", "mode": "min", "margin": 0.01, "worst": 2.0}
    study = study_of(metric=metric)
    summary = summarise(study, make_results(study))
    assert "0 lose, 7 gain" in swap_sentence(summary, scale_of(summary))


def test_nothing_was_scored() -> None:
    study = study_of()
    results = make_results(study, spoil=lambda c: change(c, swapped={}))
    summary = summarise(study, results)
    assert swap_sentence(summary, scale_of(summary)).startswith("No trained arm was scored")


def test_the_report_has_a_table_a_figure_and_a_sentence(tmp_path: Path) -> None:
    study = make_study(swaps=SWAPS)

    def spoil(cell: CellResult) -> CellResult:
        lost = (cell.arm, cell.stage, cell.seed) == ("Linear", "confirm", 4)
        return change(cell, swapped={}) if lost else cell

    paths = write_report(study, make_results(study, spoil=spoil), tmp_path)
    text = paths.markdown.read_text(encoding="utf-8")
    block = text.partition("## Swapped at test time")[2].partition("\n## ")[0]
    assert "Same weights, another attention at test time: of 14 swaps" in block
    assert (
        "| trained with | as trained, accuracy (%) | with Softmax | with Linear | with Zero |"
        in block
    )
    (line,) = [
        line for line in block.partition("lpi=on")[0].splitlines() if line.startswith("| Softmax |")
    ]
    assert "| – |" in line  # never with its own
    assert "(−0.5 \\[−0.5, −0.5\\])" in line
    assert "Linear evaluated with Zero (lpi=off): no finite score at seed 4" in block
    svg = (tmp_path / "figures" / "swapped.svg").read_text(encoding="utf-8")
    assert "trained with" in svg and "evaluated with" in svg
    assert "−50.0" in svg
    summary = json.loads(paths.json.read_text(encoding="utf-8"))
    assert len(summary["swaps"]) == 2 * (5 * 3 - 3)
