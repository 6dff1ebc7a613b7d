from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isoattn.ablate.domain import shipped_studies, study_app
from isoattn.ablate.plan import Plan
from isoattn.ablate.study import StudyError, level_name, load_study, study_from_dict

from .tiny import tiny, write_study

FIVE = [0.0003, 0.001, 0.003, 0.01, 0.03]


def changed(**changes: Any) -> dict[str, Any]:
    return tiny(**changes)


def without(*keys: str) -> dict[str, Any]:
    return {k: v for k, v in tiny().items() if k not in keys}


BESIDE: dict[str, Any] = {
    "factors": {"loss": {"on": {"model.loss.name": "bce"}, "off": {}}},
    "references": {"GCN": {"model.network": "X"}, "MLP": {"model.network": "Y"}},
    "reference_levels": {"GCN": {"loss": "off"}},
}
BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("unknown key", changed(basline="Softmax"), "unknown key 'basline'. Did you mean baseline?"),
    ("unknown part", changed(metric={"nam": "x"}), "metric: unknown key 'nam'. Did you mean name"),
    ("missing", without("question", "app"), "missing app, question"),
    ("no search", without("search"), "search must be a mapping, got None"),
    ("no rates", changed(search={"seeds": [1]}), "search: missing values"),
    ("no arms", without("arms"), "the baseline 'Softmax' is no arm"),
    ("one arm", changed(arms={"Softmax": "Softmax"}), "at least two arms, got ['Softmax']"),
    ("baseline", changed(baseline="Sofmax"), "'Sofmax' is no arm. Did you mean Softmax?"),
    ("no confirmation", changed(confirm_seeds=[]), "confirm_seeds is empty"),
    ("repeated", changed(confirm_seeds=[0, 1, 0]), "confirm_seeds repeats a seed: [0, 1, 0]"),
    ("negative", changed(confirm_seeds=[-1]), "confirm_seeds must not be below 0"),
    (
        "repeated in search",
        changed(search={"values": FIVE, "seeds": [7, 7]}),
        "search.seeds repeats a seed: [7, 7]",
    ),
    ("shared seeds", changed(confirm_seeds=[0, 100]), "seeds [100] are used for the search and"),
    ("no rate", changed(search={"values": [], "seeds": [100]}), "needs learning rates above 0"),
    ("rate 0", changed(search={"values": [0, 1], "seeds": [100]}), "needs learning rates above 0"),
    ("same rate", changed(search={"values": [1, 1.0], "seeds": [100]}), "repeats a rate"),
    ("no seeds", changed(search={"values": FIVE}), "several rates but search.seeds is empty"),
    ("claim", changed(claim=True), "a claim needs at least five learning rates"),
    ("extend", changed(search={"values": [1], "extend": -1}), "extend must not be below 0"),
    ("worst", changed(metric={"mode": "min"}), "metric.worst is 0 while less is better"),
    ("margin", changed(metric={"margin": 0}), "metric.margin must be above 0"),
    ("mode", changed(metric={"mode": "maximum"}), "mode must be max or min, got 'maximum'"),
    ("name", changed(name="a/b"), "name 'a/b' must be letters"),
    ("number", changed(metric={"margin": "little"}), "margin must be a number, got 'little'"),
    ("seed", changed(confirm_seeds=["x"]), "confirm_seeds must be a whole number, got 'x'"),
    ("half a seed", changed(confirm_seeds=[0.5]), "confirm_seeds must be a whole number, got 0.5"),
    ("no list", changed(confirm_seeds=3), "confirm_seeds must be a list, got 3"),
    ("claim is no flag", changed(claim="no"), "claim must be true or false, got 'no'"),
    (
        "arm with more",
        changed(arms={"Softmax": {"class_path": "Softmax", "lr": 1}, "Zero": "Zero"}),
        "arm 'Softmax' sets lr. An arm sets the attention and nothing else",
    ),
    ("arm without class", changed(arms={"Softmax": {}}), "arm 'Softmax' must be a class name or"),
    ("arms", changed(arms=["Softmax", "Zero"]), "arms must be a mapping"),
    ("only arms", changed(only_arms=["Softmax", "Zer"]), "only_arms names 'Zer'. Did you mean Ze"),
    ("only arms", changed(only_arms="Softmax"), "only_arms must be a list"),
    ("levels", changed(only_levels={"t": ["a"]}), "only_levels names 't'. There is none."),
    (
        "levels",
        changed(factors={"t": {"on1": {}, "off": {}}}, only_levels={"t": ["of"]}),
        "only_levels, factor 't' names 'of'. Did you mean off",
    ),
    (
        "levels",
        changed(factors={"t": {"on1": {}, "off": {}}}, only_levels={"t": []}),
        "only_levels leaves factor 't' no level",
    ),
    (
        "factor sets the attention",
        changed(factors={"t": {"a": {"model.attention.path": "math"}, "b": {}}}),
        "factor 't', level 'a' sets the attention; that is what an arm is for",
    ),
    ("override", changed(overrides={"model.attention": "Zero"}), "overrides sets the attention"),
    ("override", changed(overrides={"seed_everything": 3}), "overrides sets seed_everything, wh"),
    ("rate", changed(overrides={"model.optim.lr": 3}), "put the rates in search.values"),
    ("factor", changed(factors={"t": {"a": {}}}), "needs at least two levels, got ['a']"),
    ("factor", changed(factors={"t": ["a", "b"]}), "factor 't' must be a mapping"),
    (
        "reference of an arm's name",
        changed(references={"Zero": {"model.network": "X"}}),
        "reference 'Zero' has the name of an arm; give it another",
    ),
    ("empty reference", changed(references={"GCN": None}), "'GCN' sets no option, so it would be"),
    ("references", changed(references=["GCN"]), "references must be a mapping, got ['GCN']"),
    (
        "reference sets the attention",
        changed(references={"GCN": {"model.attention": "Zero"}}),
        "reference 'GCN' sets the attention; that is what an arm is for",
    ),
    (
        "reference sets the seed",
        changed(references={"GCN": {"seed_everything": 1}}),
        "reference 'GCN' sets seed_everything, which the study sets for each cell itself",
    ),
    (
        "reference sets the rate",
        changed(references={"GCN": {"model.optim.lr": 1}}),
        "put the rates in search.values",
    ),
    ("near references", changed(refernces={}), "unknown key 'refernces'. Did you mean references"),
    (
        "only references",
        changed(**BESIDE, only_references=["GNC"]),
        "only_references names 'GNC'. Did you mean GCN?",
    ),
    ("only references", changed(**BESIDE, only_references="GCN"), "only_references must be a list"),
    (
        "levels of no reference",
        changed(reference_levels={"GCN": {}}),
        "reference_levels names the reference 'GCN'. There is none.",
    ),
    (
        "levels of another reference",
        changed(**{**BESIDE, "reference_levels": {"GNC": {}}}),
        "reference_levels names the reference 'GNC'. Did you mean GCN?",
    ),
    (
        "no factor",
        changed(**{**BESIDE, "reference_levels": {"GCN": {"loos": "on"}}}),
        "reference_levels, GCN, names the factor 'loos'. Did you mean loss?",
    ),
    (
        "no level",
        changed(**{**BESIDE, "reference_levels": {"GCN": {"loss": "onn"}}}),
        "reference_levels, GCN, names the level 'onn'. Did you mean on?",
    ),
    (
        "level is no text",
        changed(**{**BESIDE, "reference_levels": {"GCN": {"loss": False}}}),
        'reference_levels, GCN: loss is False; write it as "off"',
    ),
    ("swaps", changed(swaps=["Softmax", "Zer"]), "swaps names 'Zer'. Did you mean Zero?"),
    ("swaps", changed(swaps="Zero"), "swaps must be a list, got 'Zero'"),
    ("on", changed(factors={"t": {True: {}, False: {}}}), "reads this name as True; write it in"),
]


