"""A run that was stopped and taken up again is the straight run, bit for bit."""

import csv
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
import yaml

from isoattn.apps.base.metrics_log import read_metrics
from isoattn.core.training.checkpoint import is_valid, read_checkpoint

# Everything random at once: drop-path, mixup, shifts, and an order of its own for every epoch.
ARGUMENTS = (
    "--config",
    "xcit_digits",
    "--trainer.max_epochs=3",
    "--trainer.limit_train_batches=6",
    "--trainer.limit_val_batches=2",
    "--trainer.log_every_n_steps=1",
    "--model.network.drop_path=0.3",
    "--model.loss.mixup=0.4",
    "--model.loss.cutmix=0.4",
    "--data.augment=shift",
    "--data.batch_size=16",
    "--tracker=none",
)
slow = pytest.mark.slow
VARYING = ("seconds", "environment")


def _same(left, right, path=""):
    """Every difference between two checkpoints or results."""
    if isinstance(left, torch.Tensor):
        return [] if torch.equal(left, right) and left.dtype == right.dtype else [path]
    if isinstance(left, dict):
        if left.keys() != right.keys():
            return [f"{path}: keys {left.keys() ^ right.keys()}"]
        return [d for k in left for d in _same(left[k], right[k], f"{path}.{k}")]
    if isinstance(left, list | tuple):
        if len(left) != len(right):
            return [f"{path}: length"]
        pairs = zip(left, right, strict=True)
        return [d for i, (a, b) in enumerate(pairs) for d in _same(a, b, f"{path}[{i}]")]
    return [] if left == right else [f"{path}: {left!r} {right!r}"]


def _compare(straight, resumed):
    """All that a run leaves, but for its times and places."""
    kept = {}
    for run in (straight, resumed):
        content = read_checkpoint(run / "checkpoints" / "last.ckpt")
        for section in ("run", "checkpoint"):  # where it is kept, how often it is saved
            content["isoattn"]["config"].pop(section)
        content["isoattn"]["config"].pop("ckpt_path", None)
        content.pop("loops")  # counters of batches since the process began
        result = json.loads((run / "result.json").read_text())
        rows = read_metrics(run / "metrics.csv")
        best = read_checkpoint(run / "checkpoints" / "best.ckpt")
        kept[run] = {
            "checkpoint": content,
            "best": best["state_dict"],
            "result": {k: v for k, v in result.items() if k not in VARYING},
            "rows": rows,
        }
    assert _same(kept[straight], kept[resumed]) == []
    assert len(kept[straight]["result"]["batch_hashes"]) == 3
    assert len(set(kept[straight]["result"]["batch_hashes"])) == 3
    _no_step_twice(resumed / "metrics.csv")


def _no_step_twice(file):
    with file.open() as stream:
        rows = list(csv.DictReader(stream))
    steps = [row["step"] for row in rows if row.get("train/loss_step")]
    assert len(steps) == len(set(steps)) == 18, steps
    assert sum(1 for row in rows if row["val/accuracy"]) == 3


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The run without interruption."""
    from isoattn.apps.main import main

    root = tmp_path_factory.mktemp("straight")
    assert main(["vision", "fit", *ARGUMENTS, f"--run.root={root}", "--run.name=a"]) == 0
    return root / "vision" / "a"


class Stop(Exception):
    """Stands for whatever ends a process."""


def _stop_at(monkeypatch, hook, when):
    """Let a run die in a hook of the model's, as from outside."""
    from isoattn.vision.classifier import ImageClassifier

    def die(self, *args):
        if when(self.trainer):
            raise Stop

    monkeypatch.setattr(ImageClassifier, hook, die)


def test_two_straight_runs_are_equal(straight, command):
    assert command("fit", *ARGUMENTS, "--run.name=b").code == 0
    _compare(straight, Path("runs/vision/b"))


def test_another_seed_is_another_run(straight, command):
    """The comparison can fail."""
    assert command("fit", *ARGUMENTS, "--run.name=b", "--seed_everything=1").code == 0
    with pytest.raises(AssertionError):
        _compare(straight, Path("runs/vision/b"))


