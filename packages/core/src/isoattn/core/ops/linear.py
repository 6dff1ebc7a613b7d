"""Linear attention o_i = phi(q_i) S / phi(q_i) z (Katharopoulos et al. 2020, eq. 5-6).

S = sum_j phi(k_j) v_j^T and z = sum_j phi(k_j) run over the visible keys. Everything is summed in
float32 at least: in float16 phi(q) z overflows from about 2,000 tokens on.

Shape suffixes: as in :mod:`isoattn.core.contract`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isoattn.core.features import FEATURES, Feature, FeatureMap, key_shift
from isoattn.core.ops.blocks import (
    accumulation_dtype,
    batch_blocks,
    block,
    empty_heads,
    hidden,
    token_blocks,
    write,
)
from isoattn.core.ops.feature_kernel import FeatureKernel, guarded_inverse
from isoattn.core.ops.kernelised import kernel_attention, kernel_extension
from isoattn.core.ops.masking import no_autocast, zero_masked


@dataclass(frozen=True)
class Elementwise(FeatureKernel):
    """An elementwise map for the causal form; ``eps`` is added to the denominator."""

    feature: Feature
    eps: float = 0.0

    def width(self, head_dim: int) -> int:
        """As many features as channels."""
        return head_dim

    def keys(self, k: Tensor, parameters: tuple[Tensor, ...]) -> tuple[Tensor, None]:
        """phi(k)."""
        return self.feature.keys(k, None), None

    def queries(self, q: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """phi(q)."""
        return self.feature.queries(q, None)

    def inverse(self, bottom: Tensor, size: Tensor | None) -> Tensor:
        """1 / (phi(q) z + eps), 0 for a row without weight."""
        return guarded_inverse(bottom + self.eps if self.eps else bottom)


def linear_attention(
    q_BHND: Tensor,
    k_BGMD: Tensor,
    v_BGME: Tensor,
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
    feature_map: FeatureMap = "elu1",
    eps: float = 0.0,
    chunk: int = 64,
) -> Tensor:
    """Linear attention, choosing the form: blocks with a written backward, or plain operators.

    Args:
        q_BHND: queries, not yet mapped.
        k_BGMD: keys; G divides H.
        v_BGME: values.
        key_mask: bool (B, M), True = keep.
        causal: query i sees the keys j <= i.
        feature_map: phi.
        eps: added to the denominator; with 0 a row without weight is 0.
        chunk: tokens of the causal form that see each other by a matrix.

    Returns:
        (B, H, N, E) in the dtype of v.
    """
    feature = FEATURES[feature_map]
    if causal:
        kernel = Elementwise(feature, eps)
        return kernel_attention(
            kernel, q_BHND, k_BGMD, v_BGME, key_mask=key_mask, causal=True, chunk=chunk
        )
    shift = key_shift(k_BGMD, key_mask) if feature.shifted else None
    if torch.compiler.is_compiling():  # the compiler fuses plain operators better than blocks
        return plain(q_BHND, k_BGMD, v_BGME, shift, key_mask, feature, eps)
    function: Any = _Blocked
    out: Tensor = function.apply(q_BHND, k_BGMD, v_BGME, shift, key_mask, feature, eps)
    return out


def linear_extension(
    q_BHND: Tensor,
    k_BGND: Tensor,
    v_BGNE: Tensor,
    state: dict[str, Tensor] | None,
    *,
    key_mask: Tensor | None = None,
    feature_map: FeatureMap = "elu1",
    eps: float = 0.0,
    chunk: int = 64,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The causal form from a state S (B, G, D, E), z (B, G, D), and the state after the tokens."""
    kernel = Elementwise(FEATURES[feature_map], eps)
    return kernel_extension(kernel, q_BHND, k_BGND, v_BGNE, state, key_mask=key_mask, chunk=chunk)


def key_value_state(
    k_BGMD: Tensor, v_BGME: Tensor, *, key_mask: Tensor | None = None, feature_map: FeatureMap
) -> tuple[Tensor, Tensor]:
    """S (B, G, D, E) and z (B, G, D) of an elementwise map, in the accumulation dtype."""
    phi_k, v = _mapped_keys(k_BGMD, v_BGME, None, key_mask, FEATURES[feature_map])
    return phi_k.transpose(-2, -1) @ v, phi_k.sum(-2)


def _mapped_keys(
    k: Tensor, v: Tensor, shift: Tensor | None, key_mask: Tensor | None, feature: Feature
) -> tuple[Tensor, Tensor]:
    """phi(k) and v with masked tokens 0. After the map: phi(0) is not 0."""
    accumulate = accumulation_dtype(v)
    # Before the map too: the derivative of a map at NaN is NaN, and 0 times it as well.
    k = zero_masked(k, key_mask).to(accumulate)
    return zero_masked(feature.keys(k, shift), key_mask), zero_masked(v, key_mask).to(accumulate)


def plain(
    q_BHND: Tensor,
    k_BGMD: Tensor,
    v_BGME: Tensor,
    shift: Tensor | None,
    key_mask: Tensor | None,
    feature: Feature,
    eps: float,
) -> Tensor:
    """The bidirectional form in differentiable operators."""
    (batch, heads, queries, dim), groups = q_BHND.shape, k_BGMD.shape[1]
    phi_k, v = _mapped_keys(k_BGMD, v_BGME, shift, key_mask, feature)
    state_BGDE = phi_k.transpose(-2, -1) @ v
    total_BGD1 = phi_k.sum(-2).unsqueeze(-1)
    q = q_BHND.to(phi_k.dtype).reshape(batch, groups, -1, dim)
    phi_q = feature.queries(q, shift)
    out = (phi_q @ state_BGDE) * guarded_inverse(phi_q @ total_BGD1 + eps)
    return out.reshape(batch, heads, queries, -1).to(v_BGME.dtype)


