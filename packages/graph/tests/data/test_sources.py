"""Files of others: real ones where they are present, and what is wrong with broken ones."""

import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from isoattn.graph.data import (
    BlockModel,
    FarRecall,
    GnnBenchmark,
    Heterophilous,
    KnnGraph,
    Ogb,
    Planetoid,
    SplitOptions,
    inspect_task,
    knn_edges,
)
from isoattn.graph.data.inspect import edge_homophily
from isoattn.graph.data.knn import standardise
from isoattn.graph.data.source import normalise_rows

PLANETOID = {
    "cora": (2708, 1433, 10556, 7),
    "citeseer": (3327, 3703, 9104, 6),
    "pubmed": (19717, 500, 88648, 3),
}


@pytest.mark.parametrize("name", PLANETOID)
def test_planetoid(name: str, real_data: Path) -> None:
    nodes, features, entries, classes = PLANETOID[name]
    task = Planetoid(name, str(real_data)).load()  # type: ignore[arg-type]
    assert tuple(task.graph.x.shape) == (nodes, features)
    assert (task.graph.num_edges, task.out_dim) == (entries, classes)
    assert torch.bincount(task.y[task.split.train]).tolist() == [20] * classes
    assert (len(task.split.val), len(task.split.test)) == (500, 1000)
    sums = task.graph.x.sum(1)
    assert torch.allclose(sums[sums > 0], torch.ones(()), atol=1e-5)
    assert int((task.y == -1).sum()) == (15 if name == "citeseer" else 0)
    report = inspect_task(task)
    assert report.errors == ()
    isolated = {f.kind: f.count for f in report.warnings}.get("isolated_nodes", 0)
    assert isolated == (48 if name == "citeseer" else 0)


@pytest.mark.parametrize("name", ["cora", "citeseer"])
def test_planetoid_is_what_the_other_library_reads(name: str, real_data: Path) -> None:
    with warnings.catch_warnings(action="ignore"):
        from torch_geometric.io import read_planetoid_data

        theirs = read_planetoid_data(str(real_data / "planetoid"), name)
    ours = Planetoid(name, str(real_data), row_normalize=False).load()  # type: ignore[arg-type]
    assert torch.equal(ours.graph.x, theirs.x)
    known = ours.y >= 0
    assert torch.equal(ours.y[known], theirs.y[known])
    code = [e[0] * len(ours.y) + e[1] for e in (ours.graph.edge_index, theirs.edge_index)]
    assert torch.equal(code[0], code[1].sort().values)
    for part in ("train", "val", "test"):
        assert torch.equal(ours.split[part], theirs[f"{part}_mask"].nonzero()[:, 0])  # type: ignore[index]


def test_planetoid_splits(real_data: Path, tmp_path: Path) -> None:
    full = Planetoid("citeseer", str(real_data), SplitOptions("full")).load()
    assert [len(nodes) for _, nodes in full.split.items()] == [3327 - 15 - 1500, 500, 1000]
    drawn = Planetoid("cora", str(real_data), SplitOptions("random", seed=1)).load()
    assert [len(nodes) for _, nodes in drawn.split.items()] == [1354, 677, 677]
    few = Planetoid("cora", str(real_data), SplitOptions("per_class")).load()
    assert [len(nodes) for _, nodes in few.split.items()] == [140, 500, 1000]
    for file in (real_data / "planetoid").glob("ind.cora.*"):
        (tmp_path / file.name).symlink_to(file)
    geom = Planetoid("cora", str(tmp_path), SplitOptions("geom-gcn", index=2))
    with pytest.raises(FileNotFoundError, match=r"geom-gcn.* lacks cora_split_0.6_0.2_2.npz"):
        geom.load()
    masks = np.arange(2708) % 3 == np.arange(3)[:, None]
    (tmp_path / "geom-gcn").mkdir()
    np.savez(
        tmp_path / "geom-gcn" / "cora_split_0.6_0.2_2.npz",
        train_mask=masks[0],
        val_mask=masks[1],
        test_mask=masks[2],
    )
    assert geom.load().split.val[:2].tolist() == [1, 4]


