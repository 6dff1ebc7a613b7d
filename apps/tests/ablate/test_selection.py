from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoattn.ablate.records import CellResult
from isoattn.ablate.selection import (
    Choice,
    chosen_rates,
    confirmed,
    edges,
    next_rates,
    other_batches,
    pair_up,
    scorer,
    void_reason,
    worst_result,
)
from isoattn.ablate.study import Metric, Study

from .fake_results import change, diverged, failed, make_cell, make_results, make_study

GRID = (1e-3, 3e-3, 1e-2)


def study_of(**changes: object) -> Study:
    raw: dict[str, object] = {
        "factors": {},
        "arms": {"Softmax": "isoattn.core.Softmax", "Linear": "isoattn.core.Linear"},
        "search": {"values": list(GRID), "seeds": [100, 101]},
        "claim": False,
    }
    return make_study(**{**raw, **changes})


def search(study: Study, arm: str, scores: dict[float, tuple[float, ...]]) -> list[CellResult]:
    name = f"val/{study.metric.name}"
    return [
        change(make_cell(study, arm, {}, rate, 100 + k, "search"), metrics={name: value})
        for rate, values in scores.items()
        for k, value in enumerate(values)
    ]


def choice(study: Study, scores: dict[float, tuple[float, ...]]) -> Choice:
    return chosen_rates(study, search(study, "Linear", scores), tuple(scores))["Linear", "all"]


def test_the_best_mean_over_seeds_wins_not_the_best_run() -> None:
    found = choice(study_of(), {1e-3: (0.80, 0.80), 3e-3: (0.90, 0.88), 1e-2: (0.95, 0.70)})
    assert found.rate == 3e-3
    assert found.score == pytest.approx(0.89)
    assert [point.rate for point in found.curve] == list(GRID)


def test_ties_go_to_the_smaller_rate() -> None:
    found = choice(study_of(), {1e-3: (0.7, 0.7), 3e-3: (0.9, 0.8), 1e-2: (0.8, 0.9)})
    assert found.rate == 3e-3


def test_less_is_better_in_mode_min() -> None:
    metric = {"name": "loss", "mode": "min", "worst": 5.0, "margin": 0.05}
    found = choice(study_of(metric=metric), {1e-3: (0.5,) * 2, 3e-3: (0.3,) * 2, 1e-2: (0.9,) * 2})
    assert found.rate == 3e-3
    assert found.edge is None


def test_a_diverged_run_counts_as_the_worst_result_and_is_never_dropped() -> None:
    study = study_of()
    cells = search(study, "Linear", {1e-3: (0.8, 0.8), 3e-3: (0.85, 0.85), 1e-2: (0.99, 0.99)})
    cells[-1] = diverged(cells[-1])
    found = chosen_rates(study, cells, GRID)["Linear", "all"]
    assert found.rate == 3e-3
    assert found.curve[2].values == {100: 0.99, 101: 0.0}
    assert found.curve[2].diverged == (101,)
    nan = change(cells[-2], metrics={"val/accuracy": math.nan})
    again = chosen_rates(study, [*cells[:-2], nan, cells[-1]], GRID)["Linear", "all"]
    assert again.curve[2].diverged == (100, 101), "a finished run with a nan metric diverged too"


def test_a_rate_that_lacks_a_seed_is_passed_over() -> None:
    study = study_of()
    cells = search(study, "Linear", {1e-3: (0.8, 0.8), 3e-3: (0.85, 0.85), 1e-2: (0.99, 0.99)})
    cells[-1] = failed(cells[-1])
    found = chosen_rates(study, cells, GRID)["Linear", "all"]
    assert found.rate == 3e-3
    assert found.curve[2].failed == (101,)


def test_an_arm_without_search_results_gets_the_shared_rate_and_no_score() -> None:
    study = study_of()
    cells = search(study, "Softmax", {1e-3: (0.8,) * 2, 3e-3: (0.7,) * 2, 1e-2: (0.9,) * 2})
    cells += [failed(c) for c in search(study, "Linear", {rate: (0.5, 0.5) for rate in GRID})]
    found = chosen_rates(study, cells, GRID)["Linear", "all"]
    assert (found.rate, found.score, found.edge) == (1e-2, None, None)
    nothing = chosen_rates(study, [], GRID)["Linear", "all"]
    assert (nothing.rate, nothing.score) == (3e-3, None), "the middle of the grid"


