"""The vision app as the study engine uses it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isoattn.ablate.domain import study_app
from isoattn.ablate.plan import Plan
from isoattn.ablate.study import StudyError, study_from_dict
from isoattn.apps.base.study import ItemScores, _batches, _in_child, replacement_of
from isoattn.apps.vision.study import VisionStudy

from .tiny import two_cells

ARMS = {"Softmax": "Softmax", "XCA": "CrossCovariance", "Zero": "Zero"}


@pytest.fixture(scope="module")
def plan() -> Plan:
    study = study_from_dict(two_cells(arms=ARMS), where="x")
    return Plan(study, study_app("vision"))


def test_an_unknown_app_is_named() -> None:
    with pytest.raises(StudyError, match="No app 'visoin' can run a study. There are: vision"):
        study_app("visoin")


def test_weights_depend_on_the_seed_and_not_on_the_attention(plan: Plan) -> None:
    app = plan.app
    softmax, xca = (app.weights(plan.base(arm, {})) for arm in ("Softmax", "XCA"))
    assert softmax.outside == xca.outside
    assert xca.parameters == softmax.parameters + 2
    other = app.weights({**plan.base("Softmax", {}), "seed_everything": 1})
    assert other.outside.keys() == softmax.outside.keys()
    assert other.outside != softmax.outside


def test_the_gate_gets_the_size_of_the_studys_own_attention(plan: Plan) -> None:
    assert plan.app.attention_shape(plan.base("XCA", {})) == (2, 8, 16)  # 8 x 8 in patches of 2


@pytest.mark.parametrize(
    ("attention", "replacement"),
    [
        ("Softmax", "Mean"),
        ("Linear", "Mean"),
        ("CrossCovariance", "Identity"),
        ("Zero", None),
        ("Identity", None),
    ],
)
def test_what_an_attention_is_replaced_by(attention: str, replacement: str | None) -> None:
    found: Any = replacement_of({"class_path": f"isoattn.core.{attention}"})
    assert (found.__name__ if found else None) == replacement


@pytest.mark.parametrize(("limit", "train"), [(None, 20), (8, 8), (0.5, 10), (10**6, 20)])
def test_the_number_of_steps_of_a_run(plan: Plan, limit: float | None, train: int) -> None:
    from isoattn.vision import DigitsData

    data = DigitsData(batch_size=64)
    data.data_seed = 0
    trainer = {"max_epochs": 3, "limit_train_batches": limit}
    whole = len_of(data)
    expected = {20: whole, 10: whole // 2}.get(train, train)
    assert _batches(data, trainer)[0] == 3 * expected


def len_of(data: Any) -> int:
    data.setup("fit")
    return len(data.train_dataloader())


def test_accuracy_and_predictions_of_items(tmp_path: Path) -> None:
    scores = ItemScores.of_classes(torch.tensor([3, 1]), torch.tensor([0, 1]), torch.tensor([0, 2]))
    assert scores.metrics == {"accuracy": 0.5}
    scores.save(tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz", allow_pickle=False) as data:
        assert {k: data[k].tolist() for k in data} == {
            "index": [3, 1],
            "label": [0, 1],
            "predicted": [0, 2],
        }
    assert [p.name for p in tmp_path.iterdir()] == ["p.npz"]


def test_costs_have_the_closed_forms_and_positive_times(plan: Plan) -> None:
    config = plan.base("Softmax", {})
    (cost,) = plan.app.costs([("Softmax", {}, config)])
    assert (cost.arm, cost.batch, cost.note) == ("Softmax", 64, "fused")
    assert 0 < cost.attention_flops < cost.forward_flops
    assert cost.step_ms > 0 < cost.forward_ms
    assert cost.peak_mib >= 0


def test_a_lost_or_failing_measurement_is_one_kind_of_error() -> None:
    with pytest.raises(RuntimeError, match="terminated abruptly"):
        _in_child(os._exit, 1)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        _in_child(divmod, 1, 0)
    assert _in_child(divmod, 7, 2) == (3, 1)


def test_baselines_are_those_of_the_data(plan: Plan) -> None:
    scores = plan.app.baselines(plan.base("Softmax", {}))
    assert 0.8 < scores["1-NN on pixels"] <= 1.0


def test_training_and_scoring_leave_the_best_checkpoint_scored(plan: Plan, tmp_path: Path) -> None:
    import yaml

    config = plan.base("XCA", {})
    config = {**config, "trainer": {**config["trainer"], "max_epochs": 1}}
    file = tmp_path / "cell.yaml"
    file.write_text(yaml.safe_dump(config))
    run = tmp_path / "run"
    app = VisionStudy()
    argv = ["fit", "--config", str(file), "--run.dir", str(run), "--tracker", "none"]
    status, built = app.train([*argv, "--trainer.enable_progress_bar=false"])
    assert status == 0
    swaps = {"Softmax": {"class_path": "isoattn.core.Softmax", "init_args": {}}}
    scores = app.score(built, run, test=True, control=False, swaps=swaps)
    assert scores.replaced_by == "Identity"
    assert set(scores.metrics) == {
        "val/accuracy",
        "test/accuracy",
        "test/accuracy@Softmax",
        "test/accuracy_replaced",
    }
    assert scores.metrics["val/accuracy"] == pytest.approx(
        built.checkpoints.best_metrics["val/accuracy"]
    )
    again = app.score(built, run, test=True, control=True, swaps={})
    assert (again.replaced_by, "test/accuracy_replaced" in again.metrics) == (None, False)
    assert again.metrics["test/accuracy"] == scores.metrics["test/accuracy"]
    searched = app.score(built, run, test=False, control=False, swaps=swaps)
    assert searched.metrics.keys() == {"val/accuracy"}
