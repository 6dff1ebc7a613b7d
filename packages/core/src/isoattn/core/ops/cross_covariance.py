"""Cross-covariance attention (El-Nouby et al. 2021, eq. 2): channels attend to channels.

A_ab = softmax over b of tau C_ab, C_ab = sum_n q_na k_nb / (|q_a| |k_b|), the norms over tokens,
and o_na = sum_b A_ab v_nb. The norms are divided out of the D x D product instead of out of q and
k, which saves a pass over both; products and norms are float32 at least, because a float16 sum
over 16,384 tokens overflows and float16 cannot hold the epsilon.

Shape suffixes: as in :mod:`isoattn.core.contract`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isoattn.core.ops.blocks import (
    accumulation_dtype,
    batch_blocks,
    block,
    empty_heads,
    hidden,
    token_blocks,
    write,
)
from isoattn.core.ops.masking import no_autocast, zero_masked

EPS = 1e-12
"""A channel whose norm is not above it has cosine 0 with every other, and no gradient."""


def cross_covariance_attention(
    q_BHND: Tensor,
    k_BHND: Tensor,
    v_BHND: Tensor,
    temperature_H11: Tensor,
    *,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Cross-covariance attention: blocks with a written backward, or plain operators.

    Args:
        q_BHND: queries.
        k_BHND: keys.
        v_BHND: values.
        temperature_H11: tau of each head.
        key_mask: bool (B, N), True = keep; masked tokens count in no norm and get 0.

    Returns:
        (B, H, N, D) in the dtype of v.
    """
    if torch.compiler.is_compiling():  # the compiler fuses plain operators better than blocks
        return plain(q_BHND, k_BHND, v_BHND, temperature_H11, key_mask)
    out: Tensor = _Blocked.apply(q_BHND, k_BHND, v_BHND, temperature_H11, key_mask)
    return out


def channel_weights(
    q_BHND: Tensor, k_BHND: Tensor, temperature_H11: Tensor, key_mask: Tensor | None = None
) -> Tensor:
    """The matrix A (B, H, D, D), rows summing to 1, in the accumulation dtype."""
    accumulate = accumulation_dtype(q_BHND)
    q = zero_masked(q_BHND, key_mask).to(accumulate)
    k = zero_masked(k_BHND, key_mask).to(accumulate)
    inverse_q, inverse_k = _inverse_root(_squares(q)), _inverse_root(_squares(k))
    cosine = (q.transpose(-2, -1) @ k) * inverse_q.unsqueeze(-1) * inverse_k.unsqueeze(-2)
    return (cosine * temperature_H11.to(accumulate)).softmax(-1)


def plain(
    q_BHND: Tensor,
    k_BHND: Tensor,
    v_BHND: Tensor,
    temperature_H11: Tensor,
    key_mask: Tensor | None,
) -> Tensor:
    """The same in differentiable operators."""
    weights = channel_weights(q_BHND, k_BHND, temperature_H11, key_mask)
    v = zero_masked(v_BHND, key_mask).to(weights.dtype)
    return (v @ weights.transpose(-2, -1)).to(v_BHND.dtype)


def _squares(x_BHND: Tensor) -> Tensor:
    return x_BHND.square().sum(-2)


def _inverse_root(square: Tensor) -> Tensor:
    """1 / sqrt(square), 0 with zero gradient where the norm is not above EPS."""
    positive = square > EPS**2
    return torch.where(positive, torch.where(positive, square, 1.0).rsqrt(), 0.0)


