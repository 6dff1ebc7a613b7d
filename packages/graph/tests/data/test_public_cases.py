"""What went wrong for users of other packages, each with the input they had."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from isoattn.graph.data import (
    BatchOptions,
    Heterophilous,
    KnnGraph,
    Ogb,
    build_task,
    inspect_task,
    official_score,
)
from isoattn.graph.data.batching import Incoming, TrainBatches, full_batch, take_nodes
from isoattn.graph.data.ogb import mean_edge_features
from isoattn.graph.data.split import SplitOptions
from isoattn.graph.metrics import NodeScore
from isoattn.graph.task import NodeTask

PATH7 = [(i, i + 1) for i in range(6)]


def neighbour_sum_loss(task: NodeTask, nodes: list[int]) -> float:
    """A loss that looks at features, edges, labels and ids of a batch."""
    chosen = torch.tensor(nodes)
    incoming = Incoming(task.graph.edge_index, task.graph.num_nodes)
    batch = take_nodes(task, incoming, chosen, torch.ones(len(chosen), dtype=torch.bool))
    graph = batch.graph
    message = torch.zeros_like(graph.x)
    message.index_add_(0, graph.edge_index[1], graph.x[graph.edge_index[0]])
    return float(((graph.x * 3 + message).sum(1) * (batch.y + 1)).double().sum())


def test_case_1_order_of_ids_in_a_batch(small_task: Callable[..., NodeTask]) -> None:
    # qitianwu/NodeFormer#7, pyg-team/pytorch_geometric#7186
    task = small_task(PATH7, 7)
    incoming = Incoming(task.graph.edge_index, 7)
    nodes = torch.tensor([5, 3, 4])
    batch = take_nodes(task, incoming, nodes, torch.ones(3, dtype=torch.bool))
    original = {
        tuple(pair) for pair in nodes[batch.graph.edge_index].T.tolist()
    }  # node 4 keeps both neighbours
    assert original == {(3, 4), (4, 3), (4, 5), (5, 4)}
    assert batch.graph.x[:, 0].tolist() == [5, 3, 4] == batch.graph.node.tolist()
    losses = {neighbour_sum_loss(task, order) for order in ([3, 4, 5], [5, 3, 4], [4, 5, 3])}
    assert len(losses) == 1


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:FutureWarning")
@pytest.mark.parametrize("seed", range(3))
def test_case_1_against_the_other_library(seed: int) -> None:
    from torch_geometric.utils import subgraph

    generator = torch.Generator().manual_seed(seed)
    edges = torch.unique(torch.randint(40, (2, 200), generator=generator), dim=1)
    nodes = torch.randperm(40, generator=generator)[:17]
    ours = Incoming(edges, 40).induced(nodes)
    theirs = subgraph(nodes, edges, relabel_nodes=False, num_nodes=40)[0]
    assert {tuple(p) for p in nodes[ours].T.tolist()} == {tuple(p) for p in theirs.T.tolist()}
    assert ours.shape == theirs.shape


@pytest.mark.usefixtures("alone")
def test_case_2_ogb_loads_on_current_torch(tmp_path: Path, ogb_folder: Callable) -> None:
    # snap-stanford/ogb#497, #505
    made = ogb_folder(tmp_path, "ogbn-arxiv")
    for _ in range(2):  # what is processed, and what was processed before
        task = Ogb("ogbn-arxiv", str(tmp_path)).load()
        assert task.kind == "multiclass" and task.metric == "accuracy" and task.out_dim == 40
        assert task.graph.x.shape == (60, 128) and task.y.tolist() == made["node-label"].tolist()
        assert torch.allclose(task.graph.x, torch.tensor(made["node-feat"]).float())
        assert task.graph.num_edges == 240 and task.facts["edges"]["reverse_added"] == 120
        assert task.split.val.tolist() == made["valid"].tolist()
    directed = Ogb("ogbn-arxiv", str(tmp_path), undirected=False).load()
    assert directed.graph.num_edges == 120


@pytest.mark.usefixtures("alone")
def test_case_3_ogb_never_asks(tmp_path: Path, ogb_folder: Callable) -> None:
    # snap-stanford/ogb#106, #504, #63
    source = Ogb("ogbn-arxiv", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"folder .*ogbn_arxiv lacks RELEASE_v1.txt, raw/"):
        source.load()
    ogb_folder(tmp_path, "ogbn-arxiv")
    folder = tmp_path / "ogbn_arxiv"
    (folder / "RELEASE_v1.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks RELEASE_v1.txt\. Unpack OGB's download"):
        source.load()
    (folder / "RELEASE_v1.txt").write_text("")
    (folder / "raw" / "node-feat.csv.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks raw/node-feat.csv.gz\."):
        source.load()
    (folder / "split" / "time" / "test.csv.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"node-feat.csv.gz, split/time/test.csv.gz\."):
        source.load()


@pytest.mark.slow
def test_case_3_ogb_with_stdin_closed_and_no_look_for_releases(
    tmp_path: Path, ogb_folder: Callable
) -> None:
    ogb_folder(tmp_path, "ogbn-arxiv")
    code = f"""
import socket, sys
def refuse(*a, **k): raise SystemExit("network")
socket.socket.connect = socket.getaddrinfo = refuse
from isoattn.graph.data import Ogb
task = Ogb("ogbn-arxiv", {str(tmp_path)!r}).load()
import ogb.version
assert ogb.version.check_outdated is None and "outdated" not in sys.modules
print(task.graph.num_nodes)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout == "60\n", done.stderr


