"""From which size on one cost lies below another and stays there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Crossover:
    """Where a method becomes cheaper than another and stays so.

    Args:
        tokens: the size, interpolated; None where the ratio does not pass 1 between two sizes.
        text: ``1,234``, ``< 256``, ``> 4,096`` or ``-`` where nothing was measured.
        between: the last size at which it was not cheaper, and the first from which it is.
    """

    tokens: float | None
    text: str
    between: tuple[int, int] | None = None

    def sentence(self, unit: str) -> str:
        """``cheaper from 1,234 cells on``, or at all sizes, or at none."""
        if self.text.startswith("<"):
            return f"cheaper at all sizes, from {self.text[2:]} {unit} on"
        if self.text.startswith(">"):
            return f"not cheaper up to {self.text[2:]} {unit}"
        return "not measured" if self.text == "-" else f"cheaper from {self.text} {unit} on"


def crossover(sizes: Sequence[int], ratios: Sequence[float], *, level: float = 0.0) -> Crossover:
    """Interpolate a ratio of costs to 1, both axes logarithmic.

    Args:
        sizes: rising, such as numbers of tokens.
        ratios: cost over that of the other method, at each.
        level: costs that differ by less than this share of the smaller one count as equal, so that
            the noise of two equal methods is no crossover.
    """
    if not sizes:
        return Crossover(None, "-")
    cheaper = [ratio * (1 + level) < 1 for ratio in ratios]
    if not cheaper[-1]:
        return Crossover(None, f"> {sizes[-1]:,}")
    place = len(cheaper) - 1
    while place and cheaper[place - 1]:
        place -= 1
    if not place:
        return Crossover(None, f"< {sizes[0]:,}")
    above = [number for number, ratio in enumerate(ratios) if ratio >= 1]
    if not above:  # equal before, never dearer
        first, last = sizes[place - 1], sizes[place]
        return Crossover(None, f"{first:,} to {last:,}", (first, last))
    found = _passes_one(sizes, ratios, above[-1])
    return Crossover(found, f"{found:,.0f}", (sizes[above[-1]], sizes[place]))


def _passes_one(sizes: Sequence[int], ratios: Sequence[float], place: int) -> float:
    high, low = math.log(ratios[place]), -math.log(ratios[place + 1])
    start, end = math.log(sizes[place]), math.log(sizes[place + 1])
    return math.exp(start + (end - start) * high / (high + low))
