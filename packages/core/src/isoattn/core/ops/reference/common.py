"""What all oracles begin and end with."""

from __future__ import annotations

import torch
from torch import Tensor


def doubles(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> tuple[Tensor, ...]:
    """Float64, a key head for each query head, masked keys and values 0 (they may hold NaN)."""
    repeats = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(repeats, 1) for x in (k, v))
    if key_mask is not None:
        k, v = (x.masked_fill(~key_mask[:, None, :, None], 0.0) for x in (k, v))
    return q.double(), k, v


def seen(q: Tensor, k: Tensor, key_mask: Tensor | None, causal: bool) -> Tensor:
    """(B, H, N, M), True where the query sees the key."""
    shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    visible = torch.ones(shape, dtype=torch.bool)
    if causal:
        visible = visible & (torch.arange(shape[2])[:, None] >= torch.arange(shape[3])[None, :])
    if key_mask is not None:
        visible = visible & key_mask[:, None, None, :]
    return visible


def average(weights: Tensor, v: Tensor, seen: Tensor, eps: float | Tensor = 0.0) -> Tensor:
    """Values averaged with non-negative weights; rows without weight are 0."""
    weights = torch.where(seen, weights, 0.0)
    total = weights.sum(-1, keepdim=True) + eps
    weights = weights / torch.where(total > 0, total, 1.0)
    return torch.einsum("bhnm,bhme->bhne", weights, v)


def unit(x: Tensor, dim: int) -> Tensor:
    """Length 1 along a dimension; a zero vector stays zero."""
    square = x.square().sum(dim, keepdim=True)
    return torch.where(square > 0, x / torch.where(square > 0, square, 1.0).sqrt(), 0.0)
