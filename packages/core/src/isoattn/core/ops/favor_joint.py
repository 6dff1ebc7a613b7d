"""Attention with positive features, each feature and draw with a shift of its own.

No exponent is above 0: a key's is taken against the largest l(k) + b of each feature and draw,
which the queries get back, and a query's against the largest of its own. Both cancel, and what is
left of a denominator is at least 1, whatever the inputs. The largest of the keys is a running
maximum over the blocks.

Shape suffixes: as in :mod:`isoattn.core.contract`; R features, T draws.
"""

from __future__ import annotations

from typing import Any

import torch
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


def _dot(phi: Tensor, z: Tensor) -> Tensor:
    """phi.z of each draw, (b * h, n, T, 1)."""
    if phi.shape[2] == 1:
        return torch.bmm(phi.squeeze(2), z.squeeze(2).mT).unsqueeze(2)
    return (phi * z).sum(-1, keepdim=True)


def _gather(weight: Tensor, x: Tensor) -> Tensor:
    """Sum over n of weight (b * h, n, T, R) times x (b * h, n, T, 1), (b * h, 1, T, R)."""
    if weight.shape[2] == 1:
        return torch.bmm(x.squeeze(2).mT, weight.squeeze(2)).unsqueeze(2)
    return (weight * x).sum(1, keepdim=True)


def _over_draws(x: Tensor) -> Tensor:
    """The sum over T of (b * h, n, T, R)."""
    return x.squeeze(2) if x.shape[2] == 1 else x.sum(2)


def _noisy(block: KeyBlock, keys: Keys, p: Piece, n: slice) -> Tensor:
    """l(k) + noise (b * h, n, T, R), FLOOR where masked."""
    log_phi = block.logs.unsqueeze(2)
    if keys.noise is not None:
        log_phi = log_phi + p.own(keys.noise, n, keys.accumulate).unsqueeze(-1)
    if block.hidden is not None:
        log_phi = log_phi.masked_fill_(block.hidden.unsqueeze(-1), FLOOR)
    return log_phi


def _mapped(block: KeyBlock, log_phi: Tensor, shift: Tensor) -> Tensor:
    """phi(k) exp(noise) (b * h, n, T, R) against the maxima (b * h, 1, T, R)."""
    phi = exp_(log_phi.sub_(shift))
    return phi if block.hidden is None else phi.masked_fill_(block.hidden.unsqueeze(-1), 0.0)


def favor_joint(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    projection: Tensor,
    noise: Tensor | None,
    mask: Tensor | None,
    kernel: Kernel,
) -> Tensor:
    """As :func:`isoattn.core.ops.favor.favor_attention`."""
    function: Any = _Joint
    out: Tensor = function.apply(q, k, v, projection, noise, mask, kernel)
    return out


