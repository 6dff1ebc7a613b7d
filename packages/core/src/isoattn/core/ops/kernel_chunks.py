"""The causal form of attention by a feature map: chunks of tokens, from a state.

See :mod:`isoattn.core.ops.kernelised`.

Shape suffixes: as in :mod:`isoattn.core.contract`; F features, R = H / G query heads for each key
head, T chunks of C tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.ops.blocks import empty_heads
from isoattn.core.ops.feature_kernel import (
    FeatureKernel,
    Sums,
    as_leaves,
    finite,
    gradients,
    mapped_keys,
    mask_of,
    norm,
    sum_of,
    token_pieces,
)
from isoattn.core.ops.masking import no_autocast

BLOCK = 1024
"""Tokens of one block of the causal form, in whole chunks; between blocks only states are kept."""


def whole_chunk(chunk: int) -> int:
    """The chunk of a constructor, checked.

    Raises:
        ValueError: no whole number of at least 1.
    """
    if not isinstance(chunk, int) or chunk < 1:
        raise ValueError(f"chunk must be a whole number of tokens, at least 1; got {chunk!r}")
    return chunk


def block_tokens(chunk: int) -> int:
    """Tokens of one block of the causal form: about :data:`BLOCK`, in whole chunks."""
    return chunk * max(1, BLOCK // chunk)


def causal_attention(
    kernel: FeatureKernel,
    chunk: int,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor | None],
    sums: Sums | None,
    parameters: tuple[Tensor, ...],
) -> tuple[Tensor, Sums]:
    """Outputs for q, k, v and a key mask, and the sums after the last token."""
    chunk = max(1, min(chunk, inputs[0].shape[2]))
    if torch.compiler.is_compiling():
        return _chunked(kernel, chunk, *inputs, sums, parameters)
    function: Any = _Scanned
    given = (None, None, None) if sums is None else sums
    out, *after = function.apply(kernel, chunk, *inputs, *given, *parameters)
    return out, Sums(*after)


def _chunked(
    kernel: FeatureKernel,
    chunk: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    sums: Sums | None,
    parameters: tuple[Tensor, ...],
) -> tuple[Tensor, Sums]:
    """The causal form: inside a chunk by its matrix, from earlier chunks by their sums."""
    batch, heads, queries, _ = q.shape
    dtype = v.dtype
    # Keys after the last query are seen by none; missing and padded keys have phi(k) = 0.
    k, v, key_mask = k[:, :, :queries], v[:, :, :queries], mask_of(key_mask, slice(queries))
    phi_k, v, weight = mapped_keys(kernel, k, v, key_mask, parameters)
    groups = phi_k.shape[1]
    phi_q = kernel.queries(q.to(phi_k.dtype), parameters)
    phi_q = phi_q.reshape(batch, groups, heads // groups, queries, phi_q.shape[-1])
    phi_q = _in_chunks(phi_q, queries, chunk)
    phi_k, v = (_in_chunks(x.unsqueeze(2), queries, chunk) for x in (phi_k, v))
    if weight is not None:
        chunks = phi_k.shape[3]
        weight = F.pad(weight, (0, chunks * chunk - weight.shape[2]), value=-torch.inf)
        weight = weight.reshape(batch, groups, 1, chunks, chunk)
    if sums is None:
        sums = _nothing(phi_k, v, weight)

    match = phi_q @ phi_k.transpose(-2, -1)
    if weight is None:
        weights, fade = match.tril(), None
        partial = phi_k.cumsum(-2) if kernel.bounded else None
        S, z = (_running(x, new) for x, new in zip(sums[:2], _products(phi_k, v), strict=True))
        after = Sums(S[:, :, 0, -1].clone(), z[:, :, 0, -1, :, 0].clone())
    else:
        level, end = _levels(weight, sums.m)
        decay = _below(weight.unsqueeze(-2) - finite(level).unsqueeze(-1)).exp()
        weights, fade = match * decay, (end[..., :-1, None] - finite(level)).exp().unsqueeze(-1)
        partial = decay @ phi_k if kernel.bounded else None
        phi_k = phi_k * (weight - finite(end)[..., 1:, None]).exp().unsqueeze(-1)
        # from the end of one chunk to that of another
        pass_on = _below(end.unsqueeze(-2) - finite(end).unsqueeze(-1)).exp()
        S, z = (_passed(pass_on, x, y) for x, y in zip(sums[:2], _products(phi_k, v), strict=True))
        after = Sums(S[:, :, 0, -1].clone(), z[:, :, 0, -1, :, 0].clone(), end[:, :, 0, -1])
    S, z = S[:, :, :, :-1], z[:, :, :, :-1]
    top, bottom = phi_q @ S, phi_q @ z
    rest = z.transpose(-2, -1)
    if fade is not None:
        top, bottom, rest = top * fade, bottom * fade, rest * fade
    size = None if partial is None else norm(partial + rest).unsqueeze(-1)
    top = weights @ v + top
    bottom = weights.sum(-1, keepdim=True) + bottom
    out = top * kernel.inverse(bottom, size)
    out = out.flatten(3, 4)[:, :, :, :queries].reshape(batch, heads, queries, v.shape[-1])
    return out.to(dtype), after


def _in_chunks(x_BGRND: Tensor, tokens: int, chunk: int) -> Tensor:
    """(B, G, R, T, C, D), filled with zeros to whole chunks."""
    chunks = -(-tokens // chunk)
    x_BGRND = F.pad(x_BGRND, (0, 0, 0, chunks * chunk - x_BGRND.shape[3]))
    return x_BGRND.reshape(*x_BGRND.shape[:3], chunks, chunk, x_BGRND.shape[4])


def _nothing(phi_k: Tensor, v: Tensor, weight: Tensor | None) -> Sums:
    """The sums before the first token."""
    batch, groups, _, _, _, features = phi_k.shape
    S = phi_k.new_zeros(batch, groups, features, v.shape[-1])
    m = None if weight is None else phi_k.new_full((batch, groups), -torch.inf)
    return Sums(S, S[..., 0], m)


def _products(phi: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of each chunk alone: (B, G, 1, T, F, E) and (B, G, 1, T, F, 1)."""
    return phi.transpose(-2, -1) @ v, phi.sum(-2).unsqueeze(-1)


