"""The causal form of attention with positive features: query i sees the keys j <= i.

What earlier tokens left is S = sum phi(k) v^T, z = sum phi(k) against the largest exponent m of
each feature so far; when m grows, S and z shrink by the difference. Inside a block of tokens the
pairs j < i are cut into squares by halving: the right half of the block sees the left half, then
each half is cut again. A square has maxima of its own, over keys that all its queries see. So no
exponent is above 0, none depends on the future, and what is left of a denominator is at least 1.

Shape suffixes: as in :mod:`isoattn.core.contract`; T tokens of a block, a power of two, R features.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.ops.blocks import NUMBERS, accumulation_dtype
from isoattn.core.ops.masking import no_autocast, zero_masked
from isoattn.core.ops.positive_features import (
    FLOOR,
    Kernel,
    Kind,
    guarded_inverse,
    log_keys,
    log_queries,
)

BLOCK = 128
"""Tokens between two states, a power of two."""

Sums = tuple[Tensor, Tensor, Tensor]
"""S (B, H, R, E), z (B, H, R) and m (B, H, R)."""


def nothing_yet(q_BHND: Tensor, v_BGME: Tensor, features: int) -> Sums:
    """The sums before the first token."""
    batch, heads = q_BHND.shape[:2]
    zeros = q_BHND.new_zeros(batch, heads, features, dtype=accumulation_dtype(v_BGME))
    state = zeros.new_zeros(batch, heads, features, v_BGME.shape[3])
    return state, zeros, torch.full_like(zeros, FLOOR)


def favor_causal(
    q_BHND: Tensor,
    k_BGMD: Tensor,
    v_BGME: Tensor,
    projection_HPD: Tensor,
    kernel: Kernel,
    sums: Sums | None = None,
    *,
    key_mask: Tensor | None = None,
) -> tuple[Tensor, Sums]:
    """Causal attention with positive features from a state; see the module.

    Args:
        q_BHND: queries.
        k_BGMD: keys; G divides H. Later ones than the last query are not read.
        v_BGME: values.
        projection_HPD: rows w of each query head, not differentiated.
        kernel: of the features, without eps unless relu.
        sums: of earlier tokens.
        key_mask: bool (B, M), True = keep.

    Returns:
        (B, H, N, E) in the dtype of v, and the sums after the last token.
    """
    queries = q_BHND.shape[2]
    k, v = (x[:, :, :queries] for x in (k_BGMD, v_BGME))
    key_mask = None if key_mask is None else key_mask[:, :queries]
    given = (None, None, None) if sums is None else sums
    inputs = (q_BHND, k, v, projection_HPD, key_mask, *given)
    if torch.compiler.is_compiling():
        out, *after = _operator(*inputs, kernel.kind, kernel.scale, kernel.eps)
    else:
        function: Any = _Recomputed
        out, *after = function.apply(*inputs, kernel)
    return out, (after[0], after[1], after[2])


def one_block(
    q_BHTD: Tensor,
    k_BGTD: Tensor,
    v_BGTE: Tensor,
    key_mask_BT: Tensor | None,
    w_HRD: Tensor,
    sums: Sums,
    kernel: Kernel,
) -> tuple[Tensor, Sums]:
    """Outputs (B, H, T, E) in the accumulation dtype and the sums after a block."""
    state, total, m = sums
    tokens = q_BHTD.shape[2]
    room = 1 << max(0, tokens - 1).bit_length()
    q = F.pad(q_BHTD, (0, 0, 0, room - tokens)).to(state.dtype)
    repeats = q_BHTD.shape[1] // k_BGTD.shape[1]
    k, v, key_mask = _keys(k_BGTD, v_BGTE, key_mask_BT, repeats, room, state.dtype)
    hidden = None if key_mask is None else ~key_mask[:, None, :, None]
    log_q, log_k = log_queries(q, w_HRD, kernel), log_keys(k, w_HRD, kernel, key_mask)

    # earlier blocks
    log_i = log_q + m.unsqueeze(-2)
    best = log_i.detach().amax(-1, keepdim=True)
    phi = (log_i - best).exp()
    top, bottom = phi @ state, (phi * total.unsqueeze(-2)).sum(-1, keepdim=True)
    # the token itself
    log_i = log_q + log_k
    own = log_i.detach().amax(-1, keepdim=True)
    weight = (log_i - own).exp().sum(-1, keepdim=True)
    weight = weight if hidden is None else weight.masked_fill(hidden, 0.0)
    top, bottom, best = _joined((top, bottom, best), (weight * v, weight, own))
    # the squares
    half = room // 2
    while half:
        square = _square(log_q, log_k, v, hidden, half)
        top, bottom, best = _joined((top, bottom, best), square)
        half //= 2

    return (top * guarded_inverse(bottom))[:, :, :tokens], _added(log_k, v, hidden, sums)


def _keys(
    k: Tensor, v: Tensor, mask: Tensor | None, repeats: int, room: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys and values of every query head, masked ones 0, filled up with absent keys."""
    short = room - k.shape[2]
    k, v = (zero_masked(x, mask).to(dtype).repeat_interleave(repeats, 1) for x in (k, v))
    if not short:
        return k, v, mask
    if mask is None:
        mask = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device)
    k, v = (F.pad(x, (0, 0, 0, short)) for x in (k, v))
    return k, v, F.pad(mask, (0, short))


