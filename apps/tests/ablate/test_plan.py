from __future__ import annotations

import contextlib
import copy
import dataclasses
from typing import Any

import pytest

from isoattn.ablate.cells import resolved_arm, set_dotted
from isoattn.ablate.differences import config_differences, difference_text, reference_text
from isoattn.ablate.domain import study_app
from isoattn.ablate.gate import gate_failures
from isoattn.ablate.plan import Plan
from isoattn.ablate.study import StudyError, level_name, study_from_dict
from isoattn.apps.vision.study import VisionStudy

from .tiny import tiny, two_cells

LPI = {
    "on": {"model.network.init_args.lpi": "dw3x3"},
    "off": {"model.network.init_args.lpi": "none"},
}


def plan_of(raw: dict[str, Any], app: Any = None) -> Plan:
    study = study_from_dict(raw, where="test")
    return Plan(study, app or study_app(study.app))


@pytest.fixture(scope="module")
def plan() -> Plan:
    arms = {
        "Softmax": "isoattn.core.Softmax",
        "XCA": "isoattn.core.CrossCovariance",
        "XCA-2": {"class_path": "CrossCovariance", "init_args": {"temperature_init": 2.0}},
    }
    return plan_of(tiny(arms=arms, factors={"lpi": LPI}))


def test_arms_differ_below_the_attention_alone(plan: Plan) -> None:
    differences = plan.differences()
    plan.check(differences)
    assert [(d.arm, d.level) for d in differences] == [
        (arm, f"lpi={level}") for level in ("on", "off") for arm in ("XCA", "XCA-2")
    ]
    for d in differences:
        assert d.other == []
        assert d.unequal_weights == []
        assert {key for key, _, _ in d.attention} >= {"model.attention.class_path"}
        assert d.parameters[1] == d.parameters[0] + 2  # a learned temperature in each head


def test_configs_are_complete_and_overrides_take_effect(plan: Plan) -> None:
    config = plan.base("Softmax", {"lpi": "off"})
    assert config["trainer"]["max_epochs"] == 2
    assert config["trainer"]["limit_train_batches"] == 8
    assert config["trainer"]["gradient_clip_val"] == 1.0  # of the base config
    assert config["model"]["network"]["init_args"]["embed_dim"] == 16
    assert config["model"]["network"]["init_args"]["mlp_ratio"] == 4.0  # a default
    assert not config.keys() & {"run", "tracker", "wandb", "output", "init_from", "ckpt_path"}


def test_a_factor_takes_effect_in_every_arm(plan: Plan) -> None:
    for arm in plan.study.arms:
        for level, value in (("on", "dw3x3"), ("off", "none")):
            config = plan.base(arm, {"lpi": level})
            assert config["model"]["network"]["init_args"]["lpi"] == value


def test_an_arm_gets_its_own_defaults_not_the_options_of_the_base_config(tmp_path: Any) -> None:
    base = tmp_path / "base.yaml"
    base.write_text(
        "model:\n  attention:\n    class_path: isoattn.core.CosineSoftmax\n"
        "    init_args: {temperature_init: 7.0}\n"
    )
    arms = {"Cosine": "isoattn.core.CosineSoftmax", "XCA": "isoattn.core.CrossCovariance"}
    plan = plan_of(two_cells(configs=["xcit_digits", str(base)], arms=arms, baseline="Cosine"))
    for arm, (_, _, config) in zip(arms, plan.cases, strict=True):
        assert config["model"]["attention"] == resolved_arm(plan.study.arms[arm])
        assert config["model"]["attention"]["init_args"]["temperature_init"] != 7.0


class Planted(VisionStudy):
    """Resolves as usual, then changes one option in one arm."""

    def __init__(self, key: str, value: Any) -> None:
        self.key, self.value = key, value

    def resolve(self, argv: list[str]) -> dict[str, Any]:
        config = super().resolve(argv)
        if any("isoattn.core.Zero" in token for token in argv):
            set_dotted(config, self.key, self.value)
        return config


@pytest.mark.parametrize(
    ("key", "value"),
    [("trainer.max_epochs", 3), ("data.init_args.augment", "shift"), ("model.loss.name", "bce")],
)
def test_any_other_difference_is_refused_by_its_key(key: str, value: Any) -> None:
    plan = plan_of(two_cells(), Planted(key, value))
    differences = plan.differences()
    with pytest.raises(StudyError, match="in more than its attention") as error:
        plan.check(differences)
    assert f"{key} (" in str(error.value)
    assert "Arm Zero" in str(error.value)
    assert f"NOT ALLOWED {key}" in difference_text(differences)


def test_an_attention_that_draws_at_construction_disturbs_nothing(planted: str) -> None:
    """The models build attentions inside a fork of the global generator."""
    arms = {"Softmax": "isoattn.core.Softmax", "Greedy": f"{planted}.Greedy"}
    plan = plan_of(two_cells(arms=arms))
    assert plan.modules == [planted]
    differences = plan.differences()
    plan.check(differences)
    assert "bit-identical" in difference_text(differences)