def _replay(form: Any, ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients through the plain form; differentiable again where the caller asked for it."""
    again = torch.is_grad_enabled()
    inputs = ctx.saved_tensors[:5]
    with torch.enable_grad(), no_autocast(grad.device.type):
        leaves = inputs[:3] if again else [x.detach().requires_grad_() for x in inputs[:3]]
        used = [x for x, needed in zip(leaves, ctx.needs_input_grad, strict=False) if needed]
        out = form(*leaves, *inputs[3:], *ctx.options)
        grads = iter(torch.autograd.grad(out, used, grad, create_graph=again))
    wanted = ctx.needs_input_grad[:3]
    return (*(next(grads) if needed else None for needed in wanted), None, None, None, None)


class _Blocked(torch.autograd.Function):
    """The bidirectional form in cache-sized blocks. Keeps q, k, v, S and z; phi is recomputed."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        shift: Tensor | None,
        key_mask: Tensor | None,
        feature: Feature,
        eps: float,
    ) -> Tensor:
        accumulate = accumulation_dtype(v)
        (batch, heads, queries, dim), (groups, width) = q.shape, (v.shape[1], v.shape[3])
        state = q.new_zeros(batch, groups, dim, width, dtype=accumulate)
        total = q.new_zeros(batch, groups, 1, dim, dtype=accumulate)
        out = empty_heads(batch, heads, queries, width, v)
        for b in batch_blocks(k):
            s, z = state[b].flatten(0, 1), total[b].flatten(0, 1)
            for n in token_blocks(k):
                phi, value = _key_block(k, v, shift, key_mask, feature, b, n)
                torch.baddbmm(s, phi.transpose(1, 2), value, out=s)
                z += phi.sum(1, keepdim=True)
            for n in token_blocks(q):
                phi = _query_block(q, heads // groups, shift, feature, b, n, accumulate)
                inverse = _invert(phi @ z.transpose(1, 2), eps)
                write(out, b, n, (phi @ s).mul_(inverse))
        ctx.save_for_backward(q, k, v, shift, key_mask, state, total)
        ctx.options = (feature, eps)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return _replay(plain, ctx, grad)
        q, k, v, shift, key_mask, state, total = ctx.saved_tensors
        feature, eps = ctx.options
        repeats = q.shape[1] // k.shape[1]
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        with no_autocast(grad.device.type):
            for b in batch_blocks(k):
                s, z = state[b].flatten(0, 1), total[b].flatten(0, 1)
                ds, dz = torch.zeros_like(s), torch.zeros_like(z.transpose(1, 2))
                for n in token_blocks(q):
                    phi = _query_block(q, repeats, shift, feature, b, n, s.dtype)
                    inverse = _invert(phi @ z.transpose(1, 2), eps)
                    dtop = _shared(block(grad, b, n, s.dtype), repeats) * inverse
                    dphi = dtop @ s.transpose(1, 2)
                    # dtop.top = dphi.phi, so the output itself is not needed
                    dbottom = (dphi * phi).sum(-1, keepdim=True).mul_(inverse).neg_()
                    torch.baddbmm(ds, phi.transpose(1, 2), dtop, out=ds)
                    torch.baddbmm(dz, phi.transpose(1, 2), dbottom, out=dz)
                    write(dq, b, n, dphi.addcmul_(dbottom, z).mul_(feature.slope(phi)))
                for n in token_blocks(k):
                    # a masked phi is 0 and so is its slope: pads get no gradient
                    phi, value = _key_block(k, v, shift, key_mask, feature, b, n)
                    write(dv, b, n, phi @ ds)
                    dphi = torch.baddbmm(dz.transpose(1, 2), value, ds.transpose(1, 2))
                    write(dk, b, n, dphi.mul_(feature.slope(phi)))
        return dq, dk, dv, None, None, None, None


def _invert(x: Tensor, eps: float) -> Tensor:
    """As :func:`guarded_inverse` of x + eps, in place, for use outside autograd."""
    x = x.add_(eps) if eps else x
    empty = x <= 0
    return x.reciprocal_().masked_fill_(empty, 0.0)


def _key_block(
    k: Tensor,
    v: Tensor,
    shift: Tensor | None,
    key_mask: Tensor | None,
    feature: Feature,
    batch: slice,
    tokens: slice,
) -> tuple[Tensor, Tensor]:
    accumulate = accumulation_dtype(v)
    moved = None if shift is None else shift[batch].flatten(0, 1)
    phi = feature.keys(block(k, batch, tokens, accumulate), moved)
    value = block(v, batch, tokens, accumulate)
    if key_mask is None:
        return phi, value
    mask = hidden(key_mask, batch, tokens, k.shape[1])
    return phi.masked_fill_(mask, 0.0), value.masked_fill(mask, 0.0)


def _query_block(
    q: Tensor,
    repeats: int,
    shift: Tensor | None,
    feature: Feature,
    batch: slice,
    tokens: slice,
    accumulate: torch.dtype,
) -> Tensor:
    """phi(q) of the piece as (b * G, R * n, D): queries that share a key head in one matrix."""
    moved = None if shift is None else shift[batch].flatten(0, 1)
    return feature.queries(_shared(block(q, batch, tokens, accumulate), repeats), moved)


def _shared(x: Tensor, repeats: int) -> Tensor:
    """(b * H, n, D) as (b * G, R * n, D), R = H / G."""
    return x if repeats == 1 else x.reshape(x.shape[0] // repeats, -1, x.shape[2])