class _Blocked(torch.autograd.Function):
    """The same in cache-sized blocks. Keeps q, k, v and D x D matrices."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, temperature: Tensor, key_mask: Tensor | None
    ) -> Tensor:
        accumulate = accumulation_dtype(v)
        batch, heads, tokens, dim = q.shape
        cosine = q.new_empty(batch, heads, dim, dim, dtype=accumulate)
        inverse = q.new_empty(2, batch, heads, dim, dtype=accumulate)
        for b in batch_blocks(q):
            product, squares = cosine[b].flatten(0, 1).zero_(), inverse[:, b].zero_()
            for n in token_blocks(q):
                x, y = (_block(t, b, n, accumulate, key_mask) for t in (q, k))
                torch.baddbmm(product, x.transpose(1, 2), y, out=product)
                for square, t in zip(squares, (x, y), strict=True):
                    square += (t * t).sum(1).view(square.shape)
        tiny = inverse <= EPS**2
        inverse = inverse.rsqrt_().masked_fill_(tiny, 0.0)
        inverse_q, inverse_k = inverse[0].unsqueeze(-1), inverse[1].unsqueeze(-2)
        cosine.mul_(inverse_q).mul_(inverse_k)
        weights = (cosine * temperature).softmax(-1)
        out = empty_heads(batch, heads, tokens, dim, v)
        for b in batch_blocks(q):
            mixing = weights[b].flatten(0, 1).transpose(1, 2)
            for n in token_blocks(q):
                write(out, b, n, _block(v, b, n, accumulate, key_mask) @ mixing)
        ctx.save_for_backward(q, k, v, temperature, key_mask, cosine, weights, inverse)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return _replay(ctx, grad)
        q, k, v, temperature, key_mask, cosine, weights, inverse = ctx.saved_tensors
        accumulate = cosine.dtype
        inverse_q, inverse_k = inverse[0].unsqueeze(-1), inverse[1].unsqueeze(-2)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        dweights = torch.empty_like(weights)
        with no_autocast(grad.device.type):
            for b in batch_blocks(q):
                product, mixing = dweights[b].flatten(0, 1).zero_(), weights[b].flatten(0, 1)
                for n in token_blocks(q):
                    g = _block(grad, b, n, accumulate, key_mask)
                    value = _block(v, b, n, accumulate, key_mask)
                    torch.baddbmm(product, g.transpose(1, 2), value, out=product)
                    write(dv, b, n, g @ mixing)
            dlogits = weights * (dweights - (weights * dweights).sum(-1, keepdim=True))
            dtemperature = (dlogits * cosine).sum((0, 2, 3)).view_as(temperature)
            dcosine = dlogits.mul_(temperature)
            # C depends on q_a through the product and through 1 / |q_a|; so for k_b.
            radial = dcosine * cosine
            radial_q = -(radial.sum(-1, keepdim=True) * inverse_q.square()).transpose(-2, -1)
            radial_k = -radial.sum(-2, keepdim=True) * inverse_k.square()
            dproduct = dcosine.mul_(inverse_q).mul_(inverse_k)
            for b in batch_blocks(q):
                d = dproduct[b].flatten(0, 1)
                rq, rk = radial_q[b].flatten(0, 1), radial_k[b].flatten(0, 1)
                for n in token_blocks(q):
                    x, y = (_block(t, b, n, accumulate, key_mask) for t in (q, k))
                    write(dq, b, n, (y @ d.transpose(1, 2)).addcmul_(x, rq))
                    write(dk, b, n, (x @ d).addcmul_(y, rk))
        return dq, dk, dv, dtemperature, None


def _block(
    x: Tensor, batch: slice, tokens: slice, accumulate: torch.dtype, key_mask: Tensor | None
) -> Tensor:
    """The piece (b * H, n, D) with masked tokens 0."""
    piece = block(x, batch, tokens, accumulate)
    if key_mask is None:
        return piece
    return piece.masked_fill(hidden(key_mask, batch, tokens, x.shape[1]), 0.0)


def _replay(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients through the plain form, themselves differentiable."""
    q, k, v, temperature, key_mask = ctx.saved_tensors[:5]
    needed = ctx.needs_input_grad[:4]
    with no_autocast(grad.device.type):
        out = plain(q, k, v, temperature, key_mask)
        inputs = zip((q, k, v, temperature), needed, strict=True)
        used = [x for x, wanted in inputs if wanted]
        grads = iter(torch.autograd.grad(out, used, grad, create_graph=True))
    return (*(next(grads) if wanted else None for wanted in needed), None)
