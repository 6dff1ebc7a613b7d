"""Progress: a bar at a terminal, lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as L
from lightning.pytorch.callbacks import Callback, RichProgressBar

_SECONDS = 2.0
_WITHIN = 30.0
"""Seconds from line to line within an epoch."""


class EpochLines(Callback):
    """Prints epochs, for logs and pipes: each one, or of quick ones a line every two seconds.

    Of a long epoch it says every half minute how far it is.
    """

    def __init__(self) -> None:
        self._start = 0.0
        self._printed = 0.0
        self._said = 0.0

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Print the epoch before, whose means are known only now."""
        if self._start and time.perf_counter() - self._printed > _SECONDS:
            self._print(trainer, trainer.current_epoch)
        self._start = self._said = time.perf_counter()

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Say how far a long epoch is."""
        now = time.perf_counter()
        if now - self._said < _WITHIN:
            return
        self._said = now
        of = trainer.num_training_batches
        steps = f"{batch_idx + 1}/{of}" if math.isfinite(of) else f"{batch_idx + 1}"
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        shown = [f"loss {float(loss):.4f}"] if loss is not None else []
        epoch = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
        sys.stderr.write(
            "  ".join([f"{epoch}, step {steps}", *shown, f"{now - self._start:.0f} s"])
        )
        sys.stderr.write("\n")
        sys.stderr.flush()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Print the last epoch."""
        self._print(trainer, trainer.current_epoch)

    def _print(self, trainer: L.Trainer, epochs: int) -> None:
        metrics = trainer.callback_metrics
        every = trainer.check_val_every_n_epoch
        validated = every is None or epochs % every == 0  # else the numbers are of an earlier epoch
        shown = [
            f"{name} {float(metrics[name]):.4f}"
            for name in ("train/loss", "val/loss", "val/accuracy", "val/roc_auc", "val/auc")
            if name in metrics and (validated or not name.startswith("val/"))
        ]
        self._printed = time.perf_counter()
        epoch = f"epoch {epochs}/{trainer.max_epochs}"
        seconds = f"{self._printed - self._start:.1f} s"
        sys.stderr.write("  ".join([epoch, *shown, seconds]) + "\n")
        sys.stderr.flush()


def progress_callback() -> Callback:
    """A bar where someone can see it move, lines otherwise."""
    return RichProgressBar(leave=False) if sys.stderr.isatty() else EpochLines()
