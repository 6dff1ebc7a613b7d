"""The meter inside a training run: every attention of the model, once an epoch, in the metrics.

isoattn vision fit --trainer.callbacks=isoattn.apps.core.MeterLog
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import lightning.pytorch as L
from lightning.pytorch.callbacks import Callback

from isoattn.core.meter import Reading, record
from isoattn.core.training import derive_seed

QUANTITIES = ("skill", "output_error", "entropy", "effective_rank", "softmax_entropy")


class MeterLog(Callback):
    """Logs ``meter/LAYER/QUANTITY`` from the first validation batch of every epoch.

    Nothing of the training changes by it. What is undefined for an attention, or infinite, is left
    out; so are the validations before the first epoch.

    Args:
        queries: looked at in each attention.
        quantities: fields of :class:`isoattn.core.meter.Reading`; ``"skill_error"`` is the standard
            error of ``"skill"``, and so for each.
        seed: of the choice of queries; the same every epoch.

    Raises:
        ValueError: fewer than two queries, or a quantity that a reading does not have.
    """

    def __init__(
        self, queries: int = 64, quantities: Sequence[str] = QUANTITIES, seed: int = 0
    ) -> None:
        if queries < 2:
            raise ValueError(f"queries must be at least 2, got {queries}")
        known = [n for n, kind in Reading.__annotations__.items() if kind == "Quantity"]
        for name in quantities:
            if name.removesuffix("_error") not in known and name not in known:
                raise ValueError(f"quantities: {name!r} is none of {', '.join(known)}")
        self.queries = queries
        self.quantities = tuple(quantities)
        self.seed = seed
        self._readings: dict[str, Reading] = {}
        self._stack = ExitStack()

    def on_validation_batch_start(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Begin to record at the first batch."""
        if not trainer.sanity_checking and batch_idx == 0 and dataloader_idx == 0:
            seed = derive_seed(self.seed, "meter log")
            recorded = record(pl_module, queries=self.queries, seed=seed)
            self._readings = self._stack.enter_context(recorded)

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """End it."""
        self._stack.close()

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log what was read."""
        for layer, reading in self._readings.items():
            found = reading.quantities()
            for name in self.quantities:
                value = (
                    found[name].value if name in found else found[name.removesuffix("_error")].error
                )
                if math.isfinite(value):
                    pl_module.log(f"meter/{layer}/{name}", value)
        self._readings = {}
