"""The user's own files: ids survive, what does not fit is named, and all formats agree."""

from collections.abc import Callable
from pathlib import Path

import networkx
import numpy as np
import pytest
import torch

from isoattn.graph.data import GraphMLFile, NpzFile, SplitOptions, TableFiles, from_networkx

NODES = """id,label,split,age,height
007,spy,train,40,1.8
NA,clerk,valid,30,1.7
x y,spy,test,20,1.6
8,,,10,1.5
"""
EDGES = """source,target,weight
007,NA,1
NA,007,1
x y,8,2
8,8,1
"""

Writer = Callable[..., TableFiles]


@pytest.fixture
def table(tmp_path: Path) -> Writer:
    def write(nodes: str = NODES, edges: str | None = EDGES, **options: object) -> TableFiles:
        (tmp_path / "people.csv").write_text(nodes)
        if edges is not None:
            (tmp_path / "edges.csv").write_text(edges)
            options["edges"] = str(tmp_path / "edges.csv")
        return TableFiles(str(tmp_path / "people.csv"), **options)  # type: ignore[arg-type]

    return write


def test_table_with_string_ids(table: Writer) -> None:
    task = table(split_column="split").load()
    assert task.name == "people" and task.node_ids == ("007", "NA", "x y", "8")
    assert task.classes == ("clerk", "spy") and task.y.tolist() == [1, 0, 1, -1]
    assert (
        task.graph.x.tolist() == torch.tensor([[40, 1.8], [30, 1.7], [20, 1.6], [10, 1.5]]).tolist()
    )
    assert task.graph.edge_index.tolist() == [[0, 1, 2, 3], [1, 0, 3, 2]]
    assert [nodes.tolist() for _, nodes in task.split.items()] == [[0], [1], [2]]
    assert task.facts["edges"]["self_loops_dropped"] == 1


def test_table_options(table: Writer) -> None:
    options = {"split_column": "split", "feature_columns": ["height"]}
    task = table(undirected=False, self_loops=True, row_normalize=True, **options).load()
    assert task.graph.edge_index.tolist() == [[0, 1, 2, 3], [1, 0, 3, 3]]
    assert task.graph.x.tolist() == [[1.0]] * 4
    drawn = table(split=SplitOptions("random", fractions=(0.4, 0.3, 0.3)))
    with pytest.raises(ValueError, match="column split is no column of numbers"):
        drawn.load()
    drawn = table(split=SplitOptions("random", fractions=(0.4, 0.3, 0.3)), feature_columns=["age"])
    assert len(drawn.load().split.train) == 1


def test_table_without_edges(table: Writer) -> None:
    lonely = table(edges=None, split_column="split").load()
    assert lonely.graph.num_edges == 0
    options = {"split_column": "split", "feature_columns": ["age"], "knn": 1}
    joined = table(NODES.replace("30,", "38,"), None, **options).load()
    assert joined.graph.edge_index.tolist() == [[0, 1, 2, 3], [1, 0, 3, 2]]


def test_multilabel_table(table: Writer) -> None:
    nodes = "id,a,b,part\n1,0,1,train\n2,1,,val\n3,,,test\n"
    columns = {"label_column": ["a", "b"], "split_column": "part", "metric": "roc_auc"}
    task = table(nodes, "source,target\n1,2\n", **columns).load()
    assert task.kind == "multilabel" and task.classes == ("a", "b")
    assert task.y.isnan().tolist() == [[False, False], [False, True], [True, True]]
    assert task.graph.x.tolist() == [[1.0]] * 3  # no column is left: a single 1


def test_graphs_without_labels_are_for_prediction(table: Writer) -> None:
    task = table("id,f\n1,0\n2,1\n", "source,target\n1,2\n", label_column=None).load()
    assert task.classes == () and task.y.tolist() == [-1, -1] and task.node_ids == ("1", "2")
    assert from_networkx(small(), label=None, features=["f"]).y.tolist() == [-1, -1, -1]


