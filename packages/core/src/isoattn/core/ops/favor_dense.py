"""Attention with positive features in differentiable torch operators, T x N x R numbers and all.

For the compiler, which fuses them itself, and for second derivatives.

Shape suffixes: as in :mod:`isoattn.core.contract`; R features, T draws.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isoattn.core.ops.blocks import accumulation_dtype
from isoattn.core.ops.masking import no_autocast, zero_masked
from isoattn.core.ops.positive_features import (
    Kernel,
    guarded_inverse,
    log_keys,
    log_queries,
)


def favor_dense(
    q_BHND: Tensor,
    k_BGMD: Tensor,
    v_BGME: Tensor,
    projection_HPD: Tensor,
    noise_BHMT: Tensor | None,
    key_mask: Tensor | None,
    kernel: Kernel,
) -> Tensor:
    """Attention as :func:`isoattn.core.ops.favor.favor_attention`, by torch operators alone."""
    accumulate = accumulation_dtype(v_BGME)
    repeats = q_BHND.shape[1] // k_BGMD.shape[1]
    k, v = (
        zero_masked(x, key_mask).to(accumulate).repeat_interleave(repeats, 1)
        for x in (k_BGMD, v_BGME)
    )
    w = kernel.directions(projection_HPD, accumulate)
    log_k = log_keys(k, w, kernel, key_mask).unsqueeze(2)
    if noise_BHMT is not None:
        log_k = log_k + noise_BHMT.to(accumulate).transpose(-2, -1).unsqueeze(-1)
    if not k.shape[2]:
        return _nothing(q_BHND, k_BGMD, v_BGME)
    top = log_k.detach().amax(-2, keepdim=True)
    phi_k = (log_k - top).exp()
    if key_mask is not None:
        phi_k = phi_k.masked_fill(~key_mask[:, None, None, :, None], 0.0)
    log_q = log_queries(q_BHND.to(accumulate), w, kernel).unsqueeze(2) + top
    phi_q = (log_q - log_q.detach().amax(-1, keepdim=True)).exp()
    state = phi_k.transpose(-2, -1) @ v.unsqueeze(2)
    total = phi_k.sum(-2).unsqueeze(-1)
    out = (phi_q @ state) * guarded_inverse(phi_q @ total)
    return out.mean(2).to(v_BGME.dtype)


def _nothing(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Zeros (B, H, N, E) that still hang on all inputs."""
    unused = 0.0 * (k.sum() + v.sum())
    return (q[..., :1] * 0.0).expand(*q.shape[:3], v.shape[3]) + unused


def dense_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of q, k and v through the dense form, differentiable again.

    ``ctx`` is of an autograd function whose first saved tensors are the inputs, kernel apart.
    """
    q, k, v, projection, noise, mask, *_ = ctx.saved_tensors
    with torch.enable_grad(), no_autocast(grad.device.type):
        used = [x for x, needed in zip((q, k, v), ctx.needs_input_grad, strict=False) if needed]
        out = favor_dense(q, k, v, projection, noise, mask, ctx.kernel)
        grads = iter(torch.autograd.grad(out, used, grad, create_graph=True))
    return tuple(next(grads) if needed else None for needed in ctx.needs_input_grad[:3])
