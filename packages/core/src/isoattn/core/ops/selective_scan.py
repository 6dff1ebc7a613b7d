"""The selective state space of Mamba (Gu and Dao 2023, eq. 1-2 and algorithm 2).

h_t = exp(dt_t A) h_(t-1) + dt_t B_t u_t, y_t = C_t.h_t + D u_t, A by its exponential, B by Euler.
Each channel has S states with decays of their own, N x C x S numbers in all: they exist for one
block of tokens at a time, and again in the backward pass.

Shape suffixes: B batch, N tokens, C channels, S states of a channel, G groups of channels that
share B and C.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.ops.blocks import NUMBERS, accumulation_dtype
from isoattn.core.ops.by_blocks import RECURRENCES, Plan, Recurrence, by_blocks
from isoattn.core.ops.scan import diagonal_scan


def selective_scan(
    u_BNC: Tensor,
    delta_BNC: Tensor,
    A_CS: Tensor,
    B_BNGS: Tensor,
    C_BNGS: Tensor,
    D_C: Tensor | None = None,
    state_BCS: Tensor | None = None,
    *,
    z_BNC: Tensor | None = None,
    delta_bias_C: Tensor | None = None,
    softplus: bool = True,
    mask: Tensor | None = None,
    block: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs and the state after the last token; gradients flow through both.

    Args:
        u_BNC: inputs.
        delta_BNC: step sizes before bias and softplus.
        A_CS: negative decay rates.
        B_BNGS: input weights; G divides C, and C / G consecutive channels share a group.
        C_BNGS: output weights.
        D_C: weight of the skip; ``None`` is none.
        state_BCS: h before the first token; ``None`` is 0.
        z_BNC: the output is multiplied by silu(z); ``None`` is no gate.
        delta_bias_C: added to delta.
        softplus: whether dt is softplus(delta + bias) or delta + bias itself.
        mask: bool (B, N), True = keep. At another token dt is 0, so the state stays as it is;
            its own output is 0.
        block: tokens whose states exist together; a size that suits the cache unless given. It
            changes speed and memory, not the result.

    Returns:
        (B, N, C) in the dtype of u, and (B, C, S) in float32 at least.

    Raises:
        ValueError: shapes that do not fit; names them.
    """
    (batch, tokens, channels), (rates, states) = u_BNC.shape, A_CS.shape
    groups = B_BNGS.shape[2]
    fits = delta_BNC.shape == u_BNC.shape and rates == channels and not channels % groups
    if not fits or B_BNGS.shape != C_BNGS.shape or B_BNGS.shape != (batch, tokens, groups, states):
        raise ValueError(
            "selective_scan takes u and delta (batch, tokens, channels), A (channels, states), "
            "B and C (batch, tokens, groups, states) with groups that divide the channels; got "
            f"u {tuple(u_BNC.shape)}, delta {tuple(delta_BNC.shape)}, A {tuple(A_CS.shape)}, "
            f"B {tuple(B_BNGS.shape)}, C {tuple(C_BNGS.shape)}"
        )
    accumulate = accumulation_dtype(u_BNC)
    if state_BCS is None:
        state_BCS = u_BNC.new_zeros(batch, channels, states, dtype=accumulate)
    inputs = (u_BNC, delta_BNC, B_BNGS, C_BNGS, z_BNC, mask, A_CS, D_C, delta_bias_C)
    options = (softplus, 0 if block is None else block)
    out, state = by_blocks("selective_scan", (*inputs, state_BCS.to(accumulate)), options)
    return out, state


def _plan(inputs: Sequence[Tensor | None], options: Sequence[float]) -> Plan:
    state = inputs[-1]
    assert state is not None
    size = int(options[1]) or block_tokens(*state.shape)
    return Plan(partial(_block, softplus=bool(options[0])), 6, 3, 1, size)


def _empty(inputs: Sequence[Any]) -> Tensor:
    return torch.empty_like(inputs[0], memory_format=torch.contiguous_format)


def block_tokens(batch: int, channels: int, states: int) -> int:
    """Tokens whose states are about 2^18 numbers, at least 16."""
    return max(16, NUMBERS // max(1, batch * channels * states))


def _block(
    tokens: Sequence[Tensor | None],
    shared: Sequence[Tensor | None],
    state: Sequence[Tensor],
    *,
    softplus: bool,
) -> tuple[Tensor, tuple[Tensor]]:
    """One block: (u, delta, B, C, z, mask), (A, D, delta bias) and (h,)."""
    u, delta, B, C, z, mask = tokens
    A, D, bias = shared
    assert u is not None and delta is not None and B is not None and C is not None
    assert A is not None
    (before,) = state
    dtype, accumulate, groups = u.dtype, before.dtype, B.shape[2]
    u, delta, A, B, C = (x.to(accumulate) for x in (u, delta, A, B, C))
    dt = delta if bias is None else delta + bias.to(accumulate)
    dt = F.softplus(dt) if softplus else dt
    if mask is not None:  # after the softplus, which is not 0 at 0
        hidden = ~mask[..., None]
        u, dt = u.masked_fill(hidden, 0.0), dt.masked_fill(hidden, 0.0)
        B, C = (x.masked_fill(hidden[..., None], 0.0) for x in (B, C))
    log_a = dt.unsqueeze(-1) * A
    added = torch.unflatten(dt * u, 2, (groups, -1)).unsqueeze(-1) * B.unsqueeze(3)
    h, last = diagonal_scan(log_a, added.flatten(2, 3), before)
    y = torch.linalg.vecdot(torch.unflatten(h, 2, (groups, -1)), C.unsqueeze(3)).flatten(2)
    if D is not None:
        y = torch.addcmul(y, u, D.to(accumulate))
    if z is not None:
        z = z.to(accumulate)
        z = z if mask is None else z.masked_fill(~mask[..., None], 0.0)
        y = y * F.silu(z)
    return y.to(dtype), (last.clone(),)


RECURRENCES["selective_scan"] = Recurrence(1, _plan, _empty)
