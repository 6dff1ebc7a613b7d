"""Softmax attention (Vaswani et al. 2017, eq. 1) and its cosine form."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def zero_masked(x_BGMD: Tensor, key_mask_BM: Tensor | None) -> Tensor:
    """x with its masked tokens set to 0, whatever they held (NaN times 0 would stay NaN)."""
    if key_mask_BM is None:
        return x_BGMD
    return x_BGMD.masked_fill(~key_mask_BM[:, None, :, None], 0.0)


def visible(
    queries: int, keys: int, key_mask_BM: Tensor | None, causal: bool, device: torch.device
) -> Tensor | None:
    """Bool mask that broadcasts to (B, H, N, M), True = the query sees the key; None = all."""
    mask = None if key_mask_BM is None else key_mask_BM[:, None, None, :]
    if causal:
        lower = torch.ones(queries, keys, dtype=torch.bool, device=device).tril()
        mask = lower if mask is None else lower & mask
    return mask


def fused_softmax_attention(
    q_BHND: Tensor,
    k_BGMD: Tensor,
    v_BGME: Tensor,
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale q k^T) v by torch's fused kernel; scale defaults to D^-1/2."""
    mask = None
    if key_mask is not None:
        # The kernel multiplies the weight 0 by whatever a masked key or value holds.
        k_BGMD, v_BGME = zero_masked(k_BGMD, key_mask), zero_masked(v_BGME, key_mask)
        mask = visible(q_BHND.shape[2], k_BGMD.shape[2], key_mask, causal, q_BHND.device)
        causal = False
    return F.scaled_dot_product_attention(
        q_BHND,
        k_BGMD,
        v_BGME,
        attn_mask=mask,
        is_causal=causal,
        scale=scale,
        enable_gqa=k_BGMD.shape[1] != q_BHND.shape[1],
    )


def math_softmax_attention(
    q_BHND: Tensor,
    k_BGMD: Tensor,
    v_BGME: Tensor,
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale q k^T) v written out in float32 at least, N x M held; twice differentiable."""
    accumulate = torch.promote_types(v_BGME.dtype, torch.float32)
    repeats = q_BHND.shape[1] // k_BGMD.shape[1]
    k_BHMD = zero_masked(k_BGMD, key_mask).repeat_interleave(repeats, 1).to(accumulate)
    v_BHME = zero_masked(v_BGME, key_mask).repeat_interleave(repeats, 1).to(accumulate)
    scale = q_BHND.shape[-1] ** -0.5 if scale is None else scale
    logits_BHNM = (q_BHND.to(accumulate) * scale) @ k_BHMD.transpose(-2, -1)
    mask = visible(q_BHND.shape[2], k_BGMD.shape[2], key_mask, causal, q_BHND.device)
    if mask is not None:
        logits_BHNM = logits_BHNM.masked_fill(~mask, torch.finfo(accumulate).min)
    weights_BHNM = logits_BHNM.softmax(-1)
    if mask is not None:  # a row without any key is uniform here and must be 0
        weights_BHNM = weights_BHNM.masked_fill(~mask, 0.0)
    return (weights_BHNM @ v_BHME).to(v_BGME.dtype)


def unit_norm(x: Tensor, *, dim: int, eps: float = 1e-12) -> Tensor:
    """x / |x| along dim in float32 at least; 0 with zero gradient where |x| <= eps."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    square = x.square().sum(dim, keepdim=True)
    positive = square > eps * eps
    return x * torch.where(positive, square, 1.0).rsqrt() * positive