def test_class_names_of_cora_are_those_of_the_named_file(real_data: Path) -> None:
    named = GnnBenchmark("cora", str(real_data)).load()
    raw = Planetoid("cora", str(real_data)).load()
    sizes = [
        dict(zip(task.classes, torch.bincount(task.y).tolist(), strict=True))
        for task in (named, raw)
    ]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("suffix", ["allx", "graph"])
def test_planetoid_files_cannot_execute(suffix: str, real_data: Path, tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "executed",))

    for file in (real_data / "planetoid").glob("ind.cora.*"):
        (tmp_path / file.name).symlink_to(file)
    bad = tmp_path / f"ind.cora.{suffix}"
    bad.unlink()
    bad.write_bytes(pickle.dumps(Payload()))
    with pytest.raises(ValueError, match=f"ind.cora.{suffix} is no Planetoid file, or damaged: it"):
        Planetoid("cora", str(tmp_path)).load()
    assert not (tmp_path / "executed").exists()
    bad.write_bytes(b"\x80")
    with pytest.raises(ValueError, match=f"ind.cora.{suffix} is no Planetoid file, or damaged"):
        Planetoid("cora", str(tmp_path)).load()


def test_missing_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "ind.cora.x").touch()
    with pytest.raises(
        FileNotFoundError,
        match=rf"cora: the folder {tmp_path} lacks ind.cora.tx, .*test.index. Looked in .*Cora/raw",
    ):
        Planetoid("cora", str(tmp_path)).load()
    with pytest.raises(FileNotFoundError, match=r"lacks texas.npz\. Looked in .*heterophilous"):
        Heterophilous("texas", str(tmp_path)).load()
    with pytest.raises(FileNotFoundError, match=r"lacks cora.npz\. Looked in .*gnn-benchmark"):
        GnnBenchmark("cora", str(tmp_path)).load()


def test_names_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="Planetoid has cora, citeseer, pubmed, got 'dblp'"):
        Planetoid("dblp")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be one of ogbn-arxiv, .* got 'ogbn-mag'"):
        Ogb("ogbn-mag")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dataset must be one of digits, .* got 'boston'"):
        KnnGraph("boston")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="gnn-benchmark cora has no split 'public': use random"):
        GnnBenchmark("cora", split=SplitOptions("public"))


HETEROPHILOUS = {
    "texas": (183, 279, 5, "accuracy"),
    "minesweeper": (10000, 39402, 2, "roc_auc"),
    "chameleon-filtered": (890, 8854, 5, "accuracy"),
    "squirrel_filtered": (2223, 46998, 5, "accuracy"),
}


@pytest.mark.parametrize("name", HETEROPHILOUS)
def test_heterophilous(name: str, real_data: Path) -> None:
    nodes, edges, classes, metric = HETEROPHILOUS[name]
    task = Heterophilous(name, str(real_data)).load()
    assert (task.graph.num_nodes, task.out_dim, task.metric) == (nodes, classes, metric)
    assert task.graph.num_edges == 2 * edges == 2 * task.facts["edges"]["entries_given"]
    other = Heterophilous(name, str(real_data), SplitOptions("public", index=9)).load()
    assert not torch.equal(other.split.train, task.split.train)
    with pytest.raises(ValueError, match=r"has 10 splits: index must lie in 0\.\.9, got 10"):
        Heterophilous(name, str(real_data), SplitOptions("public", index=10)).load()


def test_gnn_benchmark(real_data: Path) -> None:
    task = GnnBenchmark("citeseer", str(real_data), undirected=False).load()
    assert task.graph.num_nodes == 3312 and task.facts["edges"]["entries_given"] == 4715
    assert task.node_ids is not None and task.node_ids[:2] == ("100157", "100598")
    assert task.classes[:2] == ("AI", "Agents")
    assert "directed" in [f.kind for f in inspect_task(task).warnings]
    assert GnnBenchmark("cora", str(real_data)).load().graph.num_edges == 10556


