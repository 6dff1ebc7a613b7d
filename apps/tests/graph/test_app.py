"""isoattn graph: fit, resume, swap, test, predict, and what it refuses."""

import csv
import json
from pathlib import Path

import pytest
import torch
import yaml

from isoattn.apps.base.shipped import shipped
from isoattn.apps.base.study import resolve
from isoattn.apps.graph.app import GraphCLI
from isoattn.core.training.checkpoint import read_checkpoint
from isoattn.graph.classifier import NodeClassifier

from .conftest import SMALL, write_karate

# Parts of a graph drawn anew each epoch, noise, dropout: everything random at once.
BLOCKS = (
    "--config=block_model",
    "--data.source.nodes=60",
    "--data.batching.mode=partition",
    "--data.batching.size=20",
    "--model.network.hidden=8",
    "--model.network.heads=2",
    "--model.network.dropout=0.3",
    "--model.attention.redraw_every=2",
    "--trainer.max_epochs=3",
    "--trainer.check_val_every_n_epoch=1",
    "--trainer.log_every_n_steps=1",
    "--tracker=none",
)


def weights(run):
    return read_checkpoint(Path(run) / "checkpoints" / "last.ckpt")["state_dict"]


def result(run):
    return json.loads((Path(run) / "result.json").read_text())


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


@pytest.mark.parametrize("name", shipped("graph", "configs"))
def test_shipped_configs_are_whole(name):
    """Each begins with its command and what to expect, and every option exists."""
    first, second, *_ = shipped("graph", "configs")[name].read_text().splitlines()
    assert first.startswith("# isoattn graph fit") and f"--config {name}" in first
    assert second.startswith("# Expect: ") and "MEASURE" not in second
    config = resolve(GraphCLI, ["fit", "--config", name])
    assert config["model"]["network"]["class_path"].endswith(".NodeFormer")


@pytest.mark.parametrize("name", shipped("graph", "configs/attention"))
def test_presets_of_the_attention(name):
    config = resolve(GraphCLI, ["fit", f"--model.attention={name}"])
    assert config["model"]["attention"]["class_path"].startswith("isoattn.core.")


def test_a_run_of_parts_resumes_to_the_straight_run(isoattn, monkeypatch):
    assert isoattn("fit", *BLOCKS, "--run.name=a").code == 0

    class Stop(Exception):
        pass

    for name, hook, when in (
        ("b", "on_train_batch_start", lambda t: t.global_step == 4),
        ("c", "on_train_epoch_start", lambda t: t.current_epoch == 2),
    ):

        def die(self, *args, when=when):
            if when(self.trainer):
                raise Stop

        with monkeypatch.context() as patch:
            patch.setattr(NodeClassifier, hook, die)
            with pytest.raises(Stop):
                isoattn("fit", *BLOCKS, f"--run.name={name}", "--checkpoint.every_n_steps=1")
        done = isoattn("fit", f"--ckpt_path=runs/graph/{name}/checkpoints/last.ckpt")
        assert done.code == 0, done.err
        assert equal(weights("runs/graph/a"), weights(f"runs/graph/{name}"))
        first, second = result("runs/graph/a"), result(f"runs/graph/{name}")
        assert first["batch_hashes"] == second["batch_hashes"]
        assert len(set(first["batch_hashes"])) == 3
        assert first["metrics"] == second["metrics"]


def test_seeds_differ_and_noise_is_not_frozen(isoattn):
    """The released code draws the same noise in every layer, step and run."""
    for seed in (0, 1):
        assert isoattn("fit", *BLOCKS, f"--run.name=s{seed}", f"--seed_everything={seed}").code == 0
    first, second = weights("runs/graph/s0"), weights("runs/graph/s1")
    rows = [f"network.layers.{n}.core.projection.rows" for n in (0, 1)]
    assert not torch.equal(first[rows[0]], first[rows[1]])
    assert not torch.equal(first[rows[0]], second[rows[0]])
    assert result("runs/graph/s0")["batch_hashes"] != result("runs/graph/s1")["batch_hashes"]


def test_what_a_run_says_and_records(club_run):
    _, run = club_run
    kept = result(run)
    assert (kept["data"], kept["nodes"], kept["edges"]) == ("files", 34, 156)
    assert 0 < kept["attention_flops"] < kept["forward_flops"]
    assert kept["attention"]["class_path"] == "isoattn.core.GumbelFavor"
    assert yaml.safe_load((run / "config.yaml").read_text())["model"]["loss"]["class_weight"] == (
        "balanced"
    )


