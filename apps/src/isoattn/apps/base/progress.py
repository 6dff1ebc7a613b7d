"""Progress: a bar at a terminal, a line an epoch elsewhere."""

from __future__ import annotations

import sys
import time

import lightning.pytorch as L
from lightning.pytorch.callbacks import Callback, RichProgressBar


class EpochLines(Callback):
    """Prints a line for each epoch, for logs and pipes."""

    def __init__(self) -> None:
        self._start = 0.0

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Print the epoch before, whose means are known only now."""
        if self._start:
            self._print(trainer, trainer.current_epoch)
        self._start = time.perf_counter()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Print the last epoch."""
        self._print(trainer, trainer.current_epoch)

    def _print(self, trainer: L.Trainer, epochs: int) -> None:
        metrics = trainer.callback_metrics
        shown = [
            f"{name} {float(metrics[name]):.4f}"
            for name in ("train/loss", "val/loss", "val/accuracy")
            if name in metrics
        ]
        seconds = time.perf_counter() - self._start
        epoch = f"epoch {epochs}/{trainer.max_epochs}"
        sys.stderr.write("  ".join([epoch, *shown, f"{seconds:.1f} s"]) + "\n")
        sys.stderr.flush()


def progress_callback() -> Callback:
    """A bar where someone can see it move, lines otherwise."""
    return RichProgressBar(leave=False) if sys.stderr.isatty() else EpochLines()
