"""Single pairs of a softmax attention: log-probabilities of edges, and the strongest keys.

What they need of a row is its log-normaliser. It is summed over blocks of queries, forward and
backward, so N x M numbers never exist, though N M D products are computed.

Shape suffixes: as in :mod:`isoattn.core.contract`; L edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from isoattn.core.ops.blocks import NUMBERS, accumulation_dtype
from isoattn.core.ops.masking import zero_masked
from isoattn.core.ops.segments import over_segments


def edge_log_prob(
    q_BHND: Tensor,
    k_BGMD: Tensor,
    edge_index_2L: Tensor,
    *,
    scale: float,
    key_mask: Tensor | None = None,
    segments_BN: Tensor | None = None,
) -> Tensor:
    """Log softmax_j(s q_i.k_j) at the pairs (end i, start j).

    Args:
        q_BHND: queries.
        k_BGMD: keys; G divides H.
        edge_index_2L: starts (keys) and ends (queries).
        scale: s.
        key_mask: bool (B, M), True = keep.
        segments_BN: ids; a row is normalised over the keys of its own segment.

    Returns:
        (B, H, L) in the accumulation dtype, -inf where the key is masked or in another segment.
    """
    start, end = edge_index_2L.unbind(0)
    q, k = _prepared(q_BHND, k_BGMD, scale, key_mask)
    rows: Any = _LogNormaliser
    if segments_BN is None:
        row = rows.apply(q, k, key_mask)
    else:
        call = partial(_segment_rows, rows)
        row = over_segments(call, segments_BN, {"q": q, "k": k}, key_mask).squeeze(-1)
    dots: Any = _EdgeProducts
    log_prob: Tensor = dots.apply(q, k, start, end) - row[:, :, end]
    absent = torch.zeros(q.shape[0], 1, start.shape[0], dtype=torch.bool, device=q.device)
    if key_mask is not None:
        absent = absent | ~key_mask[:, None, start]
    if segments_BN is not None:
        absent = absent | (segments_BN[:, start] != segments_BN[:, end])[:, None]
    return log_prob.masked_fill(absent, -torch.inf)


def strongest_keys(
    q_BHND: Tensor, k_BGMD: Tensor, count: int, *, scale: float, key_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The largest weights of each query and their keys, (B, H, N, count), in blocks of queries.

    A masked key has weight 0 and comes last.
    """
    q, k = _prepared(q_BHND, k_BGMD, scale, key_mask)
    weights = q.new_empty(*q.shape[:3], count)
    places = torch.empty(weights.shape, dtype=torch.int64, device=q.device)
    for n in _query_blocks(q, k):
        rows = _logits(q[:, :, n], k, key_mask).softmax(-1)
        if key_mask is not None:
            rows = rows.masked_fill(~key_mask.any(1)[:, None, None, None], 0.0)
        weights[:, :, n], places[:, :, n] = torch.topk(rows, count, -1)
    return weights, places


def _prepared(q: Tensor, k: Tensor, scale: float, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scaled queries and a key head for each query head, in the accumulation dtype."""
    wide = accumulation_dtype(q)
    k = zero_masked(k, key_mask).to(wide).repeat_interleave(q.shape[1] // k.shape[1], 1)
    return q.to(wide) * scale, k


def _segment_rows(rows: Any, *, q: Tensor, k: Tensor, key_mask: Tensor) -> Tensor:
    out: Tensor = rows.apply(q, k, key_mask).unsqueeze(-1)
    return out


class _LogNormaliser(torch.autograd.Function):
    """Log sum_j exp(q_i.k_j) over visible keys, (B, H, N); -inf where there is none."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, key_mask: Tensor | None) -> Tensor:
        out = q.new_full(q.shape[:3], -torch.inf)
        if k.shape[2]:
            for n in _query_blocks(q, k):
                out[:, :, n] = torch.logsumexp(_logits(q[:, :, n], k, key_mask), -1)
        ctx.save_for_backward(q, k, key_mask, out)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        q, k, key_mask, out = ctx.saved_tensors
        dq, dk = torch.zeros_like(q), torch.zeros_like(k)
        empty = out == -torch.inf
        top, grad = out.masked_fill(empty, 0.0), grad.masked_fill(empty, 0.0)
        for n in _query_blocks(q, k) if k.shape[2] else ():
            share = _logits(q[:, :, n], k, key_mask).sub_(top[:, :, n, None]).exp_()
            share.mul_(grad[:, :, n, None])
            dq[:, :, n] = share @ k
            dk += share.mT @ q[:, :, n]
        return dq, dk, None


class _EdgeProducts(torch.autograd.Function):
    """q_end . k_start (B, H, L) in blocks of edges; L x D numbers never exist."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, start: Tensor, end: Tensor) -> Tensor:
        out = q.new_empty(*q.shape[:2], start.shape[0])
        for n in _edge_blocks(q, start):
            out[:, :, n] = (q[:, :, end[n]] * k[:, :, start[n]]).sum(-1)
        ctx.save_for_backward(q, k, start, end)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        q, k, start, end = ctx.saved_tensors
        dq, dk = torch.zeros_like(q), torch.zeros_like(k)
        for n in _edge_blocks(q, start):
            share = grad[:, :, n, None]
            dq.index_add_(2, end[n], share * k[:, :, start[n]])
            dk.index_add_(2, start[n], share * q[:, :, end[n]])
        return dq, dk, None, None


def _logits(q: Tensor, k: Tensor, key_mask: Tensor | None) -> Tensor:
    logits = q @ k.mT
    return (
        logits if key_mask is None else logits.masked_fill_(~key_mask[:, None, None, :], -torch.inf)
    )


def _query_blocks(q: Tensor, k: Tensor) -> Iterator[slice]:
    size = max(1, 16 * NUMBERS // max(1, q.shape[0] * q.shape[1] * k.shape[2]))
    return _slices(q.shape[2], size)


def _edge_blocks(q: Tensor, start: Tensor) -> Iterator[slice]:
    size = max(64, 4 * NUMBERS // max(1, q.shape[0] * q.shape[1] * q.shape[3]))
    return _slices(start.shape[0], size)


def _slices(total: int, size: int) -> Iterator[slice]:
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))
