"""Measuring the cost over a growing size: what is asked for, kept, gone on with, left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isoattn.ablate import cost
from isoattn.ablate.cost import CostRun, Rounds, rounds_for
from isoattn.ablate.cost_records import CostTable, read_costs
from isoattn.ablate.study import CostSection, StudyError

from .curves import SECTION, Curves, study_of


def measure(
    folder: Path,
    app: Any,
    sizes: Any = None,
    say: Callable[[str], None] = lambda text: None,
    **section: Any,
) -> CostTable:
    study = study_of(cost={**SECTION, **section})
    assert study.cost is not None
    run = CostRun(study, study.cost, app, folder, say)
    return run.run(sizes or study.cost.values, lambda text: None)


def statuses(table: CostTable, arm: str) -> dict[int, str]:
    return {row.size: row.status for row in table.of(arm)}


# --- what is asked of the app -------------------------------------------------------------------


def test_every_arm_is_measured_at_every_size_all_in_one_call(tmp_path: Path) -> None:
    app = Curves()
    table = measure(tmp_path, app)
    assert {(row.arm, row.size) for row in table.rows} == {
        (arm, size) for arm in ("Softmax", "Linear", "Zero") for size in (500, 1000, 2000, 4000)
    }
    assert all(row.status == "measured" and not row.alone for row in table.rows)
    assert all(arms == ["Softmax", "Linear", "Zero"] for _, arms, _, _ in app.calls)
    assert table.tokens == {500: 500, 1000: 1000, 2000: 2000, 4000: 4000}
    assert table.own_tokens == 2708


def test_the_configs_are_those_of_the_section_and_the_size_is_set(tmp_path: Path) -> None:
    app = Curves()
    measure(tmp_path, app, [500], overrides={"data.degree": 4})
    config = app.configs[0]
    assert config["configs"] == ["block_model"]
    assert config["data"] == {"degree": 4, "nodes": 500}
    assert config["model"]["attention"]["class_path"] == "isoattn.core.Softmax"


def test_without_configs_the_study_s_own_are_taken_with_its_overrides(tmp_path: Path) -> None:
    app = Curves()
    measure(tmp_path, app, [500], configs=[], overrides={"data.degree": 4})
    assert app.configs[0]["configs"] == ["xcit_digits"]
    assert app.configs[0]["data"] == {"shift": 1, "degree": 4, "nodes": 500}


def test_some_arms_may_be_named(tmp_path: Path) -> None:
    app = Curves()
    table = measure(tmp_path, app, [500], arms=["Softmax", "Zero"])
    assert table.shown == ["Softmax", "Zero"]
    assert table.arms == ("Softmax", "Linear", "Zero")  # the colours are by the study's order


def test_rounds_by_the_time_of_a_step() -> None:
    assert rounds_for([0.001]) == rounds_for([0.5, 0.001]) == Rounds(10, 15)
    assert rounds_for([1.0]) == Rounds(5, 10)
    assert rounds_for([1.9]) == Rounds(2, 5)
    assert rounds_for([30.0]) == Rounds(1, 3)
    assert rounds_for([30.0, 0.1]) == Rounds(1, 5)  # the quick arm needs five, and they take turns


def test_nothing_is_known_of_the_first_size_so_it_is_tried_with_few_rounds(tmp_path: Path) -> None:
    app = Curves()
    table = measure(tmp_path, app, [500, 1000])
    assert [(size, warmup, repeats) for size, _, warmup, repeats in app.calls] == [
        (500, 1, 3),
        (500, 10, 15),
        (1000, 10, 15),
    ]
    assert {(row.warmup, row.repeats) for row in table.rows} == {(10, 15)}


def test_slow_steps_are_taken_less_often(tmp_path: Path) -> None:
    """Softmax takes 10 s at 10,000 nodes and 40 s at 20,000, Zero 0.1 and 0.2 s."""
    app = Curves()
    measure(tmp_path, app, [10_000, 20_000], limit_seconds=60)
    assert [(size, warmup, repeats) for size, _, warmup, repeats in app.calls] == [
        (10_000, 1, 3),
        (10_000, 1, 5),
        (20_000, 1, 5),
    ]


# --- what is on disk is not measured again ------------------------------------------------------


class Stopped(Curves):
    """Ends at a size, as a kill would."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def costs(self, cases: Any, *, warmup: int = 10, repeats: int = 15) -> Any:
        if cases[0][2]["data"]["nodes"] == self.at:
            raise KeyboardInterrupt
        return super().costs(cases, warmup=warmup, repeats=repeats)


