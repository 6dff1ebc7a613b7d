"""The delta rule: a linear memory that replaces what it holds under a key.

S'_t = Diag(a_t) S_(t-1), S_t = S'_t + b_t k_t (v_t - S'_t^T k_t)^T, o_t = s S_t^T q_t
(DeltaNet: Yang et al. 2024a, eq. 2; a number a_t: Gated DeltaNet, Yang et al. 2024b, eq. 10; a
vector: Kimi delta attention, Kimi Team 2025, eq. 1). First the memory decays, then it is read at
k_t, then written.

In a chunk with the state S before it, d_t = b_t (v_t - S'_t^T k_t) solves (I + A) d = b (v - k' S),
A_ij = b_i k_i^T Diag(a_(j+1) ... a_i) k_j for j < i and k'_i = Diag(a_1 ... a_i) k_i: one unit
triangular system, after which all is a product of matrices (the WY form). Along long chunks it is
as stable as the recurrence: the entries of (I + A)^-1 are those of products of its steps.

Every exponent is a sum of log-decays, so none is above 0. With a decay a head the sums of pairs are
differences in float64, blind to nothing a float32 could tell; with one a channel every pair meets
at a border between it (:mod:`isoattn.core.ops.decay_vector`).

Shape suffixes: as in :mod:`isoattn.core.contract`; W rows (batch times key heads), R query heads a
key head, T chunks of a block, C tokens of a chunk, P = R + 1.
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
from isoattn.core.ops.decay_vector import _borders
from isoattn.core.ops.random_fourier import unit

FORGOTTEN = -1e6
"""Lower log-decays of a head, -inf too, are taken as this: e to it is 0, and sums stay exact."""


def delta_rule(
    q_BHND: Tensor,
    k_BGND: Tensor,
    v_BGNE: Tensor,
    log_decay: Tensor | None,
    gate_BGN: Tensor | None,
    state_BGDE: Tensor | None = None,
    *,
    key_mask: Tensor | None = None,
    scale: float = 1.0,
    unit_keys: bool = True,
    most: float = 1.0,
    chunk: int | None = 64,
) -> tuple[Tensor, Tensor]:
    """The memory over any number of tokens: parallel in a chunk, from chunk to chunk by its state.

    Args:
        q_BHND: queries.
        k_BGND: keys; G divides H.
        v_BGNE: values.
        log_decay: log a_t <= 0, (B, G, N) or a channel (B, G, N, D); ``None`` is no decay.
        gate_BGN: b_t = most * sigmoid(gate); ``None`` is 0.
        state_BGDE: S_0; ``None`` is 0.
        key_mask: bool (B, N), True = keep. At a masked token the state stays as it is.
        scale: s.
        unit_keys: divide each key by its length; a key of zeros stays 0.
        most: largest b_t.
        chunk: tokens of one triangular system, with a decay a channel rounded up to a power of two;
            ``None`` takes all at once.

    Returns:
        (B, H, N, E) in the dtype of v, and the state after the last token, in float32 at least.
    """
    accumulate = accumulation_dtype(v_BGNE)
    (batch, groups, _, dim), width = k_BGND.shape, v_BGNE.shape[3]
    if gate_BGN is None:
        gate_BGN = k_BGND.new_zeros(k_BGND.shape[:3], dtype=accumulate)
    if state_BGDE is None:
        state_BGDE = k_BGND.new_zeros(batch, groups, dim, width, dtype=accumulate)
    mask = None if key_mask is None else key_mask[:, None]
    inputs = (q_BHND, k_BGND, v_BGNE, log_decay, gate_BGN, mask, state_BGDE.to(accumulate))
    out, end = by_blocks(
        "delta_rule", inputs, (0 if chunk is None else chunk, scale, most, unit_keys)
    )
    return out, end


def chunk_size(tokens: int, chunk: int | None, channel: bool) -> int:
    """Tokens of a chunk as it is computed: not more than there are, a power of two by channel."""
    size = max(1, tokens if chunk is None else min(chunk, tokens))
    return 1 << (size - 1).bit_length() if channel else size


def block_tokens(q_shape: tuple[int, ...], chunk: int) -> int:
    """Tokens of a block: whole chunks, at most 64, whose queries are about 2^18 numbers."""
    batch, heads, _, dim = q_shape
    return chunk * max(1, min(64, NUMBERS // max(1, batch * heads * dim * chunk)))


def chunk_flops(chunk: int, dim: int, width: int, channel: bool) -> tuple[int, int]:
    """FLOPs of one chunk of one head, forward and backward; the triangular solve counts as none."""
    pairs = (2 * chunk * (chunk - 1) if channel else 4 * chunk * chunk) * dim
    forward = pairs + 6 * chunk * dim * width + 2 * chunk * chunk * width
    return forward, 3 * forward + 2 * chunk * chunk * (dim + width)


def _plan(inputs: Sequence[Tensor | None], options: Sequence[float]) -> Plan:
    q, decay = inputs[0], inputs[3]
    assert q is not None
    channel = decay is not None and decay.ndim == 4
    chunk = chunk_size(q.shape[2], int(options[0]) or None, channel)
    form = partial(
        _block, chunk=chunk, scale=options[1], most=options[2], unit_keys=bool(options[3])
    )
    return Plan(form, 6, 0, 2, block_tokens(q.shape, chunk))


def _empty(inputs: Sequence[Any]) -> Tensor:
    q, v = inputs[0], inputs[2]
    empty: Tensor = v.new_empty(*q.shape[:3], v.shape[3])
    return empty


RECURRENCES["delta_rule"] = Recurrence(1, _plan, _empty)


def _block(
    tokens: Sequence[Tensor | None],
    shared: Sequence[Tensor | None],
    state: Sequence[Tensor],
    *,
    chunk: int,
    scale: float,
    most: float,
    unit_keys: bool,
) -> tuple[Tensor, tuple[Tensor]]:
    """One block: (q, k, v, log a, gate, mask (B, 1, N)) and (S,)."""
    q, k, v, decay, gate, mask = tokens
    assert q is not None and k is not None and v is not None and gate is not None
    (batch, heads, length, _), groups, width = q.shape, k.shape[1], v.shape[3]
    before, dtype = state[0], v.dtype
    k, v, q = (x.to(before.dtype) for x in (k, v, q))
    if mask is not None:
        k, v = (x.masked_fill(~mask.unsqueeze(-1), 0.0) for x in (k, v))
        gate = gate.masked_fill(~mask, -torch.inf)
        if decay is not None:
            hidden = ~mask.unsqueeze(-1) if decay.ndim == 4 else ~mask
            decay = decay.masked_fill(hidden, 0.0)
    beta = most * gate.sigmoid()
    k = unit(k) if unit_keys else k
    q = _chunks(q, groups, chunk)
    k, v, beta = (_chunks(x, groups, chunk).squeeze(2) for x in (k, v, beta.unsqueeze(-1)))

    rows = torch.cat([(k * beta).unsqueeze(2), q], 2)
    if decay is None:
        pairs = rows @ k.transpose(-2, -1).unsqueeze(2)
        reached, left, factors = rows, k, None
    elif decay.ndim == 3:
        pairs, reached, left, factors = _decayed_by_head(
            rows, k, _chunks(decay.unsqueeze(-1), groups, chunk)[:, :, 0, :, 0]
        )
    else:
        pairs, reached, left, factors = _decayed_by_channel(
            rows, k, _chunks(decay, groups, chunk)[:, :, 0]
        )
    # The diagonal of ones is not read.
    sides = torch.cat([v * beta, reached[:, :, 0]], -1)
    solved = torch.linalg.solve_triangular(
        pairs[:, :, 0].tril(-1), sides, upper=False, unitriangular=True
    )
    new, read = solved.split([width, k.shape[3]], -1)
    starts, written, end = _through(new, read, left, factors, before.flatten(0, 1))
    out = reached[:, :, 1:].flatten(2, 3) @ starts
    out = out.view(*q.shape[:4], width) + pairs[:, :, 1:].tril() @ written.unsqueeze(2)
    out = (out * scale).transpose(1, 2).reshape(batch, heads, -1, width)[:, :, :length]
    return out.to(dtype), (end.view(before.shape),)


def _chunks(x_BHND: Tensor, groups: int, chunk: int) -> Tensor:
    """(W, T, R, C, D), zeros fill the last chunk; at least one chunk."""
    batch, heads, tokens, dim = x_BHND.shape
    chunks = max(1, -(-tokens // chunk))
    x = F.pad(x_BHND, (0, 0, 0, chunks * chunk - tokens))
    x = x.reshape(batch * groups, heads // groups, chunks, chunk, dim)
    return x.transpose(1, 2)


def _decayed_by_head(
    rows_WTPCD: Tensor, k_WTCD: Tensor, log_decay_WTC: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Products of rows and keys (W, T, P, C, C) under the decays between them, lower half.

    Then the rows with the decays since the chunk began, the keys with those up to its end, and all
    decays of a chunk (W, T, 1, 1).
    """
    dtype, size = k_WTCD.dtype, k_WTCD.shape[2]
    sums = log_decay_WTC.double().clamp(min=FORGOTTEN).cumsum(-1)
    upper = torch.ones(size, size, dtype=torch.bool, device=k_WTCD.device).triu(1)
    between = sums.unsqueeze(-1) - sums.unsqueeze(-2)
    between = between.to(dtype).masked_fill(upper, -torch.inf).exp()
    pairs = rows_WTPCD @ k_WTCD.transpose(-2, -1).unsqueeze(2) * between.unsqueeze(2)
    since, total = sums.to(dtype).exp()[:, :, None, :, None], sums[..., -1:]
    left = (total - sums).to(dtype).exp().unsqueeze(-1)
    return pairs, rows_WTPCD * since, k_WTCD * left, total.to(dtype).exp().unsqueeze(-1)


