"""Attention by a feature map: o_i = phi(q_i) S / phi(q_i) z, whatever phi is.

S = sum_j w_j phi(k_j) v_j^T and z = sum_j w_j phi(k_j) run over the visible keys, in float32 at
least. The weights w_j of keys are given as logarithms and only ever used relative to a maximum m
over the keys seen so far, which cancels: no exponent is above 0, and the causal form looks at no
later key. A map says how it looks (:class:`FeatureKernel`); here is what all maps share: sums over
blocks of tokens, the causal form in chunks from a state, and a backward pass that computes the
features again, so that they never exist for the whole sequence.

Shape suffixes: as in :mod:`isoattn.core.contract`; F features, R = H / G query heads for each key
head.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from isoattn.core.ops.blocks import NUMBERS, empty_heads
from isoattn.core.ops.feature_kernel import (
    FeatureKernel,
    Sums,
    absorb,
    as_leaves,
    gradients,
    mapped_keys,
    mask_of,
    rows_of,
    sum_of,
    summed,
    token_pieces,
)
from isoattn.core.ops.kernel_chunks import causal_attention
from isoattn.core.ops.masking import no_autocast


def kernel_attention(
    kernel: FeatureKernel,
    q_BHND: Tensor,
    k_BGMD: Tensor,
    v_BGME: Tensor,
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
    chunk: int = 64,
    parameters: tuple[Tensor, ...] = (),
) -> Tensor:
    """Attention of one call.

    Args:
        kernel: the map.
        q_BHND: queries, not yet mapped.
        k_BGMD: keys; G divides H.
        v_BGME: values.
        key_mask: bool (B, M), True = keep.
        causal: query i sees the keys j <= i.
        chunk: C, tokens that see each other by a matrix in the causal form.
        parameters: of the map.

    Returns:
        (B, H, N, E) in the dtype of v.
    """
    if causal:
        inputs = (q_BHND, k_BGMD, v_BGME, key_mask)
        return causal_attention(kernel, chunk, inputs, None, parameters)[0]
    if torch.compiler.is_compiling():  # the compiler fuses plain operators better than blocks
        return _plain(kernel, q_BHND, k_BGMD, v_BGME, key_mask, parameters)
    function: Any = _Pooled
    out: Tensor = function.apply(kernel, q_BHND, k_BGMD, v_BGME, key_mask, *parameters)
    return out


def kernel_extension(
    kernel: FeatureKernel,
    q_BHND: Tensor,
    k_BGND: Tensor,
    v_BGNE: Tensor,
    state: dict[str, Tensor] | None,
    *,
    key_mask: Tensor | None = None,
    chunk: int = 64,
    parameters: tuple[Tensor, ...] = (),
) -> tuple[Tensor, dict[str, Tensor]]:
    """The causal form from a state ``{"S", "z"}`` (and ``"m"``), and the state after the tokens.

    A single token goes by S + w phi(k) v^T itself.
    """
    sums = None if state is None else Sums(state["S"], state["z"], state.get("m"))
    if q_BHND.shape[2] == 1:
        sums = absorb(kernel, k_BGND, v_BGNE, key_mask, parameters, sums)
        out = rows_of(kernel, q_BHND, sums, parameters, v_BGNE.dtype)
    else:
        inputs = (q_BHND, k_BGND, v_BGNE, key_mask)
        out, sums = causal_attention(kernel, chunk, inputs, sums, parameters)
    return out, {n: x for n, x in sums._asdict().items() if x is not None}


def _plain(
    kernel: FeatureKernel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    parameters: tuple[Tensor, ...],
) -> Tensor:
    sums = absorb(kernel, k, v, key_mask, parameters, None)
    return rows_of(kernel, q, sums, parameters, v.dtype)


def _blocks(kernel: FeatureKernel, q_BHND: Tensor, tokens: int) -> Iterator[slice]:
    """Blocks of tokens whose features stay in the cache of a core; at least one, maybe empty."""
    batch, heads, _, dim = q_BHND.shape
    numbers = NUMBERS * torch.get_num_threads() if q_BHND.device.type == "cpu" else 2**26
    size = max(64, numbers // max(1, batch * heads * kernel.width(dim)))
    return token_pieces(tokens, size)


class _Pooled(torch.autograd.Function):
    """The bidirectional form in blocks. Keeps q, k, v and the sums; features are recomputed."""

    @staticmethod
    def forward(
        ctx: Any,
        kernel: FeatureKernel,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        *parameters: Tensor,
    ) -> Tensor:
        sums = None
        for n in _blocks(kernel, q, k.shape[2]):
            part = (k[:, :, n], v[:, :, n], mask_of(key_mask, n))
            sums = absorb(kernel, *part, parameters, sums)
        assert sums is not None
        out = empty_heads(q.shape[0], q.shape[1], q.shape[2], v.shape[3], v)
        for n in _blocks(kernel, q, q.shape[2]):
            out[:, :, n] = rows_of(kernel, q[:, :, n], sums, parameters, v.dtype)
        ctx.kernel = kernel
        ctx.save_for_backward(q, k, v, key_mask, *sums, *parameters)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        kernel: FeatureKernel = ctx.kernel
        q, k, v, key_mask, *sums, m = ctx.saved_tensors[:7]
        parameters = ctx.saved_tensors[7:]
        need = ctx.needs_input_grad
        with no_autocast(grad.device.type):
            if torch.is_grad_enabled():
                out = _plain(kernel, q, k, v, key_mask, parameters)
                dq, dk, dv, *dp = gradients(
                    [out], (q, k, v, *parameters), [grad], need[1:4] + need[5:]
                )
                return (None, dq, dk, dv, None, *dp)
            dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
            dsums: list[Any] = [torch.zeros_like(x) for x in sums]
            dp = [None] * len(parameters)
            for n in _blocks(kernel, q, q.shape[2]):
                leaves = as_leaves(q[:, :, n], *sums, *parameters)
                with torch.enable_grad():
                    out = rows_of(
                        kernel, leaves[0], Sums(leaves[1], leaves[2], m), leaves[3:], v.dtype
                    )
                found = gradients([out], leaves, [grad[:, :, n]], (True, True, True, *need[5:]))
                dq[:, :, n] = found[0]
                dsums = sum_of(dsums, found[1:3])
                dp = sum_of(dp, found[3:])
            for n in _blocks(kernel, q, k.shape[2]):
                leaves = as_leaves(k[:, :, n], v[:, :, n], *parameters)
                with torch.enable_grad():
                    mapped = mapped_keys(
                        kernel, leaves[0], leaves[1], mask_of(key_mask, n), leaves[2:]
                    )
                    part = summed(*mapped, m)
                found = gradients(part, leaves, dsums, (True, True, *need[5:]))
                dk[:, :, n], dv[:, :, n] = found[:2]
                dp = sum_of(dp, found[2:])
        return (None, dq, dk, dv, None, *dp)