def advance(
    k_BGTD: Tensor,
    v_BGTE: Tensor,
    key_mask_BT: Tensor | None,
    w_HRD: Tensor,
    sums: Sums,
    kernel: Kernel,
) -> Sums:
    """The sums after a block of keys, without any query."""
    if not k_BGTD.shape[2]:
        return sums
    repeats = w_HRD.shape[0] // k_BGTD.shape[1]
    k, v, mask = _keys(k_BGTD, v_BGTE, key_mask_BT, repeats, k_BGTD.shape[2], sums[0].dtype)
    hidden = None if mask is None else ~mask[:, None, :, None]
    return _added(log_keys(k, w_HRD, kernel, mask), v, hidden, sums)


def _added(log_k: Tensor, v: Tensor, hidden: Tensor | None, sums: Sums) -> Sums:
    """The sums after a block of keys."""
    state, total, m = sums
    higher = torch.maximum(m, log_k.detach().amax(-2))
    shrink = (m - higher).exp()
    phi_k = (log_k - higher.unsqueeze(-2)).exp()
    phi_k = phi_k if hidden is None else phi_k.masked_fill(hidden, 0.0)
    state = state * shrink.unsqueeze(-1) + phi_k.transpose(-2, -1) @ v
    return state, total * shrink + phi_k.sum(-2), higher


Part = tuple[Tensor, Tensor, Tensor]
"""Numerator (B, H, T, E), denominator (B, H, T, 1), and the exponent both are against."""


def _joined(a: Part, b: Part) -> Part:
    best = torch.maximum(a[2], b[2])
    x, y = (a[2] - best).exp(), (b[2] - best).exp()
    return a[0] * x + b[0] * y, a[1] * x + b[1] * y, best


def _square(log_q: Tensor, log_k: Tensor, v: Tensor, hidden: Tensor | None, half: int) -> Part:
    """What right halves of runs of 2 * half tokens take from the left halves; else nothing."""
    log_q, log_k, v = (_halves(x, half) for x in (log_q, log_k, v))
    log_q, log_k, v = log_q[..., 1, :, :], log_k[..., 0, :, :], v[..., 0, :, :]
    highest = log_k.detach().amax(-2, keepdim=True)
    phi_k = (log_k - highest).exp()
    if hidden is not None:
        left = _halves(hidden, half)[..., 0, :, :]
        phi_k = phi_k.masked_fill(left, 0.0)
    log_q = log_q + highest
    best = log_q.detach().amax(-1, keepdim=True)
    weight = (log_q - best).exp() @ phi_k.transpose(-2, -1)
    top, bottom = weight @ v, weight.sum(-1, keepdim=True)
    return _right(top, 0.0), _right(bottom, 0.0), _right(best, 2 * FLOOR)


