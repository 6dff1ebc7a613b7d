"""``isoattn graph inspect``: what is odd is said, counted, and told by the exit status."""

import json

import networkx
import numpy as np
import pytest
import torch

from isoattn.apps.graph.inspect_figures import chance_homophily, spread, with_figures
from isoattn.apps.graph.picture_data import data_picture
from isoattn.graph.data import BlockModel, from_networkx, inspect_task
from isoattn.graph.data.inspect import edge_homophily
from isoattn.graph.graph import Graph
from isoattn.graph.task import NodeTask, Split

CLUB = ("--label_column=club", "--split_column=part")


def test_folder(isoattn, karate):
    result = isoattn("inspect", karate, *CLUB)
    assert result.code == 0, result.err
    for words in (
        "nodes        34",
        "156 entries (78, both ways), of 78 given",
        "mean 4.6, median 3, from 1 to 17; 0 nodes at which nothing arrives",
        "multiclass, 2 classes; 34 nodes are labelled; scored by accuracy",
        "train 12, val 12, test 10, in no part 0",
    ):
        assert words in result.out, result.out
    assert "Mr. Hi       17   50.0 %       7     4      6" in result.out


def test_two_tables_one_table_graphml_npz(isoattn, karate, tmp_path):
    nodes, edges = karate / "nodes.csv", karate / "edges.csv"
    both = isoattn("inspect", nodes, edges, *CLUB)
    alone = isoattn("inspect", nodes, *CLUB)
    assert (both.code, alone.code) == (0, 0) and "WARNING no_edges" in alone.out
    networkx.write_graphml(networkx.karate_club_graph(), tmp_path / "k.graphml")
    assert "classes" in isoattn("inspect", "k.graphml", "--label", "club").out
    task = from_networkx(networkx.karate_club_graph(), label="club")
    arrays = {"x": task.graph.x, "edge_index": task.graph.edge_index, "y": task.y}
    np.savez(tmp_path / "k.npz", **{key: value.numpy() for key, value in arrays.items()})
    drawn = isoattn("inspect", "k.npz", "--split.kind=random", "--out=report")
    assert drawn.code == 0, drawn.err
    assert json.loads((tmp_path / "report" / "report.json").read_text())["name"] == "k"


def test_options_of_fit(isoattn):
    """Without files: the data of the default config, or of the config that is named."""
    result = isoattn("inspect", "--data.source.dataset=iris")
    assert result.code == 0 and result.out.startswith("iris"), result.err
    assert isoattn("inspect", "--config", "knn", "--data.source.dataset=wine").code == 0
    result = isoattn("inspect", "--data.source.dataset=irises")
    assert result.code == 2 and result.short and "Did you mean iris" in result.err


def test_a_checkpoint_brings_its_data(isoattn, club_run):
    _, run = club_run
    result = isoattn("inspect", f"--ckpt_path={run}/checkpoints/best.ckpt")
    assert result.code == 0 and "Officer" in result.out, result.err


def test_warnings_leave_the_status_at_0(isoattn, karate):
    lines = (karate / "edges.csv").read_text().splitlines()
    more = [*lines, lines[1], "m05,m05"]
    (karate / "edges.csv").write_text("\n".join(more) + "\n")
    with (karate / "nodes.csv").open("a") as file:
        file.write("m99,,,0,0\n")
    result = isoattn("inspect", karate, *CLUB)
    assert result.code == 0
    assert "of 80 given; dropped 1 duplicates, 1 self loops" in result.out
    for kind in (
        "isolated_nodes: 1 node has",
        "zero_rows: 1 node has",
        "duplicate_edges",
        "self_loops",
    ):
        assert f"WARNING {kind}" in result.out
    assert "0 errors, 4 warnings" in result.out and "in no part 1" in result.out


