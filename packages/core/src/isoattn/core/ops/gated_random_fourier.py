"""Random features with a gate (Peng et al. 2021, eq. 7): the state forgets at the rate it learns.

S_t = g_t S_(t-1) + (1 - g_t) phi(k_t) v_t^T, z likewise, o_t = phi(q_t) S_t / phi(q_t) z_t.

Shape suffixes: as in :mod:`isoattn.core.contract`; F features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isoattn.core.ops.decay import decay_attention
from isoattn.core.ops.masking import no_autocast, zero_masked
from isoattn.core.ops.random_fourier import RandomFourierKernel, signed_inverse


def gated_random_fourier(
    q_BHND: Tensor,
    k_BGND: Tensor,
    v_BGNE: Tensor,
    log_decay_BGN: Tensor | None,
    state: tuple[Tensor, Tensor] | None,
    *,
    key_mask: Tensor | None,
    sigma_H1D: Tensor,
    projection_HRD: Tensor,
    kernel: RandomFourierKernel,
    chunk: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs (B, H, N, E), S with z as its last column (B, H, F, E + 1), weight n (B, H, 1, 1).

    n_t = g_t n_(t-1) + 1 - g_t is the largest size that phi(q_t) z_t / R can have; the denominator
    keeps its sign and at least ``kernel.eps`` of that size.
    """
    sums, weight = (None, None) if state is None else state
    tensors = (q_BHND, k_BGND, v_BGNE, log_decay_BGN, sums, weight, sigma_H1D)
    fixed = (key_mask, projection_HRD, kernel, chunk)
    if torch.compiler.is_compiling():
        return _form(*tensors, *fixed)
    function: Any = _Recomputed
    out, sums, weight = function.apply(*tensors, *fixed)
    return out, sums, weight


def _form(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    sums: Tensor | None,
    weight: Tensor | None,
    sigma: Tensor,
    key_mask: Tensor | None,
    projection: Tensor,
    kernel: RandomFourierKernel,
    chunk: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.promote_types(v.dtype, torch.float32)
    repeats = q.shape[1] // k.shape[1]
    phi_k, _ = kernel.keys(zero_masked(k, key_mask).to(dtype), (sigma, projection))
    phi_q = kernel.queries(q.to(dtype), (sigma, projection))
    v = v.to(dtype).repeat_interleave(repeats, 1)
    v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    ones = torch.ones_like(v[..., :1])
    enters = ones
    if log_decay is not None:
        if key_mask is not None:
            log_decay = log_decay.masked_fill(~key_mask[:, None, :], 0.0)
        log_decay = log_decay.repeat_interleave(repeats, 1)
        enters = -torch.expm1(log_decay).unsqueeze(-1)
    phi_k = phi_k * enters
    out, sums = decay_attention(phi_q, phi_k, v, log_decay, sums, key_mask=key_mask, chunk=chunk)
    largest, weight = decay_attention(
        ones, enters, ones, log_decay, weight, key_mask=key_mask, chunk=chunk
    )
    least = kernel.eps * kernel.features * largest
    return out[..., :-1] * signed_inverse(out[..., -1:], least), sums, weight


class _Recomputed(torch.autograd.Function):
    """Keeps the inputs; features and products come again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(*inputs[:9])
        ctx.options = inputs[9:]
        return _form(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        again = torch.is_grad_enabled()
        tensors = ctx.saved_tensors
        needed = ctx.needs_input_grad[:7]
        with torch.enable_grad(), no_autocast(grads[0].device.type):
            leaves: Any = [_leaf(x, again) for x in tensors[:7]]
            used = [x for x, wanted in zip(leaves, needed, strict=True) if wanted]
            outputs = _form(*leaves, *tensors[7:], *ctx.options)
            # without a gate the weights depend on nothing
            pairs = [(y, g) for y, g in zip(outputs, grads, strict=True) if y.requires_grad]
            ys, gs = zip(*pairs, strict=True)
            found = iter(torch.autograd.grad(ys, used, gs, create_graph=again, allow_unused=True))
        return (*(next(found) if wanted else None for wanted in needed), None, None, None, None)


def _leaf(x: Tensor | None, again: bool) -> Tensor | None:
    if x is None:
        return None
    return x.view_as(x) if again else x.detach().requires_grad_()
