"""HGRN2: gated linear attention whose keys are what the forget gate leaves over."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.attention.decay import DecayAttention, Mapped
from isoattn.core.cost import Shape
from isoattn.core.ops.blocks import accumulation_dtype
from isoattn.core.ops.decay import CHUNK
from isoattn.core.ops.reference import decay as reference


def forget_gate(x: Tensor, lower_bound: float) -> tuple[Tensor, Tensor]:
    """Both log f and 1 - f of f = lb + (1 - lb) sigmoid(x), without cancellation near f = 1."""
    function: Any = _ForgetGate
    log_f, rest = function.apply(x, lower_bound)
    return log_f, rest


class _ForgetGate(torch.autograd.Function):
    """Keeps x alone; torch's logsigmoid, logaddexp and sigmoid would keep six tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, lower_bound: float) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        ctx.lower_bound = lower_bound
        log_f = F.logsigmoid(x)
        if lower_bound:
            floor = torch.full_like(x, math.log(lower_bound))
            log_f = torch.logaddexp(floor, log_f + math.log1p(-lower_bound))
        return log_f, (1.0 - lower_bound) * torch.sigmoid(-x)

    @staticmethod
    def backward(ctx: Any, grad_log: Tensor, grad_rest: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        bound = ctx.lower_bound
        opened, rest = torch.sigmoid(x), (1.0 - bound) * torch.sigmoid(-x)
        slope = opened * rest  # of f
        relative = slope / (bound + (1.0 - bound) * opened) if bound else rest
        return grad_log * relative - grad_rest * slope, None


class HGRN2(DecayAttention):
    """S_t = diag(f_t) S_(t-1) + (1 - f_t) v_t^T, o_t = s S_t^T silu(q_t) (Qin et al. 2024, eq. 9).

    k is the gate before its activation: f = lb + (1 - lb) sigmoid(k).

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head.
        lower_bound: lb of the layer, from 0 (the first layer) to below 1.
        chunk: tokens computed together, rounded up to a power of two; ``None`` is all at once. It
            changes speed and memory, not the result.
        scale: of the output; ``None`` is D^-1/2, as flash-linear-attention has it. The paper has 1.

    Raises:
        ValueError: a size or chunk below 1, or a bound outside [0, 1).
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        lower_bound: float = 0.0,
        chunk: int | None = CHUNK,
        scale: float | None = None,
    ) -> None:
        super().__init__(heads, head_dim, chunk=chunk, scale=scale)
        if not 0.0 <= lower_bound < 1.0:
            raise ValueError(
                f"lower_bound must be in [0, 1), got {lower_bound}: at 1 no token would enter"
            )
        self.lower_bound = lower_bound

    def extra_repr(self) -> str:
        """Sizes and options shown by ``print(module)``."""
        return f"{super().extra_repr()}, lower_bound={self.lower_bound}"

    def _mapped(
        self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, key_mask: Tensor | None
    ) -> Mapped:
        if key_mask is not None:  # before the map too: its derivative at NaN is NaN
            k = k.masked_fill(~key_mask[:, None, :, None], 0.0)
        log_f, rest = forget_gate(k.to(accumulation_dtype(v)), self.lower_bound)
        return F.silu(q.to(log_f.dtype)), rest, v, log_f

    def _vector(self) -> bool:
        return True

    def _kept_bytes(self, shape: Shape) -> int:
        """Both maps keep their input; the engine gets q, k and the decay in float32 at least."""
        numbers = shape.batch * shape.heads * shape.keys * shape.head_dim
        return numbers * (5 * max(4, shape.itemsize) - 2 * shape.itemsize)

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """The recurrence in float64, token by token."""
        k = k.double()
        if key_mask is not None:
            k = k.masked_fill(~key_mask[:, None, :, None], 0.0)
        forget = self.lower_bound + (1.0 - self.lower_bound) * torch.sigmoid(k)
        q = q.double() * torch.sigmoid(q.double())
        log = forget.log()
        return reference.recurrence(q, 1.0 - forget, v, log, key_mask=key_mask, scale=self.scale)[0]
