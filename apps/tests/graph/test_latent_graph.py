"""``isoattn graph latent-graph``: the strongest nodes of the dense rows, streamed and named."""

import csv
import json

import networkx
import numpy as np
import pandas
import pytest
import torch

from isoattn.apps.base.errors import UserError
from isoattn.apps.graph.latent_edges import check_network, latent_graphs, steps
from isoattn.apps.graph.latent_graph import chosen_layers
from isoattn.apps.graph.latent_sample import drawn_nodes, strongest
from isoattn.apps.graph.latent_summary import class_shares, edge_columns, summarise
from isoattn.apps.graph.picture_latent import draw_latents
from isoattn.core import Favor, GumbelFavor, GumbelSoftmax, Mean, Softmax
from isoattn.graph.data import BlockModel, FarRecall, from_networkx
from isoattn.graph.models import GCN, NodeFormer, latent_graph, pair_rows

ARMS = pytest.mark.parametrize("attention", [GumbelFavor, GumbelSoftmax, Favor, Softmax])


def network(attention, task, **options):
    torch.manual_seed(0)
    features, classes = task.graph.x.shape[1], len(task.classes)
    return NodeFormer(attention, features, classes, hidden=8, heads=3, **options).double()


def dense(model, graph):
    """The full matrices (H, N, N) of each layer, from the attention itself."""
    kept = []
    model.eval().states(graph, lambda core, q, k: kept.append(core.matrix(q, k)[0].detach()))
    return kept


@pytest.fixture(scope="module")
def six():
    """A graph of 6 nodes, the one of the public case."""
    return BlockModel(nodes=6, classes=2, degree=2.0, features=4).load()


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(pair_rows, "NUMBERS", 40)


# --- numbers ------------------------------------------------------------------------------------


@ARMS
@pytest.mark.parametrize("heads", ["mean", "each"])
def test_it_is_the_top_k_of_the_dense_rows(six, attention, heads, small_blocks):
    """NodeFormer's issue 23: non-edges included."""
    model = network(attention, six)
    matrices = dense(model, six.graph)
    found = list(latent_graphs(model, six, top_k=4, layers=[0, 1], heads=heads))
    assert len(found) == (2 if heads == "mean" else 6)
    observed = set(map(tuple, six.graph.edge_index.T.tolist()))
    for latent in found:
        matrix = matrices[latent.layer]
        matrix = matrix.mean(0) if heads == "mean" else matrix[latent.head]
        weight, source = matrix.topk(4, -1)
        assert torch.equal(latent.source, source.flatten())
        torch.testing.assert_close(latent.weight, weight.flatten())
        assert torch.equal(latent.target, torch.arange(6).repeat_interleave(4))
        assert latent.rank.tolist() == [1, 2, 3, 4] * 6
        pairs = zip(latent.source.tolist(), latent.target.tolist(), strict=True)
        assert latent.observed.tolist() == [pair in observed for pair in pairs]
    assert not all(bool(latent.observed.all()) for latent in found)


@ARMS
def test_heads_are_those_of_the_package(six, attention):
    model = network(attention, six)
    ours = list(latent_graphs(model, six, top_k=3, layers=[0, 1], heads="each"))
    for one, other in zip(ours, latent_graph(model, six.graph, 3), strict=True):
        assert (one.layer, one.head) == (other.layer, other.head)
        assert torch.equal(one.source, other.source) and torch.equal(one.target, other.target)
        torch.testing.assert_close(one.weight, other.weight)
        assert torch.equal(one.observed, other.observed)


@ARMS
def test_sums_over_all_pairs(attention, small_blocks):
    task = BlockModel(nodes=30, classes=3, degree=4.0, features=5).load()
    y = task.y.clone()
    y[:7] = -1
    object.__setattr__(task, "y", y)
    model = network(attention, task)
    matrix = dense(model, task.graph)[1].mean(0)
    [latent] = latent_graphs(model, task, top_k=2, layers=[1])
    one_hot = (y[:, None] == torch.arange(3)).double()
    torch.testing.assert_close(latent.class_mass, one_hot.T @ matrix @ one_hot)
    source, target = task.graph.edge_index
    assert latent.observed_mass == pytest.approx(float(matrix[target, source].sum()) / 30)
    assert latent.self_mass == pytest.approx(float(matrix.diagonal().sum()) / 30)
    torch.testing.assert_close(class_shares(latent).sum(1), torch.ones(3).double())