def _joined(first: Tensor, rest: Tensor) -> Tensor:
    """What was there before the chunks, and what each of them adds."""
    return torch.cat([first.reshape(*first.shape[:2], 1, 1, *rest.shape[4:]), rest], 3)


def _running(first: Tensor, rest: Tensor) -> Tensor:
    """Sums before each chunk, and after the last: T + 1."""
    return _joined(first, rest).cumsum(3)


def _passed(pass_on: Tensor, first: Tensor, rest: Tensor) -> Tensor:
    """The same, each rescaled to the maximum at its own place."""
    x = _joined(first, rest)
    return (pass_on @ x.flatten(4)).reshape(x.shape)


def _levels(weight: Tensor, m: Tensor | None) -> tuple[Tensor, Tensor]:
    """Running maximum at every token (B, G, 1, T, C); before each chunk and after all."""
    assert m is not None
    flat = weight.detach().flatten(3)
    level = torch.maximum(flat.cummax(-1).values, m[:, :, None, None]).reshape(weight.shape)
    return level, torch.cat([m[:, :, None, None], level[..., -1]], -1)


def _below(x: Tensor) -> Tensor:
    """Exponents on and below the diagonal, -inf above: the exponent is masked, not its value."""
    upper = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    return x.masked_fill(upper, -torch.inf)


class _Scanned(torch.autograd.Function):
    """The causal form, block after block. Keeps q, k, v and the sums before each block."""

    @staticmethod
    def forward(
        ctx: Any,
        kernel: FeatureKernel,
        chunk: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        S: Tensor | None,
        z: Tensor | None,
        m: Tensor | None,
        *parameters: Tensor,
    ) -> tuple[Tensor | None, ...]:
        sums = None if S is None or z is None else Sums(S, z, m)
        out = empty_heads(q.shape[0], q.shape[1], q.shape[2], v.shape[3], v)
        between: list[Tensor | None] = []
        for n in token_pieces(q.shape[2], block_tokens(chunk)):
            if n.start:
                between += sums or ()
            part = (q[:, :, n], k[:, :, n], v[:, :, n], mask_of(key_mask, n))
            out[:, :, n], sums = _chunked(kernel, chunk, *part, sums, parameters)
        assert sums is not None
        ctx.options = kernel, chunk, len(parameters)
        ctx.save_for_backward(q, k, v, key_mask, S, z, m, *parameters, *between)
        if sums.m is not None:
            ctx.mark_non_differentiable(sums.m)
        return out, *sums

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor, dS: Tensor, dz: Tensor, _: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        kernel, chunk, count = ctx.options
        q, k, v, key_mask, S, z, m = ctx.saved_tensors[:7]
        parameters = ctx.saved_tensors[7 : 7 + count]
        need = ctx.needs_input_grad
        with no_autocast(grad.device.type):
            if torch.is_grad_enabled():
                sums = None if S is None else Sums(S, z, m)
                inputs = (q, k, v, key_mask)
                out, after = _chunked(kernel, chunk, *inputs, sums, parameters)
                found = gradients(
                    [out, after.S, after.z],
                    (q, k, v, S, z, *parameters),
                    [grad, dS, dz],
                    (*need[2:5], *need[6:8], *need[9:]),
                )
                dq, dk, dv, dS0, dz0, *dp = found
                return (None, None, dq, dk, dv, None, dS0, dz0, None, *dp)
            dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
            dp = [None] * count
            dsums: list[Any] = [dS, dz]
            begun = S is not None
            if not begun:
                S, z = torch.zeros_like(dS), torch.zeros_like(dz)
                m = torch.full_like(dz[..., 0], -torch.inf) if kernel.weighted else None
            before = [(S, z, m), *_triples(ctx.saved_tensors[7 + count :])]
            pieces = list(token_pieces(q.shape[2], block_tokens(chunk)))
            for n, state in zip(reversed(pieces), reversed(before), strict=True):
                leaves = as_leaves(q[:, :, n], k[:, :, n], v[:, :, n], *state[:2], *parameters)
                with torch.enable_grad():
                    part = (leaves[0], leaves[1], leaves[2], mask_of(key_mask, n))
                    sums = Sums(leaves[3], leaves[4], state[2])
                    out, after = _chunked(kernel, chunk, *part, sums, leaves[5:])
                found = gradients(
                    [out, after.S, after.z],
                    leaves,
                    [grad[:, :, n], *dsums],
                    (True, True, True, True, True, *need[9:]),
                )
                dq[:, :, n], dk[:, :, n], dv[:, :, n] = found[:3]
                dsums, dp = found[3:5], sum_of(dp, found[5:])
            if not begun:
                dsums = [None, None]
        return (None, None, dq, dk, dv, None, *dsums, None, *dp)


def _triples(x: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    return [tuple(x[i : i + 3]) for i in range(0, len(x), 3)]