def test_empty_cells_are_nan_and_numbers_sort_as_numbers(table: Writer) -> None:
    nodes = "id,label,split,f\na,10,train,\nb,9,val,2\nc,9,test,3\n"
    task = table(nodes, "source,target\n", split_column="split").load()
    assert task.classes == ("9", "10")
    assert task.graph.x.isnan().tolist() == [[True], [False], [False]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("8,,,10", "007,,,10"), r"people.csv has 1 id\(s\) more than once, such as '007'"),
        (("valid", "dev"), "people.csv: split has 'dev': use train, val, test or nothing"),
        (("40,", "old,"), "people.csv: the column age is no column of numbers .*'old'"),
        (("id,", "name,"), r"people.csv lacks the column\(s\) id; it has name, label"),
    ],
)
def test_node_tables_that_do_not_fit(table: Writer, change: tuple[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        table(NODES.replace(*change), split_column="split").load()


def test_edge_tables_that_do_not_fit(table: Writer, tmp_path: Path) -> None:
    edges = "source,target\n007,9\n10,NA\n"
    with pytest.raises(ValueError, match=r"names 2 node\(s\) that .* lacks, such as '10', '9'"):
        table(edges=edges, split_column="split").load()
    with pytest.raises(ValueError, match=r"edges.csv lacks the column\(s\) target"):
        table(edges="source,to\n", split_column="split").load()
    source = table(split_column="split")
    (tmp_path / "edges.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"The folder .* has no file edges.csv"):
        source.load()
    (tmp_path / "people.csv").write_bytes(b"")
    with pytest.raises(ValueError, match="people.csv is no CSV table with a header"):
        source.load()


def test_contradictory_options() -> None:
    with pytest.raises(ValueError, match="drop knn or edges"):
        TableFiles("n.csv", "e.csv", knn=3)
    with pytest.raises(ValueError, match="drop split or split_column"):
        TableFiles("n.csv", "e.csv", split_column="s", split=SplitOptions("random"))
    with pytest.raises(ValueError, match="a table has no split 'public'"):
        TableFiles("n.csv", "e.csv", split=SplitOptions("public"))


def arrays() -> dict[str, np.ndarray]:
    masks = np.eye(3, 4, dtype=bool)
    return {
        "x": np.arange(8, dtype=np.float64).reshape(4, 2),
        "edge_index": np.array([[0, 1, 2], [1, 2, 3]]),
        "y": np.array([0, 1, 0, -1]),
        "train_mask": masks[0],
        "val_mask": masks[1],
        "test_mask": masks[2],
    }


def test_npz(tmp_path: Path) -> None:
    path = tmp_path / "g.npz"
    np.savez(path, **arrays(), node_ids=np.array(list("abcd")), classes=np.array(["no", "yes"]))
    task = NpzFile(str(path), metric="roc_auc").load()
    assert task.node_ids == tuple("abcd") and task.classes == ("no", "yes")
    assert task.graph.num_edges == 6 and task.graph.x.dtype == torch.float32
    assert task.split.val.tolist() == [1]
    drawn = NpzFile(str(path), split=SplitOptions("random")).load()
    assert len(drawn.split.train) == 1


def test_npz_that_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "g.npz"
    source = NpzFile(str(path))
    with pytest.raises(FileNotFoundError, match=r"The folder .* has no file g.npz"):
        source.load()
    bad = arrays()
    bad["edge_index"] = np.array([[0], [9]])
    np.savez(path, **bad)
    with pytest.raises(ValueError, match=r"edge_index must lie in 0\.\.3, got 0\.\.9"):
        source.load()
    del bad["x"]
    np.savez(path, **bad)
    with pytest.raises(ValueError, match="g.npz lacks x; it has edge_index, "):
        source.load()
    np.savez(path, **{**arrays(), "x": np.array([{}], dtype=object)})
    with pytest.raises(ValueError, match="holds Python objects, which are refused"):
        source.load()
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ValueError, match="g.npz cannot be read as plain arrays"):
        source.load()


def test_networkx_karate() -> None:
    task = from_networkx(networkx.karate_club_graph(), label="club")
    assert task.classes == ("Mr. Hi", "Officer") and task.graph.num_nodes == 34
    assert task.graph.num_edges == 156 and task.node_ids is not None and task.node_ids[33] == "33"
    assert task.graph.x.tolist() == [[1.0]] * 34


def small(directed: bool = True) -> networkx.Graph:
    graph = networkx.DiGraph() if directed else networkx.Graph()
    graph.add_node("a", label="u", part="train", f=1.0, g=2)
    graph.add_node("b", label="v", part="val", f=2.0)
    graph.add_node("c", part="test", f=3.0)
    graph.add_edge("a", "b")
    return graph


def test_graphml_equals_networkx(tmp_path: Path) -> None:
    networkx.write_graphml(small(), tmp_path / "small.graphml")
    read = GraphMLFile(str(tmp_path / "small.graphml"), split_attribute="part").load()
    made = from_networkx(small(), name="small", split_attribute="part")
    for task in (read, made):
        assert task.name == "small" and task.node_ids == ("a", "b", "c")
        assert task.y.tolist() == [0, 1, -1] and task.classes == ("u", "v")
        assert task.graph.x.tolist() == [[1.0], [2.0], [3.0]]  # not every node has g
        assert task.graph.edge_index.tolist() == [[0, 1], [1, 0]]
        assert task.split.test.tolist() == [2]
    one_way = from_networkx(small(), split_attribute="part", undirected=False)
    assert one_way.graph.edge_index.tolist() == [[0], [1]]


def test_networkx_that_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="undirected graph: undirected must be true"):
        from_networkx(small(False), undirected=False)
    with pytest.raises(ValueError, match="no node has the attribute 'kind'; they have f, g, label"):
        from_networkx(small(), label="kind")
    with pytest.raises(ValueError, match="not every node has g; fill or leave out"):
        from_networkx(small(), features=["g"])
    with pytest.raises(ValueError, match="drop split or split_attribute"):
        from_networkx(small(), split_attribute="part", split=SplitOptions("random"))
    (tmp_path / "broken.graphml").write_text("<graphml>")
    with pytest.raises(ValueError, match="broken.graphml is no GraphML file, or damaged"):
        GraphMLFile(str(tmp_path / "broken.graphml")).load()
    with pytest.raises(FileNotFoundError, match="has no file none.graphml"):
        GraphMLFile(str(tmp_path / "none.graphml")).load()
