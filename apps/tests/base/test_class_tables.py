"""The tables that every classifier leaves behind."""

import csv

import numpy as np
import pytest
import torch

from isoattn.apps.base.class_tables import confusion_picture, write_class_tables


@pytest.mark.parametrize("classes", [1, 2, 31, 70])
def test_confusion_picture_of_any_size(classes):
    names = [f"class {c}" for c in range(classes)]
    data = confusion_picture(np.eye(classes, dtype=int), names)
    assert data.startswith(b"\x89PNG")


def test_counts_are_by_true_class(tmp_path):
    label, predicted = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 0, 0])
    write_class_tables(tmp_path, label, predicted, ["a", "b", "c"])
    with (tmp_path / "per_class.csv").open(newline="") as file:
        per_class = list(csv.reader(file))
    assert per_class[1:] == [
        ["a", "3", "2", "0.666667"],
        ["b", "1", "0", "0.000000"],
        ["c", "0", "0", ""],
    ]
    with (tmp_path / "confusion.csv").open(newline="") as file:
        confusion = list(csv.reader(file))
    assert confusion == [
        ["true \\ predicted", "a", "b", "c"],
        ["a", "2", "1", "0"],
        ["b", "1", "0", "0"],
        ["c", "0", "0", "0"],
    ]
