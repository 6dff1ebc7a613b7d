"""What test and predict leave behind, on shipped data and on folders of images."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from isoattn.apps.vision.outputs import write_predictions, write_test_outputs

SHADES = {"1": 30, "10": 120, "2": 220}


def _images(root, split, classes, count=6, size=12):
    """Folders of grey images whose shade tells the class."""
    rng = np.random.default_rng(3)
    for name, shade in classes.items():
        folder = root / split / name if split else root / name
        folder.mkdir(parents=True)
        for index in range(count):
            noise = rng.integers(-20, 20, (size, size, 3))
            pixels = np.clip(shade + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{index}.png")


def _rows(file):
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


FOLDER = (
    "--config=xcit_digits",
    "--data=ImageFolderData",
    "--data.image_size=12",
    "--data.batch_size=6",
    "--data.augment=none",
    "--model.network.patch_size=4",
    "--trainer.max_epochs=12",
    "--model.optim.lr=0.01",
    "--tracker=none",
)


@pytest.fixture(scope="module")
def folder_run(tmp_path_factory):
    """A run on folders 1, 10, 2: neither in natural order nor in that of the numbers."""
    from isoattn.apps.main import main

    root = tmp_path_factory.mktemp("photos")
    for split in ("train", "val", "test"):
        _images(root, split, SHADES)
    argv = [*FOLDER, f"--data.root={root}", f"--run.root={root}/runs", "--run.name=a"]
    assert main(["vision", "fit", *argv]) == 0
    return root, root / "runs" / "vision" / "a"


# --- test ---------------------------------------------------------------------------------------


def test_test_writes_tables_and_a_picture(command, xca_run, tmp_path):
    out = tmp_path / "out"
    result = command("test", f"--ckpt_path={xca_run}/checkpoints/best.ckpt", f"--output={out}")
    assert result.code == 0, result.err
    metrics = json.loads((out / "result.json").read_text())
    rows = _rows(out / "predictions.csv")
    assert len(rows) == metrics["items"] > 100
    right = sum(int(r["correct"]) for r in rows)
    assert all((r["label"] == r["predicted"]) == (r["correct"] == "1") for r in rows)
    assert len({r["index"] for r in rows}) == len(rows)
    assert metrics["metrics"]["test/accuracy"] == pytest.approx(right / len(rows), abs=1e-6)
    per_class = _rows(out / "per_class.csv")
    assert [r["class"] for r in per_class] == [str(d) for d in range(10)]
    assert sum(int(r["items"]) for r in per_class) == len(rows)
    assert sum(int(r["correct"]) for r in per_class) == right
    balanced = np.mean([float(r["accuracy"]) for r in per_class])
    assert metrics["metrics"]["test/balanced_accuracy"] == pytest.approx(balanced, abs=1e-5)
    matrix = [[int(v) for v in list(r.values())[1:]] for r in _rows(out / "confusion.csv")]
    assert np.trace(matrix) == right and np.sum(matrix) == len(rows)
    with Image.open(out / "confusion.png") as picture:
        assert min(picture.size) > 200
    assert "test/accuracy" in result.out and str(out) in result.out


def test_test_goes_into_the_run_by_default(command, folder_run):
    _, run = folder_run
    result = command("test", f"--ckpt_path={run}/checkpoints/best.ckpt")
    assert result.code == 0, result.err
    assert (run / "test" / "predictions.csv").is_file()
    assert json.loads((run / "result.json").read_text())["status"] == "done"


def test_top1_is_micro(tmp_path):
    """Nine of one class, one of another, all predicted the first."""
    outputs = [
        {
            "index": torch.arange(10),
            "label": torch.tensor([0] * 9 + [1]),
            "probability": torch.tensor([[0.9, 0.1]]).repeat(10, 1),
        }
    ]
    write_test_outputs(tmp_path, outputs, ["a", "b"], {"metrics": {}})
    assert [r["accuracy"] for r in _rows(tmp_path / "per_class.csv")] == ["1.000000", "0.000000"]
    assert sum(int(r["correct"]) for r in _rows(tmp_path / "predictions.csv")) == 9


def test_a_class_without_items_has_no_accuracy(tmp_path):
    outputs = [
        {
            "index": torch.tensor([4]),
            "label": torch.tensor([0]),
            "probability": torch.tensor([[0.2, 0.7, 0.1]]),
        }
    ]
    write_test_outputs(tmp_path, outputs, ["a", "b,c", 'd"'], {})
    rows = _rows(tmp_path / "per_class.csv")
    assert [(r["class"], r["accuracy"]) for r in rows] == [
        ("a", "0.000000"),
        ("b,c", ""),
        ('d"', ""),
    ]
    (row,) = _rows(tmp_path / "predictions.csv")
    assert row == {
        "index": "4",
        "label": "a",
        "predicted": "b,c",
        "probability": "0.700000",
        "correct": "0",
    }


def test_predictions_by_path_or_index(tmp_path):
    probability = torch.tensor([[0.25, 0.75]])
    by_path = [{"path": ["x/a.png"], "index": torch.tensor([0]), "probability": probability}]
    assert write_predictions(tmp_path / "p.csv", by_path, ["a", "b"]) == 1
    assert _rows(tmp_path / "p.csv") == [
        {
            "image": "x/a.png",
            "predicted": "b",
            "probability": "0.750000",
            "p(a)": "0.250000",
            "p(b)": "0.750000",
        }
    ]
    by_index = [{"index": torch.tensor([7]), "probability": probability}]
    write_predictions(tmp_path / "i.csv", by_index, ["a", "b"])
    assert _rows(tmp_path / "i.csv")[0]["image"] == "7"


# --- folders of images --------------------------------------------------------------------------


def test_folder_learns_and_keeps_the_order_of_names(folder_run, command, tmp_path):
    root, run = folder_run
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    assert metrics["val/accuracy"] > 0.9
    result = command("test", f"--ckpt_path={run}/checkpoints/best.ckpt", f"--output={tmp_path}/out")
    assert result.code == 0, result.err
    assert [r["class"] for r in _rows(tmp_path / "out" / "per_class.csv")] == ["1", "10", "2"]


def test_classes_are_mapped_by_name(folder_run, command, tmp_path):
    """A test set that lacks a class: labels 0, 1 of its own are 0, 2 of the model."""
    _, run = folder_run
    other = tmp_path / "other"
    for split in ("train", "val", "test"):
        _images(other, split, {"1": SHADES["1"], "2": SHADES["2"]})
    result = command(
        "test",
        f"--ckpt_path={run}/checkpoints/best.ckpt",
        f"--data.root={other}",
        f"--output={tmp_path}/out",
    )
    assert result.code == 0, result.err
    outcome = json.loads((tmp_path / "out" / "result.json").read_text())
    assert outcome["metrics"]["test/accuracy"] > 0.9
    per_class = {r["class"]: r["items"] for r in _rows(tmp_path / "out" / "per_class.csv")}
    assert per_class == {"1": "6", "10": "0", "2": "6"}


def test_unknown_class_stops_and_is_named(folder_run, command, tmp_path):
    _, run = folder_run
    other = tmp_path / "other"
    for split in ("train", "val", "test"):
        _images(other, split, {**SHADES, "zebra": 90})
    argv = (f"--ckpt_path={run}/checkpoints/best.ckpt", f"--data.root={other}")
    result = command("test", *argv, f"--output={tmp_path}/out")
    assert result.code == 2 and result.short and "zebra" in result.err
    assert not (tmp_path / "out").exists()


def test_predict_reports_what_it_skipped(folder_run, command, tmp_path):
    _, run = folder_run
    _images(tmp_path, "new", {"deep": 30, "bright": 220}, count=2)
    new = tmp_path / "new"
    (new / "broken.png").write_bytes((new / "deep" / "0.png").read_bytes()[:40])
    (new / "notes.txt").write_text("no image")
    result = command("predict", str(new), f"--ckpt_path={run}/checkpoints/best.ckpt")
    assert result.code == 0, result.err
    rows = _rows(run / "predict" / "new.csv")
    assert {r["image"]: r["predicted"] for r in rows} == {
        "bright/0.png": "2",
        "bright/1.png": "2",
        "deep/0.png": "1",
        "deep/1.png": "1",
    }
    assert [k for k in rows[0] if k.startswith("p(")] == ["p(1)", "p(10)", "p(2)"]
    for row in rows:
        assert sum(float(v) for k, v in row.items() if k.startswith("p(")) == pytest.approx(
            1, abs=1e-5
        )
    assert "4 images predicted" in result.out and re.search(r"skipped: 2 ", result.out)


def test_predict_needs_no_training_data(folder_run, command, tmp_path):
    _, run = folder_run
    _images(tmp_path, "new", {"x": 30}, count=1)
    result = command(
        "predict",
        str(tmp_path / "new"),
        f"--ckpt_path={run}/checkpoints/best.ckpt",
        "--data.root=gone",
        "--output=p.csv",
    )
    assert result.code == 0, result.err
    assert [r["predicted"] for r in _rows(Path("p.csv"))] == ["1"]


def test_predict_of_nothing_is_a_short_error(folder_run, command, tmp_path):
    _, run = folder_run
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "gone"):
        result = command("predict", folder, f"--ckpt_path={run}/checkpoints/best.ckpt")
        assert result.code == 2 and result.short and folder in result.err


def test_predict_without_a_folder_is_the_test_split(command, xca_run, tmp_path):
    result = command(
        "predict", f"--ckpt_path={xca_run}/checkpoints/best.ckpt", f"--output={tmp_path}/p.csv"
    )
    assert result.code == 0, result.err
    assert len(_rows(tmp_path / "p.csv")) > 100


def test_an_unreadable_training_image_is_named(command, tmp_path):
    root = tmp_path / "photos"
    for split in ("train", "val"):
        _images(root, split, SHADES, count=2)
    (root / "train" / "10" / "1.png").write_bytes(b"\x89PNG broken")
    result = command("fit", *FOLDER, f"--data.root={root}", "--run.name=a")
    assert result.code == 2 and result.short and "1.png" in result.err
    assert not Path("runs/vision/a").exists()  # refused before its first step: nothing to keep
    result = command(
        "fit", *FOLDER, f"--data.root={root}", "--run.name=b", "--data.on_bad_image=skip"
    )
    assert result.code == 0, result.err
    skipped = json.loads(Path("runs/vision/b/result.json").read_text())["skipped"]
    assert skipped["unreadable in train"] == 1


# --- what the checkpoints of the command are good for -------------------------------------------


def test_checkpoints_of_the_command_load_in_python(xca_run):
    from isoattn.core import CrossCovariance
    from isoattn.vision.classifier import ImageClassifier

    for name in ("best.ckpt", "last.ckpt"):
        model = ImageClassifier.load_from_checkpoint(
            xca_run / "checkpoints" / name, weights_only=True
        )
        assert any(isinstance(m, CrossCovariance) for m in model.modules())
        assert model.class_names == [str(d) for d in range(10)]


def test_rate_reaches_the_peak_through_the_app(command):
    """Per step, as logged: rises from the first step, is exactly the set rate, then falls."""
    argv = ("--trainer.log_every_n_steps=1", "--trainer.limit_train_batches=10")
    result = command(
        "fit",
        "--config=xcit_digits",
        *argv,
        "--trainer.max_epochs=2",
        "--model.optim.lr=0.008",
        "--model.optim.warmup=4",
        "--tracker=csv",
        "--trainer.callbacks=LearningRateMonitor",
        "--run.name=a",
    )
    assert result.code == 0, result.err
    rows = _rows(Path("runs/vision/a/metrics.csv"))
    column = next(c for c in rows[0] if c.endswith("/decay"))
    rates = [float(r[column]) for r in rows if r.get(column)]
    assert rates[:4] == pytest.approx([0.002, 0.004, 0.006, 0.008])
    assert max(rates) == 0.008 and len(rates) == 20
    assert all(a > b for a, b in zip(rates[3:], rates[4:], strict=False))
