"""Learning-rate multipliers for ``LambdaLR``, one value an optimiser step."""

from __future__ import annotations

import math


def warmup_cosine(step: int, *, warmup_steps: int, total_steps: int, floor: float = 0.0) -> float:
    """Linear rise to exactly 1, then a cosine to ``floor``; a multiplier of the peak rate.

    Step s of the warm-up has (s + 1) / warmup_steps: above 0 at once, and 1 at the last warm-up
    step. The cosine starts at that peak and reaches ``floor`` at the last step. The warm-up is a
    prefix of the schedule, not a part cut out of the cosine, and no rate occurs twice going up.

    Args:
        step: number of optimiser steps already taken, from 0 (what ``LambdaLR`` passes).
        warmup_steps: W, length of the rise; 0 starts at the peak.
        total_steps: T, length of the whole schedule. Steps from T on stay at ``floor``.
        floor: last value, as a fraction of the peak.

    Returns:
        The multiplier, in (0, 1].

    Raises:
        ValueError: a negative step, W outside 0..T, T below 1, or a floor outside [0, 1].

    Example:
        >>> LambdaLR(optimizer, partial(warmup_cosine, warmup_steps=100, total_steps=1000))
    """
    if step < 0 or total_steps < 1 or not 0 <= warmup_steps <= total_steps or not 0 <= floor <= 1:
        raise ValueError(
            "warmup_cosine needs step >= 0, 0 <= warmup_steps <= total_steps, total_steps >= 1 and "
            f"0 <= floor <= 1; got step={step}, warmup_steps={warmup_steps}, "
            f"total_steps={total_steps}, floor={floor}"
        )
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    peak = max(warmup_steps - 1, 0)  # the step whose value is exactly 1
    last = total_steps - 1
    if step >= last:
        return floor if last > peak or step > last else 1.0
    progress = (step - peak) / (last - peak)
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))
