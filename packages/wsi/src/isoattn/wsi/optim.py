"""Optimisers of bag classifiers: the one that TransMIL was released with, and AdamW."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from timm.optim import create_optimizer_v2  # type: ignore[attr-defined]
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from isoattn.core.training.decay_groups import weight_decay_groups
from isoattn.core.training.schedule import warmup_cosine

OptimName = Literal["lookahead_radamw", "adamw"]
Schedule = Literal["constant", "warmup_cosine"]


def within(name: str, value: Any, right: bool, wording: str) -> None:
    """Raise ValueError unless ``right``."""
    if not right:
        raise ValueError(f"{name} must be {wording}, got {value!r}")


@dataclass
class OptimOptions:
    """As released, or such as ``OptimOptions("adamw", 1e-3, 0.05, "warmup_cosine")``.

    Args:
        name: ``lookahead_radamw``: RAdam with decoupled decay inside Lookahead (every 6 steps,
            halfway back), as the released runs; or ``adamw``.
        lr: (peak) learning rate.
        weight_decay: of weights, the class token and convolutions among them; biases, norms and
            other vectors have none.
        schedule: ``constant`` as released, or ``warmup_cosine``, per step.
        warmup: steps of linear warm-up of the schedule; a number below 1 is a fraction of all.
        min_lr: the rate at the last step of the schedule, as a fraction of ``lr``.
        betas: of the averages.
    """

    name: OptimName = "lookahead_radamw"
    lr: float = 2e-4
    weight_decay: float = 1e-5
    schedule: Schedule = "constant"
    warmup: float = 0.1
    min_lr: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        names, schedules = get_args(OptimName), get_args(Schedule)
        within("name", self.name, self.name in names, f"one of {', '.join(names)}")
        within(
            "schedule", self.schedule, self.schedule in schedules, f"one of {', '.join(schedules)}"
        )
        within("lr", self.lr, self.lr > 0, "above 0")
        within("weight_decay", self.weight_decay, self.weight_decay >= 0, "0 or more")
        within("warmup", self.warmup, self.warmup >= 0, "0 or more")
        within("min_lr", self.min_lr, 0 <= self.min_lr <= 1, "a fraction of lr in [0, 1]")
        within("betas", self.betas, all(0 <= b < 1 for b in self.betas), "in [0, 1)")


def make_optimizer(module: nn.Module, options: OptimOptions) -> torch.optim.Optimizer:
    """The optimiser over decay groups."""
    groups = weight_decay_groups(module, options.weight_decay)
    return create_optimizer_v2(
        groups,
        options.name,
        lr=options.lr,
        weight_decay=options.weight_decay,
        betas=tuple(options.betas),
    )


def make_schedule(
    optimizer: torch.optim.Optimizer, options: OptimOptions, total_steps: int
) -> LambdaLR | None:
    """Warm-up and cosine over a number of optimiser steps; ``None`` where the rate is constant."""
    if options.schedule == "constant":
        return None
    warmup = options.warmup
    steps = int(warmup * total_steps) if warmup < 1 else int(warmup)

    def multiplier(step: int) -> float:
        return warmup_cosine(
            step,
            warmup_steps=min(steps, total_steps),
            total_steps=total_steps,
            floor=options.min_lr,
        )

    return LambdaLR(optimizer, multiplier)
