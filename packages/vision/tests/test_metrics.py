"""Micro and balanced accuracy are two figures with two names."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isoattn.vision.metrics import Confusion


def test_published_case_of_micro_and_macro() -> None:
    # torchmetrics 2320: nine images of class 0, one of class 1, all predicted 0.
    confusion = Confusion(2)
    confusion.update(torch.zeros(10, dtype=torch.int64), torch.tensor([0] * 9 + [1]))
    assert confusion.accuracy() == 0.9
    assert confusion.balanced_accuracy() == 0.5
    assert confusion.per_class_accuracy().tolist() == [1.0, 0.0]
    assert confusion.table_KK.tolist() == [[9, 0], [1, 0]]


@given(
    classes=st.integers(1, 7),
    sizes=st.lists(st.integers(0, 9), max_size=4),
    seed=st.integers(0, 99),
)
def test_batches_add_up_to_the_whole(classes: int, sizes: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    predicted, labels = torch.randint(classes, (2, sum(sizes)), generator=generator)
    parts, whole = Confusion(classes), Confusion(classes)
    whole.update(predicted, labels)
    for x, y in zip(predicted.split(sizes), labels.split(sizes), strict=True):
        parts.update(x, y)
    assert torch.equal(parts.table_KK, whole.table_KK)
    assert parts.items == sum(sizes)
    if sum(sizes):
        assert math.isclose(parts.accuracy(), float((predicted == labels).double().mean()))


def test_nothing_counted_and_absent_classes_are_nan() -> None:
    confusion = Confusion(3)
    assert math.isnan(confusion.accuracy()) and math.isnan(confusion.balanced_accuracy())
    confusion.update(torch.tensor([0, 1]), torch.tensor([0, 1]))
    assert confusion.per_class_accuracy().isnan().tolist() == [False, False, True]
    assert confusion.balanced_accuracy() == 1.0
    confusion.reset()
    assert confusion.items == 0


def test_what_does_not_fit_is_named() -> None:
    confusion = Confusion(3)
    with pytest.raises(ValueError, match=r"got \(2, 3\) and \(2,\)"):
        confusion.update(torch.zeros(2, 3), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"0\.\.2, got 0\.\.3"):
        confusion.update(torch.tensor([0, 0]), torch.tensor([0, 3]))