@pytest.mark.parametrize(("raw", "message"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_what_is_wrong_is_named(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(StudyError) as error:
        study_from_dict(raw, where="study.yaml")
    assert message in str(error.value)
    assert str(error.value).startswith("study.yaml")
    assert len(str(error.value).splitlines()) < 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "Cannot read the study"),
        ("- a", "is no study: it must be a mapping"),
        ("arms: {A: x, A: y}", "A given twice"),
        ("presets: [a]", "presets must be a mapping"),
        ("presets: {full: 3}", "preset full must be a mapping"),
    ],
)
def test_a_file_that_is_no_study(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(StudyError, match="study.yaml") as error:
        load_study(file)
    assert message in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="Cannot read the study .*nowhere.yaml"):
        load_study(tmp_path / "nowhere.yaml")


def test_a_preset_is_merged_part_by_part(tmp_path: Path) -> None:
    presets = {
        "small": {"overrides": {"trainer.max_epochs": 1}, "search": {"seeds": [5]}},
        "full": {},
    }
    file = write_study(tmp_path, tiny(presets=presets, default_preset="small"))
    small, full = load_study(file), load_study(file, "full")
    assert (small.preset, full.preset) == ("small", "full")
    assert small.overrides["trainer.max_epochs"] == 1
    assert small.overrides["trainer.limit_train_batches"] == 8  # kept: mappings are merged
    assert small.search.seeds == (5,)
    assert small.search.values == full.search.values
    assert small.hash != full.hash


