"""What test and predict leave behind: nodes named as the user named them."""

import csv
import json
from dataclasses import replace

import numpy as np
import pandas
import pytest
import torch

from isoattn.apps.base.errors import UserError
from isoattn.apps.graph.outputs import (
    check_suffix,
    per_label,
    write_embeddings,
    write_predictions,
    write_test_outputs,
)
from isoattn.graph.graph import Graph
from isoattn.graph.task import NodeTask, Split


def rows(file):
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def task_of(y, classes, *, ids=("007", "b", "c,d", "NA")):
    nodes = torch.arange(4)
    graph = Graph(torch.ones(4, 1), torch.zeros(2, 0, dtype=torch.int64))
    kind = "multiclass" if y.ndim == 1 else "multilabel"
    metric = "accuracy" if kind == "multiclass" else "roc_auc"
    split = Split(nodes[:1], nodes[1:2], nodes[2:])
    return NodeTask("small", graph, y, kind, tuple(classes), metric, split, ids)


@pytest.fixture
def classes():
    return task_of(torch.tensor([0, 1, 0, -1]), ["no", "yes"])


@pytest.fixture
def labels():
    nan = float("nan")
    y = torch.tensor([[0.0, 1, nan], [1, nan, nan], [0, 1, nan], [1, 0, nan]])
    return task_of(y, ["a", "b", "never"])


def test_classes(classes, tmp_path):
    batches = [
        {
            "index": torch.tensor(index),
            "label": torch.tensor(label),
            "probability": torch.tensor(probability),
        }
        for index, label, probability in (
            ([2, 0], [0, 0], [[0.75, 0.25], [0.4, 0.6]]),
            ([1], [1], [[0.1, 0.9]]),
        )
    ]
    metrics = {"test/accuracy": 2 / 3, "test/roc_auc": float("nan")}
    written = write_test_outputs(tmp_path, batches, classes, {"metrics": metrics})
    assert sorted(written) == sorted(file.name for file in tmp_path.iterdir())
    assert rows(tmp_path / "predictions.csv") == [
        {"node": "c,d", "label": "no", "predicted": "no", "probability": "0.75", "correct": "1"},
        {"node": "007", "label": "no", "predicted": "yes", "probability": "0.6", "correct": "0"},
        {"node": "b", "label": "yes", "predicted": "yes", "probability": "0.9", "correct": "1"},
    ]
    assert [(r["class"], r["items"], r["correct"]) for r in rows(tmp_path / "per_class.csv")] == [
        ("no", "2", "1"),
        ("yes", "1", "1"),
    ]
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads((tmp_path / "result.json").read_text())
    assert result == {"metrics": {"test/accuracy": 2 / 3, "test/roc_auc": None}, "items": 3}


def test_labels_have_a_column_each(labels, tmp_path):
    outputs = [
        {
            "index": torch.arange(4),
            "label": labels.y,
            "probability": torch.tensor(
                [[0.1, 0.9, 0.5], [0.8, 0.5, 0.5], [0.3, 0.2, 0.5], [0.2, 0.4, 0.5]]
            ),
        }
    ]
    written = write_test_outputs(tmp_path, outputs, labels, {})
    assert written == ["result.json", "predictions.csv", "per_label.csv"]
    found = rows(tmp_path / "predictions.csv")
    assert list(found[0]) == [
        *("node", "true(a)", "true(b)", "true(never)", "p(a)", "p(b)", "p(never)")
    ]
    assert [(r["node"], r["true(a)"], r["true(b)"], r["p(b)"]) for r in found] == [
        ("007", "0", "1", "0.9"),
        ("b", "1", "", "0.5"),
        ("c,d", "0", "1", "0.2"),
        ("NA", "1", "0", "0.4"),
    ]
    assert rows(tmp_path / "per_label.csv") == [
        {"label": "a", "known": "4", "positive": "2", "roc_auc": "0.75"},
        {"label": "b", "known": "3", "positive": "2", "roc_auc": "0.5"},
        {"label": "never", "known": "0", "positive": "0", "roc_auc": ""},
    ]


def test_areas_are_those_of_the_metric(labels):
    """Their mean is the score of the run."""
    from isoattn.graph.metrics import multilabel_roc_auc

    generator = torch.Generator().manual_seed(0)
    probability = torch.rand(50, 3, generator=generator)
    y = (torch.rand(50, 3, generator=generator) > 0.6).float()
    y[torch.rand(50, 3, generator=generator) > 0.8] = float("nan")
    areas = per_label(y, probability, labels.classes)["roc_auc"]
    assert np.mean(areas) == pytest.approx(multilabel_roc_auc(probability, y))