def _decayed_by_channel(
    rows_WTPCD: Tensor, k_WTCD: Tensor, log_decay_WTCD: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same with one decay a channel; the decays of a chunk are (W, T, D, 1).

    The products grow from blocks of one token, each time two neighbours are joined.
    """
    size, dim = k_WTCD.shape[2:]
    pairs = (rows_WTPCD * k_WTCD.unsqueeze(2)).sum(-1)[..., None, None]
    for half, since, left, total in _borders(log_decay_WTCD, False):
        if half == size:
            factors = total[:, :, 0].exp().transpose(-2, -1)
            break
        halves = rows_WTPCD.reshape(*rows_WTPCD.shape[:3], -1, 2, half, dim)[:, :, :, :, 1]
        query = halves * since[:, :, 1::2].exp().unsqueeze(2)
        key = k_WTCD.reshape(*k_WTCD.shape[:2], -1, 2, half, dim)[:, :, :, 0]
        key = key * left[:, :, 0::2].exp()
        corner = query @ key.transpose(-2, -1).unsqueeze(2)
        top, bottom = F.pad(pairs[:, :, :, 0::2], (0, half)), pairs[:, :, :, 1::2]
        pairs = torch.cat([top, torch.cat([corner, bottom], -1)], -2)
    return pairs.squeeze(3), rows_WTPCD * since.exp(), k_WTCD * left[:, :, 0].exp(), factors


def _through(
    new_WTCE: Tensor,
    read_WTCD: Tensor,
    left_WTCD: Tensor,
    factors: Tensor | None,
    state_WDE: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """States before each chunk (W, T, D, E), what the tokens write (W, T, C, E), the last state."""
    starts, written = [], []
    left = left_WTCD.transpose(-2, -1)
    for t in range(new_WTCE.shape[1]):
        starts.append(state_WDE)
        written.append(torch.baddbmm(new_WTCE[:, t], read_WTCD[:, t], state_WDE, alpha=-1))
        kept = state_WDE if factors is None else factors[:, t] * state_WDE
        state_WDE = torch.baddbmm(kept, left[:, t], written[-1])
    return torch.stack(starts, 1), torch.stack(written, 1), state_WDE
