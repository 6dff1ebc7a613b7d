"""From which size on an arm is cheaper or dearer than the baseline, by step, forward and memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from isoattn.ablate.cost_records import CostTable
from isoattn.ablate.records import ArmCost
from isoattn.apps.base.crossover import Crossover, crossover

Part = Literal["step_ms", "forward_ms", "peak_mib"]
PARTS: dict[Part, str] = {
    "step_ms": "training step",
    "forward_ms": "forward pass",
    "peak_mib": "peak memory",
}
LEVEL = 0.05
"""Costs that differ by less than this share of the smaller one count as equal."""
LEAST = {"step_ms": 0.0, "forward_ms": 0.0, "peak_mib": 1.0}
"""What can be told from nothing; the resident set of a process grows in steps."""


@dataclass(frozen=True)
class Crossing:
    """One arm against the baseline, in one part of the cost.

    Args:
        sizes: at which both were measured, rising.
        ratios: the arm over the baseline, at each.
        side: at the largest size.
        crossover: of the side before to this side; None where the arm was on it from the start, or
            is on none.
    """

    sizes: tuple[int, ...]
    ratios: tuple[float, ...]
    side: Literal["cheaper", "dearer", "equal"]
    crossover: Crossover | None


def crossing(table: CostTable, arm: str, part: Part) -> Crossing | None:
    """An arm against the baseline; None where no size has both."""
    base = values(table, table.baseline, part)
    own = values(table, arm, part)
    sizes = tuple(size for size in own if size in base)
    if not sizes:
        return None
    ratios = tuple(own[size] / base[size] for size in sizes)
    if ratios[-1] * (1 + LEVEL) < 1:
        found = crossover(sizes, ratios, level=LEVEL)
        return Crossing(sizes, ratios, "cheaper", found if found.between else None)
    if ratios[-1] > 1 + LEVEL:
        found = crossover(sizes, [1 / ratio for ratio in ratios], level=LEVEL)
        return Crossing(sizes, ratios, "dearer", found if found.between else None)
    return Crossing(sizes, ratios, "equal", None)


def values(table: CostTable, arm: str, part: Part) -> dict[int, float]:
    """Size -> what was measured of an arm, where there is something to measure."""
    costs: list[tuple[int, ArmCost]] = [(r.size, r.cost) for r in table.of(arm) if r.cost]
    return {
        size: float(getattr(cost, part))
        for size, cost in costs
        if getattr(cost, part) > LEAST[part]
    }


def own_size(table: CostTable) -> float | None:
    """The size at which the attention sees as many tokens as in the study itself.

    Interpolated between the measured sizes on logarithmic axes, and continued beyond them.
    """
    points = [(size, tokens) for size, tokens in table.tokens.items() if tokens]
    wanted = table.own_tokens
    if not wanted or not points:
        return None
    if all(size == tokens for size, tokens in points):
        return float(wanted)
    measured = next((float(size) for size, tokens in points if tokens == wanted), None)
    if measured is not None:
        return measured
    spans = [pair for pair in pairwise(sorted(points)) if pair[0][1] < pair[1][1]]
    if not spans:
        return None
    (a, low), (b, high) = next((s for s in spans if wanted <= s[1][1]), spans[-1])
    share = math.log(wanted / low) / math.log(high / low)
    return math.exp(math.log(a) + share * math.log(b / a))