def test_an_unknown_preset_is_answered_with_near_names(tmp_path: Path) -> None:
    file = write_study(tmp_path, tiny(presets={"smoke": {}, "full": {}}))
    with pytest.raises(StudyError, match="no preset 'smok'. Did you mean smoke?"):
        load_study(file, "smok")


def test_a_preset_may_build_on_another(tmp_path: Path) -> None:
    file = write_study(tmp_path, tiny())
    presets = "presets:\n  mini: &mini {claim: false}\n  more: {<<: *mini, confirm_seeds: [7]}\n"
    file.write_text(file.read_text() + "\n" + presets)
    assert load_study(file, "more").confirm_seeds == (7,) and not load_study(file, "more").claim


def test_only_arms_keeps_the_order_it_names() -> None:
    study = study_from_dict(tiny(only_arms=["Zero", "Softmax"]), where="x")
    assert list(study.arms) == ["Zero", "Softmax"]


TWO = {"t": {"a": {"model.x": 1}, "b": {"model.x": 2}, "c": {}}}


def test_a_preset_may_keep_some_levels() -> None:
    study = study_from_dict(tiny(factors=TWO, only_levels={"t": ["c", "a"]}), where="x")
    assert study.level_sets == [{"t": "c"}, {"t": "a"}]


def test_the_only_level_that_is_left_is_no_factor_but_what_is_set() -> None:
    study = study_from_dict(tiny(factors=TWO, only_levels={"t": ["b"]}), where="x")
    assert study.level_sets == [{}] and study.overrides["model.x"] == 2
    assert study_from_dict(study.as_dict(), where="x") == study


def test_a_preset_may_leave_references_out_and_their_levels_go_with_them() -> None:
    study = study_from_dict(tiny(**BESIDE), where="x")
    assert list(study.references) == ["GCN", "MLP"]
    assert study.reference_levels == {"GCN": {"loss": "off"}}
    one = study_from_dict(tiny(**BESIDE, only_references=["MLP"]), where="x")
    assert (list(one.references), one.reference_levels) == (["MLP"], {})
    none = study_from_dict(tiny(**BESIDE, only_references=[]), where="x")
    assert none == study_from_dict(tiny(factors=BESIDE["factors"]), where="x")


def test_a_reference_runs_in_every_level_set_but_those_it_leaves_out() -> None:
    study = study_from_dict(tiny(**BESIDE), where="x")
    assert study.of_reference("MLP").level_sets == [{"loss": "on"}, {"loss": "off"}]
    assert study.of_reference("GCN").level_sets == [{"loss": "off"}]
    assert study.beside("GCN", {"loss": "on"}) == {"loss": "off"}
    assert study.beside("MLP", {"loss": "on"}) == {"loss": "on"}


