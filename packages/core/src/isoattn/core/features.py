"""Positive feature maps of linear attention, element by element."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

FeatureMap = Literal["elu1", "relu", "softplus"]


def elu1(x: Tensor) -> Tensor:
    """elu(x) + 1 as relu(x) + exp(min(x, 0)): positive down to -103 in float32, elu(x)+1 only to -17."""
    return x.relu() + x.clamp(max=0.0).exp()


FEATURE_MAPS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "elu1": elu1,
    "relu": F.relu,
    "softplus": F.softplus,
}