def test_other_initial_weights_are_refused_by_name(
    planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.random.fork_rng", lambda devices: contextlib.nullcontext())
    arms = {"Softmax": "isoattn.core.Softmax", "Greedy": f"{planted}.Greedy"}
    plan = plan_of(two_cells(arms=arms))
    differences = plan.differences()
    with pytest.raises(StudyError, match="starts from other weights than Softmax") as error:
        plan.check(differences)
    assert "network." in str(error.value)
    assert "generator of its own" in str(error.value)
    assert "outside the attention: bit-identical" not in difference_text(differences)


def test_the_gate_names_the_arm_and_the_law(planted: str) -> None:
    arms = {"Softmax": "isoattn.core.Softmax", "Leaky": f"{planted}.Leaky"}
    plan = plan_of(two_cells(arms=arms))
    failures = gate_failures(plan.study, plan, plan.app)
    assert failures
    assert all(line.startswith("Leaky: ") for line in failures)


def test_two_arms_are_compared_under_their_own_names(plan: Plan) -> None:
    """The name of one class is part of the name of the other."""
    raw = two_cells(arms={"Softmax": "Softmax", "Cosine": "CosineSoftmax", "Zero": "Zero"})
    plan = plan_of(raw)
    text = difference_text([plan.compare("Cosine", "Zero", {})])
    assert text.splitlines()[0] == "Cosine -> Zero (all)"
    assert "CosineSoftmax -> Zero" in text


def test_ids_are_different_for_every_cell_and_stable(plan: Plan) -> None:
    rates = (0.001, 0.0010001, 0.006)  # two that look alike when printed short
    again = Plan(plan.study, plan.app)
    cells = plan.search_cells(rates)
    ids = [cell.id for cell in cells]
    assert len(set(ids)) == len(ids) == 3 * 2 * 3
    assert ids == [cell.id for cell in again.search_cells(rates)]
    confirm = plan.confirm_cells([], (0.001, 0.006))
    assert not {c.id for c in confirm} & set(ids)
    assert len({c.id for c in confirm}) == len(confirm) == 3 * 2 * 2


def test_an_id_tells_what_a_run_is_and_nothing_else(plan: Plan) -> None:
    cell = plan.search_cells((0.001,))[0]
    for part in ({"seed_everything": 9}, {"trainer": {}}):
        assert dataclasses.replace(cell, config={**cell.config, **part}).id != cell.id
    turned = dict(reversed(copy.deepcopy(cell.config).items()))
    assert dataclasses.replace(cell, config=turned).id == cell.id
    assert dataclasses.replace(cell, stage="confirm").id != cell.id


def test_twin_arms_get_folders_of_their_own() -> None:
    plan = plan_of(tiny())
    ids = {cell.arm: cell.id for cell in plan.search_cells((0.001,))}
    assert ids["Softmax"].rpartition("-")[2] == ids["Again"].rpartition("-")[2]  # the same run
    assert ids["Softmax"] != ids["Again"]


def test_names_that_would_share_a_folder_are_refused() -> None:
    arms = {"A B": "isoattn.core.Softmax", "A_B": "isoattn.core.Softmax"}
    with pytest.raises(StudyError, match=r"A B \(all\) and A_B \(all\) would share the folder"):
        plan_of(two_cells(arms=arms, baseline="A_B"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": {"Softmax": "Softmax", "X": "Sofmax"}}, "arm X .*no attention named 'Sofmax'"),
        ({"overrides": {"trainer.max_epoch": 1}}, "arm Softmax .*trainer.max_epochs"),
        ({"configs": ["xcit_digit"]}, "arm Softmax .*Did you mean xcit_digits"),
        ({"metric": {"name": "accurcy"}}, "scores no 'accurcy'. Did you mean accuracy"),
    ],
)
def test_what_cannot_be_resolved_names_study_and_arm(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(StudyError, match=f"(?s)Study tiny.*{message}") as error:
        plan_of(two_cells(**changes))
    assert len(str(error.value).splitlines()) < 10


def test_an_unknown_option_of_an_arm_is_named() -> None:
    arms = {"Softmax": {"class_path": "Softmax", "init_args": {"pth": "math"}}, "Zero": "Zero"}
    with pytest.raises(StudyError, match="arm Softmax .*pth"):
        plan_of(two_cells(arms=arms))


def test_a_difference_is_one_of_text_too() -> None:
    """1 and 1.0 are equal numbers; as a limit they are one batch and all of them."""
    assert config_differences({"a": {"b": 1}}, {"a": {"b": 1.0}}) == [("a.b", 1, 1.0)]
    assert config_differences({"a": [1, 2]}, {"a": [1, 2]}) == []
    assert config_differences({"a": 1}, {}) == [("a", 1, None)]


# References and swaps ---------------------------------------------------------------------------

VIT = {"model.network": "isoattn.vision.ViT"}


@pytest.fixture(scope="module")
def beside() -> Plan:
    return plan_of(
        two_cells(
            factors={"lpi": LPI},
            search={"values": [0.001, 0.006], "seeds": [100]},
            references={"ViT": {**VIT, "model.network.init_args.mlp_ratio": 2.0}},
            reference_levels={"ViT": {"lpi": "off"}},
            swaps=["Softmax", "Zero"],
        )
    )


def test_a_reference_has_its_network_and_what_else_it_shares(beside: Plan) -> None:
    config, base = beside.base("ViT", {"lpi": "off"}), beside.base("Softmax", {"lpi": "off"})
    network = config["model"]["network"]
    assert network["class_path"] == "isoattn.vision.ViT"
    options = network["init_args"]
    assert (options["mlp_ratio"], options["depth"], options["patch_size"]) == (2.0, 1, 2)
    assert "lpi" not in options  # an option of XCiT alone
    assert config["model"]["attention"] == base["model"]["attention"]
    assert config["trainer"] == base["trainer"]
    assert config["data"] == base["data"]


def test_a_reference_is_planned_once_for_each_level_set_of_its_own(beside: Plan) -> None:
    levels = [level_name(levels) for _, levels, _ in beside.reference_cases]
    assert levels == ["lpi=off"]
    assert {name for name, _, _ in beside.cases} == {"Softmax", "Zero"}
    assert beside.count("ViT") == (2, 1)
    assert beside.count() == (2 * 2 * 2, 2 * 2)
    cells = beside.search_cells((0.001, 0.006, 0.036), "ViT")
    assert {cell.arm for cell in cells} == {"ViT"}
    assert len({cell.id for cell in cells}) == 3
    assert set(beside.configs) - {"ViT (lpi=off)"} == {
        f"{arm} (lpi={level})" for arm in ("Softmax", "Zero") for level in ("on", "off")
    }


def test_what_a_reference_changes_is_listed_and_allowed(beside: Plan) -> None:
    differences = beside.reference_differences()
    text = reference_text(differences)
    assert text.splitlines()[0] == ("Softmax -> ViT (lpi=off): beside, not judged: another network")
    assert "model.network.class_path: isoattn.vision.XCiT -> isoattn.vision.ViT" in text
    assert "model.network.init_args.lpi: none -> -" in text
    assert "NOT ALLOWED" not in text and "FLAGGED" not in text
    beside.check(beside.differences())
    with pytest.raises(StudyError, match="in more than its attention"):
        beside.check(differences)  # as an arm it would be refused


def test_references_and_swaps_change_no_cell_of_an_arm(beside: Plan) -> None:
    """What was run before a study named them is found again."""
    plain = plan_of(
        {**beside.study.as_dict(), "references": {}, "reference_levels": {}, "swaps": []}
    )
    rates = (0.001, 0.006)
    for cells in (lambda p: p.search_cells(rates), lambda p: p.confirm_cells([], rates)):
        assert [cell.id for cell in cells(plain)] == [cell.id for cell in cells(beside)]


def test_every_arm_but_no_reference_is_scored_with_the_attention_of_others(beside: Plan) -> None:
    by_arm = {cell.arm: cell.swaps for cell in beside.confirm_cells([], (0.001,))}
    assert {arm: list(swaps) for arm, swaps in by_arm.items()} == {
        "Softmax": ["Zero"],
        "Zero": ["Softmax"],
    }
    assert by_arm["Zero"]["Softmax"] == resolved_arm(beside.study.arms["Softmax"])
    assert all(cell.swaps == {} for cell in beside.search_cells((0.001,)))
    assert all(cell.swaps == {} for cell in beside.confirm_cells([], (0.001,), "ViT"))


def test_a_reference_that_would_be_trained_twice_is_refused_with_the_remedy() -> None:
    raw = two_cells(factors={"lpi": LPI}, references={"ViT": VIT})
    with pytest.raises(StudyError, match="ViT is the same run at lpi=on and lpi=off") as error:
        plan_of(raw)
    assert 'reference_levels: {ViT: {lpi: "off"}}' in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model.network": "isoattn.vision.VIT"}, "reference X .*VIT"),
        ({**VIT, "model.network.init_args.dpth": 2}, "reference X .*dpth"),
        ({"trainer.max_epoch": 1}, "reference X .*trainer.max_epochs"),
    ],
)
def test_a_reference_that_cannot_be_resolved_is_named(options: Any, message: str) -> None:
    with pytest.raises(StudyError, match=f"(?s)Study tiny, {message}") as error:
        plan_of(two_cells(references={"X": options}))
    assert len(str(error.value).splitlines()) < 10
