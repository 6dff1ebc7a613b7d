"""Graphs, splits and tasks refuse what does not fit; batches move as wholes."""

from dataclasses import replace

import pytest
import torch

from isoattn.graph.graph import Graph, tidy_edges
from isoattn.graph.task import NodeBatch, NodeTask, Split

X = torch.eye(4)
EDGES = torch.tensor([[0, 1], [1, 2]])


def ids(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def task() -> NodeTask:
    split = Split(ids(0), ids(1), ids(2))
    y = torch.tensor([0, 1, 0, -1])
    return NodeTask("t", Graph(X, EDGES), y, "multiclass", ("a", "b"), "accuracy", split)


def test_edges_are_tidied() -> None:
    edges = torch.tensor([[2, 0, 0, 1, 3], [0, 1, 1, 0, 3]])
    tidy, counts = tidy_edges(edges, 4)
    assert tidy.tolist() == [[0, 0, 1, 2], [1, 2, 0, 0]]
    assert counts == {
        "entries_given": 5,
        "self_loops_dropped": 1,
        "duplicates_dropped": 1,
        "reverse_added": 1,
        "entries": 4,
    }
    assert tidy_edges(edges, 4, undirected=False)[0].tolist() == [[0, 1, 2], [1, 0, 0]]
    assert tidy_edges(edges, 4, self_loops=True)[0][:, -1].tolist() == [3, 3]
    empty, _ = tidy_edges(torch.zeros(2, 0, dtype=torch.int64), 4)
    assert empty.shape == (2, 0) and empty.dtype == torch.int64


def test_graph_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"features \(N, F\) .* got \(4,\) and \(2, 2\)"):
        Graph(torch.zeros(4), EDGES)
    with pytest.raises(ValueError, match=r"segments has one number a node, \(4,\), got \(3,\)"):
        Graph(X, EDGES, segments=torch.zeros(3))
    with pytest.raises(ValueError, match=r"edge_index must lie in 0\.\.3, got 0\.\.4"):
        Graph(X, torch.tensor([[0], [4]])).check_ids()


def test_split_is_disjoint_by_name() -> None:
    with pytest.raises(ValueError, match=r"2 node\(s\) into train and test, such as \[1, 2\]"):
        Split(ids(0, 1, 2), ids(3), ids(2, 1))
    with pytest.raises(ValueError, match=r"The val part of the split names 1 node.*\[3\]"):
        Split(ids(0), ids(3, 3), ids(1))
    with pytest.raises(ValueError, match="int64 node numbers in one dimension, got torch.bool"):
        Split(torch.tensor([True]), ids(3), ids(1))
    with pytest.raises(KeyError, match="parts train, val, test, got 'valid'"):
        Split(ids(0), ids(1), ids(2))["valid"]  # type: ignore[index]


def test_task_refuses_what_does_not_fit() -> None:
    good = task()
    with pytest.raises(
        ValueError, match=r"class numbers lie in 0\.\.1, -1 = unlabelled; got -1\.\.2"
    ):
        replace(good, y=torch.tensor([0, 1, 2, -1]))
    with pytest.raises(ValueError, match=r"shape \(4, 2\), got \(4,\)"):
        replace(good, kind="multilabel")
    with pytest.raises(ValueError, match="needs two classes or multilabel targets, got 3 classes"):
        replace(good, metric="roc_auc", classes=("a", "b", "c"))
    with pytest.raises(ValueError, match="multilabel tasks are scored by roc_auc"):
        replace(good, kind="multilabel", y=torch.zeros(4, 2))
    with pytest.raises(ValueError, match="1 node ids for 4 nodes"):
        replace(good, node_ids=("a",))
    with pytest.raises(ValueError, match=r"the test part has node numbers outside 0\.\.3: 4\.\.4"):
        replace(good, split=Split(ids(0), ids(1), ids(4)))


def test_labelled_nodes() -> None:
    assert task().labelled().tolist() == [True, True, True, False]
    y = torch.tensor([[0.0, float("nan")], [float("nan")] * 2, [1, 0], [1, 1]])
    multilabel = replace(task(), y=y, kind="multilabel", metric="roc_auc")
    assert multilabel.labelled().tolist() == [True, False, True, True]


def test_batch_moves_as_a_whole() -> None:
    graph = Graph(X, EDGES, segments=ids(0, 0, 1, 1), node=ids(3, 2, 1, 0))
    batch = NodeBatch(graph, torch.arange(4), torch.ones(4, dtype=torch.bool)).to("meta")
    moved = [batch.y, batch.target, batch.graph.x, batch.graph.edge_index, batch.graph.node]
    assert all(tensor is not None and tensor.device.type == "meta" for tensor in moved)
    assert Graph(X, EDGES).to("meta").segments is None
