"""One run, one folder: its name stays inside, its config makes the run again."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from isoattn.apps.base.errors import UserError
from isoattn.apps.base.files import read_json, write_atomic, write_json
from isoattn.apps.base.run_folder import RunFolder, RunOptions, new_run, run_of_checkpoint
from isoattn.core.training.checkpoint import read_checkpoint


@pytest.mark.parametrize("name", ["../x", "..", ".", "/abs", "a/b", "a\\b", "", "-x", ".h", "a b"])
def test_names_cannot_leave_the_root(fit, name):
    result = fit(f"--run.name={name}")
    assert result.code == 2 and result.short, result.err
    assert "--run.name" in result.err
    assert not Path("runs").exists() and not Path("../x").exists()


@given(st.text(max_size=12))
def test_a_folder_is_always_directly_below_the_root(tmp_path_factory, name):
    root = tmp_path_factory.mktemp("root")
    try:
        run = new_run(RunOptions(name=name, root=str(root)), "app", "default")
    except UserError:
        assert not (root / "app").exists()
    else:
        assert run.path.resolve().parent == (root / "app").resolve()


@given(st.text(max_size=30))
def test_any_default_name_becomes_a_folder(tmp_path_factory, name):
    root = tmp_path_factory.mktemp("root")
    paths = {new_run(RunOptions(root=str(root)), "app", f"n{name}").path for _ in range(3)}
    assert len(paths) == 3 and all(p.parent == root / "app" for p in paths)


def test_existing_name_is_refused_with_the_remedy(fit):
    assert fit("--run.name=a").code == 0
    before = Path("runs/vision/a/config.yaml").read_bytes()
    result = fit("--run.name=a", "--model.attention=Softmax")
    assert result.code == 2 and result.short
    assert "--run.name" in result.err and "--ckpt_path runs/vision/a/checkpoints" in result.err
    assert Path("runs/vision/a/config.yaml").read_bytes() == before


def test_default_names_are_numbered(fit):
    for _ in range(2):
        assert fit("--tracker=none").code == 0
    assert fit("--tracker=none", "--model.attention=Softmax", "--seed_everything=4").code == 0
    assert sorted(p.name for p in Path("runs/vision").iterdir()) == [
        "xcit-digits-CrossCovariance-s0",
        "xcit-digits-CrossCovariance-s0-2",
        "xcit-digits-Softmax-s4",
    ]


@pytest.mark.slow
def test_two_runs_at_once_in_one_place(start_process, tmp_path):
    """Case 2 and 9 of the public ones: both finish, each with its own config."""
    argv = ("--config=xcit_digits", "--trainer.max_epochs=1", "--trainer.limit_train_batches=2")
    processes = [
        start_process("vision", "fit", *argv, f"--model.optim.lr={lr}", cwd=tmp_path)
        for lr in (0.001, 0.002)
    ]
    for process in processes:
        _, err = process.communicate(timeout=180)
        assert process.returncode == 0, err
    runs = sorted((tmp_path / "runs" / "vision").iterdir())
    assert len(runs) == 2
    rates = {yaml.safe_load((r / "config.yaml").read_text())["model"]["optim"]["lr"] for r in runs}
    assert rates == {0.001, 0.002}
    assert all(json.loads((r / "result.json").read_text())["status"] == "done" for r in runs)


def _class_paths(value):
    if isinstance(value, dict):
        for key, child in value.items():
            if key == "class_path":
                yield child
            yield from _class_paths(child)
    elif isinstance(value, list):
        for child in value:
            yield from _class_paths(child)


@pytest.mark.parametrize("attention", ["CrossCovariance", "cosine_scale10", "Linear"])
def test_saved_config_makes_the_run_again(fit, command, attention):
    options = ("--model.network.drop_path=0.2", "--seed_everything=3", "--data.augment=shift")
    assert fit(f"--model.attention={attention}", *options, "--run.name=a").code == 0
    first = Path("runs/vision/a")
    assert command("fit", "--config", f"{first}/config.yaml").code == 0
    (second,) = [p for p in Path("runs/vision").iterdir() if p.name != "a"]
    configs = [yaml.safe_load((r / "config.yaml").read_text()) for r in (first, second)]
    assert configs[0] == configs[1]
    weights = [read_checkpoint(r / "checkpoints/last.ckpt")["state_dict"] for r in (first, second)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][k], weights[1][k]) for k in weights[0])
    results = [json.loads((r / "result.json").read_text()) for r in (first, second)]
    assert results[0]["batch_hashes"] == results[1]["batch_hashes"]
    text = (first / "config.yaml").read_text()
    assert text.startswith("# isoattn vision fit --config runs/vision/a/config.yaml\n")
    assert "__main__" not in text
    paths = list(_class_paths(configs[0]))
    assert len(paths) >= 3 and all(p.startswith("isoattn.") for p in paths)


def test_config_of_a_resumed_run_still_starts_afresh(fit, command):
    assert fit("--run.name=a").code == 0
    config = Path("runs/vision/a/config.yaml")
    before = yaml.safe_load(config.read_text())
    assert command("fit", "--ckpt_path=runs/vision/a/checkpoints/last.ckpt").code == 0
    assert yaml.safe_load(config.read_text()) == before
    assert "ckpt_path" not in before and "run" not in before


def test_what_a_finished_run_holds(xca_run):
    result = json.loads((xca_run / "result.json").read_text())
    assert result["status"] == "done" and result["error"] == ""
    assert result["seed"] == 0 and result["epochs"] == 1 and result["app"] == "vision"
    assert set(result["metrics"]) == {"val/accuracy", "val/balanced_accuracy", "val/loss"}
    assert result["attention"]["class_path"] == "isoattn.core.CrossCovariance"
    assert len(result["batch_hashes"]) == 1 and result["environment"]["packages"]["torch"]
    assert 0 < result["attention_parameters"] < result["parameters"]
    assert sorted(p.name for p in xca_run.iterdir()) == [
        "checkpoints",
        "config.yaml",
        "metrics.csv",
        "result.json",
    ]


def test_leftovers_of_a_killed_writer_are_cleared(fit, tmp_path):
    folder = tmp_path / "cell"
    (folder / "checkpoints").mkdir(parents=True)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    strays = [
        folder / f".config.yaml.{child}.partial",
        folder / "checkpoints" / f".last.ckpt.{child}.partial",
    ]
    for stray in strays:
        stray.touch()
    assert fit(f"--run.dir={folder}").code == 0
    assert not any(s.exists() for s in strays)


def test_nothing_of_the_process_is_changed(fit):
    """Case 6 of the public ones, for whoever calls the command from Python."""
    fit("--run.name=warm")  # first use sets what libraries set once
    variables, handler = dict(os.environ), signal.getsignal(signal.SIGTERM)
    for tracker in ("none", "wandb-offline", "tensorboard"):
        assert fit(f"--tracker={tracker}").code == 0
    assert dict(os.environ) == variables
    assert signal.getsignal(signal.SIGTERM) is handler
    assert not torch.are_deterministic_algorithms_enabled()


def test_run_without_validation_or_epochs(fit, command):
    result = fit("--trainer.limit_val_batches=0", "--run.name=a")
    assert result.code == 0 and "nothing was validated" in result.out
    assert "last.ckpt" in result.out
    result = command("test", "--ckpt_path=runs/vision/a/checkpoints/last.ckpt")
    assert result.code == 0, result.err
    result = fit("--trainer.max_epochs=0", "--run.name=b")
    assert result.code == 0 and "next" not in result.out


# --- files --------------------------------------------------------------------------------------


def test_write_atomic_replaces_and_cleans_up(tmp_path, monkeypatch):
    file = tmp_path / "deep" / "x.txt"
    write_atomic(file, "one")
    write_atomic(file, b"two")
    assert file.read_text() == "two"

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(file, "three")
    assert file.read_text() == "two" and list(file.parent.iterdir()) == [file]


def test_json_refuses_what_json_lacks(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant|Out of range"):
        write_json(tmp_path / "x.json", {"a": float("nan")})
    assert read_json(tmp_path / "x.json") is None


def test_result_is_extended(tmp_path):
    run = RunFolder(tmp_path, "x")
    run.write_result(a=1, b=2)
    run.write_result(b=3)
    assert read_json(run.result_file) == {"a": 1, "b": 3}


def test_run_of_a_checkpoint(xca_run, tmp_path):
    assert run_of_checkpoint(xca_run / "checkpoints" / "best.ckpt").name == "xca"
    assert run_of_checkpoint(tmp_path / "checkpoints" / "best.ckpt") is None
    assert run_of_checkpoint(xca_run / "best.ckpt") is None
