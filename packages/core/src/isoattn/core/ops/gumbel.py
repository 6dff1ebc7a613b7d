"""What NodeFormer adds to positive features (Wu et al. 2022): noise per key, edges, neighbours.

A key's noise is shared by all queries, which keeps attention linear in the number of nodes; it is
not the Gumbel-softmax of a row. The probability of an edge and the strongest keys are without it.

Shape suffixes: as in :mod:`isoattn.core.contract`; R features, T draws, L edges.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isoattn.core.ops.blocks import NUMBERS, accumulation_dtype
from isoattn.core.ops.masking import zero_masked
from isoattn.core.ops.positive_features import FLOOR, Kernel, log_keys, log_queries
from isoattn.core.streams import draw


def gumbel_noise(key: Tensor, batch: int, heads: int, keys: int, draws: int) -> Tensor:
    """Standard Gumbel numbers (B, H, M, T), -log E with E exponential, float32.

    E is never below the smallest normal number, so that the largest is 87.3.
    """
    exponential = draw(key, (batch, heads, keys, draws), kind="exponential")
    return exponential.clamp_(min=torch.finfo(torch.float32).tiny).log_().neg_()


def log_features(
    q_BHND: Tensor,
    k_BGMD: Tensor,
    projection_HPD: Tensor,
    kernel: Kernel,
    key_mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """l(q) (B, H, N, R) and l(k) (B, H, M, R) in the accumulation dtype, FLOOR where masked."""
    wide = accumulation_dtype(q_BHND)
    w = kernel.directions(projection_HPD, wide)
    repeats = q_BHND.shape[1] // k_BGMD.shape[1]
    k = zero_masked(k_BGMD, key_mask).to(wide).repeat_interleave(repeats, 1)
    return log_queries(q_BHND.to(wide), w, kernel), log_keys(k, w, kernel, key_mask)


def edge_log_prob(
    log_q_BHNR: Tensor, log_k_BHMR: Tensor, edge_index_2L: Tensor, segments_BN: Tensor | None = None
) -> Tensor:
    """Log A_(end, start) (B, H, L) of a row-normalised phi(q_i).phi(k_j), in O(L R).

    Args:
        log_q_BHNR: l(q).
        log_k_BHMR: l(k), FLOOR where masked.
        edge_index_2L: starts (keys) and ends (queries).
        segments_BN: ids; a row is normalised over the keys of its own segment.

    Returns:
        Log-probabilities, -inf where the key is masked or in another segment.
    """
    start, end = edge_index_2L.unbind(0)
    if segments_BN is None:
        total = torch.logsumexp(log_k_BHMR, 2, keepdim=True) if log_k_BHMR.shape[2] else 0.0
        row = torch.logsumexp(log_q_BHNR + total, -1)
    else:
        row = torch.logsumexp(log_q_BHNR + _over_segments(log_k_BHMR, segments_BN), -1)
    function: Any = _Edges
    pair: Tensor = function.apply(log_q_BHNR, log_k_BHMR, start, end)
    absent = log_k_BHMR.detach()[:, :, start, 0] <= FLOOR
    if segments_BN is not None:
        absent = absent | (segments_BN[:, start] != segments_BN[:, end])[:, None]
    return (pair - row[:, :, end]).masked_fill(absent, -torch.inf)


def _over_segments(log_k: Tensor, segments: Tensor) -> Tensor:
    """Log of the sum of phi(k) over each token's segment, (B, H, N, R)."""
    _, place = torch.unique(segments, return_inverse=True)
    place = place[:, None, :, None].expand_as(log_k)
    shape = (*log_k.shape[:2], int(place.max()) + 1 if place.numel() else 0, log_k.shape[3])
    top = log_k.new_full(shape, 2 * FLOOR).scatter_reduce(2, place, log_k.detach(), "amax")
    sums = log_k.new_zeros(shape).scatter_add(2, place, (log_k - top.gather(2, place)).exp())
    return (sums.log() + top).gather(2, place)


class _Edges(torch.autograd.Function):
    """Log sum_r exp(l(q_end) + l(k_start)) in blocks of edges; L x R numbers never exist."""

    @staticmethod
    def forward(ctx: Any, log_q: Tensor, log_k: Tensor, start: Tensor, end: Tensor) -> Tensor:
        out = log_q.new_empty(*log_q.shape[:2], start.shape[0])
        for n in _edge_blocks(log_q, start):
            joint = log_q[:, :, end[n]].add_(log_k[:, :, start[n]])
            out[:, :, n] = torch.logsumexp(joint, -1)
        ctx.save_for_backward(log_q, log_k, start, end, out)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        log_q, log_k, start, end, out = ctx.saved_tensors
        dq, dk = torch.zeros_like(log_q), torch.zeros_like(log_k)
        for n in _edge_blocks(log_q, start):
            joint = log_q[:, :, end[n]].add_(log_k[:, :, start[n]])
            share = joint.sub_(out[:, :, n, None]).exp_().mul_(grad[:, :, n, None])
            dq.index_add_(2, end[n], share)
            dk.index_add_(2, start[n], share)
        return dq, dk, None, None


def _edge_blocks(log_q: Tensor, start: Tensor) -> list[slice]:
    width = max(1, log_q.shape[0] * log_q.shape[1] * log_q.shape[3])
    size = max(64, 4 * NUMBERS // width)
    edges = start.shape[0]
    return [slice(n, min(n + size, edges)) for n in range(0, edges, size)]


def strongest_keys(log_q_BHNR: Tensor, log_k_BHMR: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest weights of each query and their keys, (B, H, N, count), in blocks of queries.

    A masked key has weight 0 and comes last.
    """
    top = log_k_BHMR.amax(2, keepdim=True)
    phi_k = (log_k_BHMR - top).exp().masked_fill(log_k_BHMR <= FLOOR, 0.0)
    total = phi_k.sum(2, keepdim=True).mT
    shape = (*log_q_BHNR.shape[:3], count)
    weights = log_q_BHNR.new_empty(shape)
    places = torch.empty(shape, dtype=torch.int64, device=log_q_BHNR.device)
    batch, heads, queries, _ = log_q_BHNR.shape
    size = max(1, 16 * NUMBERS // max(1, batch * heads * phi_k.shape[2]))
    for start in range(0, queries, size):
        n = slice(start, min(start + size, queries))
        joint = log_q_BHNR[:, :, n] + top
        phi_q = (joint - joint.amax(-1, keepdim=True)).exp()
        row = phi_q @ total
        phi_q = phi_q / row.masked_fill(row == 0, 1.0)
        weights[:, :, n], places[:, :, n] = torch.topk(phi_q @ phi_k.mT, count, -1)
    return weights, places