def test_a_run_that_was_ended_goes_on_where_it_was(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path, Stopped(2000))
    before = read_costs(tmp_path)
    assert before is not None and before.sizes == [500, 1000]
    app = Curves()
    table = measure(tmp_path, app)
    assert [size for size, *_ in app.calls] == [2000, 4000]
    whole = measure(tmp_path / "other", Curves())
    assert replace(table, environment={}) == replace(whole, environment={})
    assert read_costs(tmp_path) == table


def test_more_sizes_are_added_to_those_that_are_there(tmp_path: Path) -> None:
    measure(tmp_path, Curves(), [500, 4000])
    app = Curves()
    table = measure(tmp_path, app, [1000, 500])
    assert table.sizes == [500, 1000, 4000]
    assert {size for size, *_ in app.calls} == {1000}


def test_what_was_measured_with_another_config_is_dropped(tmp_path: Path) -> None:
    measure(tmp_path, Curves(), [500, 1000])
    app = Curves()
    table = measure(tmp_path, app, [500], overrides={"data.degree": 4})
    assert table.sizes == [500]
    assert {size for size, *_ in app.calls} == {500}


def test_an_arm_that_is_new_is_measured_with_the_others(tmp_path: Path) -> None:
    measure(tmp_path, Curves(), [500], arms=["Softmax", "Zero"])
    app = Curves()
    measure(tmp_path, app, [500])
    assert app.calls[-1][1] == ["Softmax", "Linear", "Zero"]


def test_two_machines_make_no_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(tmp_path, Curves(), [500])
    elsewhere = {"device": "Abacus", "packages": {"torch": "1.0"}}
    monkeypatch.setattr(cost, "environment", lambda: elsewhere)
    with pytest.raises(StudyError, match="this is Abacus with torch 1.0") as error:
        measure(tmp_path, Curves(), [1000])
    assert "or use another --out" in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"rows": [{"arm": 1}]}'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    measure(tmp_path, Curves(), [500])
    (tmp_path / "cost" / "cost.json").write_text(text)
    with pytest.raises(StudyError, match=r"cost\.json is damaged .* Delete it; isoattn ablate co"):
        measure(tmp_path, Curves(), [500])


# --- limits and failures ------------------------------------------------------------------------


def test_an_arm_over_the_limit_is_left_out_at_larger_sizes_and_says_so(tmp_path: Path) -> None:
    app = Curves()
    table = measure(tmp_path, app, limit_seconds=0.3)  # softmax takes 400 ms at 2,000
    assert statuses(table, "Softmax") == {
        **dict.fromkeys((500, 1000, 2000), "measured"),
        4000: "left out",
    }
    assert set(statuses(table, "Linear").values()) == {"measured"}
    assert table.of("Softmax")[-1].reason == (
        "over the limit of 0.3 s: a step took 0.4 s at 2,000 nodes"
    )
    assert app.calls[-1][1] == ["Linear", "Zero"]
    again = Curves()
    measure(tmp_path, again, limit_seconds=0.3)
    assert again.calls == []


def test_with_a_larger_limit_it_is_measured(tmp_path: Path) -> None:
    measure(tmp_path, Curves(), limit_seconds=0.3)
    app = Curves()
    table = measure(tmp_path, app, limit_seconds=10)
    assert set(statuses(table, "Softmax").values()) == {"measured"}
    assert [(size, arms) for size, arms, _, _ in app.calls] == [
        (4000, ["Softmax", "Linear", "Zero"])
    ]


def test_an_arm_that_fails_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    app = Curves(broken={("Softmax", 2000)})
    table = measure(tmp_path, app)
    assert statuses(table, "Softmax") == {
        500: "measured",
        1000: "measured",
        2000: "failed",
        4000: "left out",
    }
    at_2000 = {row.arm: row for row in table.at(2000)}
    assert at_2000["Softmax"].reason == "OutOfMemoryError: Softmax wants too much"
    assert at_2000["Softmax"].cost is None
    assert at_2000["Linear"].alone and at_2000["Zero"].alone
    assert [row.reason for row in table.at(4000)] == ["failed at 2,000 nodes", "", ""]
    assert not any(row.alone for row in table.at(4000))  # they take turns again


