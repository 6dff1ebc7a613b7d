"""Scores over all nodes: the reference's numbers, ties, unknown labels, batches."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from isoattn.graph.metrics import NodeScore, multilabel_roc_auc, roc_auc

GOLDEN = Path(__file__).parent / "golden"


def test_golden_metric_node() -> None:
    cases = {c["id"]: c for c in json.loads((GOLDEN / "manifest.json").read_text())["cases"]}
    case = cases["metric_node"]
    tensors = load_file(GOLDEN / case["file"])
    close = case["tolerance"]["f32"]
    scores, labels = tensors["in.score"], tensors["in.multilabel"]
    area = torch.tensor(multilabel_roc_auc(scores, labels))
    torch.testing.assert_close(area, tensors["out.rocauc"], **close)
    score = NodeScore("multiclass", scores.shape[1], "accuracy")
    score.update(scores, tensors["in.label"][:, 0])
    accuracy = torch.tensor(score.compute()["accuracy"])
    torch.testing.assert_close(accuracy, tensors["out.acc"], **close)
    torch.testing.assert_close(accuracy, tensors["out.f1_micro"], **close)


@settings(deadline=None)
@given(seed=st.integers(0, 999), size=st.integers(2, 60), levels=st.integers(1, 6))
def test_area_is_the_chance_of_a_pair_in_order(seed: int, size: int, levels: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (size,), generator=generator).float()
    positive = torch.rand(size, generator=generator) < 0.4
    difference = scores[positive][:, None] - scores[~positive][None]
    pairs = (difference > 0).double() + 0.5 * (difference == 0)
    expected = float(pairs.mean()) if pairs.numel() else float("nan")
    assert roc_auc(scores, positive) == pytest.approx(expected, nan_ok=True)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    kind=st.sampled_from(["multiclass", "multilabel"]),
    seed=st.integers(0, 99),
)
def test_batches_add_up_to_the_whole(sizes: list[int], kind: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    number = sum(sizes)
    logits = torch.randn(number, 2, generator=generator)
    y = torch.randint(-1, 2, (number,), generator=generator)
    if kind == "multilabel":
        y = torch.randint(2, (number, 2), generator=generator).float()
        y[torch.rand(y.shape, generator=generator) < 0.3] = float("nan")
    parts, whole = (NodeScore(kind, 2, "roc_auc") for _ in range(2))  # type: ignore[arg-type]
    whole.update(logits, y)
    for some, labels in zip(logits.split(sizes), y.split(sizes), strict=True):
        parts.update(some, labels)
    assert parts.items == whole.items
    assert parts.compute() == pytest.approx(whole.compute(), nan_ok=True)


def test_binary_area_does_not_tie_where_softmax_saturates() -> None:
    logits = torch.tensor([[0.0, 50.0], [0.0, 60.0], [50.0, 0.0]])
    score = NodeScore("multiclass", 2, "roc_auc")
    score.update(logits, torch.tensor([0, 1, 0]))
    assert score.compute()["roc_auc"] == 1.0


def test_nothing_counted_is_nan_and_forgetting_works() -> None:
    score = NodeScore("multiclass", 2, "roc_auc")
    assert all(math.isnan(value) for value in score.compute().values())
    score.update(torch.eye(2), torch.tensor([0, 1]))
    score.update(torch.eye(2), torch.tensor([-1, -1]))
    assert score.items == 2
    assert score.compute() == {"accuracy": 1.0, "balanced_accuracy": 1.0, "roc_auc": 1.0}
    score.reset()
    assert score.items == 0 and math.isnan(score.compute()["roc_auc"])
    assert math.isnan(multilabel_roc_auc(torch.zeros(2, 1), torch.ones(2, 1)))


def test_what_does_not_fit_is_named() -> None:
    score = NodeScore("multiclass", 3, "accuracy")
    with pytest.raises(ValueError, match=r"logits \(M, 3\) .* got \(2, 2\) and \(2,\)"):
        score.update(torch.eye(2), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="1 scores are NaN: the model has diverged"):
        roc_auc(torch.tensor([float("nan"), 1.0]), torch.tensor([True, False]))
