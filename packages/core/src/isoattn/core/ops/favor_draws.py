"""Attention with positive features and several draws of noise, each mapped feature used for all.

The noise of a key is common to its features, so with a shift a for each feature and c for each draw

    phi(k_j) exp(b_jt) / exp(a + c_t) = [phi(k_j) / exp(a) * exp(y_j)] [exp(b_jt - c_t - y_j)]

takes R + T exponentials a key instead of R T, and phi(q) is the same for all draws. The number y_j
cancels in the product; it is the largest b_jt - c_t of the key, so that neither factor overflows
and the product vanishes only where it is out of reach of a sum. What could go wrong is a sum, if
a + c_t were far from the largest l(k) + b of a feature and draw. Those maxima are found first, a
and c are fitted to them, and :func:`find_shifts` declines where one is left more than H away,
which takes keys that reach far (in float32 H is 28): denominators of float32 are then between e^-H
and R M e^H, and what underflows beside them is below e^(2H - 87) of them, R M times.

Shape suffixes: as in :mod:`isoattn.core.contract`; R features, T draws.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.ops.blocks import accumulation_dtype, empty_heads
from isoattn.core.ops.favor_blocks import (
    KeyBlock,
    Keys,
    Piece,
    exp_,
    invert,
    largest_dot,
    per_key_head,
    per_query_head,
    pieces,
    pull,
    query_block,
    through_top,
)
from isoattn.core.ops.favor_dense import dense_gradients
from isoattn.core.ops.masking import no_autocast
from isoattn.core.ops.positive_features import FLOOR, Kernel

SWEEPS = 3
"""Of the fit; more gain little."""


class Shifts(NamedTuple):
    """What exponents are taken against.

    Args:
        of_features: a (B, H, 1, R).
        of_draws: c (B, H, T, 1).
        top: the largest w.k' of a head (B, H, 1, 1), where the kernel is softened.
        place: of it, key * R + row.
    """

    of_features: Tensor
    of_draws: Tensor
    top: Tensor | None
    place: Tensor | None


def reach(dtype: torch.dtype) -> float:
    """H of the module."""
    return -0.32 * math.log(torch.finfo(dtype).tiny)


@torch.no_grad()
def find_shifts(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    projection: Tensor,
    noise: Tensor,
    mask: Tensor | None,
    kernel: Kernel,
) -> Shifts | None:
    """Shifts of features and draws, or None where they leave a maximum out of reach.

    Args: as of :func:`isoattn.core.ops.favor.favor_attention`.
    """
    w = kernel.directions(projection, accumulation_dtype(v))
    draws, features = noise.shape[3], w.shape[1]
    parts = pieces(q, k, draws * features)
    top = place = None
    if kernel.softened:
        top, place = largest_dot(k, mask, w, parts, w.dtype)
    blocks = Keys((q, k, v, projection, noise, mask), top, kernel)
    largest = q.new_full((*q.shape[:2], draws, features), FLOOR, dtype=w.dtype)
    for p in parts:
        rows, target = p.rows(w), largest[p.batch, p.heads]
        for n in p.tokens(k.shape[2]):
            block = blocks.block(p, n, rows)
            logs = block.logs
            if block.hidden is not None:
                logs = logs.masked_fill_(block.hidden, FLOOR)
            joint = logs.unsqueeze(2) + p.own(noise, n, w.dtype).unsqueeze(3)
            target.copy_(torch.maximum(target, joint.amax(1).view(target.shape)))
    of_features = _middle(largest, -2)
    of_draws = _middle(largest - of_features, -1)
    for _ in range(SWEEPS - 1):
        of_features = of_features + _middle(largest - of_features - of_draws, -2)
        of_draws = of_draws + _middle(largest - of_features - of_draws, -1)
    away = (largest - of_features - of_draws).abs_()
    # NaN is not within reach; a meta tensor holds no numbers, and is given the usual way
    if away.is_meta or bool((away <= reach(w.dtype)).all()):
        return Shifts(of_features, of_draws, top, place)
    return None


def _middle(x: Tensor, dim: int) -> Tensor:
    """Half way between the largest and the smallest number."""
    return (x.amax(dim, keepdim=True) + x.amin(dim, keepdim=True)) / 2


def _factors(
    block: KeyBlock, keys: Keys, p: Piece, n: slice, a: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    """The factor of the features (b * h, n, R), 0 where masked, and that of the draws (.., T)."""
    noise = p.own(keys.noise, n, keys.accumulate) - c
    largest = noise.amax(-1, keepdim=True).clamp_(min=FLOOR)
    phi = exp_(block.logs.sub_(a).add_(largest))
    if block.hidden is not None:
        phi = phi.masked_fill_(block.hidden, 0.0)
    return phi, exp_(noise.sub_(largest))


def _outer(draws: Tensor, features: Tensor) -> Tensor:
    """The products (b * h, n, T, R), 0 where they are next to the smallest normal number."""
    product = draws.unsqueeze(3) * features.unsqueeze(2)
    return F.threshold(product, 1e3 * torch.finfo(product.dtype).tiny, 0.0, inplace=True)


def favor_draws(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    projection: Tensor,
    noise: Tensor,
    mask: Tensor | None,
    kernel: Kernel,
    shifts: Shifts,
) -> Tensor:
    """As :func:`isoattn.core.ops.favor.favor_attention`, with the shifts found for its inputs."""
    function: Any = _Draws
    out: Tensor = function.apply(q, k, v, projection, noise, mask, *shifts, kernel)
    return out


class _Draws(torch.autograd.Function):
    """See the module. Keeps the inputs, S, z and the shifts."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        projection: Tensor,
        noise: Tensor,
        mask: Tensor | None,
        of_features: Tensor,
        of_draws: Tensor,
        top: Tensor | None,
        top_place: Tensor | None,
        kernel: Kernel,
    ) -> Tensor:
        accumulate = accumulation_dtype(v)
        inputs = (q, k, v, projection, noise, mask)
        (batch, heads, queries, _), (keys, width) = q.shape, v.shape[2:]
        w = kernel.directions(projection, accumulate)
        draws, features = noise.shape[3], w.shape[1]
        state = q.new_zeros(batch, heads, draws * features, width, dtype=accumulate)
        total = q.new_zeros(batch, heads, draws, features, dtype=accumulate)
        out = empty_heads(batch, heads, queries, width, v)
        blocks = Keys(inputs, top, kernel)
        for p in pieces(q, k, draws * features):
            rows = p.rows(w)
            place = (p.batch, p.heads)
            s, z, a, c = (x[place].flatten(0, 1) for x in (state, total, of_features, of_draws))
            for n in p.tokens(keys):
                block = blocks.block(p, n, rows)
                phi, noisy = _factors(block, blocks, p, n, a, c.mT)
                z = torch.baddbmm(z, noisy.mT, phi)
                s = torch.baddbmm(s, _outer(noisy, phi).flatten(2).mT, block.v)
            state[place], total[place] = (
                x.view(y[place].shape) for x, y in ((s, state), (z, total))
            )
            for n in p.tokens(queries):
                phi = query_block(q, p, n, rows, a.unsqueeze(1), kernel)[1].squeeze(2)
                inverse = invert(torch.bmm(phi, z.mT), draws)
                p.write(out, n, torch.bmm(_outer(inverse, phi).flatten(2), s))
        ctx.save_for_backward(*inputs, state, total, of_features, of_draws, top, top_place)
        ctx.kernel = kernel
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return *dense_gradients(ctx, grad), *(None,) * 8
        *inputs, state, total, of_features, of_draws, top, top_place = ctx.saved_tensors
        q, k, v, projection, _, _ = inputs
        kernel: Kernel = ctx.kernel
        w = kernel.directions(projection, state.dtype)
        draws, features = total.shape[2:]
        repeats = q.shape[1] // k.shape[1]
        dq = torch.empty_like(q)
        dk, dv = (per_query_head(x, repeats) for x in (k, v))
        blocks = Keys(tuple(inputs), top, kernel)
        with no_autocast(grad.device.type):
            for p in pieces(q, k, draws * features):
                rows = p.rows(w)
                place = (p.batch, p.heads)
                s, z, a, c = (x[place].flatten(0, 1) for x in (state, total, of_features, of_draws))
                ds, dz = torch.zeros_like(s), torch.zeros_like(z)
                for n in p.tokens(q.shape[2]):
                    x, phi, slope, at = query_block(q, p, n, rows, a.unsqueeze(1), kernel)
                    phi = phi.squeeze(2)
                    g = p.own(grad, n, s.dtype)
                    inverse = invert(torch.bmm(phi, z.mT), draws)
                    weight = _outer(inverse, phi)
                    ds = torch.baddbmm(ds, weight.flatten(2).mT, g)
                    dlog = torch.bmm(g, s.mT).view(weight.shape).mul_(weight)
                    mean = dlog.sum(-1).mul_(draws).mul_(inverse)
                    dz = torch.baddbmm(dz, mean.mT, phi, alpha=-1)
                    dlog = dlog.sum(2).addcmul_(phi, torch.bmm(mean, z), value=-1.0)
                    p.write(dq, n, pull(dlog, x, rows, kernel, slope, at)[0])
                through: Tensor | None = None
                for n in p.tokens(k.shape[2]):
                    block = blocks.block(p, n, rows)
                    phi, noisy = _factors(block, blocks, p, n, a, c.mT)
                    weight = _outer(noisy, phi)
                    p.write(dv, n, torch.bmm(weight.flatten(2), ds))
                    dlog = torch.bmm(block.v, ds.mT).view(weight.shape).mul_(weight).sum(2)
                    dlog = dlog.addcmul_(torch.bmm(noisy, dz), phi)
                    dx, sums = pull(dlog, block.k, rows, kernel, block.slope, None, keys=True)
                    p.write(dk, n, dx)
                    if sums is not None and not kernel.constant_top:
                        sums = sums.sum(1, keepdim=True)
                        through = sums if through is None else through + sums
                if through is not None:
                    through_top(dk, p, top_place, through, rows)
        return dq, per_key_head(dk, k), per_key_head(dv, v), *(None,) * 8
