"""Scores of bags: the reference's numbers, ties, absent classes, any batches."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from isoattn.wsi.metrics import BagScore, macro_auc

GOLDEN = Path(__file__).parent / "golden"
NAMES = {
    "auc": "auc_macro",
    "accuracy": "accuracy_micro",
    "kappa": "cohen_kappa",
    "f1": "f1_macro",
    "precision": "precision_macro",
    "recall": "recall_macro",
}


@pytest.mark.parametrize("name", ["metric_bag_binary", "metric_bag_multiclass"])
def test_golden(name):
    cases = {c["id"]: c for c in json.loads((GOLDEN / "manifest.json").read_text())["cases"]}
    tensors = load_file(GOLDEN / f"{name}.safetensors")
    tolerance = cases[name]["tolerance"]["f32"]  # what the libraries stored is float32
    score = BagScore(cases[name]["options"]["classes"])
    for rows in torch.arange(len(tensors["in.label"])).split(7):
        score.update(tensors["in.logits"][rows], tensors["in.label"][rows])
    found = score.compute()
    for ours, theirs in NAMES.items():
        want = tensors[f"out.{theirs}"].double()
        torch.testing.assert_close(torch.tensor(found[ours]).double(), want, **tolerance)
    area = macro_auc(tensors["out.prob"], tensors["in.label"])
    torch.testing.assert_close(
        torch.tensor(area).double(), tensors["out.auc_macro"].double(), **tolerance
    )


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2))
def test_the_area_is_the_chance_of_being_above(pairs):
    score = torch.tensor([float(s) for s, _ in pairs])
    label = torch.tensor([int(y) for _, y in pairs])
    got = macro_auc(torch.stack([-score, score], 1), label)
    above, below = score[label == 1], score[label == 0]
    if not len(above) or not len(below):
        assert math.isnan(got)
        return
    gap = above[:, None] - below
    want = ((gap > 0).double() + 0.5 * (gap == 0)).mean()
    assert got == pytest.approx(float(want), abs=1e-6)


def test_scores_beyond_what_a_softmax_can_tell_apart_still_rank():
    score = BagScore(2)
    logits = torch.tensor([[0.0, 90.0], [0.0, 100.0], [0.0, 110.0], [0.0, 120.0]])
    score.update(logits, torch.tensor([0, 0, 1, 1]))
    assert score.compute()["auc"] == 1.0


def test_classes_that_do_not_occur_do_not_count():
    score = BagScore(3)
    score.update(torch.tensor([[2.0, 1, 0], [0, 1, 0], [3, 0, 0]]), torch.tensor([0, 1, 0]))
    assert score.compute()["auc"] == 1.0


def test_nothing_counted_is_nan_and_unlabelled_bags_do_not_count():
    score = BagScore(2)
    assert all(math.isnan(x) for x in score.compute().values())
    score.update(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, -1]))
    assert score.items == 1 and score.compute()["accuracy"] == 1.0
    score.reset()
    assert score.items == 0


def test_messages():
    with pytest.raises(ValueError, match=r"logits \(bags, 2\) and as many labels, got \(1, 3\)"):
        BagScore(2).update(torch.zeros(1, 3), torch.zeros(1).long())
    with pytest.raises(ValueError, match="1 bags have NaN scores: the model has diverged"):
        macro_auc(torch.tensor([[float("nan"), 0.0], [1, 0]]), torch.tensor([0, 1]))
