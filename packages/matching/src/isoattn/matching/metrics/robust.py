"""What robust estimations have in common: options, and a seed for every repeat.

OpenCV's RANSAC draws its samples from a generator of fixed seed; what can vary is the order of the
matches. Each repeat shuffles them with a seed of its own, so that a result is a function of the
matches and the seed, and repeats tell how much chance there is in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isoattn.core.training import derive_seed


@dataclass(frozen=True)
class RobustOptions:
    """RANSAC and its repeats.

    Args:
        threshold: pixels by which an inlier may be off.
        confidence: that the best model was found, which ends the search.
        iterations: at most.
        method: OpenCV's ``ransac``, or ``magsac``, which minds the threshold less.
        repeats: estimations, each of another order of the matches.
        seed: of the orders.

    Raises:
        ValueError: a number out of range; names it.
    """

    threshold: float
    confidence: float
    iterations: int = 2000
    method: Literal["ransac", "magsac"] = "ransac"
    repeats: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in ("ransac", "magsac"):
            raise ValueError(f"method must be ransac or magsac, got {self.method!r}")
        if not (self.threshold > 0 and 0 < self.confidence < 1):
            raise ValueError(
                f"threshold must be above 0 and confidence in (0, 1), got {self.threshold} and "
                f"{self.confidence}"
            )
        if self.iterations < 1 or self.repeats < 1:
            raise ValueError(
                f"iterations and repeats must be 1 or more, got {self.iterations} and "
                f"{self.repeats}"
            )


def shuffled(
    points0_N2: Tensor, points1_N2: Tensor, options: RobustOptions
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Both ends of the matches in the order of each repeat, float64 (N, 2)."""
    ends = [points.detach().cpu().double() for points in (points0_N2, points1_N2)]
    for repeat in range(options.repeats):
        seed = derive_seed(options.seed, "ransac", repeat)
        order = torch.randperm(len(ends[0]), generator=torch.Generator().manual_seed(seed))
        first, second = (np.ascontiguousarray(end[order].numpy()) for end in ends)
        yield first, second
