"""Cross-covariance attention."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from isoattn.core.contract import Attention, Capability
from isoattn.core.cost import Cost, Shape
from isoattn.core.ops.cross_covariance import channel_weights
from isoattn.core.ops.softmax import zero_masked


class CrossCovariance(Attention):
    """o = A v, A a D x D softmax over channels of cosines taken over tokens (El-Nouby et al. 2021, eq. 2).

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head; values must have the same.
        temperature_init: initial tau of every head.
        learn_temperature: tau is trained.
    """

    capability = Capability(mixes="channels")
    unsupported = {
        "causal": "its matrix is a sum over all tokens, the future included",
        "cross": "q and k are paired token by token",
    }
    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"temperature"})

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        temperature_init: float = 1.0,
        learn_temperature: bool = True,
    ) -> None:
        super().__init__(heads, head_dim)
        self.temperature = nn.Parameter(
            torch.full((heads, 1, 1), float(temperature_init)), requires_grad=learn_temperature
        )

    def channel_matrix(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        """The mixing matrix A (B, H, D, D): rows are output channels, columns value channels."""
        k = k.repeat_interleave(self.heads // k.shape[1], 1)
        return channel_weights(q, k, self.temperature, key_mask=key_mask)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        weights = self.channel_matrix(q, k, key_mask=key_mask)
        v = zero_masked(v, key_mask).repeat_interleave(self.heads // v.shape[1], 1)
        return (v.to(weights.dtype) @ weights.transpose(-2, -1)).to(v.dtype)

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """Of q^T k and A v."""
        rows = shape.batch * shape.heads
        flops = 4 * rows * shape.keys * shape.head_dim * shape.head_dim
        inputs = 3 * rows * shape.keys * shape.head_dim
        return Cost(
            forward_flops=flops,
            backward_flops=2 * flops,
            min_bytes=inputs // 3 * 4 * shape.itemsize,
            saved_bytes=inputs * shape.itemsize,
        )