def test_own_files_are_described_before_training(isoattn, karate):
    done = isoattn("fit", karate, *SMALL, "--run.name=a")
    assert done.code == 0, done.err
    assert "club: 34 nodes (12 train, 12 val, 10 test), 156 edge entries, 2 features" in done.err
    assert "next    isoattn graph test --ckpt_path" in done.out


def test_the_attention_is_swapped_with_its_weights_kept(isoattn, club_run):
    files, run = club_run
    best = run / "checkpoints" / "best.ckpt"
    done = isoattn("test", f"--init_from={best}", "--model.attention=gumbel_softmax")
    assert done.code == 0, done.err
    assert "loaded 32 tensors" in done.err and "unused" in done.err
    refused = isoattn("fit", f"--ckpt_path={best}", "--model.attention=Mean")
    assert refused.code == 2 and refused.short
    assert "model.attention: GumbelFavor in the checkpoint, Mean on the command line" in refused.err


def test_unseen_nodes_are_predicted_by_their_names(isoattn, club_run, tmp_path):
    _, run = club_run
    other = write_karate(tmp_path / "other")
    table = other / "nodes.csv"  # without labels and split, in columns of another order
    rows = [line.split(",") for line in table.read_text().splitlines()]
    table.write_text("".join(f"{r[4]},{r[0]},{r[3]}\n" for r in rows).replace("m33", "007"))
    edges = other / "edges.csv"
    edges.write_text(edges.read_text().replace("m33", "007"))
    done = isoattn(
        "predict",
        other,
        f"--ckpt_path={run}/checkpoints/best.ckpt",
        "--output=out.csv",
    )
    assert done.code == 0, done.err
    with Path("out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["node"] for row in rows][-1] == "007" and len(rows) == 34
    same = isoattn(
        "predict", f"--ckpt_path={run}/checkpoints/best.ckpt", "--output=same.csv"
    )  # the graph of training: features were found by name
    assert same.code == 0, same.err
    with Path("same.csv").open(newline="") as file:
        assert [r["probability"] for r in csv.DictReader(file)] == [r["probability"] for r in rows]


def test_another_number_of_features_is_refused(isoattn, club_run, tmp_path):
    _, run = club_run
    other = write_karate(tmp_path / "other")
    refused = isoattn(
        "predict",
        other,
        f"--ckpt_path={run}/checkpoints/best.ckpt",
        '--data.predict_source.feature_columns=["degree"]',
    )
    assert refused.code == 2 and refused.short
    assert "other has 1 features a node, the model takes 2" in refused.err


@pytest.mark.parametrize(
    "argv, text",
    [
        (("--config=cora",), "lacks ind.cora.x"),
        (("--config=ogbn_arxiv",), "RELEASE_v1.txt"),
        (("--config=minesweeper", "--data.source.root=nowhere"), "minesweeper.npz"),
        (("nowhere",), "There is no nowhere. Give nodes.csv"),
        (("--data.source.neighbours=3",), "neighbors"),
        (("x.npz",), "There is no x.npz"),
        (("--model.network.hiden=3",), "hidden"),
        (("--model.loss.edge_reg=1", "--model.attention=Linear"), "gives no probability"),
    ],
)
def test_what_cannot_be_is_one_short_line(isoattn, argv, text):
    refused = isoattn("fit", *argv, "--trainer.max_epochs=1", "--tracker=none")
    assert refused.code == 2, refused.err
    assert refused.short and text in refused.err


def test_what_is_wrong_with_own_files_is_said_plainly(isoattn, karate):
    refused = isoattn("fit", karate, "--data.source.label_column=club", "--tracker=none")
    assert refused.code == 2 and refused.short
    assert "say split_column=part" in refused.err and "compute_fn" not in refused.err
    (karate / "edges.csv").unlink()
    done = isoattn("fit", karate, *SMALL, "--run.name=a")
    assert done.code == 0 and "no_edges" in done.err, done.err


def test_the_metric_of_the_task_selects(isoattn, tmp_path):
    """Two classes by ROC-AUC: val/roc_auc is monitored without being named."""
    files = write_karate(tmp_path / "club")
    done = isoattn("fit", files, *SMALL, "--data.source.metric=roc_auc", "--run.name=a")
    assert done.code == 0, done.err
    best = read_checkpoint(Path("runs/graph/a/checkpoints/best.ckpt"))
    assert "val/roc_auc" in result("runs/graph/a")["metrics"]
    assert best["hyper_parameters"]["metric"] == "roc_auc"