KNN = {"digits": (1797, 64, 10), "wine": (178, 13, 3), "breast_cancer": (569, 30, 2)}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("dataset", KNN)
def test_knn_needs_no_folder(dataset: str) -> None:
    nodes, features, classes = KNN[dataset]
    task = KnnGraph(dataset).load()  # type: ignore[arg-type]
    assert tuple(task.graph.x.shape) == (nodes, features) and task.out_dim == classes
    assert inspect_task(task).errors == ()
    assert "isolated_nodes" not in [f.kind for f in inspect_task(task).warnings]
    assert 5 * nodes <= task.graph.num_edges <= 10 * nodes
    assert edge_homophily(task.graph.edge_index, task.y) > 0.9
    assert task.split.train.tolist() == KnnGraph(dataset).load().split.train.tolist()  # type: ignore[arg-type]


def test_neighbours_are_the_nearest() -> None:
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    edges, _ = knn_edges(x, 4)
    distance = torch.cdist(x, x).fill_diagonal_(torch.inf)
    nearest = distance.topk(4, largest=False).indices
    expected = {(int(j), i) for i in range(50) for j in nearest[i]}
    assert {(a, b) for a, b in edges.T.tolist()} == expected | {(b, a) for a, b in expected}
    with pytest.raises(ValueError, match=r"neighbors must lie in 0\.\.49 for 50 rows, got 50"):
        knn_edges(x, 50)
    x[0, 0] = float("nan")
    with pytest.raises(ValueError, match="finite features: fill or drop"):
        knn_edges(x, 3)


def test_rows_and_columns_of_zeros_stay_zero() -> None:
    assert normalise_rows(torch.tensor([[1.0, 3], [0, 0]])).tolist() == [[0.25, 0.75], [0, 0]]
    assert standardise(torch.tensor([[1.0, 5], [3, 5]])).tolist() == [[-1, 0], [1, 0]]


@pytest.mark.parametrize("homophily", [0.0, 0.25, 0.9, 1.0])
def test_blocks_have_the_homophily_asked_for(homophily: float) -> None:
    task = BlockModel(nodes=2003, homophily=homophily, seed=1).load()
    assert edge_homophily(task.graph.edge_index, task.y) == pytest.approx(homophily, abs=0.02)
    assert task.graph.num_edges / 2003 == pytest.approx(10, abs=0.3)
    assert torch.equal(
        task.graph.x, BlockModel(nodes=2003, homophily=homophily, seed=1).load().graph.x
    )
    with pytest.raises(ValueError, match="homophily in .*got homophily=1.5"):
        BlockModel(homophily=1.5)


def test_far_recall_has_its_answer_p_hops_away() -> None:
    task = FarRecall(graphs=8, pairs=5, key_dim=4).load()
    x, y, size = task.graph.x, task.y, 10
    assert task.graph.segments is not None
    for asker in (y >= 0).nonzero()[:, 0].tolist():
        carrier = asker - 5
        assert y[carrier] == -1 and carrier // size == asker // size
        assert torch.equal(x[asker, :4], x[carrier, :4])
        assert int(x[carrier, 4] > 0) == int(y[asker])
    assert x[y >= 0, 4].abs().max() == 0
    edges = task.graph.edge_index
    assert bool(((edges[0] - edges[1]).abs() == 1).all())
    assert bool((task.graph.segments[edges[0]] == task.graph.segments[edges[1]]).all())
    segments = [set(task.graph.segments[nodes].tolist()) for _, nodes in task.split.items()]
    assert [len(s) for s in segments] == [4, 2, 2] and not segments[0] & segments[1]
    with pytest.raises(ValueError, match="4 graphs, 2 pairs"):
        FarRecall(graphs=3)