def test_where_no_arm_takes_a_step_nothing_is_kept(tmp_path: Path) -> None:
    broken = {(arm, 500) for arm in ("Softmax", "Linear", "Zero")}
    with pytest.raises(StudyError, match="No arm takes a step at 500 nodes") as error:
        measure(tmp_path, Curves(broken))
    assert "Linear: OutOfMemoryError: Linear wants too much" in str(error.value)
    assert read_costs(tmp_path) is None


def test_a_lost_process_is_said_in_words(tmp_path: Path) -> None:
    class Lost(Curves):
        def costs(self, cases: Any, **rounds: int) -> Any:
            if any(arm == "Linear" for arm, _, _ in cases):
                raise RuntimeError("BrokenProcessPool: A process was terminated abruptly")
            return super().costs(cases, **rounds)

    table = measure(tmp_path, Lost(), [500])
    (row,) = table.of("Linear")
    assert row.reason == "the measuring process was lost, most likely for want of memory"


def test_an_app_that_cannot_tell_its_tokens_is_measured_all_the_same(tmp_path: Path) -> None:
    class Silent(Curves):
        def attention_shape(self, config: dict[str, Any]) -> tuple[int, int, int]:
            raise FileNotFoundError("no data here")

    table = measure(tmp_path, Silent(), [500, 1000])
    assert table.own_tokens is None
    assert table.tokens == {500: None, 1000: None}


def test_a_study_whose_own_config_does_not_resolve_is_measured_all_the_same(
    tmp_path: Path,
) -> None:
    class Rootless(Curves):
        def resolve(self, argv: list[str]) -> dict[str, Any]:
            if "xcit_digits" in argv:
                raise ValueError("root is required")
            return super().resolve(argv)

    said: list[str] = []
    table = measure(tmp_path, Rootless(), [500], say=said.append)
    assert (table.own_tokens, table.sizes) == (None, [500])
    assert said == ["the study's own size is not known: its config or data cannot be built here"]


def test_a_config_that_does_not_resolve_names_the_size(tmp_path: Path) -> None:
    class Strict(Curves):
        def resolve(self, argv: list[str]) -> dict[str, Any]:
            if "--data.nodes=7" in argv:
                raise ValueError("nodes must be even")
            return super().resolve(argv)

    with pytest.raises(StudyError, match="Cost at 7 nodes: .*arm Softmax.*nodes must be even"):
        measure(tmp_path, Strict(), [7])


# --- the section of the study file --------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("nodes", "test: cost must be a mapping, got 'nodes'"),
        ({"values": [1]}, "test: cost: missing key"),
        ({"key": "a"}, "test: cost: missing values"),
        ({**SECTION, "lable": "x"}, "cost: unknown key 'lable'. Did you mean label"),
        ({**SECTION, "values": []}, "values must be different sizes above 0, got []"),
        ({**SECTION, "values": [0, 1]}, "values must be different sizes above 0, got [0, 1]"),
        ({**SECTION, "values": [2, 2]}, "values must be different sizes above 0, got [2, 2]"),
        ({**SECTION, "values": ["x"]}, "values must be a whole number, got 'x'"),
        ({**SECTION, "limit_seconds": 0}, "limit_seconds must be above 0, got 0"),
        ({**SECTION, "arms": ["Softmax", "Liner"]}, "arms names 'Liner'. Did you mean Linear"),
        ({**SECTION, "arms": ["Linear"]}, "arms lacks the baseline Softmax"),
        ({**SECTION, "key": "model.attention.eps"}, "sets the attention; that is what an arm is"),
        ({**SECTION, "overrides": {"seed_everything": 1}}, "overrides sets seed_everything"),
    ],
)
def test_what_is_wrong_with_it_is_said(section: Any, message: str) -> None:
    with pytest.raises(StudyError) as error:
        study_of(cost=section)
    assert message in str(error.value)


def test_it_is_read_in_rising_order_with_its_defaults() -> None:
    study = study_of(cost={"key": "data.nodes", "values": [30, 10]})
    assert study.cost == CostSection(key="data.nodes", values=(10, 30), label="size")


def test_it_is_no_part_of_what_is_registered() -> None:
    """A study that has run may be measured later, and its hash stays."""
    assert study_of().hash == study_of(cost=None).hash
    assert "cost" not in study_of().as_dict()


def test_a_preset_with_fewer_arms_measures_those() -> None:
    study = study_of(only_arms=["Softmax", "Zero"], cost={**SECTION, "arms": ["Softmax", "Linear"]})
    assert study.cost is not None
    app: Any = Curves()
    cases = cost.cases_at(study, study.cost, app, 500)
    assert [arm for arm, _, _ in cases] == ["Softmax"]
