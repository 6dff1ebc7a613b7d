"""Cross-covariance attention (El-Nouby et al. 2021, eq. 2): channels attend, not tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from isoattn.core.ops.softmax import zero_masked


def channel_weights(
    q_BHND: Tensor,
    k_BHND: Tensor,
    temperature_H11: Tensor,
    *,
    key_mask: Tensor | None = None,
    eps: float = 1e-12,
) -> Tensor:
    """softmax over key channels b of tau q_a.k_b / |q_a||k_b|, sums over tokens: (B, H, D, D)."""
    accumulate = torch.promote_types(q_BHND.dtype, torch.float32)
    q = zero_masked(q_BHND, key_mask).to(accumulate)
    k = zero_masked(k_BHND, key_mask).to(accumulate)
    product = q.transpose(-2, -1) @ k
    cosine = product * _inverse(q, eps).unsqueeze(-1) * _inverse(k, eps).unsqueeze(-2)
    return (cosine * temperature_H11).softmax(-1)


def _inverse(x_BHND: Tensor, eps: float) -> Tensor:
    square = x_BHND.square().sum(-2)
    positive = square > eps * eps
    return torch.where(positive, square, 1.0).rsqrt() * positive
