"""Softmax attention (Vaswani et al. 2017, eq. 1): softmax over the visible keys of s q_i.k_j.

Shape suffixes: as in :mod:`isoattn.core.contract`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.ops.blocks import accumulation_dtype
from isoattn.core.ops.masking import visible, zero_masked


def fused_softmax_attention(
    q_BHND: Tensor,
    k_BGMD: Tensor,
    v_BGME: Tensor,
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    earlier: int = 0,
) -> Tensor:
    """Softmax attention by torch's fused kernel.

    Args:
        q_BHND: queries.
        k_BGMD: keys; G divides H.
        v_BGME: values.
        key_mask: bool (B, M), True = keep.
        causal: query i sees the keys j <= i.
        scale: s; None is D^-1/2.
        earlier: keys that stand before the first query, where causal.

    Returns:
        (B, H, N, E) in the dtype of v.
    """
    mask, shared = None, False
    if k_BGMD.shape[1] != q_BHND.shape[1]:  # a branch: the compiler's comparison is no bool
        shared = True
    if causal and earlier and q_BHND.shape[2] == 1:  # a last query sees all keys
        causal = False
    if key_mask is not None:
        k_BGMD, v_BGME, mask = _masked(q_BHND, k_BGMD, v_BGME, key_mask, causal, earlier)
        causal = False
    elif causal and earlier:  # the kernel's own mask has nothing before the first query
        mask = visible(q_BHND.shape[2], k_BGMD.shape[2], None, True, q_BHND.device, earlier)
        causal = False
    return F.scaled_dot_product_attention(
        q_BHND,
        k_BGMD,
        v_BGME,
        attn_mask=mask,
        is_causal=causal,
        scale=scale,
        enable_gqa=shared,
    )


def math_softmax_attention(
    q_BHND: Tensor,
    k_BGMD: Tensor,
    v_BGME: Tensor,
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    earlier: int = 0,
) -> Tensor:
    """The same written out, N x M weights held, in float32 at least; twice differentiable."""
    accumulate = accumulation_dtype(v_BGME)
    mask = visible(q_BHND.shape[2], k_BGMD.shape[2], None, causal, q_BHND.device, earlier)
    if key_mask is not None:
        k_BGMD, v_BGME, mask = _masked(q_BHND, k_BGMD, v_BGME, key_mask, causal, earlier)
    repeats = q_BHND.shape[1] // k_BGMD.shape[1]
    k_BHMD, v_BHME = (
        (x if repeats == 1 else x.repeat_interleave(repeats, 1)).to(accumulate)
        for x in (k_BGMD, v_BGME)
    )
    scale = q_BHND.shape[-1] ** -0.5 if scale is None else scale
    logits_BHNM = (q_BHND.to(accumulate) * scale) @ k_BHMD.transpose(-2, -1)
    if mask is not None:
        logits_BHNM = logits_BHNM.masked_fill(~mask, -torch.inf)
    return (logits_BHNM.softmax(-1) @ v_BHME).to(v_BGME.dtype)


def cached(
    k_BGND: Tensor,
    v_BGNE: Tensor,
    key_mask: Tensor | None,
    state: Mapping[str, Tensor] | None,
) -> dict[str, Tensor]:
    """All keys and values so far, ``"k"`` and ``"v"``, and ``"key_mask"`` (B, M) if ever given.

    Masked tokens are stored as 0.
    """
    found = {"k": zero_masked(k_BGND, key_mask), "v": zero_masked(v_BGNE, key_mask)}
    before = {} if state is None else state
    keep = before.get("key_mask")
    if key_mask is not None or keep is not None:
        batch, _, tokens, _ = k_BGND.shape
        past = before["k"].shape[2] if before else 0
        every = torch.ones(batch, 1, dtype=torch.bool, device=k_BGND.device)
        keep = every.expand(-1, past) if keep is None else keep
        new = every.expand(-1, tokens) if key_mask is None else key_mask
        found["key_mask"] = torch.cat([keep, new], 1)
    for name in ("k", "v"):  # a copy also at the beginning: the caller may use its memory again
        parts = [before[name], found[name]] if before else [found[name]]
        found[name] = torch.cat(parts, 2)
    return found


def _masked(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor, causal: bool, earlier: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Masked k and v set to 0, and a mask that leaves no row empty.

    A kernel multiplies the weight 0 by whatever a masked value holds, so the values go. A row
    without any key then sees its masked ones: their values are 0, so it and its gradients are 0 on
    every backend, with no -inf row to become NaN.
    """
    queries, keys = q.shape[2], k.shape[2]
    seen = visible(queries, keys, key_mask, causal, q.device, earlier)
    assert seen is not None
    empty = ~seen.any(-1, keepdim=True)
    reach = visible(queries, keys, None, causal, q.device, earlier)
    seen = seen | (empty if reach is None else empty & reach)
    return zero_masked(k, key_mask), zero_masked(v, key_mask), seen


def unit_scaled(x: Tensor, factor: Tensor | None = None, *, eps: float = 1e-12) -> Tensor:
    """Return factor x / |x|, the norm over the last dimension, in float32 at least.

    0 with zero gradient where |x| is not above eps.
    """
    x = x.to(accumulation_dtype(x))
    square = x.square().sum(-1, keepdim=True)
    positive = square > eps**2
    inverse = torch.where(positive, torch.where(positive, square, 1.0).rsqrt(), 0.0)
    return x * (inverse if factor is None else inverse * factor)