def _halves(x: Tensor, half: int) -> Tensor:
    """Axis -2 as (runs, 2, half)."""
    return x.reshape(*x.shape[:-2], -1, 2, half, x.shape[-1])


def _right(x: Tensor, left: float) -> Tensor:
    """The right halves, with a number in the left ones."""
    x = torch.stack([torch.full_like(x, left), x], -3)
    return x.flatten(-4, -2)


@dataclass(frozen=True)
class _Work:
    """Some samples of a call, block by block."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    w: Tensor
    kernel: Kernel

    def blocks(self) -> list[slice]:
        tokens = self.q.shape[2]
        return [slice(n, min(n + BLOCK, tokens)) for n in range(0, tokens, BLOCK)]

    def block(self, n: slice) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """q, k, v and the mask of a block of tokens."""
        mask = None if self.mask is None else self.mask[:, n]
        return self.q[:, :, n], self.k[:, :, n], self.v[:, :, n], mask


def _works(inputs: tuple[Any, ...], kernel: Kernel) -> Iterator[tuple[slice, _Work, Sums]]:
    """As many samples at once as fit, and what they begin with."""
    q, k, v, projection, mask, *given = inputs
    w = kernel.directions(projection, accumulation_dtype(v))
    width = q.shape[1] * min(BLOCK, max(1, q.shape[2])) * w.shape[1]
    many = max(1, 4 * NUMBERS // width)
    for start in range(0, q.shape[0], many):
        b = slice(start, min(start + many, q.shape[0]))
        work = _Work(q[b], k[b], v[b], None if mask is None else mask[b], w, kernel)
        if given[0] is None:
            yield b, work, nothing_yet(work.q, v, w.shape[1])
        else:
            yield b, work, (given[0][b], given[1][b], given[2][b])


def _forward(inputs: tuple[Any, ...], kernel: Kernel) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    outs, after = [], []
    for _, work, sums in _works(inputs, kernel):
        parts = [work.v.new_empty(*work.q.shape[:3], work.v.shape[3])[:, :, :0]]
        for n in work.blocks():
            out, sums = one_block(*work.block(n), work.w, sums, kernel)
            parts.append(out.to(work.v.dtype))
        outs.append(torch.cat(parts, 2))
        after.append(sums)
    if not outs:
        q, v = inputs[0], inputs[2]
        after.append(nothing_yet(q, v, kernel.features(inputs[3].shape[1])))
        outs.append(v.new_empty(*q.shape[:3], v.shape[3]))
    state, total, m = (torch.cat(x) for x in zip(*after, strict=True))
    return torch.cat(outs), state, total, m


def _backward(
    inputs: tuple[Any, ...], kernel: Kernel, grad: Tensor, dstate: Tensor, dtotal: Tensor
) -> list[Tensor | None]:
    """Gradients of q, k, v, S and z, from the last block to the first."""
    q, k, v, *_ = inputs
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    first = (torch.empty_like(dstate), torch.empty_like(dtotal))
    for b, work, sums in _works(inputs, kernel):
        before = [sums]
        for n in work.blocks()[:-1]:
            _, key, value, mask = work.block(n)
            before.append(advance(key, value, mask, work.w, before[-1], kernel))
        ds, dz = dstate[b], dtotal[b]
        for n in reversed(work.blocks()):
            *tensors, mask = work.block(n)
            old = before.pop()
            with torch.enable_grad():
                leaves = [x.detach().requires_grad_() for x in (*tensors, *old[:2])]
                out, new = one_block(
                    leaves[0],
                    leaves[1],
                    leaves[2],
                    mask,
                    work.w,
                    (leaves[3], leaves[4], old[2]),
                    kernel,
                )
                g = grad[b, :, n].to(out.dtype)
                found = torch.autograd.grad((out, *new[:2]), leaves, (g, ds, dz), allow_unused=True)
            for whole, x in zip((dq, dk, dv), found, strict=False):
                if x is not None:
                    whole[b, :, n.start : n.start + x.shape[2]] = x
            ds, dz = found[3], found[4]
        first[0][b], first[1][b] = ds, dz
    return [dq, dk, dv, *first]


class _Recomputed(torch.autograd.Function):
    """Keeps the inputs alone; the backward pass runs every block again."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ctx.save_for_backward(*inputs[:8])
        ctx.kernel = inputs[8]
        out = _forward(inputs[:8], ctx.kernel)
        ctx.mark_non_differentiable(out[3])
        return out

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor, dstate: Tensor, dtotal: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        inputs, needed = ctx.saved_tensors, ctx.needs_input_grad
        with no_autocast(grad.device.type):
            if torch.is_grad_enabled():
                found = _replay(inputs, ctx.kernel, (grad, dstate, dtotal), needed)
            else:
                found = _backward(inputs, ctx.kernel, grad, dstate, dtotal)
        dq, dk, dv, ds, dz = found
        given = inputs[5] is not None
        return dq, dk, dv, None, None, ds if given else None, dz if given else None, None, None


