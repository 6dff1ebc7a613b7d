"""The real-gated linear recurrent unit of Griffin and Hawk (De et al. 2024, section 2.4).

h_t = a_t h_(t-1) + sqrt(1 - a_t^2) (i_t x_t), a_t = a^(8 r_t), a = exp(-softplus(Lambda)). In
float32 at least: 1 - a^2 is -expm1(2 log a), as a close to 1 is where the memory is long.

Shape suffixes: B batch, N tokens, C channels, H blocks of I inputs.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.ops.blocks import accumulation_dtype
from isoattn.core.ops.scan import diagonal_scan

SHARPNESS = 8.0
"""c, the exponent at an open gate."""

STEEPEST = 1000.0
"""Largest derivative of the square root, which has no bound where a is 1."""


def block_diagonal(x_BNC: Tensor, weight_HIJ: Tensor, bias_HJ: Tensor) -> Tensor:
    """A linear map of each block of channels by itself, (B, N, H * J)."""
    blocks = x_BNC.unflatten(-1, weight_HIJ.shape[:2])  # type: ignore[no-untyped-call]
    return (torch.einsum("bnhi,hij->bnhj", blocks, weight_HIJ) + bias_HJ).flatten(-2)


def rg_lru(
    x_BNC: Tensor,
    recurrence_gate_BNC: Tensor,
    input_gate_BNC: Tensor,
    decay_C: Tensor,
    h0_BC: Tensor | None = None,
    *,
    reset_BN: Tensor | None = None,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The recurrence.

    Args:
        x_BNC: inputs.
        recurrence_gate_BNC: logits of r.
        input_gate_BNC: logits of i.
        decay_C: Lambda.
        h0_BC: the state before the first token; ``None`` is 0.
        reset_BN: bool, True where a sequence begins: nothing before counts and h = i x.
        mask: bool (B, N), True = keep. Elsewhere the state stands still.

    Returns:
        All states (B, N, C) and the last one (B, C), in float32 at least.
    """
    wide = accumulation_dtype(x_BNC)
    strength = recurrence_gate_BNC.to(wide).sigmoid()
    log_a = -SHARPNESS * strength * F.softplus(decay_C.to(wide))
    add = x_BNC.to(wide) * input_gate_BNC.to(wide).sigmoid()
    factor = bounded_sqrt(-torch.expm1(2.0 * log_a))
    if reset_BN is not None:
        begins = reset_BN.unsqueeze(-1)
        log_a, factor = log_a.masked_fill(begins, -torch.inf), factor.masked_fill(begins, 1.0)
    add = factor * add
    if mask is not None:
        hidden = ~mask.unsqueeze(-1)
        log_a, add = log_a.masked_fill(hidden, 0.0), add.masked_fill(hidden, 0.0)
    return diagonal_scan(log_a, add, h0_BC)


def bounded_sqrt(x: Tensor) -> Tensor:
    """The square root, its derivative bounded by 1000."""
    function: Any = _BoundedSqrt
    out: Tensor = function.apply(x)
    return out


class _BoundedSqrt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sqrt()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        slope: Tensor = (4.0 * x).clamp(min=STEEPEST**-2).rsqrt()
        return grad * slope