@ARMS
def test_several_graphs_look_at_their_own_nodes(attention, small_blocks):
    task = FarRecall(graphs=4, pairs=3).load()
    model = network(attention, task)
    [latent] = latent_graphs(model, task, top_k=9, layers=[0])
    assert len(latent.target) == 4 * 6 * 6  # no graph has more than its 6 nodes
    assert torch.equal(latent.source // 6, latent.target // 6)
    weight = torch.zeros(24).double().index_add_(0, latent.target, latent.weight)
    torch.testing.assert_close(weight, torch.ones(24).double())
    assert steps(model, task.graph, [0]) >= 4


def test_shares_against_chance():
    """An attention that sees all alike has the shares of chance; self loops count as themselves."""
    task = BlockModel(nodes=40, classes=4, degree=6.0, features=5).load()
    model = network(Softmax, task)
    for layer in model.layers:
        torch.nn.init.zeros_(layer.q.weight)
        torch.nn.init.zeros_(layer.q.bias)
    [latent] = latent_graphs(model, task, top_k=40, layers=[1])
    found = summarise(latent, task)
    assert found["edges"] == 1600 and found["itself_share"] == 1 / 40
    assert found["same_class_share"] == pytest.approx(found["same_class_chance"])
    assert found["same_class_chance"] == pytest.approx(9 / 39)
    assert found["observed_share"] == pytest.approx(found["observed_chance"])
    assert found["observed_chance"] == pytest.approx(task.graph.num_edges / (40 * 39))
    assert found["weight_strongest"] == pytest.approx(1)
    assert found["weight_itself"] == pytest.approx(1 / 40)
    assert found["weight_observed"] == pytest.approx(task.graph.num_edges / 1600)


def test_the_mode_and_torchs_generator_do_not_matter(six):
    model = network(GumbelFavor, six, dropout=0.5)
    one = next(latent_graphs(model.train(), six, top_k=2, layers=[1]))
    state = torch.get_rng_state()
    other = next(latent_graphs(model.eval(), six, top_k=2, layers=[1]))
    assert torch.equal(one.weight, other.weight)
    assert torch.equal(torch.get_rng_state(), state)


def test_columns_name_nodes_and_leave_out_what_is_unknown():
    graph = networkx.path_graph(4)
    networkx.set_node_attributes(graph, {0: "a", 1: "b", 2: "a"}, "kind")
    task = from_networkx(networkx.relabel_nodes(graph, dict(enumerate("wxyz"))), label="kind")
    model = network(Softmax, task)
    latents = list(latent_graphs(model, task, top_k=4, layers=[0, 1]))
    table = pandas.DataFrame(edge_columns(latents, task))
    assert table["layer"].tolist() == [0] * 16 + [1] * 16 and set(table["head"]) == {"mean"}
    first = table[:16].set_index(["source", "target"])
    assert first.loc[("w", "y"), "same_class"] == 1 and first.loc[("w", "x"), "same_class"] == 0
    assert pandas.isna(first.loc[("w", "z"), "same_class"])
    assert first["observed"].sum() == 6 and first.loc[("x", "w"), "observed"] == 1


# --- what has none ------------------------------------------------------------------------------


def test_networks_without_one_say_so():
    with pytest.raises(UserError, match="GCN has no attention between all nodes"):
        check_network(GCN(None, 3, 2))
    with pytest.raises(UserError, match="Mean has no latent graph: it gives all nodes the same"):
        check_network(NodeFormer(Mean, 3, 2))


def test_layers_by_name():
    assert chosen_layers("last", 3) == [2]
    assert chosen_layers("all", 3) == [0, 1, 2]
    assert chosen_layers("0", 3) == [0]
    for wrong in ("3", "-1", "first"):
        with pytest.raises(UserError, match=f"--layer {wrong}: the model has the layers 0, 1, 2;"):
            chosen_layers(wrong, 3)


# --- pictures -----------------------------------------------------------------------------------


def test_a_region_of_a_large_graph():
    task = BlockModel(nodes=800, classes=3, degree=5.0).load()
    model = network(Softmax, task)
    [latent] = latent_graphs(model, task, top_k=5, layers=[1])
    edges = strongest(latent, 3)
    assert len(edges.target) == 2400 and not bool((edges.source == edges.target).any())
    nodes = drawn_nodes(task.graph, edges, most=120, seed=1)
    assert len(nodes) == 120 == len(torch.unique(nodes)) and bool((nodes.diff() > 0).all())
    again = drawn_nodes(task.graph, edges, most=120, seed=1)
    assert torch.equal(nodes, again)
    assert not torch.equal(nodes, drawn_nodes(task.graph, edges, most=120, seed=2))
    assert torch.equal(drawn_nodes(task.graph, edges, most=800, seed=1), torch.arange(800))


@pytest.mark.parametrize("shape", ["labels", "no edges", "unlabelled", "one neighbour"])
def test_picture_of_any_task(shape, tmp_path):
    task = BlockModel(nodes=25, classes=3, degree=0 if shape == "no edges" else 4.0).load()
    if shape == "labels":
        several = (task.y[:, None] == torch.arange(3)).float()
        object.__setattr__(task, "y", several)
        object.__setattr__(task, "kind", "multilabel")
    if shape == "unlabelled":
        object.__setattr__(task, "y", torch.full_like(task.y, -1))
    latents = list(
        latent_graphs(
            network(Softmax, task),
            task,
            top_k=1 if shape == "one neighbour" else 4,
            layers=[0, 1],
        )
    )
    files = draw_latents(tmp_path, latents, task, most=300, seed=0)
    assert [f.name for f in files] == [f"latent_graph_layer{n}_head_mean.png" for n in (0, 1)]
    assert all(f.read_bytes().startswith(b"\x89PNG") for f in files)


# --- the command --------------------------------------------------------------------------------


def rows(file):
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_command(isoattn, club_run, tmp_path):
    files, run = club_run
    best = run / "checkpoints" / "best.ckpt"
    result = isoattn("latent-graph", f"--ckpt_path={best}", "--top_k=5", "--out=out")
    assert result.code == 0, result.err
    found = rows(tmp_path / "out" / "edges.csv")
    assert len(found) == 34 * 5
    assert found[0]["target"] == "m00" and found[0]["rank"] == "1" and found[0]["head"] == "mean"
    known = {tuple(line.split(",")) for line in (files / "edges.csv").read_text().split()[1:]}
    known |= {(b, a) for a, b in known}
    clubs = dict(line.split(",")[:2] for line in (files / "nodes.csv").read_text().splitlines()[1:])
    for row in found:
        ends = row["source"], row["target"]
        assert row["observed"] == str(int(ends in known))
        assert row["same_class"] == str(int(clubs[ends[0]] == clubs[ends[1]]))
    classes = rows(tmp_path / "out" / "class_attention.csv")
    for row in classes:
        assert float(row["to(Mr. Hi)"]) + float(row["to(Officer)"]) == pytest.approx(1, abs=1e-5)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["top_k"] == 5 and summary["latent"][0]["layer"] == 1
    assert summary["meter"]["1"]["effective_keys"]["value"] > 1
    share = np.mean([int(r["observed"]) for r in found if r["source"] != r["target"]])
    assert summary["latent"][0]["observed_share"] == pytest.approx(share)
    assert (tmp_path / "out" / "latent_graph.png").is_file()
    for words in ("the 5 strongest of 34 nodes", "observed edges", "effective nodes", "written "):
        assert words in result.out


def test_layers_heads_and_parquet(isoattn, club_run, tmp_path):
    _, run = club_run
    last = run / "checkpoints" / "last.ckpt"
    argv = ("--layer=all", "--heads=each", "--top_k=2", "--edges=e.parquet", "--draw=0")
    result = isoattn("latent-graph", "--ckpt_path", last, *argv)
    assert result.code == 0, result.err
    table = pandas.read_parquet(tmp_path / "e.parquet")
    assert len(table) == 2 * 2 * 34 * 2
    assert table.groupby(["layer", "head"]).size().tolist() == [68] * 4
    assert sorted(file.name for file in (run / "latent_graph").iterdir()) == [
        "class_attention.csv",
        "summary.json",
    ]


def test_another_graph(isoattn, club_run, karate, tmp_path):
    """Inductive: the run's model on other nodes of the same features."""
    _, run = club_run
    spec = {
        "class_path": "isoattn.graph.data.TableFiles",
        "init_args": {"nodes": str(karate / "nodes.csv"), "label_column": None},
    }
    lines = (karate / "nodes.csv").read_text().splitlines()[:11]
    plain = [",".join([line.split(",")[0], *line.split(",")[3:]]) for line in lines]
    (karate / "nodes.csv").write_text("\n".join(plain) + "\n")
    result = isoattn(
        "latent-graph",
        f"--ckpt_path={run}/checkpoints/best.ckpt",
        f"--data.predict_source={json.dumps(spec)}",
        "--out=out",
        "--top_k=3",
    )
    assert result.code == 0, result.err
    found = rows(tmp_path / "out" / "edges.csv")
    assert len(found) == 30 and {row["same_class"] for row in found} == {""}
    assert "No node has a label, so there is no same class." in result.out
    assert "The graph has no edges, so none is observed." in result.out


def test_messages(isoattn, club_run, train):
    _, run = club_run
    best = f"--ckpt_path={run}/checkpoints/best.ckpt"
    for argv, message in (
        ((best, "--top_k=35"), "--top_k must be from 1 to the 34 nodes, got 35."),
        ((best, "--top_k=0"), "--top_k: must be an integer of at least 1, got '0'"),
        ((best, "--layer=2"), "--layer 2: the model has the layers 0, 1;"),
        ((best, "--edges=e.txt"), "e.txt has the suffix .txt"),
        ((best, "--heads=all"), "argument --heads: invalid choice: 'all'"),
        ((best, "--topk=3"), "There is no option --topk"),
        ((best, "--model.network.hidden=9"), "is of another experiment"),
        (("--ckpt_path=gone.ckpt",), "gone.ckpt"),
        ((), "the following arguments are required: --ckpt_path"),
    ):
        result = isoattn("latent-graph", *argv)
        assert result.code == 2 and result.short and message in result.err, (argv, result.err)


def test_a_run_with_a_control_says_why(isoattn, train):
    checkpoint = train("--model.attention=Mean", "--model.loss.edge_reg=0")
    result = isoattn("latent-graph", f"--ckpt_path={checkpoint}")
    assert result.code == 2 and result.short and "Mean has no latent graph" in result.err
    assert not (checkpoint.parents[1] / "latent_graph").exists()