def _replay(
    inputs: tuple[Any, ...], kernel: Kernel, grads: tuple[Tensor, ...], needed: tuple[bool, ...]
) -> list[Tensor | None]:
    """Gradients that are differentiable again."""
    places = (0, 1, 2, 5, 6)
    used = [inputs[i] for i in places if needed[i]]
    with torch.enable_grad():
        outs = _forward(inputs, kernel)[:3]
        found = iter(torch.autograd.grad(outs, used, grads, create_graph=True, allow_unused=True))
    return [next(found) if needed[i] else None for i in places]


@torch.library.custom_op("isoattn::favor_causal", mutates_args=())
def _operator(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    projection: Tensor,
    mask: Tensor | None,
    state: Tensor | None,
    total: Tensor | None,
    m: Tensor | None,
    kind: str,
    scale: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For the compiler, which would unroll the loop over blocks for every length."""
    return _forward((q, k, v, projection, mask, state, total, m), _kernel(kind, scale, eps))


@torch.library.custom_op("isoattn::favor_causal_backward", mutates_args=())
def _operator_backward(
    grad: Tensor,
    dstate: Tensor,
    dtotal: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    projection: Tensor,
    mask: Tensor | None,
    state: Tensor | None,
    total: Tensor | None,
    m: Tensor | None,
    kind: str,
    scale: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    inputs = (q, k, v, projection, mask, state, total, m)
    # An operator's body runs below autograd, which the blocks need: a thread starts above it.
    with ThreadPoolExecutor(1) as above:
        found = above.submit(
            _backward, inputs, _kernel(kind, scale, eps), grad, dstate, dtotal
        ).result()
    dq, dk, dv, ds, dz = found
    assert dq is not None and dk is not None and dv is not None
    assert ds is not None and dz is not None
    return dq, dk, dv, ds.clone(), dz.clone()


def _kernel(kind: str, scale: float, eps: float) -> Kernel:
    return Kernel(cast(Kind, kind), scale, eps)


@_operator.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    projection: Tensor,
    mask: Any,
    state: Any,
    total: Any,
    m: Any,
    kind: str,
    scale: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    features = _kernel(kind, scale, eps).features(projection.shape[1])
    out = v.new_empty(*q.shape[:3], v.shape[3])
    state, total, m = nothing_yet(q, v, features)
    return out, state, total, m


@_operator_backward.register_fake
def _(
    grad: Tensor, dstate: Tensor, dtotal: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv, ds, dz = (torch.empty_like(x) for x in (q, k, v, dstate, dtotal))
    return dq, dk, dv, ds, dz


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:8])
    ctx.options = inputs[8:]


def _pull(ctx: Any, grad: Tensor, dstate: Tensor, dtotal: Tensor, _: Any) -> tuple[Any, ...]:
    inputs = ctx.saved_tensors
    dq, dk, dv, ds, dz = _operator_backward(grad, dstate, dtotal, *inputs, *ctx.options)
    given = inputs[5] is not None
    sums = (ds, dz) if given else (None, None)
    return dq, dk, dv, None, None, *sums, None, None, None, None


_operator.register_autograd(_pull, setup_context=_keep)