def test_swaps_go_with_the_arms_that_a_preset_keeps() -> None:
    raw = tiny(swaps=["Zero", "Softmax"], only_arms=["Again", "Softmax"])
    assert study_from_dict(raw, where="x").swaps == ("Softmax",)


def test_what_a_study_does_not_use_is_no_part_of_its_hash() -> None:
    plain = study_from_dict(tiny(), where="x")
    empty = study_from_dict(tiny(references={}, reference_levels={}, swaps=[]), where="x")
    assert empty.hash == plain.hash
    assert not {"references", "reference_levels", "swaps"} & plain.as_dict().keys()
    more = study_from_dict(tiny(**BESIDE, swaps=["Zero"]), where="x")
    assert more.hash != study_from_dict(tiny(**BESIDE), where="x").hash
    again = study_from_dict(json.loads(json.dumps(more.as_dict())), where="y")
    assert (again, again.hash) == (more, more.hash)


def test_the_hash_is_of_the_content_not_of_the_order() -> None:
    raw = tiny()
    turned = dict(reversed(raw.items()))
    turned["arms"] = dict(reversed(raw["arms"].items()))
    one, two = study_from_dict(raw, where="a"), study_from_dict(turned, where="b")
    assert one.hash == two.hash
    assert one.hash != study_from_dict(tiny(confirm_seeds=[0, 2]), where="a").hash


def test_the_hash_of_a_study_stays_what_it_was() -> None:
    """A study that is registered today can be gone on with by a later version."""
    assert study_from_dict(tiny(), where="x").hash == "e409f28d"


def test_numbers_that_yaml_reads_as_text_are_numbers(tmp_path: Path) -> None:
    file = write_study(tmp_path, tiny())
    text = file.read_text().replace("- 0.001\n", "- 1e-3\n")
    file.write_text(text)
    assert "1e-3" in text
    assert load_study(file).search.values == (0.001, 0.006)


def test_arms_keep_their_order_and_levels_their_names_through_a_file() -> None:
    levels = {8: {"trainer.max_epochs": 8}, "4": {}}
    study = study_from_dict(tiny(factors={"epochs": levels}), where="x")
    again = study_from_dict(json.loads(json.dumps(study.as_dict())), where="y")
    assert again == study
    assert list(again.arms) == list(study.arms) == ["Softmax", "Again", "Zero"]
    assert [level_name(levels) for levels in again.level_sets] == ["epochs=8", "epochs=4"]


def presets() -> list[tuple[str, str]]:
    import yaml

    return [
        (name, preset)
        for name, path in shipped_studies().items()
        for preset in yaml.safe_load(path.read_text())["presets"]
    ]


@pytest.mark.parametrize(("name", "preset"), presets())
def test_every_shipped_study_can_be_planned(name: str, preset: str) -> None:
    study = load_study(shipped_studies()[name], preset)
    plan = Plan(study, study_app(study.app))
    search, confirm = plan.count()
    assert len(plan.search_cells(study.search.values)) == search
    assert confirm == len(study.arms) * len(study.level_sets) * len(study.confirm_seeds)
    ids = [cell.id for cell in plan.search_cells(study.search.values)]
    assert len(set(ids)) == len(ids)


def test_options_can_follow_the_seed(tmp_path: Path) -> None:
    """Such as the index of a split: each seed its own, the arms of a pair the same."""
    study = study_from_dict(tiny(with_seed=["data.split_seed"]), where="here")
    plan = Plan(study, study_app("vision"))
    cells = [c for c in plan.confirm_cells([], (0.001, 0.006)) if c.arm == "Softmax"]
    assert [c.config["data"]["init_args"]["split_seed"] for c in cells] == [0, 1]
    assert study.hash != study_from_dict(tiny(), where="here").hash


def test_an_option_that_cells_cannot_be_given_is_refused() -> None:
    study = study_from_dict(tiny(with_seed=["data.fold"]), where="here")
    with pytest.raises(StudyError, match=r"Softmax \(all\) has no option data.fold"):
        Plan(study, study_app("vision"))
    with pytest.raises(StudyError, match="with_seed sets the attention"):
        study_from_dict(tiny(with_seed=["model.attention.seed"]), where="here")