@pytest.mark.parametrize("epoch", [1, pytest.param(2, marks=slow)])
def test_stopped_at_an_epoch_end(straight, command, monkeypatch, epoch):
    with monkeypatch.context() as patch:
        _stop_at(patch, "on_train_epoch_start", lambda t: t.current_epoch == epoch)
        with pytest.raises(Stop):
            command("fit", *ARGUMENTS, "--run.name=b")
    run = Path("runs/vision/b")
    assert json.loads((run / "result.json").read_text())["status"] == "failed"
    result = command("fit", f"--ckpt_path={run}/checkpoints/last.ckpt")
    assert result.code == 0, result.err
    _compare(straight, run)


@pytest.mark.parametrize("every, step", [(1, 9), (4, 10), pytest.param(5, 17, marks=slow)])
def test_stopped_inside_an_epoch(straight, command, monkeypatch, every, step):
    with monkeypatch.context() as patch:
        _stop_at(patch, "on_train_batch_start", lambda t: t.global_step == step)
        with pytest.raises(Stop):
            command("fit", *ARGUMENTS, "--run.name=b", f"--checkpoint.every_n_steps={every}")
    run = Path("runs/vision/b")
    saved = read_checkpoint(run / "checkpoints" / "last.ckpt")["global_step"]
    assert saved == step - step % every if every > 1 else saved == step
    result = command("fit", f"--ckpt_path={run}/checkpoints/last.ckpt")
    assert result.code == 0, result.err
    _compare(straight, run)


def test_stopped_twice(straight, command, monkeypatch):
    run = Path("runs/vision/b")
    argv = (*ARGUMENTS, "--run.name=b", "--checkpoint.every_n_steps=1")
    for step in (3, 8):
        with monkeypatch.context() as patch:
            _stop_at(patch, "on_train_batch_start", lambda t, s=step: t.global_step == s)
            with pytest.raises(Stop):
                command("fit", *argv)
        argv = (f"--ckpt_path={run}/checkpoints/last.ckpt",)
    assert command("fit", *argv).code == 0
    _compare(straight, run)


def test_from_the_checkpoint_before_the_last(straight, command, monkeypatch):
    with monkeypatch.context() as patch:
        _stop_at(patch, "on_train_batch_start", lambda t: t.global_step == 9)
        with pytest.raises(Stop):
            command("fit", *ARGUMENTS, "--run.name=b", "--checkpoint.every_n_steps=2")
    run = Path("runs/vision/b")
    last = run / "checkpoints" / "last.ckpt"
    last.write_bytes(last.read_bytes()[:-1])
    refused = command("fit", f"--ckpt_path={last}")
    assert refused.code == 2 and refused.short
    assert "last.ckpt" in refused.err and "last.previous.ckpt" in refused.err
    result = command("fit", f"--ckpt_path={run}/checkpoints/last.previous.ckpt")
    assert result.code == 0, result.err
    _compare(straight, run)


def test_resuming_a_finished_run_changes_nothing(straight, command):
    assert command("fit", *ARGUMENTS, "--run.name=b").code == 0
    run = Path("runs/vision/b")
    result = command("fit", f"--ckpt_path={run}/checkpoints/last.ckpt")
    assert result.code == 0, result.err
    _compare(straight, run)


# --- processes that die -------------------------------------------------------------------------


