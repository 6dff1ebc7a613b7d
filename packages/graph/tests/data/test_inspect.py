"""What is odd about data is found, counted, named, and divided into errors and warnings."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.graph.data import NpzFile, build_task, inspect_source, inspect_task
from isoattn.graph.data.inspect import components, edge_homophily
from isoattn.graph.graph import Graph
from isoattn.graph.task import NodeTask, Split


def kinds(task: NodeTask, level: str | None = None) -> list[str]:
    return [f.kind for f in inspect_task(task).findings if level in (None, f.level)]


def split(*parts: list[int]) -> Split:
    return Split(*(torch.tensor(part, dtype=torch.int64) for part in parts))


@pytest.fixture
def good(small_task: Callable[..., NodeTask]) -> NodeTask:
    task = small_task([(i, (i + 1) % 8) for i in range(8)], 8)
    graph = Graph(task.graph.x + 1, task.graph.edge_index)
    return replace(task, graph=graph, split=split([0, 1, 2, 3], [4, 5], [6, 7]))


def test_nothing_odd(good: NodeTask) -> None:
    report = inspect_task(good)
    assert report.findings == ()
    assert report.figures["components"] == 1 and report.figures["edge_homophily"] == 0.0
    report.raise_errors()


def test_odd_edges_are_warnings() -> None:
    pairs = torch.tensor([[0, 0, 1, 2], [1, 1, 0, 2]])
    task = build_task(
        "odd",
        torch.tensor([[1.0], [2.0], [0.0], [4.0]]),
        pairs,
        torch.tensor([0, 1, 0, 1]),
        classes=["a", "b"],
        split=split([0, 1], [2], [3]),
    )
    report = inspect_task(task)
    found = {f.kind: f.count for f in report.warnings}
    assert report.errors == ()
    assert found == {
        "zero_rows": 1,
        "isolated_nodes": 2,
        "duplicate_edges": 1,
        "self_loops": 1,
        "absent_classes_val": 1,
        "absent_classes_test": 1,
    }
    text = report.text()
    assert "WARNING isolated_nodes: 2 nodes have no edge, such as node 2, 3" in text
    assert "1 of 2 classes do not occur in val: b" in text
    assert text.endswith("0 errors, 6 warnings")


def test_damage_is_an_error(good: NodeTask) -> None:
    x = good.graph.x.clone()
    x[3, 0], x[5, 1] = float("nan"), float("inf")
    bad = replace(good, graph=Graph(x, good.graph.edge_index))
    assert kinds(bad, "error") == ["features_not_finite"]
    with pytest.raises(ValueError, match=r"small cannot be trained on: .*2 nodes .* node 3, 5:"):
        inspect_task(bad).raise_errors()
    empty = replace(good, split=split([0, 1], [], [6, 7]))
    assert kinds(empty, "error") == ["empty_val"]
    nothing = replace(good, y=torch.full((8,), -1))
    assert kinds(nothing, "error") == ["unlabelled_train", "unlabelled_val", "unlabelled_test"]


def test_absent_classes_and_roc_auc(good: NodeTask) -> None:
    one_sided = replace(good, split=split([0, 2], [4, 5], [6, 7]))
    assert kinds(one_sided, "warning") == ["absent_classes_train"]
    assert kinds(replace(one_sided, metric="roc_auc"), "error") == ["absent_classes_train"]


def test_unlabelled_nodes_of_a_part_are_counted(good: NodeTask) -> None:
    y = good.y.clone()
    y[0] = -1
    [finding] = inspect_task(replace(good, y=y)).findings
    assert (finding.level, finding.kind, finding.count) == ("warning", "unlabelled_train", 1)


def test_report_as_json(good: NodeTask) -> None:
    lonely = replace(good, graph=Graph(good.graph.x, torch.zeros(2, 0, dtype=torch.int64)))
    content = json.loads(inspect_task(lonely).to_json())
    assert content["figures"]["edge_homophily"] is None  # no entry, no share
    assert content["figures"]["components"] == 8
    assert [f["kind"] for f in content["findings"]] == ["no_edges"]
    assert (content["errors"], content["warnings"]) == (0, 1)


def test_overlapping_splits_are_reported(tmp_path: Path) -> None:
    masks = np.array([[True, True, False], [False, True, False], [False, False, True]])
    np.savez(
        tmp_path / "g.npz",
        x=np.eye(3, dtype=np.float32),
        edge_index=np.array([[0], [1]]),
        y=np.array([0, 1, 0]),
        train_mask=masks[0],
        val_mask=masks[1],
        test_mask=masks[2],
    )
    report = inspect_source(NpzFile(str(tmp_path / "g.npz")))
    [finding] = report.errors
    assert "1 node(s) into train and val, such as [1]" in finding.text


def test_homophily_and_components() -> None:
    edges = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    assert edge_homophily(edges, torch.tensor([0, 0, 0, 1])) == 0.5
    assert edge_homophily(edges, torch.tensor([0, 0, 0, -1])) == 1.0
    assert components(edges, 5) == 3


@settings(deadline=None)
@given(nodes=st.integers(1, 40), edges=st.integers(0, 60), seed=st.integers(0, 999))
def test_components_against_networkx(nodes: int, edges: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randint(nodes, (2, edges), generator=generator)
    graph = networkx.Graph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from(pairs.T.tolist())
    assert components(pairs, nodes) == networkx.number_connected_components(graph)


def test_components_of_a_long_path() -> None:
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(0))
    assert components(torch.stack([order[:-1], order[1:]]), 5000) == 1
