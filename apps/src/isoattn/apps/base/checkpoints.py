"""When checkpoints are written, how they are read, and which one is the last good one."""

from __future__ import annotations

import math
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as L
from lightning.pytorch.callbacks import Callback, Checkpoint
from lightning.pytorch.plugins.io import CheckpointIO
from lightning.pytorch.utilities.exceptions import SIGTERMException

from isoattn.apps.base.errors import UserError, near
from isoattn.apps.base.files import write_atomic
from isoattn.core.training.checkpoint import (
    CheckpointError,
    is_valid,
    read_checkpoint,
    write_checkpoint,
)

FORMAT = 1
"""Version of what isoattn keeps in a checkpoint under the key ``isoattn``."""


@dataclass
class CheckpointOptions:
    """Which checkpoints are kept.

    Args:
        monitor: validation metric that selects ``best.ckpt``; not given: the one of the task.
        mode: whether more is better.
        every_n_epochs: how often ``last.ckpt`` is written.
        every_n_steps: write it inside epochs too, every so many steps.
    """

    monitor: str | None = None
    mode: Literal["max", "min"] = "max"
    every_n_epochs: int = 1
    every_n_steps: int | None = None


class VerifiedCheckpointIO(CheckpointIO):
    """Lightning's reading and writing of checkpoints through files that know their checksum."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write beside the target, sync, rename; the target before is kept as ``*.previous``."""
        target = Path(path)
        previous = target.with_suffix(f".previous{target.suffix}") if is_valid(target) else None
        write_checkpoint(checkpoint, target, previous=previous)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read and verify; always ``weights_only``."""
        return read_checkpoint(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a file."""
        Path(path).unlink(missing_ok=True)


