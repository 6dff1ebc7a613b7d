"""Relative position bias in buckets that grow with the distance (T5: Raffel et al. 2020, sec. 2.1).

Half of the buckets hold one distance each, the others share the distances up to ``max_distance`` on
a logarithmic scale; what lies beyond is in the last one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def t5_buckets(
    distance: Tensor, *, causal: bool, buckets: int = 32, max_distance: int = 128
) -> Tensor:
    """The bucket of each distance query - key.

    Args:
        distance: integers, any shape; negative where the key is later.
        causal: all buckets are for the past, and later keys are in bucket 0; otherwise the second
            half is for later keys.
        buckets: how many.
        max_distance: from here on all is one bucket.

    Returns:
        int64 of the same shape, in [0, buckets).
    """
    distance = distance.long()
    offset = torch.zeros_like(distance)
    if not causal:
        buckets //= 2
        offset = (distance < 0).long() * buckets
        distance = distance.abs()
    distance = distance.clamp(min=0)
    exact = buckets // 2
    # 1e-6: a distance on the edge of two buckets must not depend on how the logarithm is rounded
    power = (distance.clamp(min=exact).to(torch.float32) / exact).log()
    rest = exact + (power / math.log(max_distance / exact) * (buckets - exact) + 1e-6).long()
    return offset + distance.where(distance < exact, rest.clamp(max=buckets - 1))