def test_errors_are_reported_and_make_the_status_2(isoattn, karate, tmp_path):
    text = (karate / "nodes.csv").read_text()
    (karate / "nodes.csv").write_text(text.replace("m03,Mr. Hi,val,6,", "m03,Mr. Hi,val,,"))
    result = isoattn("inspect", karate, *CLUB, "--out", "odd")
    assert result.code == 2 and not result.err
    assert "ERROR features_not_finite: 1 node has NaN or infinite features, such as 'm03' " in (
        result.out
    )
    assert "(feature degree): fill or drop them" in result.out
    assert result.out.rstrip().endswith("1 error, 0 warnings\nwritten odd: report.json, data.png")
    report = json.loads((tmp_path / "odd" / "report.json").read_text())
    assert (report["errors"], report["warnings"]) == (1, 0)
    assert report["figures"]["class_counts"]["Officer"]["all"] == 17
    assert report["figures"]["degree"]["max"] == 17
    assert (tmp_path / "odd" / "data.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_loaded_is_an_error_of_the_report(isoattn, karate, tmp_path):
    (karate / "edges.csv").write_text("source,target\nm00,m77\n")
    result = isoattn("inspect", karate, *CLUB, "--out=odd")
    assert result.code == 2 and "ERROR load:" in result.out and "'m77'" in result.out
    assert json.loads((tmp_path / "odd" / "report.json").read_text())["errors"] == 1
    assert not (tmp_path / "odd" / "data.png").exists()
    assert "written odd: report.json" in result.out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("gone.csv",), "There is no gone.csv."),
        (
            ("club", "--label=club"),
            "There is no option --label. TableFiles has --id_column, --label_column",
        ),
        (("club", "--label_colum=club"), "Did you mean --label_column"),
        (("club", "--knn=3"), "knn builds edges where no edge file is given: drop knn or edges"),
        (("club", "--knn=many"), "--knn: got 'many'; expected int"),
        (("--data.source.root=gone", "--config=cora"), "cora: the folder gone"),
        (("--data.sauce=x",), "There is no option --data.sauce."),
    ],
)
def test_messages(isoattn, karate, argv, message):
    result = isoattn("inspect", *argv)
    assert result.code == 2 and result.short and message in result.err, result.err


def test_help(isoattn):
    with pytest.raises(SystemExit) as stopped:
        isoattn("inspect", "--help")
    assert stopped.value.code == 0


# --- figures ------------------------------------------------------------------------------------


def test_spread():
    found = spread(torch.tensor([0, 4, 1, 0]))
    assert found == {"min": 0, "median": 0.5, "mean": 1.25, "max": 4, "zero": 2}


def test_chance_homophily_is_that_of_shuffled_ends():
    task = BlockModel(nodes=300, classes=3, homophily=0.9).load()
    source, target = task.graph.edge_index
    generator = torch.Generator().manual_seed(0)
    shuffled = [
        torch.stack([source, target[torch.randperm(len(target), generator=generator)]])
        for _ in range(20)
    ]
    mean = np.mean([edge_homophily(edges, task.y) for edges in shuffled])
    chance = chance_homophily(task.graph.edge_index, task.y)
    assert chance == pytest.approx(mean, abs=0.01)
    assert edge_homophily(task.graph.edge_index, task.y) > 0.8
    unlabelled = torch.full_like(task.y, -1)
    assert np.isnan(chance_homophily(task.graph.edge_index, unlabelled))


def multilabel(nodes=12, labels=3):
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(nodes, labels, generator=generator) > 0.5).float()
    y[0] = float("nan")
    ids = torch.arange(nodes)
    return NodeTask(
        "several",
        Graph(torch.rand(nodes, 2, generator=generator), torch.stack([ids, ids.roll(1)])),
        y,
        "multilabel",
        tuple(f"l{i}" for i in range(labels)),
        "roc_auc",
        Split(ids[:4], ids[4:8], ids[8:]),
    )


def test_labels_are_counted_where_they_are_1():
    task = multilabel()
    figures = with_figures(inspect_task(task), task).figures
    assert "chance_homophily" not in figures
    counts = figures["class_counts"]["l1"]
    assert counts["all"] == int((task.y[:, 1] == 1).sum())
    assert counts["test"] == int((task.y[8:, 1] == 1).sum())


@pytest.mark.parametrize("shape", ["labels", "no edges", "many classes", "unlabelled"])
def test_picture_of_any_task(shape):
    if shape == "labels":
        task = multilabel()
    elif shape == "many classes":
        task = BlockModel(nodes=300, classes=60).load()
    elif shape == "no edges":
        task = BlockModel(nodes=20, degree=0).load()
    else:
        task = from_networkx(networkx.karate_club_graph(), label=None)
    assert data_picture(task).startswith(b"\x89PNG")