class RunCheckpoints(Checkpoint):
    """Keeps ``last.ckpt``, the one before it, and ``best.ckpt`` by a validation metric.

    ``best.ckpt`` is selected on validation only, and the first of equal scores is kept. A run that
    is asked to end (SIGTERM) writes ``last.ckpt`` where it stands.

    Args:
        folder: where they are kept.
        options: when they are written.
        monitor: validation metric that selects ``best.ckpt`` where the options name none.
        content: plain data stored with each, under ``isoattn`` (app, config).
    """

    def __init__(
        self, folder: Path, options: CheckpointOptions, monitor: str, content: dict[str, Any]
    ) -> None:
        self.folder = folder
        self.options = options
        self.monitor = options.monitor or monitor
        self.content = content
        self.best_score: float | None = None
        self.best_epoch: int | None = None
        self.best_metrics: dict[str, float] = {}
        self._saved_step = -1

    @property
    def last(self) -> Path:
        """The newest checkpoint."""
        return self.folder / "last.ckpt"

    @property
    def best(self) -> Path:
        """The selected checkpoint."""
        return self.folder / "best.ckpt"

    @property
    def best_model_path(self) -> str:
        """The newest checkpoint that exists, as text; empty if none."""
        return str(self.last) if self.last.exists() else ""

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write ``last.ckpt``, and ``best.ckpt`` where the epoch is the best so far."""
        if getattr(trainer, "fast_dev_run", False):
            return
        improved = self._note_score(trainer)
        final = trainer.current_epoch + 1 == trainer.max_epochs
        if improved or final or (trainer.current_epoch + 1) % self.options.every_n_epochs == 0:
            self._save(trainer)
        if improved:
            self._copy_last_to_best()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Write ``last.ckpt`` inside an epoch where asked to."""
        every, step = self.options.every_n_steps, trainer.global_step
        if every and step % every == 0 and step != self._saved_step and not trainer.is_last_batch:
            self._save(trainer)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Save a run that was asked to end, between two steps."""
        if isinstance(exception, SIGTERMException) and trainer.training:
            self._save(trainer)

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add what isoattn needs to rebuild the run."""
        checkpoint["isoattn"] = {"format": FORMAT, **self.content}

    def state_dict(self) -> dict[str, Any]:
        """The best score so far."""
        return {
            "best_score": self.best_score,
            "best_epoch": self.best_epoch,
            "best_metrics": self.best_metrics,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it up again."""
        self.best_score = state_dict["best_score"]
        self.best_epoch = state_dict["best_epoch"]
        self.best_metrics = dict(state_dict["best_metrics"])

    def _note_score(self, trainer: L.Trainer) -> bool:
        value = trainer.callback_metrics.get(self.monitor)
        if value is None:
            known = [name for name in trainer.callback_metrics if name.startswith("val/")]
            if known:  # the epoch was validated
                raise UserError(
                    f"--checkpoint.monitor={self.monitor}: no such metric. "
                    f"{near(self.monitor, known)}"
                )
            return False
        score = float(value)
        if math.isnan(score):  # such as an area under a curve over one class
            return False
        sign = 1 if self.options.mode == "max" else -1
        if self.best_score is not None and sign * (score - self.best_score) <= 0:
            return False
        self.best_score, self.best_epoch = score, trainer.current_epoch
        self.best_metrics = {
            k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("val/")
        }
        return True

    def _save(self, trainer: L.Trainer) -> None:
        trainer.save_checkpoint(self.last)
        self._saved_step = trainer.global_step

    def _copy_last_to_best(self) -> None:
        # last.ckpt is never changed in place, so a second name for it is a copy.
        link = self.best.with_name(f".best.{os.getpid()}.partial")
        link.unlink(missing_ok=True)
        try:
            link.hardlink_to(self.last)
        except OSError:
            link.write_bytes(self.last.read_bytes())
        link.replace(self.best)
        link.unlink(missing_ok=True)


class EndWhereItCanBeSaved(Callback):
    """Holds SIGTERM back until the run stands where a checkpoint can be taken up exactly.

    That is between two steps of an epoch and at its end. Lightning would also stop in the middle of
    a validation, of which nothing can be kept.
    """

    def __init__(self) -> None:
        self._asked = False
        self._handler: Any = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take the signal over from Lightning, which has it by now; only the main thread may."""
        if threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(signal.SIGTERM)
        if callable(handler):
            self._handler = handler
            signal.signal(signal.SIGTERM, self._note)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Between two steps."""
        if not trainer.is_last_batch:
            self._pass_on()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """At the end of an epoch."""
        self._pass_on()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Give the signal back."""
        self._give_back()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Give the signal back."""
        self._give_back()

    def _note(self, *_: Any) -> None:
        self._asked = True

    def _pass_on(self) -> None:
        if self._asked and self._handler is not None:
            self._asked = False
            self._handler(signal.SIGTERM, None)  # Lightning notes it and ends at its next check

    def _give_back(self) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)
            self._handler = None


def select_again(checkpoint: Path) -> None:
    """Make a checkpoint that was the best of its run ``best.ckpt``, as it was about to become.

    It is written first and named second; a kill in between leaves an older ``best.ckpt``, while the
    run that goes on from it takes the best for saved.
    """
    content = read_checkpoint(checkpoint)
    state = content.get("callbacks", {}).get("RunCheckpoints", {})
    if state.get("best_epoch") is not None and state["best_epoch"] == content.get("epoch"):
        write_atomic(checkpoint.with_name("best.ckpt"), checkpoint.read_bytes())


def last_good(folder: Path) -> Path | None:
    """The newest undamaged checkpoint of a run, if there is one."""
    for name in ("last.ckpt", "last.previous.ckpt", "best.ckpt"):
        if is_valid(folder / name):
            return folder / name
    return None


def read_run_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of a run, for ``--ckpt_path``.

    Raises:
        CheckpointError: damaged (names the last good one beside it), or of no isoattn run.
    """
    try:
        content = read_checkpoint(path)
    except CheckpointError as error:
        good = last_good(path.parent) if path.parent.is_dir() else None
        if good is None or good == path:
            raise
        raise CheckpointError(path, error.reason, f"The last good checkpoint is {good}") from error
    if "isoattn" not in content:
        raise CheckpointError(
            path,
            "was not written by the isoattn command, so it holds no config",
            "Load its weights with --init_from, or the model with load_from_checkpoint in Python",
        )
    return content