def test_confirmation_runs_never_choose() -> None:
    study = study_of()
    cells = search(study, "Linear", {1e-3: (0.8,) * 2, 3e-3: (0.9,) * 2, 1e-2: (0.7,) * 2})
    cheat = change(cells[-1], stage="confirm", metrics={"val/accuracy": 1.0})
    assert chosen_rates(study, [*cells, cheat], GRID) == chosen_rates(study, cells, GRID)


def test_one_rate_skips_the_search() -> None:
    study = study_of(search={"values": [2e-3], "seeds": []})
    found = chosen_rates(study, [], study.search.values)
    assert {key: c.rate for key, c in found.items()} == {
        ("Softmax", "all"): 2e-3,
        ("Linear", "all"): 2e-3,
    }
    assert edges(study, [], study.search.values) == set()


def test_window_is_the_unbroken_run_of_rates_within_the_margin() -> None:
    study = study_of()
    scores = {3e-4: (0.9,) * 2, 1e-3: (0.8,) * 2, 3e-3: (0.895,) * 2, 1e-2: (0.9001,) * 2}
    found = choice(study, {**scores, 3e-2: (0.5,) * 2})
    assert found.window == (3e-3, 1e-2)
    assert found.window_decades == pytest.approx(math.log10(1e-2 / 3e-3))


def test_the_shared_rate_is_best_on_average_over_arms_without_controls() -> None:
    study = study_of(
        arms={n: f"isoattn.core.{n}" for n in ("Softmax", "Linear", "Zero")}, controls=["Zero"]
    )
    cells = search(study, "Softmax", {1e-3: (0.9,) * 2, 3e-3: (0.89,) * 2, 1e-2: (0.5,) * 2})
    cells += search(study, "Linear", {1e-3: (0.5,) * 2, 3e-3: (0.88,) * 2, 1e-2: (0.89,) * 2})
    cells += search(study, "Zero", {1e-3: (0.99,) * 2, 3e-3: (0.1,) * 2, 1e-2: (0.1,) * 2})
    found = chosen_rates(study, cells, GRID)
    assert {c.shared_rate for c in found.values()} == {3e-3}
    assert found["Softmax", "all"].rate == 1e-3
    assert found["Softmax", "all"].shared_score == pytest.approx(0.89)


# Edges ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "sides"),
    [
        ((0.9, 0.8, 0.7), {"low"}),
        ((0.7, 0.8, 0.9), {"high"}),
        ((0.7, 0.9, 0.8), set()),
        ((0.412, 0.41, 0.405), set()),  # Flat within the margin: nothing to be gained outside.
        ((0.9, 0.9, 0.7), set()),  # A tie with a rate inside.
        ((0.0, 0.0, 0.0), set()),
    ],
)
def test_edges(scores: tuple[float, ...], sides: set[str]) -> None:
    study = study_of()
    cells = search(study, "Linear", {r: (s, s) for r, s in zip(GRID, scores, strict=True)})
    assert edges(study, cells, GRID) == sides


def test_one_arm_at_an_edge_is_enough_and_both_sides_can_grow() -> None:
    study = study_of()
    cells = search(study, "Linear", {1e-3: (0.9,) * 2, 3e-3: (0.8,) * 2, 1e-2: (0.7,) * 2})
    cells += search(study, "Softmax", {1e-3: (0.7,) * 2, 3e-3: (0.8,) * 2, 1e-2: (0.9,) * 2})
    assert edges(study, cells, GRID) == {"low", "high"}


def test_all_runs_diverged_at_the_high_rates_puts_the_best_inside_or_low() -> None:
    study = study_of()
    cells = search(study, "Linear", {1e-3: (0.8,) * 2, 3e-3: (0.9,) * 2, 1e-2: (0.9,) * 2})
    cells = cells[:4] + [diverged(cell) for cell in cells[4:]]
    assert edges(study, cells, GRID) == set()
    assert edges(study, [diverged(cell) for cell in cells], GRID) == set(), "flat at the worst"


# Next rates -----------------------------------------------------------------------------------


def test_next_rates_continue_the_grid_as_people_write_it() -> None:
    assert next_rates((1e-3, 3e-3, 1e-2), "high") == (3e-2,)
    assert next_rates((1e-3, 3e-3, 1e-2), "low") == (3e-4,)
    assert next_rates((3e-4, 1e-3, 3e-3, 1e-2, 3e-2), {"low", "high"}) == (1e-4, 1e-1)
    assert next_rates((1e-3, 1e-2), "low") == (1e-4,)
    assert next_rates((1e-2, 1e-3), ()) == ()


