"""Lines of progress where there is no terminal."""

from types import SimpleNamespace

import pytest
import torch

from isoattn.apps.base import progress
from isoattn.apps.base.progress import EpochLines


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    return now


def trainer(epoch, every=2):
    return SimpleNamespace(
        current_epoch=epoch,
        max_epochs=4,
        num_training_batches=9,
        check_val_every_n_epoch=every,
        callback_metrics={"train/loss": torch.tensor(0.5), "val/accuracy": torch.tensor(0.75)},
    )


@pytest.mark.parametrize("epochs, every, shown", [(1, 2, False), (2, 2, True), (3, None, True)])
def test_validation_is_said_of_epochs_that_had_one(clock, capsys, epochs, every, shown):
    EpochLines().on_train_end(trainer(epochs, every), None)
    line = capsys.readouterr().err
    assert line.startswith(f"epoch {epochs}/4  train/loss 0.5000")
    assert ("val/accuracy 0.7500" in line) == shown


def test_a_long_epoch_says_how_far_it_is(clock, capsys):
    lines, now = EpochLines(), trainer(1)
    lines.on_train_epoch_start(now, None)
    clock[0] += 29
    lines.on_train_batch_end(now, None, {"loss": torch.tensor(0.25)}, None, 3)
    assert capsys.readouterr().err == ""
    clock[0] += 2
    lines.on_train_batch_end(now, None, {"loss": torch.tensor(0.25)}, None, 4)
    assert capsys.readouterr().err == "epoch 2/4, step 5/9  loss 0.2500  31 s\n"
    lines.on_train_batch_end(now, None, None, None, 5)  # not again at once
    assert capsys.readouterr().err == ""
