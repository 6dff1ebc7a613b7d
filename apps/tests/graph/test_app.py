"""isoattn graph: fit, resume, swap, test, predict, and what it refuses."""

import copy
import csv
import json
from pathlib import Path

import pytest
import torch
import yaml

from isoattn.apps.base.arguments import contradictions
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
    assert not Path("runs").exists()


def test_what_is_wrong_with_own_files_is_said_plainly(isoattn, karate):
    refused = isoattn("fit", karate, "--data.source.label_column=club", "--tracker=none")
    assert refused.code == 2 and refused.short
    assert "say split_column=part" in refused.err and "compute_fn" not in refused.err
    (karate / "edges.csv").unlink()
    done = isoattn("fit", karate, *SMALL, "--run.name=a")
    assert done.code == 0 and "no_edges" in done.err, done.err


@pytest.mark.parametrize("tracker", ["csv", "tensorboard", "wandb-offline"])
def test_a_refused_run_leaves_no_folder(isoattn, karate, club_run, tracker):
    """Refused when all is built: the weights do not fit the network."""
    _, run = club_run
    start = f"--init_from={run}/checkpoints/best.ckpt"
    for argv in (("fit", karate), ("test",)):
        refused = isoattn(*argv, start, "--model.network.layers=3", f"--tracker={tracker}")
        assert refused.code == 2 and refused.short and "do not fit" in refused.err, refused.err
        assert sorted(p.name for p in Path().iterdir()) == ["club"]
    refused = isoattn("fit", start, "--model.network.layers=3", "--run.dir=new/run")
    assert refused.code == 2 and not Path("new").exists()
    Path("old").mkdir()
    refused = isoattn("fit", start, "--model.network.layers=3", "--run.dir=old")
    assert (
        refused.code == 2
        and "do not fit" in json.loads(Path("old/result.json").read_text())["error"]
    )


def test_runs_are_named_after_the_data(isoattn, karate):
    assert isoattn("fit", karate, *SMALL).code == 0
    assert isoattn("fit", "--config=block_model", *BLOCKS[1:]).code == 0
    assert sorted(p.name for p in Path("runs/graph").iterdir()) == [
        "nodeformer-blockmodel-GumbelFavor-s0",
        "nodeformer-club-GumbelFavor-s0",
    ]


def test_moved_files_are_the_same_data_and_changed_ones_are_not(isoattn, karate):
    assert isoattn("fit", karate, *SMALL, "--run.name=a").code == 0
    last = "--ckpt_path=runs/graph/a/checkpoints/last.ckpt"
    before = isoattn("test", last)
    moved = karate.rename(karate.with_name("moved"))
    gone = isoattn("test", last)
    assert gone.code == 2 and gone.short
    assert "has no file nodes.csv" in gone.err
    assert "isoattn graph test FOLDER --ckpt_path runs/graph/a/checkpoints/last.ckpt" in gone.err
    found = isoattn("test", moved, last)
    assert found.code == 0 and "is not what" not in found.err, found.err
    assert found.out.splitlines()[:3] == before.out.splitlines()[:3]
    assert isoattn("fit", moved, last).code == 0

    edges = moved / "edges.csv"
    edges.write_text("\n".join(edges.read_text().splitlines()[:-1]) + "\n")
    other = isoattn("test", moved, last)
    assert other.code == 0
    assert other.err.count("moved is not what the model was trained on: features, edges") == 1
    refused = isoattn("fit", moved, last)
    assert refused.code == 2 and refused.short
    assert "moved is not what runs/graph/a/checkpoints/last.ckpt was trained on" in refused.err
    assert isoattn("fit", moved, last.replace("ckpt_path", "init_from")).code == 0

    table = [line.split(",") for line in (moved / "nodes.csv").read_text().splitlines()]
    (moved / "nodes.csv").write_text("".join(",".join([*r[:3], r[4], r[3]]) + "\n" for r in table))
    for subcommand in ("test", "fit"):
        refused = isoattn(subcommand, moved, last)
        assert refused.code == 2 and refused.short
        assert "has the features other, degree; the model was trained on degree, other" in (
            refused.err
        )


def test_other_files_still_are_another_experiment(isoattn, karate):
    """What is free is where a file lies, not whether there is one."""
    assert isoattn("fit", karate, *SMALL, "--run.name=a").code == 0
    last = "--ckpt_path=runs/graph/a/checkpoints/last.ckpt"
    stored = read_checkpoint(Path("runs/graph/a/checkpoints/last.ckpt"))["isoattn"]["config"]
    given = copy.deepcopy(stored)
    given["data"]["init_args"]["source"]["init_args"]["edges"] = None
    assert [key.rpartition(".")[2] for key, *_ in contradictions(stored, given, "test")] == [
        "edges"
    ]
    for option in ("label_column=part", "knn=3"):
        refused = isoattn("test", last, f"--data.source.{option}")
        assert refused.code == 2 and "is of another experiment" in refused.err, refused.err
    assert isoattn("fit", *BLOCKS, "--run.name=b").code == 0
    last = "--ckpt_path=runs/graph/b/checkpoints/last.ckpt"
    for option in ("source.nodes=80", "batching.nodes=train"):
        refused = isoattn("fit", last, f"--data.{option}")
        assert refused.code == 2 and "is of another experiment" in refused.err, refused.err


def test_init_from_takes_the_data_of_the_checkpoint(isoattn, club_run):
    _, run = club_run
    done = isoattn("fit", f"--init_from={run}/checkpoints/best.ckpt", "--run.name=a")
    assert done.code == 0 and "files: 34 nodes" in done.err, done.err


def test_a_class_that_the_data_lack_is_said_once(isoattn, karate, caplog):
    table = karate / "nodes.csv"
    kept = table.read_text()
    lines = kept.splitlines()
    lines[1] = lines[1].replace("Mr. Hi", "Nobody")
    table.write_text("\n".join(lines) + "\n")
    assert isoattn("fit", karate, *SMALL, "--run.name=a").code == 0
    table.write_text(kept)
    caplog.clear()
    done = isoattn("test", "--ckpt_path=runs/graph/a/checkpoints/last.ckpt")
    assert done.code == 0, done.err
    said = [r for r in caplog.records if "mapped to the model's by name" in r.getMessage()]
    assert len(said) == 1


def test_the_metric_of_the_task_selects(isoattn, tmp_path):
    """Two classes by ROC-AUC: val/roc_auc is monitored without being named."""
    files = write_karate(tmp_path / "club")
    done = isoattn("fit", files, *SMALL, "--data.source.metric=roc_auc", "--run.name=a")
    assert done.code == 0, done.err
    best = read_checkpoint(Path("runs/graph/a/checkpoints/best.ckpt"))
    assert "val/roc_auc" in result("runs/graph/a")["metrics"]
    assert best["hyper_parameters"]["metric"] == "roc_auc"
