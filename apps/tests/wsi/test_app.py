"""isoattn wsi: fit, resume, swap, validate, test, predict, and what it refuses."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch

from isoattn.apps.base.metrics_log import read_metrics
from isoattn.apps.base.shipped import shipped
from isoattn.apps.base.study import resolve
from isoattn.apps.wsi.app import WsiCLI
from isoattn.core.training.checkpoint import read_checkpoint
from isoattn.wsi.classifier import BagClassifier

from .conftest import BAGS, NETWORK

# Bags drawn with replacement, tiles drawn anew each epoch, dropout: everything random at once.
RANDOM = (*BAGS, "--trainer.max_epochs=3", "--data.max_tokens=15", "--data.sampling=weighted")


def weights(run):
    return read_checkpoint(Path(run) / "checkpoints" / "last.ckpt")["state_dict"]


def result(run):
    return json.loads((Path(run) / "result.json").read_text())


def table(file):
    with Path(file).open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("name", shipped("wsi", "configs"))
def test_shipped_configs_are_whole(name):
    """Each begins with its command and what to expect, and every option exists."""
    first, second, *_ = shipped("wsi", "configs")[name].read_text().splitlines()
    assert first.startswith("# isoattn wsi fit") and f"--config {name}" in first
    assert second.startswith("# Expect: ") and "MEASURE" not in second
    config = resolve(WsiCLI, ["fit", "--config", name])
    assert config["model"]["network"]["class_path"].endswith(".TransMIL")


@pytest.mark.parametrize("name", shipped("wsi", "configs/attention"))
def test_presets_of_the_attention(name):
    config = resolve(WsiCLI, ["fit", f"--model.attention={name}"])
    assert config["model"]["attention"]["class_path"].startswith("isoattn.core.")


def test_a_run_resumes_to_the_straight_run(isoattn, monkeypatch):
    assert isoattn("fit", *RANDOM, "--run.name=a").code == 0

    class Stop(Exception):
        pass

    for name, hook, when in (
        ("b", "on_train_batch_start", lambda t: t.global_step == 17),
        ("c", "on_train_epoch_start", lambda t: t.current_epoch == 2),
    ):

        def die(self, *args, when=when):
            if when(self.trainer):
                raise Stop

        with monkeypatch.context() as patch:
            patch.setattr(BagClassifier, hook, die)
            with pytest.raises(Stop):
                isoattn("fit", *RANDOM, f"--run.name={name}", "--checkpoint.every_n_steps=1")
        done = isoattn("fit", f"--ckpt_path=runs/wsi/{name}/checkpoints/last.ckpt")
        assert done.code == 0, done.err
        straight, resumed = weights("runs/wsi/a"), weights(f"runs/wsi/{name}")
        assert straight.keys() == resumed.keys()
        assert all(torch.equal(straight[key], resumed[key]) for key in straight)
        first, second = result("runs/wsi/a"), result(f"runs/wsi/{name}")
        assert first["batch_hashes"] == second["batch_hashes"]
        assert len(set(first["batch_hashes"])) == 3
        assert first["metrics"] == second["metrics"]


def test_what_a_run_records(bag_run):
    kept = result(bag_run)
    assert kept["data"] == "needle" and kept["bags"] == 24
    assert 20 <= kept["tiles"]["fewest"] <= kept["tiles"]["median"] <= kept["tiles"]["most"] <= 30
    assert 0 < kept["attention_flops"] < kept["forward_flops"]
    assert kept["attention"]["class_path"] == "isoattn.core.Nystrom"
    assert "val/auc" in kept["metrics"]


def test_a_finished_run_says_that_there_is_nothing_to_train(isoattn, bag_run):
    copy = shutil.copytree(bag_run, "wsi/a")
    again = isoattn("fit", f"--ckpt_path={copy}/checkpoints/last.ckpt", "--tracker=none")
    assert again.code == 0, again.err
    assert "nothing left to train: the run has had its 2 epochs" in again.out
    assert result(copy)["epochs"] == 2


def test_validate_test_and_predict_agree(isoattn, bag_run):
    best = bag_run / "checkpoints" / "best.ckpt"
    done = isoattn("validate", f"--ckpt_path={best}")
    assert done.code == 0, done.err
    assert f"{result(bag_run)['metrics']['val/auc']:.4f}" in done.out
    done = isoattn("test", f"--ckpt_path={best}", "--output=test")
    assert done.code == 0, done.err
    tested = table("test/predictions.csv")
    metrics = json.loads(Path("test/result.json").read_text())["metrics"]
    hits = [int(row["correct"]) for row in tested]
    assert sum(hits) / len(hits) == pytest.approx(metrics["test/accuracy"], abs=1e-6)
    classes = table("test/per_class.csv")
    assert [row["class"] for row in classes] == ["negative", "positive"]
    assert sum(int(row["correct"]) for row in classes) == sum(hits)
    assert float(classes[1]["auc"]) == pytest.approx(metrics["test/auc"], abs=1e-5)
    counts = table("test/confusion.csv")
    assert sum(int(row[c]) for row in counts for c in ("negative", "positive")) == len(tested)
    done = isoattn("predict", f"--ckpt_path={best}", "--output=slides.csv")
    assert done.code == 0, done.err
    predicted = table("slides.csv")
    assert [r["slide"] for r in predicted] == [r["slide"] for r in tested]
    assert [r["p(positive)"] for r in predicted] == [r["p(positive)"] for r in tested]
    assert all(20 <= int(row["tiles"]) <= 30 for row in predicted)


def test_the_attention_is_swapped_with_its_weights_kept(isoattn, bag_run):
    best = bag_run / "checkpoints" / "best.ckpt"
    done = isoattn("test", f"--init_from={best}", "--model.attention=softmax")
    assert done.code == 0, done.err
    assert "loaded" in done.err
    refused = isoattn("fit", f"--ckpt_path={best}", "--model.attention=Mean")
    assert refused.code == 2 and refused.short
    assert "model.attention: Nystrom in the checkpoint, Mean on the command line" in refused.err


def test_own_features_and_labels(isoattn, cohort, slide_run):
    kept = result(slide_run)
    assert kept["features"]["encoder"] == "hed_statistics" and kept["bags"] == 12
    best = slide_run / "checkpoints" / "best.ckpt"
    shutil.copytree(cohort / "features" / "features", "other")
    done = isoattn("predict", "other", f"--ckpt_path={best}", "--output=all.csv")
    assert done.code == 0, done.err
    assert len(table("all.csv")) == 12  # no labels needed, none looked for
    done = isoattn("test", f"--ckpt_path={best}", "--data.source.root=other", "--output=test")
    assert done.code == 0, done.err  # where the files lie may differ


def test_patients_are_kept_together_by_the_usual_columns(isoattn, cohort):
    labels = cohort / "cohort" / "labels.csv"
    rows = table(labels)
    Path("labels.csv").write_text(
        "slide_id,case_id,label\n"
        + "".join(f"{r['slide_id']},C{i // 2},{r['label']}\n" for i, r in enumerate(rows))
    )
    done = isoattn(
        "fit", cohort / "features", "labels.csv", "--data.source.split.folds=3", *NETWORK,
        "--model.network.norm=standard", "--trainer.max_epochs=1", "--tracker=none",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "labels.csv: patient_column case_id" in done.err


def test_features_of_another_encoder_are_refused(isoattn, slide_run, cohort):
    import h5py

    shutil.copytree(cohort / "features" / "features", "other")
    for file in Path("other").glob("*.h5"):
        with h5py.File(file, "r+") as content:
            content["features"].attrs["encoder"] = "uni"
    best = slide_run / "checkpoints" / "best.ckpt"
    refused = isoattn("predict", "other", f"--ckpt_path={best}")
    assert refused.code == 2 and refused.short
    assert "trained on features of hed_statistics, these are of uni" in refused.err


def test_nan_features_are_refused_by_name(isoattn, cohort):
    import h5py

    shutil.copytree(cohort / "features" / "features", "bad")
    labels = cohort / "cohort" / "labels.csv"
    trained = next(row["slide_id"] for row in table(labels) if row["split"] == "train")
    with h5py.File(f"bad/{trained}.h5", "r+") as content:
        content["features"][0] = float("nan")
    refused = isoattn("fit", "bad", labels, "--config=demo", *NETWORK, "--tracker=none")
    assert refused.code == 2 and refused.short
    assert trained in refused.err and "not finite" in refused.err


@pytest.mark.parametrize(
    "argv, text",
    [
        (("nowhere",), "There is no folder nowhere. Give the folder of feature files"),
        (("--data.source=NedleBags",), "NeedleBags"),
        (("--model.network.ppeg=round",), "ppeg"),
        (("--model.network.hedas=3",), "heads"),
        (("--data.source.difficulty.marked=0.5",), "marked lies in (0, 0.2]"),
        (("--config=features",), "There is no folder features"),
    ],
)
def test_what_cannot_be_is_one_short_line(isoattn, argv, text):
    refused = isoattn("fit", *argv, "--trainer.max_epochs=1", "--tracker=none")
    assert refused.code == 2, refused.err
    assert refused.short and text in refused.err, refused.err


def test_a_folder_without_labels_says_what_is_missing(isoattn):
    Path("empty").mkdir()
    refused = isoattn("fit", "empty")
    assert refused.code == 2 and refused.short
    assert "empty has no labels.csv in it or beside it" in refused.err
    Path("labels.csv").write_text("slide_id,label\na,x\n")
    refused = isoattn("fit", "empty")
    assert refused.code == 2 and refused.short
    assert "has no feature files" in refused.err


@pytest.mark.slow
@pytest.mark.parametrize(("ppeg", "low", "high"), [("coords", 0.98, 1.0), ("off", 0.35, 0.65)])
def test_only_true_places_tell_which_tiles_meet(isoattn, ppeg, low, high):
    options = (f"--model.network.ppeg={ppeg}", "--run.dir=run", "--tracker=none")
    assert isoattn("fit", "--config=meeting", *options).code == 0
    rows = read_metrics(Path("run/metrics.csv"))
    assert low <= [float(row["val/auc"]) for row in rows if row.get("val/auc")][-1] <= high