class _Joint(torch.autograd.Function):
    """See the module. Keeps the inputs, S, z and the maxima."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        projection: Tensor,
        noise: Tensor | None,
        mask: Tensor | None,
        kernel: Kernel,
    ) -> Tensor:
        accumulate = accumulation_dtype(v)
        inputs = (q, k, v, projection, noise, mask)
        (batch, heads, queries, _), (keys, width) = q.shape, v.shape[2:]
        w = kernel.directions(projection, accumulate)
        draws, features = 1 if noise is None else noise.shape[3], w.shape[1]
        state = q.new_zeros(batch, heads, draws * features, width, dtype=accumulate)
        total = q.new_zeros(batch, heads, draws, features, dtype=accumulate)
        shift = torch.full_like(total, FLOOR)
        out = empty_heads(batch, heads, queries, width, v)
        parts = pieces(q, k, draws * features)
        top = top_place = None
        if kernel.softened:
            top, top_place = largest_dot(k, mask, w, parts, accumulate)
        key_blocks = Keys(inputs, top, kernel)
        for p in parts:
            rows = p.rows(w)
            place = (p.batch, p.heads)
            s, z = state[place].flatten(0, 1), total[place].flatten(0, 1).unsqueeze(1)
            m = shift[place].flatten(0, 1).unsqueeze(1)
            for n in p.tokens(keys):
                block = key_blocks.block(p, n, rows)
                log_phi = _noisy(block, key_blocks, p, n)
                higher = torch.maximum(m, log_phi.amax(1, keepdim=True))
                shrink = (m - higher).exp_()
                phi = _mapped(block, log_phi, higher)
                z = (z * shrink).add_(phi.sum(1, keepdim=True))
                s = torch.baddbmm(s * shrink.flatten(1).unsqueeze(-1), phi.flatten(2).mT, block.v)
                m = higher
            state[place], total[place], shift[place] = (
                x.view(y[place].shape) for x, y in ((s, state), (z, total), (m, shift))
            )
            for n in p.tokens(queries):
                phi = query_block(q, p, n, rows, m, kernel)[1]
                inverse = invert(_dot(phi, z), draws)
                if draws == 1:
                    p.write(out, n, torch.bmm(phi.flatten(2), s).mul_(inverse.flatten(2)))
                else:
                    p.write(out, n, torch.bmm(phi.mul_(inverse).flatten(2), s))
        ctx.save_for_backward(*inputs, state, total, shift, top, top_place)
        ctx.kernel = kernel
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return *dense_gradients(ctx, grad), *(None,) * 4
        q, k, v, projection, noise, mask, state, total, shift, *tops = ctx.saved_tensors
        kernel: Kernel = ctx.kernel
        w = kernel.directions(projection, state.dtype)
        draws, features = total.shape[2:]
        repeats = q.shape[1] // k.shape[1]
        dq = torch.empty_like(q)
        dk, dv = (per_query_head(x, repeats) for x in (k, v))
        key_blocks = Keys((q, k, v, projection, noise, mask), tops[0], kernel)
        with no_autocast(grad.device.type):
            for p in pieces(q, k, draws * features):
                rows = p.rows(w)
                place = (p.batch, p.heads)
                s = state[place].flatten(0, 1)
                z, m = (x[place].flatten(0, 1).unsqueeze(1) for x in (total, shift))
                ds, dz = torch.zeros_like(s), torch.zeros_like(z)
                for n in p.tokens(q.shape[2]):
                    x, phi, slope, at = query_block(q, p, n, rows, m, kernel)
                    g = p.own(grad, n, s.dtype)
                    weight = phi.mul_(invert(_dot(phi, z), draws))
                    dphi = torch.bmm(g, s.mT).view(phi.shape)
                    mean = (dphi * weight).sum(-1, keepdim=True).mul_(draws)
                    ds = torch.baddbmm(ds, weight.flatten(2).mT, g)
                    dz -= _gather(weight, mean)
                    dlog = dphi.addcmul_(mean, z, value=-1.0).mul_(weight)
                    p.write(dq, n, pull(_over_draws(dlog), x, rows, kernel, slope, at)[0])
                through: Tensor | None = None
                for n in p.tokens(k.shape[2]):
                    block = key_blocks.block(p, n, rows)
                    phi = _mapped(block, _noisy(block, key_blocks, p, n), m)
                    p.write(dv, n, torch.bmm(phi.flatten(2), ds))
                    dlog = torch.bmm(block.v, ds.mT).view(phi.shape).add_(dz).mul_(phi)
                    dx, sums = pull(
                        _over_draws(dlog), block.k, rows, kernel, block.slope, None, keys=True
                    )
                    p.write(dk, n, dx)
                    if sums is not None and not kernel.constant_top:
                        sums = sums.sum(1, keepdim=True)
                        through = sums if through is None else through + sums
                if through is not None:
                    through_top(dk, p, tops[1], through, rows)
        return dq, per_key_head(dk, k), per_key_head(dv, v), None, None, None, None