@given(st.floats(1e-6, 1e-1), st.floats(1.2, 10), st.integers(2, 7))
def test_next_rates_keep_an_even_log_spacing(start: float, step: float, count: int) -> None:
    grid = [start * step**k for k in range(count)]
    low, high = next_rates(grid, {"low", "high"})
    assert low == pytest.approx(grid[0] / step, rel=0.01)
    assert high == pytest.approx(grid[-1] * step, rel=0.01)


def test_one_rate_has_no_spacing() -> None:
    with pytest.raises(ValueError, match="no spacing to continue; give two rates"):
        next_rates((1e-3, 1e-3), "high")


# Pairs ----------------------------------------------------------------------------------------


def pair(**changes: object) -> tuple[CellResult, CellResult]:
    study = study_of()
    one = make_cell(study, "Linear", {}, 3e-3, 0, "confirm")
    two = make_cell(study, "Softmax", {}, 1e-2, 0, "confirm")
    return change(one, **changes), two


def test_a_pair_shares_weights_and_batches_whatever_its_rates() -> None:
    assert void_reason(*pair()) is None


def test_void_pairs_say_why() -> None:
    variant, baseline = pair()
    other = [*variant.batch_hashes[:4], "other", *variant.batch_hashes[5:]]
    assert void_reason(*pair(init_hash="other")) == "initial weights differ"
    assert void_reason(*pair(init_hash="")) == "initial weights differ"
    assert void_reason(*pair(batch_hashes=other)) == "batches differ from epoch 4 on"
    assert "11 and 12 epochs" in str(void_reason(*pair(batch_hashes=baseline.batch_hashes[:11])))
    nothing = change(variant, batch_hashes=[]), change(baseline, batch_hashes=[])
    assert "no hashes" in str(void_reason(*nothing))


def test_two_networks_are_paired_by_their_batches_alone() -> None:
    variant, baseline = pair(init_hash="other")
    assert void_reason(variant, baseline) == "initial weights differ"
    assert other_batches(variant, baseline) is None
    turned = change(variant, batch_hashes=variant.batch_hashes[::-1])
    assert other_batches(turned, baseline) == "batches differ from epoch 0 on"
    nothing = change(variant, batch_hashes=[]), change(baseline, batch_hashes=[])
    assert other_batches(*nothing) == "no hashes of batches were recorded"
    assert other_batches(diverged(variant), baseline) is None


def test_a_diverged_run_is_compared_as_far_as_it_came() -> None:
    variant, baseline = pair()
    assert void_reason(diverged(variant), baseline) is None
    assert void_reason(change(diverged(variant), batch_hashes=[]), baseline) is None
    assert void_reason(change(diverged(variant), init_hash=""), baseline) is None
    assert void_reason(change(diverged(variant), init_hash="x"), baseline) is not None
    assert void_reason(change(diverged(variant), batch_hashes=["x"]), baseline) is not None


def test_pairs_are_matched_by_seed_at_the_chosen_rate() -> None:
    study = make_study()
    results = make_results(study)
    choices = chosen_rates(study, results.cells, results.rates_tried)
    stray = change(results.cells[-1], learning_rate=0.5, attempts=7)
    runs = confirmed(study, [stray, *results.cells], choices)
    assert runs["Zero", "lpi=on"][5].attempts == 1
    found = pair_up(study, runs, scorer(study, results.cells), "Linear", "lpi=off")
    assert list(found.differences) == list(range(6))
    for seed, difference in found.differences.items():
        one = runs["Linear", "lpi=off"][seed].metrics["test/accuracy"]
        two = runs["Softmax", "lpi=off"][seed].metrics["test/accuracy"]
        assert difference == pytest.approx(one - two)


def test_worst_result_is_never_better_than_a_run_that_finished() -> None:
    assert worst_result(Metric(), [0.5, 0.1]) == 0.0
    assert worst_result(Metric("loss", "min", 0.1, worst=0.0), [0.7, 2.5, math.nan]) == 2.5
    assert worst_result(Metric("loss", "min", 0.1, worst=9.0), [0.7]) == 9.0