OUTPUTS = [
    {
        "node": torch.tensor([0, 3]),
        "probability": torch.tensor([[0.25, 0.75], [1.0, 1e-9]]),
        "embedding": torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.5]]),
    }
]


def test_predictions_by_suffix(classes, tmp_path):
    files = [tmp_path / f"p{suffix}" for suffix in (".csv", ".parquet")]
    for file in files:
        assert write_predictions(file, OUTPUTS, classes, ["no", "yes"], "multiclass") == 2
    table, parquet = rows(files[0]), pandas.read_parquet(files[1])
    assert list(parquet.columns) == list(table[0])
    assert table[1] == {
        "node": "NA",
        "predicted": "no",
        "probability": "1",
        "p(no)": "1",
        "p(yes)": "1e-09",
    }
    assert parquet["node"].tolist() == ["007", "NA"]
    assert parquet["predicted"].tolist() == ["yes", "no"]
    assert parquet["p(yes)"].tolist() == OUTPUTS[0]["probability"][:, 1].tolist()


def test_predictions_of_labels_and_of_nodes_without_names(labels, tmp_path):
    nameless = replace(labels, node_ids=None)
    write_predictions(tmp_path / "p.csv", OUTPUTS, nameless, ["a", "b"], "multilabel")
    assert [list(row.values()) for row in rows(tmp_path / "p.csv")] == [
        ["0", "0.25", "0.75"],
        ["3", "1", "1e-09"],
    ]


def test_embeddings_by_suffix(classes, tmp_path):
    wanted = OUTPUTS[0]["embedding"].numpy()
    for suffix in (".csv", ".parquet", ".npz"):
        assert write_embeddings(tmp_path / f"e{suffix}", OUTPUTS, classes) == (2, 3)
    for row, values in zip(rows(tmp_path / "e.csv"), wanted, strict=True):
        assert [float(row[f"e{i}"]) for i in range(3)] == values.tolist()
    parquet = pandas.read_parquet(tmp_path / "e.parquet")
    assert parquet.columns.tolist() == ["node", "e0", "e1", "e2"]
    np.testing.assert_array_equal(parquet[["e0", "e1", "e2"]], wanted)
    with np.load(tmp_path / "e.npz") as arrays:
        assert arrays["node"].tolist() == ["007", "NA"]
        np.testing.assert_array_equal(arrays["embedding"], wanted)


def test_another_suffix_is_refused_before_anything_is_written(classes, tmp_path):
    with pytest.raises(UserError, match=r"p.xlsx has the suffix .xlsx: .* in .csv or .parquet"):
        write_predictions(tmp_path / "p.xlsx", OUTPUTS, classes, ["no", "yes"], "multiclass")
    with pytest.raises(UserError, match=r"e has the suffix none: .* .csv, .parquet or .npz"):
        write_embeddings(tmp_path / "e", OUTPUTS, classes)
    assert not list(tmp_path.iterdir())
    check_suffix(tmp_path / "p.csv", (".csv", ".parquet"))


# --- through the command ------------------------------------------------------------------------


def test_test_writes_tables_and_a_picture(isoattn, club_run, tmp_path):
    _, run = club_run
    out = tmp_path / "out"
    result = isoattn("test", f"--ckpt_path={run}/checkpoints/best.ckpt", f"--output={out}")
    assert result.code == 0, result.err
    found = rows(out / "predictions.csv")
    assert [r["node"] for r in found] == [f"m{n:02d}" for n in range(34) if (n // 2) % 3 == 2]
    right = sum(int(r["correct"]) for r in found)
    outcome = json.loads((out / "result.json").read_text())
    assert outcome["items"] == len(found)
    assert outcome["metrics"]["test/accuracy"] == pytest.approx(right / len(found), abs=1e-6)
    per_class = rows(out / "per_class.csv")
    assert [r["class"] for r in per_class] == ["Mr. Hi", "Officer"]
    assert sum(int(r["items"]) for r in per_class) == len(found)
    assert "confusion.png" in result.out


def test_predict_names_all_nodes(isoattn, club_run):
    _, run = club_run
    result = isoattn(
        "predict",
        f"--ckpt_path={run}/checkpoints/best.ckpt",
        "--output=p.parquet",
        "--embeddings=e.npz",
    )
    assert result.code == 0, result.err
    table = pandas.read_parquet("p.parquet")
    assert table["node"].tolist() == [f"m{n:02d}" for n in range(34)]
    np.testing.assert_allclose(table[["p(Mr. Hi)", "p(Officer)"]].sum(axis=1), 1, atol=1e-6)
    with np.load("e.npz") as arrays:
        assert arrays["embedding"].shape == (34, 8)
