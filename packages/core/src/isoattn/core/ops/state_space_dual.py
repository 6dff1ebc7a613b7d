"""Mamba-2's state space with its parameters (Dao and Gu 2024, sec. 6 and 7), on the decay engine.

dt = softplus(dt~ + bias), S_t = exp(-exp(A_log) dt_t) S_(t-1) + dt_t B_t x_t^T, y_t = S_t^T C_t +
D x_t.

Shape suffixes: B batch, N tokens, H heads, P channels of a head, G groups of heads that share B and
C, S states.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.ops.blocks import accumulation_dtype
from isoattn.core.ops.decay import CHUNK, decay_attention


def state_space_dual(
    x_BNHP: Tensor,
    dt_BNH: Tensor,
    A_log_H: Tensor,
    B_BNGS: Tensor,
    C_BNGS: Tensor,
    D_H: Tensor | None = None,
    state_BHSP: Tensor | None = None,
    *,
    dt_bias_H: Tensor | None = None,
    mask: Tensor | None = None,
    chunk: int | None = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Outputs and the state after the last token; gradients flow through both.

    Args:
        x_BNHP: inputs.
        dt_BNH: step sizes before bias and softplus.
        A_log_H: logarithms of the decay rates.
        B_BNGS: input weights; G divides H, and H / G consecutive heads share a group.
        C_BNGS: output weights.
        D_H: weight of the skip; ``None`` is none.
        state_BHSP: S before the first token; ``None`` is 0.
        dt_bias_H: added to dt.
        mask: bool (B, N), True = keep. At another token the state stays as it is.
        chunk: tokens computed together; ``None`` is all at once. It changes speed and memory, not
            the result.

    Returns:
        (B, N, H, P) in the dtype of x, and (B, H, S, P) in float32 at least.

    Raises:
        ValueError: shapes that do not fit; names them.
    """
    heads, groups = x_BNHP.shape[2], B_BNGS.shape[2]
    if dt_BNH.shape != x_BNHP.shape[:3] or B_BNGS.shape != C_BNGS.shape or heads % groups:
        raise ValueError(
            "state_space_dual takes x (batch, tokens, heads, channels), dt (batch, tokens, heads), "
            "B and C (batch, tokens, groups, states) with groups that divide the heads; got "
            f"x {tuple(x_BNHP.shape)}, dt {tuple(dt_BNH.shape)}, B {tuple(B_BNGS.shape)}, "
            f"C {tuple(C_BNGS.shape)}"
        )
    accumulate = accumulation_dtype(x_BNHP)
    dt = dt_BNH.to(accumulate)
    dt = F.softplus(dt if dt_bias_H is None else dt + dt_bias_H.to(accumulate))
    x = x_BNHP.to(accumulate)
    k, q = (y.to(accumulate).repeat_interleave(heads // groups, 2) for y in (B_BNGS, C_BNGS))
    q, k, v = (y.transpose(1, 2) for y in (q, k, x * dt.unsqueeze(-1)))
    log_decay = (-A_log_H.to(accumulate).exp() * dt).transpose(1, 2)
    y, state = decay_attention(q, k, v, log_decay, state_BHSP, key_mask=mask, chunk=chunk)
    y = y.transpose(1, 2)
    if D_H is not None:
        y = torch.addcmul(y, x, D_H.to(accumulate).unsqueeze(-1))
    return y.to(x_BNHP.dtype), state