def test_case_4_neighbour_batches_without_native_packages(
    small_task: Callable[..., NodeTask],
) -> None:
    # pyg-team/pytorch_geometric#9818, #7240, #10297
    task = small_task(PATH7, 7, train=[3])
    batches = TrainBatches(task, BatchOptions("neighbor", size=1, fanout=(-1, -1)), seed=0)
    batch = batches[0]
    assert batch.graph.node.tolist()[0] == 3 and sorted(batch.graph.node.tolist()) == [
        1,
        2,
        3,
        4,
        5,
    ]
    assert batch.target.tolist() == [True, False, False, False, False]
    assert batch.graph.num_edges == 8
    assert not {"pyg_lib", "torch_sparse"} & set(sys.modules)


def test_case_5_batches_of_unequal_size_are_counted() -> None:
    # pyg-team/pytorch_geometric#9829: 1 of 1 and 0 of 3 right are 0.25, not 0.5
    score = NodeScore("multiclass", 2, "accuracy")
    right = torch.tensor([[0.0, 1.0]])
    score.update(right, torch.tensor([1]))
    score.update(right.expand(3, 2), torch.zeros(3, dtype=torch.int64))
    assert score.compute()["accuracy"] == 0.25 and score.items == 4


@pytest.mark.parametrize("mode", ["full", "partition", "neighbor"])
def test_case_7_no_input_graph(mode: str) -> None:
    # qitianwu/NodeFormer#4, #16, #2
    task = build_task(
        "points",
        torch.randn(12, 3, generator=torch.Generator().manual_seed(0)),
        torch.zeros(2, 0, dtype=torch.int64),
        torch.arange(12) % 2,
        classes=["a", "b"],
        split=SplitOptions("random"),
    )
    options = BatchOptions(mode, size=None if mode == "full" else 4)  # type: ignore[arg-type]
    for batch in TrainBatches(task, options, seed=0):
        assert batch.graph.edge_index.shape == (2, 0) and batch.target.any()
    assert full_batch(task, "val").target.sum() == 3
    assert [f.kind for f in inspect_task(task).findings] == ["no_edges"]
    assert KnnGraph("iris", neighbors=0).load().graph.num_edges == 0


def test_case_8_each_edge_is_stored_once(tmp_path: Path) -> None:
    # pyg-team/pytorch_geometric#7065: 2 nodes, 1 edge; messages flow both ways
    np.savez(
        tmp_path / "pair.npz",
        node_features=np.eye(2, dtype=np.float32),
        node_labels=np.array([0, 1]),
        edges=np.array([[0, 1]]),
        train_masks=np.array([[True, False]]),
        val_masks=np.array([[False, True]]),
        test_masks=np.array([[False, False]]),
    )
    task = Heterophilous("pair", str(tmp_path)).load()
    assert task.graph.edge_index.tolist() == [[0, 1], [1, 0]]
    assert task.facts["edges"]["reverse_added"] == 1
    one_way = Heterophilous("pair", str(tmp_path), undirected=False).load()
    assert one_way.graph.edge_index.tolist() == [[0], [1]]
    assert "directed" in [f.kind for f in inspect_task(one_way).warnings]


@pytest.mark.usefixtures("alone")
def test_case_9_shape_of_ogbn_proteins(tmp_path: Path, ogb_folder: Callable) -> None:
    # snap-stanford/ogb#261, #15, dmlc/dgl#6706
    made = ogb_folder(tmp_path, "ogbn-proteins")
    task = Ogb("ogbn-proteins", str(tmp_path)).load()
    assert task.kind == "multilabel" and task.metric == "roc_auc" and task.out_dim == 112
    assert task.y.shape == (60, 112) and task.y.dtype == torch.float32
    node = 5
    incident = (made["edge"] == node).any(1)
    mean = made["edge-feat"][incident].mean(0)
    assert np.allclose(task.graph.x[node].numpy(), mean, atol=1e-6)
    assert task.graph.num_edges == 240 and task.facts["edges"]["duplicates_dropped"] == 0
    nodes = task.split.test
    logits = torch.randn(len(nodes), 112, generator=torch.Generator().manual_seed(1))
    y = task.y[nodes].clone()
    y[torch.rand(y.shape, generator=torch.Generator().manual_seed(2)) < 0.3] = float("nan")
    score = NodeScore("multilabel", 112, "roc_auc")
    for part, labels in zip(logits.split([4, 11]), y.split([4, 11]), strict=True):
        score.update(part, labels)
    official = official_score("ogbn-proteins", logits, y)
    assert score.compute()["roc_auc"] == pytest.approx(official, abs=1e-9)


def test_case_9_isolated_nodes_have_zero_features() -> None:
    edges = torch.tensor([[0, 1], [1, 0]])
    x = mean_edge_features(edges, torch.tensor([[2.0, 4.0], [2.0, 4.0]]), 3)
    assert x.tolist() == [[2, 4], [2, 4], [0, 0]]


def test_official_accuracy_is_ours() -> None:
    logits = torch.randn(50, 40, generator=torch.Generator().manual_seed(1))
    y = torch.arange(50) % 40
    score = NodeScore("multiclass", 40, "accuracy")
    score.update(logits, y)
    assert score.compute()["accuracy"] == pytest.approx(official_score("ogbn-arxiv", logits, y))
