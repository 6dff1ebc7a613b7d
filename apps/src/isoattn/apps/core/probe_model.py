"""The meter on the layers of a trained model, fed by the validation data of its app."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lightning.pytorch as L
from lightning.pytorch.callbacks import Callback

from isoattn.apps.base.cli import AppCLI
from isoattn.apps.base.errors import UserError, near
from isoattn.apps.base.run import execute
from isoattn.core.meter import Reading, record
from isoattn.core.training import derive_seed


class Recorder(Callback):
    """Measures every attention in every validation batch.

    Args:
        queries: looked at in each attention and batch.
        seed: of their choice.
    """

    def __init__(self, queries: int, seed: int) -> None:
        self.queries = queries
        self.seed = seed
        self.readings: list[dict[str, Reading]] = []
        self._stack = ExitStack()

    def on_validation_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Begin to record."""
        seed = derive_seed(self.seed, len(self.readings))
        recorded = record(pl_module, queries=self.queries, seed=seed)
        self.readings.append(self._stack.enter_context(recorded))

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """End it."""
        self._stack.close()


def probe_model(
    app: str,
    checkpoint: Path,
    folder: Path,
    *,
    batches: int,
    queries: int,
    seed: int,
    rest: list[str],
) -> list[dict[str, Reading]]:
    """Validate a checkpoint on a few batches and measure its attentions meanwhile.

    Args:
        app: the app that wrote the checkpoint.
        checkpoint: of a run.
        folder: where the app may write.
        batches: of validation data.
        queries: looked at in each attention and batch.
        seed: of their choice.
        rest: further options for the app.

    Returns:
        For each batch, layer name -> reading.

    Raises:
        UserError: an app whose models cannot be probed; what the app refuses.
    """
    recorder = Recorder(queries, seed)

    class ProbeCLI(_app(app)):  # type: ignore[misc]
        """``validate`` that writes no result of its own."""

        def _callbacks(self) -> list[Callback]:
            return [*super()._callbacks(), recorder]

        def after_validate(self) -> None:
            """Nothing: the readings are what was asked for."""

    code = execute(
        ProbeCLI,
        [
            "validate",
            f"--ckpt_path={checkpoint}",
            f"--run.dir={folder}",
            f"--trainer.limit_val_batches={batches}",
            "--trainer.enable_progress_bar=false",
            *rest,
        ],
    )
    if code:
        raise UserError("the model could not be run on its validation data", code)
    return recorder.readings


def _app(name: str) -> type[AppCLI]:
    if name == "vision":
        from isoattn.apps.vision.app import VisionCLI

        return VisionCLI
    raise UserError(f"isoattn probe knows no app {name!r}. {near(name, ['vision'])}")
