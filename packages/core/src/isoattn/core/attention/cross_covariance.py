"""Cross-covariance attention."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from isoattn.core.contract import Attention, Capability
from isoattn.core.cost import Cost, Shape
from isoattn.core.ops.cross_covariance import channel_weights, cross_covariance_attention
from isoattn.core.ops.masking import no_autocast
from isoattn.core.ops.reference import direct as reference


class CrossCovariance(Attention):
    """o_na = sum_b A_ab v_nb, A_ab = softmax_b(tau_h cos(q_a, k_b)) (El-Nouby et al. 2021, eq. 2).

    The cosines run over tokens, A is D x D a head: channels attend, and the cost is linear in N.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head; values must have the same.
        temperature_init: initial tau of every head; parameter ``temperature`` (H, 1, 1).
        learn_temperature: False freezes tau (``requires_grad=False``).

    Raises:
        ValueError: a size below 1.
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
        initial = torch.full((heads, 1, 1), float(temperature_init))
        self.temperature = nn.Parameter(initial, requires_grad=learn_temperature)

    def channel_matrix(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        """The mixing matrix A (B, H, D, D): row = output channel, column = value channel."""
        with no_autocast(q.device.type):
            return channel_weights(q, self._per_query_head(k), self.temperature, key_mask)

    def _per_query_head(self, x: Tensor) -> Tensor:
        repeats = self.heads // x.shape[1]
        return x if repeats == 1 else x.repeat_interleave(repeats, 1)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        if v.shape[3] != self.head_dim:
            raise ValueError(
                f"CrossCovariance mixes the channels of v with a {self.head_dim} x {self.head_dim} "
                f"matrix, so v must have dim {self.head_dim}, got {tuple(v.shape)}"
            )
        k, v = self._per_query_head(k), self._per_query_head(v)
        return cross_covariance_attention(q, k, v, self.temperature, key_mask=key_mask)

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """FLOPs of q^T k and A v; kept are q, k, v, the norms, and two D x D matrices a head."""
        rows, dim = shape.batch * shape.heads, shape.head_dim
        flops = 4 * rows * shape.keys * dim * dim
        tensor = rows * shape.keys * dim * shape.itemsize
        small = rows * (2 * dim * dim + 2 * dim) * max(4, shape.itemsize)
        return Cost(flops, 2 * flops, 4 * tensor, 3 * tensor + small)

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """The definition in float64."""
        return reference.cross_covariance(q, k, v, self.temperature, key_mask=key_mask)
