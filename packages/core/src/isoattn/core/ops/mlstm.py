"""The matrix memory of xLSTM (Beck et al. 2024, eq. 19-27).

C_t = f_t C_(t-1) + i_t k_t v_t^T, n_t = f_t n_(t-1) + i_t k_t,
h_t = C_t^T q_t / max(|n_t.q_t|, 1), with q scaled by D^-1/2, f = exp(log_f) and i = exp(log_i).

i may overflow, so all is kept divided by e^m, m_t = max(log f_t + m_(t-1), log i_t), and the bound
1 turns into e^-m. Here a row is divided by e^max(m, 0) instead: then no exponent is above 0, the
bound included. m is but a scale and begins at -inf, nothing depends on it, so without ``eps`` no
gradient flows through it. Exponents are added in float64: after one decay of e^-10000 a float32 sum
of logarithms is blind to the decays that follow.

Shape suffixes: as in :mod:`isoattn.core.contract`; R query heads that share a key head, c tokens
of a chunk, T chunks of a block, F = E + 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.ops.blocks import NUMBERS, accumulation_dtype
from isoattn.core.ops.by_blocks import RECURRENCES, Plan, Recurrence, by_blocks

FORGOTTEN = -1e6
"""Lower log-decays, -inf too, are taken as this: it forgets all and leaves other sums exact."""


def mlstm(
    q_BHND: Tensor,
    k_BGND: Tensor,
    v_BGNE: Tensor,
    log_f_BGN: Tensor | None,
    gate_BGN: Tensor | None,
    state: tuple[Tensor, Tensor, Tensor] | None = None,
    *,
    key_mask: Tensor | None = None,
    sigmoid: bool = False,
    eps: float = 0.0,
    chunk: int | None = 64,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """The memory over any number of tokens: parallel in a chunk, from chunk to chunk by its state.

    Args:
        q_BHND: queries.
        k_BGND: keys; G divides H.
        v_BGNE: values.
        log_f_BGN: log f <= 0; ``None`` is 0.
        gate_BGN: pre-activation of i; ``None`` is 0.
        state: C (B, G, D, E), n (B, G, D) and m (B, G) before the first token; k is not scaled in
            it. ``None`` is empty.
        key_mask: bool (B, N), True = keep; other tokens are as good as absent.
        sigmoid: i is the sigmoid of its gate, not the exponential, and m stays 0.
        eps: added to the denominator after its division by e^m, as released.
        chunk: tokens of a chunk; ``None`` takes all at once.

    Returns:
        (B, H, N, E) in the dtype of v, and the state after the last token, in float32 at least.
    """
    accumulate = accumulation_dtype(v_BGNE)
    if log_f_BGN is None:
        log_f_BGN = k_BGND.new_zeros(k_BGND.shape[:3], dtype=accumulate)
    if gate_BGN is None:
        gate_BGN = k_BGND.new_zeros(k_BGND.shape[:3], dtype=accumulate)
    if state is None:
        batch, groups, _, dim = k_BGND.shape
        memory = k_BGND.new_zeros(batch, groups, dim, v_BGNE.shape[3] + 1, dtype=accumulate)
        start = 0.0 if sigmoid else -torch.inf
        m_BG = k_BGND.new_full((batch, groups), start, dtype=accumulate)
    else:
        C_BGDE, n_BGD, m_BG = (x.to(accumulate) for x in state)
        memory = torch.cat([C_BGDE, n_BGD.unsqueeze(-1)], -1)
    mask = None if key_mask is None else key_mask[:, None]
    inputs = (q_BHND, k_BGND, v_BGNE, log_f_BGN, gate_BGN, mask, memory, m_BG)
    out, memory, m_BG = by_blocks("mlstm", inputs, (0 if chunk is None else chunk, sigmoid, eps))
    return out, (memory[..., :-1], memory[..., -1], m_BG)


def _plan(inputs: Sequence[Tensor | None], options: Sequence[float]) -> Plan:
    q = inputs[0]
    assert q is not None
    chunk, sigmoid, eps = int(options[0]) or q.shape[2], bool(options[1]), options[2]
    chunk = max(1, min(chunk, q.shape[2]))
    form = partial(_block, chunk=chunk, sigmoid=sigmoid, eps=eps)
    size = block_tokens(q.shape, chunk)
    return Plan(form, 6, 0, 2, size, frozenset() if eps else frozenset({1}))


def _empty(inputs: Sequence[Any]) -> Tensor:
    q, v = inputs[0], inputs[2]
    empty: Tensor = v.new_empty(*q.shape[:3], v.shape[3])
    return empty


def block_tokens(q_shape: tuple[int, ...], chunk: int) -> int:
    """Tokens of a block: whole chunks, at most 64, whose queries are about 2^18 numbers."""
    batch, heads, _, dim = q_shape
    return chunk * max(1, min(64, NUMBERS // max(1, batch * heads * dim * chunk)))


def _block(
    tokens: Sequence[Tensor | None],
    shared: Sequence[Tensor | None],
    state: Sequence[Tensor],
    *,
    chunk: int,
    sigmoid: bool,
    eps: float,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """One block: (q, k, v, log f, gate, mask (B, 1, N)) and ([C, n] (B, G, D, F), m (B, G))."""
    q, k, v, log_f, gate, mask = tokens
    assert q is not None and k is not None and v is not None
    assert log_f is not None and gate is not None
    (batch, heads, length, dim), groups, dtype = q.shape, k.shape[1], v.dtype
    before, m_BG = state
    accumulate, stabilised = before.dtype, not sigmoid
    log_i = F.logsigmoid(gate) if sigmoid else gate
    if mask is not None:
        k, v = (x.masked_fill(~mask[..., None], 0.0) for x in (k, v))
        log_f, log_i = log_f.masked_fill(~mask, 0.0), log_i.masked_fill(~mask, -torch.inf)
    q = q.reshape(batch, groups, heads // groups, length, dim).to(accumulate) * dim**-0.5
    v = F.pad(v, (0, 1), value=1.0)
    q, k, v = (_in_chunks(x.to(accumulate), chunk) for x in (q, k, v))
    f = _in_chunks(log_f.double().clamp(min=FORGOTTEN).unsqueeze(-1), chunk).squeeze(-1)
    f = f.cumsum(-1)
    i = _in_chunks(log_i.double().unsqueeze(-1), chunk, -torch.inf).squeeze(-1) - f

    # Scales of the states: source 0 is the state before the block, source s what chunk s - 1 adds.
    whole = f[..., -1]
    passed = F.pad(whole.cumsum(-1), (1, 0))
    top = i.cummax(-1).values if stabilised else (-whole).unsqueeze(-1).expand_as(i)
    top = top if eps else top.detach()
    source = torch.cat([m_BG.double().unsqueeze(-1), top[..., -1] - passed[..., :-1]], -1)
    scale = passed + source.cummax(-1).values if stabilised else torch.zeros_like(passed)
    scale = scale.to(accumulate).double()  # as it is handed on: both sides must mean one number
    scale = scale if eps else scale.detach()
    of_state = _finite(scale)
    weight = (i - _finite(top[..., -1:])).exp().to(accumulate)
    added = (k * weight.unsqueeze(-1)).transpose(-2, -1) @ v
    states = _states(before, added, source, passed - of_state)

    # Scales of the rows: row t is divided by exp(r_t), r_t = max(m_t, 0).
    m = f + torch.maximum(top, scale[..., :-1].unsqueeze(-1)) if stabilised else torch.zeros_like(f)
    r = m.clamp(min=0.0)
    inside = ((f - r).unsqueeze(-1) + i.unsqueeze(-2)).to(accumulate)
    upper = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).triu(1)
    inside = inside.masked_fill(upper, -torch.inf).exp()
    carried = (f + of_state[..., :-1].unsqueeze(-1) - r).exp().to(accumulate)
    scores = q @ k.transpose(-2, -1).unsqueeze(2) * inside.unsqueeze(2)
    sums = scores @ v.unsqueeze(2) + (q * carried[:, :, None, ..., None]) @ states[
        :, :, :-1
    ].unsqueeze(2)
    # The bound stays so large that its square is a number too.
    lowest = 0.5 * math.log(torch.finfo(accumulate).tiny)
    bound = (-r).clamp(min=lowest).exp().to(accumulate).unsqueeze(2)
    bottom = torch.maximum(sums[..., -1].abs(), bound)
    if eps:
        bottom = bottom + eps * (m - r).exp().to(accumulate).unsqueeze(2)
    out = (sums[..., :-1] / bottom.unsqueeze(-1)).flatten(3, 4)[:, :, :, :length]
    out = out.reshape(batch, heads, length, out.shape[-1]).to(dtype)
    return out, (states[:, :, -1].clone(), scale[..., -1].to(accumulate))


def _states(before: Tensor, added: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """States before each chunk and after the last one, (B, G, T + 1, D, F)."""
    exponent = target.unsqueeze(-1) + source.unsqueeze(-2)
    later = torch.ones_like(exponent, dtype=torch.bool).triu(1)
    decays = exponent.masked_fill(later, -torch.inf).exp().to(added.dtype)
    parts = torch.cat([before.unsqueeze(2), added], 2)
    return (decays @ parts.flatten(3)).reshape(parts.shape)


def _in_chunks(x: Tensor, chunk: int, fill: float = 0.0) -> Tensor:
    """(..., L, D) as (..., T, c, D), filled up to whole chunks."""
    tokens = x.shape[-2]
    chunks = -(-tokens // chunk)
    x = F.pad(x, (0, 0, 0, chunks * chunk - tokens), value=fill)
    return x.reshape(*x.shape[:-2], chunks, chunk, x.shape[-1])


def _finite(x: Tensor) -> Tensor:
    """A scale of nothing, -inf, as 0: what is divided by it is 0 anyway."""
    return x.masked_fill(x == -torch.inf, 0.0)


RECURRENCES["mlstm"] = Recurrence(2, _plan, _empty)
