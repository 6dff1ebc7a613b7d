"""Softmax attention and its cosine form."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from isoattn.core.contract import Attention, Capability
from isoattn.core.cost import Cost, Shape
from isoattn.core.ops.softmax import fused_softmax_attention, math_softmax_attention, unit_norm


def _cost(shape: Shape) -> Cost:
    rows = shape.batch * shape.heads
    flops = 2 * rows * shape.queries * shape.keys * (shape.head_dim + shape.value_dim)
    inputs = rows * (
        shape.queries * shape.head_dim + shape.keys * (shape.head_dim + shape.value_dim)
    )
    output = rows * shape.queries * shape.value_dim
    return Cost(
        forward_flops=flops,
        backward_flops=2 * flops,
        min_bytes=(inputs + output) * shape.itemsize,
        saved_bytes=(inputs + output) * shape.itemsize + 4 * rows * shape.queries,
    )


class Softmax(Attention):
    """softmax(q k^T / sqrt(D)) v (Vaswani et al. 2017, eq. 1).

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head.
        path: ``"fused"`` is torch's kernel (no second derivatives), ``"math"`` the formula written
            out, which holds N x M and is twice differentiable.
    """

    capability = Capability(causal=True, cross=True, double_backward=False)

    def __init__(
        self, heads: int, head_dim: int, *, path: Literal["fused", "math"] = "fused"
    ) -> None:
        super().__init__(heads, head_dim)
        if path not in ("fused", "math"):
            raise ValueError(f"path must be 'fused' or 'math', got {path!r}")
        self.path = path

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        op = fused_softmax_attention if self.path == "fused" else math_softmax_attention
        return op(q, k, v, key_mask=key_mask, causal=causal)

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """FLOPs of the math path, bytes of the fused one."""
        return _cost(shape)


class CosineSoftmax(Attention):
    """softmax(tau q^ k^^T) v, q^ and k^ unit length over D, tau learned per head.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head.
        temperature_init: initial tau of every head.
        learn_temperature: tau is a parameter; otherwise a buffer.
    """

    capability = Capability(causal=True, cross=True, double_backward=False)
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

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        q = (unit_norm(q, dim=-1) * self.temperature).to(v.dtype)
        k = unit_norm(k, dim=-1).to(v.dtype)
        return fused_softmax_attention(q, k, v, key_mask=key_mask, causal=causal, scale=1.0)

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """FLOPs of the math path, bytes of the fused one."""
        return _cost(shape)
