"""Swaps that are trained on for a while (P10): what a study file may ask, what a report says."""

from __future__ import annotations

from pathlib import Path

import pytest

from isoattn.ablate.cells import make_cell, write_cell
from isoattn.ablate.records import CellResult
from isoattn.ablate.report import write_report
from isoattn.ablate.study import Study, StudyError
from isoattn.ablate.summary import summarise

from .fake_results import change, make_results, make_study

HOW = {"rate": 0.2, "overrides": {"trainer.max_epochs": 1}}


def study_of(**changes: object) -> Study:
    parts = {"factors": {}, "swaps": ["Softmax", "Linear"], "fine_tune": HOW}
    return make_study(**{**parts, **changes})


def tuned(cell: CellResult) -> CellResult:
    """Every run gains two points with its own attention; another one costs a point of them."""
    if cell.stage != "confirm":
        return cell
    score = cell.metrics["test/accuracy"]
    names = dict.fromkeys((cell.arm, *cell.swapped))
    more = {
        f"test/accuracy@{arm}+tuned": score + (0.02 if arm == cell.arm else 0.01) for arm in names
    }
    return change(cell, metrics={**cell.metrics, **more}, tuned={"rate": 0.2})


def test_training_on_is_compared_with_training_on() -> None:
    study = study_of()
    rows = summarise(study, make_results(study, spoil=tuned))["swaps"]
    (row,) = [r for r in rows if (r["trained"], r["evaluated"]) == ("Softmax", "Linear")]
    assert row["tuned"]["difference"]["mean"] == pytest.approx(-0.01)
    assert row["tuned"]["difference"]["n"] == 6
    assert row["tuned"]["own"] == pytest.approx(row["own"] + 0.02)


def test_the_report_says_how_it_was_done(tmp_path: Path) -> None:
    study = study_of()
    paths = write_report(study, make_results(study, spoil=tuned), tmp_path)
    text = paths.markdown.read_text(encoding="utf-8")
    assert "trained on with its own, accuracy (%)" in text
    assert r"trainer.max\_epochs=1" in text and "at 0.2 of the arm's own rate" in text


def test_without_scores_there_is_no_table(tmp_path: Path) -> None:
    study = study_of()
    text = write_report(study, make_results(study), tmp_path).markdown.read_text(encoding="utf-8")
    assert "trained on with" not in text


def test_it_is_part_of_the_study_but_not_of_the_run(tmp_path: Path) -> None:
    with_it, without = study_of(), study_of(fine_tune=None)
    assert with_it.hash != without.hash
    assert "fine_tune" not in without.as_dict()
    swaps = {"Linear": {"class_path": "isoattn.core.Linear", "init_args": {}}}
    base = {"model": {"optim": {"lr": 1.0}}, "seed_everything": 0}
    one, two = (
        make_cell(study, base, "Softmax", {}, 0.001, 0, "confirm", swaps)
        for study in (with_it, without)
    )
    assert one.id == two.id and one.fine_tune == {**HOW, "key": "model.optim.lr"}
    write_cell(one, tmp_path)
    assert '"fine_tune"' in (tmp_path / "plan.json").read_text()


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"swaps": []}, "fine_tune trains with the swaps, of which there are none"),
        ({"fine_tune": {"overrides": {}}}, "overrides that say how long"),
        ({"fine_tune": {**HOW, "rate": 0}}, "needs a rate above 0"),
        ({"fine_tune": {"rate": 0.1}}, "missing overrides"),
        ({"fine_tune": {**HOW, "epochs": 2}}, "unknown key 'epochs'"),
        (
            {"fine_tune": {"overrides": {"model.attention": "Linear"}}},
            "sets the attention",
        ),
    ],
)
def test_what_it_asks_of_a_study(changes: dict[str, object], text: str) -> None:
    with pytest.raises(StudyError, match=text):
        study_of(**changes)
