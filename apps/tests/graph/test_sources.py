"""What a path on the command line stands for."""

from pathlib import Path

import numpy as np
import pytest

from isoattn.apps.base.errors import UserError
from isoattn.apps.graph.sources import source_spec


def leaf(spec):
    return spec["class_path"].rsplit(".", 1)[-1], spec["init_args"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own").mkdir()
    Path("own/nodes.csv").write_text("id,label,x\na,0,1\n")
    Path("own/edges.csv").write_text("source,target\n")
    Path("alone").mkdir()
    Path("alone/nodes.csv").write_text("id,x\na,1\n")
    Path("g.graphml").write_text("")
    np.savez("plain.npz", x=np.zeros((1, 1)))
    np.savez("texas.npz", node_features=np.zeros((1, 1)))
    np.savez("cora.npz", adj_indptr=np.zeros(1))
    return tmp_path


@pytest.mark.parametrize(
    "paths, name, options",
    [
        (["own"], "TableFiles", {"nodes": "own/nodes.csv", "edges": "own/edges.csv"}),
        (["alone"], "TableFiles", {"nodes": "alone/nodes.csv", "edges": None}),
        (["own/nodes.csv"], "TableFiles", {"nodes": "own/nodes.csv", "edges": None}),
        (["g.graphml"], "GraphMLFile", {"path": "g.graphml"}),
        (["plain.npz"], "NpzFile", {"path": "plain.npz"}),
        (["texas.npz"], "Heterophilous", {"name": "texas", "root": "."}),
        (["cora.npz"], "GnnBenchmark", {"name": "cora", "root": "."}),
    ],
)
def test_paths(folder, paths, name, options):
    assert leaf(source_spec(paths)) == (name, options)


@pytest.mark.parametrize(
    "paths, text",
    [
        (["nowhere", "own"], "There is no nowhere. Give nodes.csv"),
        (["."], "The folder . has no nodes.csv"),
        (["own", "alone"], "own alone is no graph that can be read"),
    ],
)
def test_what_is_none(folder, paths, text):
    with pytest.raises(UserError, match=text.replace(".", r"\.")):
        source_spec(paths)


def test_another_graph_is_read_as_that_of_training(folder):
    trained = {
        "class_path": "isoattn.graph.data.files.TableFiles",
        "init_args": {"nodes": "old.csv", "edges": "e.csv", "label_column": "label", "knn": 0}
        | {"split": {"kind": "random"}, "feature_columns": ["x"]},
    }
    assert source_spec(["own"], trained)["init_args"] == {
        "nodes": "own/nodes.csv",
        "edges": "own/edges.csv",
        "label_column": "label",
        "knn": 0,
        "feature_columns": ["x"],
    }
    with pytest.raises(UserError, match=r"trained with edges, alone.nodes.csv comes without"):
        source_spec(["alone"], trained)
    trained["init_args"]["edges"] = None
    alone = source_spec(["alone"], trained)["init_args"]
    assert alone["label_column"] is None and alone["edges"] is None
    assert leaf(source_spec(["plain.npz"], trained)) == ("NpzFile", {"path": "plain.npz"})