def _wait_for(condition, process, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def _rows(run):
    file = run / "metrics.csv"
    return len(read_metrics(file)) if file.is_file() else 0


def test_killed_inside_an_epoch(straight, command, start_process, tmp_path):
    run = tmp_path / "runs" / "vision" / "b"
    argv = (*ARGUMENTS, "--run.name=b", "--checkpoint.every_n_steps=1")
    process = start_process("vision", "fit", *argv, cwd=tmp_path)
    _wait_for(lambda: _rows(run) >= 8, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    checkpoint = run / "checkpoints" / "last.ckpt"
    assert is_valid(checkpoint)
    step = read_checkpoint(checkpoint)["global_step"]
    logged = {int(r["step"]) for r in read_metrics(run / "metrics.csv") if "train/loss_step" in r}
    assert logged >= set(range(step)), "rows were lost"
    result = command("fit", f"--ckpt_path={run.relative_to(tmp_path)}/checkpoints/last.ckpt")
    assert result.code == 0, result.err
    assert not list(run.rglob("*.partial"))
    _compare(straight, run)


SIGNALS = {
    "between steps": ("on_train_batch_start", lambda t: t.global_step == 8),
    "at the last step": ("on_train_batch_start", lambda t: t.global_step == 11),
    "in validation": ("on_validation_batch_start", lambda t: t.global_step == 12),
    "at the end of validation": ("on_validation_epoch_end", lambda t: t.global_step == 12),
    "at the end of an epoch": ("on_train_epoch_end", lambda t: t.current_epoch == 1),
    "at the start of an epoch": ("on_train_epoch_start", lambda t: t.current_epoch == 2),
}


@pytest.mark.parametrize("moment", SIGNALS)
def test_asked_to_end(straight, command, monkeypatch, moment):
    """SIGTERM, wherever the run stands: status 143, saved, and the resumed run is the straight."""
    from isoattn.vision.classifier import ImageClassifier

    hook, when = SIGNALS[moment]
    original = getattr(ImageClassifier, hook, lambda self, *args: None)
    sent = []

    def ask(self, *args):
        if when(self.trainer) and not sent:
            sent.append(True)
            assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, None)
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, *args)

    run = Path("runs/vision/b")
    with monkeypatch.context() as patch:
        patch.setattr(ImageClassifier, hook, ask)
        result = command("fit", *ARGUMENTS, "--run.name=b")
    assert sent and result.code == 143, result
    assert "last.ckpt" in result.err and "Traceback" not in result.err
    assert json.loads((run / "result.json").read_text())["status"] == "interrupted"
    step = read_checkpoint(run / "checkpoints" / "last.ckpt")["global_step"]
    assert step >= {"between steps": 8}.get(moment, 12)
    result = command("fit", f"--ckpt_path={run}/checkpoints/last.ckpt")
    assert result.code == 0, result.err
    _compare(straight, run)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [3, 11])
def test_process_asked_to_end(straight, command, start_process, tmp_path, rows):
    run = tmp_path / "runs" / "vision" / "b"
    process = start_process("vision", "fit", *ARGUMENTS, "--run.name=b", cwd=tmp_path)
    _wait_for(lambda: _rows(run) >= rows, process)
    os.kill(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 143, err
    assert "last.ckpt" in err and "Traceback" not in err
    assert json.loads((run / "result.json").read_text())["status"] == "interrupted"
    assert read_checkpoint(run / "checkpoints" / "last.ckpt")["global_step"] >= rows - 2
    result = command("fit", f"--ckpt_path={run.relative_to(tmp_path)}/checkpoints/last.ckpt")
    assert result.code == 0, result.err
    _compare(straight, run)


@pytest.mark.slow
def test_killed_again_and_again(straight, command, start_process, tmp_path):
    """Ten kills at random moments, start-up included; the outcome is the straight run's."""
    run = tmp_path / "runs" / "vision" / "b"
    rng = random.Random(5)
    for _ in range(10):
        checkpoint = run / "checkpoints" / "last.ckpt"
        argv = ("fit", f"--ckpt_path={checkpoint}") if checkpoint.is_file() else None
        argv = argv or ("fit", *ARGUMENTS, f"--run.dir={run}", "--checkpoint.every_n_steps=1")
        process = start_process("vision", *argv, cwd=tmp_path)
        time.sleep(rng.uniform(4, 9))
        process.kill()
        process.communicate()
        assert not checkpoint.exists() or is_valid(checkpoint)
    assert command("fit", f"--ckpt_path={checkpoint}").code == 0
    _compare(straight, run)


def test_saved_config_of_a_resumed_run_is_the_same(command, monkeypatch):
    argv = (*ARGUMENTS, "--run.name=b")
    with monkeypatch.context() as patch:
        _stop_at(patch, "on_train_epoch_start", lambda t: t.current_epoch == 1)
        with pytest.raises(Stop):
            command("fit", *argv)
    run = Path("runs/vision/b")
    before = yaml.safe_load((run / "config.yaml").read_text())
    assert command("fit", f"--ckpt_path={run}/checkpoints/last.ckpt").code == 0
    after = yaml.safe_load((run / "config.yaml").read_text())
    same = ("model", "data", "seed_everything", "trainer")
    assert {k: before[k] for k in same} == {k: after[k] for k in same}
