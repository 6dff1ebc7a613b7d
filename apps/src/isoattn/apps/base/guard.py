"""Stops a run at the first non-finite number, before it reaches the weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from isoattn.core import Attention


class NonFiniteError(RuntimeError):
    """A NaN or infinity in input, loss, gradient, parameter or optimiser state."""


class NonFiniteGuard(Callback):
    """Checks input, loss, gradients, parameters and optimiser state of every training step.

    The check comes before the optimiser step, so the weights and the checkpoints written so far
    stay good. With a gradient scaler (``precision=16-mixed``) non-finite gradients are part of its
    search for a scale and are left to it; the loss is still checked.
    """

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Check the inputs of the step."""
        for name, value in _tensors(batch):
            if not _finite([value]):
                self._stop(trainer, pl_module, f"the input {name!r}", value)

    def on_before_backward(
        self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor
    ) -> None:
        """Check the loss."""
        if not torch.isfinite(loss.detach()).all():
            bad = _first_bad_parameter(pl_module)
            where = f"the loss (after {bad} had become non-finite)" if bad else "the loss"
            self._stop(trainer, pl_module, where, loss)

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Check gradients, parameters and the state that the step is going to use."""
        params = [p for group in optimizer.param_groups for p in group["params"]]
        grads = [p.grad for p in params if p.grad is not None]
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is None and not _finite(grads):
            name, grad = next(
                (n, p.grad)
                for n, p in pl_module.named_parameters()
                if p.grad is not None and not _finite([p.grad])
            )
            self._stop(trainer, pl_module, f"the gradient of {name}", grad, name)
        if not _finite(params):
            name = _first_bad_parameter(pl_module) or "a parameter"
            self._stop(trainer, pl_module, f"the parameter {name}", None, name)
        state = [
            value
            for p in params
            for value in optimizer.state.get(p, {}).values()
            if isinstance(value, Tensor)
        ]
        if not _finite(state):
            self._stop(trainer, pl_module, "the optimiser's state", None)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Check what the run is selected by."""
        for name, value in trainer.callback_metrics.items():
            if name.startswith("val/") and not bool(torch.isfinite(value).all()):
                bad = _first_bad_parameter(pl_module)
                self._stop(trainer, pl_module, f"the metric {name}", value, bad)

    def _stop(
        self,
        trainer: L.Trainer,
        module: L.LightningModule,
        what: str,
        value: Tensor | None,
        parameter: str | None = None,
    ) -> None:
        kind = "NaN" if value is not None and bool(torch.isnan(value).any()) else "not finite"
        attention = attention_of(module, parameter)
        saved = [getattr(c, "best_model_path", "") for c in trainer.checkpoint_callbacks]
        last = next((path for path in saved if path), "")
        raise NonFiniteError(
            f"Step {trainer.global_step}, epoch {trainer.current_epoch}: {what} is {kind} "
            f"(attention: {attention}). Stopped before the optimiser step; the weights are those "
            "of the step before."
            + (f"\nLast good checkpoint: {last}" if last else "\nNo checkpoint was written yet.")
            + "\nLower the learning rate (--model.optim.lr), lengthen the warm-up, or clip "
            "(--trainer.gradient_clip_val 1.0)."
        )


def attention_of(module: nn.Module, parameter: str | None) -> str:
    """The attention in the layer of a parameter, or those of the whole module."""
    cores = {name: m for name, m in module.named_modules() if isinstance(m, Attention)}
    if parameter is not None:
        prefix = parameter.split(".")
        for depth in range(len(prefix), 0, -1):
            stem = ".".join(prefix[:depth])
            for name, core in cores.items():
                if name.startswith(stem + ".") and depth > 1:
                    return f"{type(core).__name__} in {name}"
    kinds = sorted({type(core).__name__ for core in cores.values()})
    return ", ".join(kinds) or "none"


def _finite(tensors: Iterable[Tensor | None]) -> bool:
    floating = [t.detach() for t in tensors if t is not None and t.is_floating_point()]
    if not floating:
        return True
    # One number per tensor: an infinite or NaN entry makes its largest magnitude non-finite.
    norms = torch._foreach_norm(floating, float("inf"))
    return bool(torch.isfinite(torch.stack([n.float() for n in norms])).all())


def _first_bad_parameter(module: nn.Module) -> str | None:
    return next((n for n, p in module.named_parameters() if not _finite([p])), None)


def _tensors(batch: Any, name: str = "batch") -> Iterator[tuple[str, Tensor]]:
    if isinstance(batch, Tensor):
        yield name, batch
    elif isinstance(batch, dict):
        for key, value in batch.items():
            yield from _tensors(value, str(key))
    elif isinstance(batch, list | tuple):
        for index, value in enumerate(batch):
            yield from _tensors(value, f"{name}[{index}]")
