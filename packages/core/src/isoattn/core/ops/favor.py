"""Kernel attention with positive random features, in blocks (Choromanski et al. 2021).

With phi(x) = exp(l(x)), x a query or a key, and a noise b per key and draw t (0 and one draw where
there is none; Wu et al. 2022, "NodeFormer", eq. 5-7):

    o_i = mean_t  phi(q_i) S_t / phi(q_i) z_t,
    S_t = sum_j phi(k_j) exp(b_jt) v_j^T,  z_t = sum_j phi(k_j) exp(b_jt).

No exponent is above 0: a key's is taken against the largest l(k) + b of each feature and draw,
which the queries get back, and a query's against the largest of its own. Both cancel, and what is
left of a denominator is at least 1. Blocks of tokens are mapped, summed and forgotten, with a
running maximum, in the backward pass again: N x R numbers never exist at once.

Shape suffixes: as in :mod:`isoattn.core.contract`; R features, T draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isoattn.core.ops.blocks import NUMBERS, accumulation_dtype, empty_heads
from isoattn.core.ops.masking import no_autocast, zero_masked
from isoattn.core.ops.positive_features import (
    FLOOR,
    Kernel,
    guarded_inverse,
    log_keys,
    log_queries,
)

LARGE = 2**25
"""Numbers in one block on other devices than a CPU."""


def favor_attention(
    q_BHND: Tensor,
    k_BGMD: Tensor,
    v_BGME: Tensor,
    projection_HPD: Tensor,
    kernel: Kernel,
    *,
    key_mask: Tensor | None = None,
    noise_BHMT: Tensor | None = None,
) -> Tensor:
    """Bidirectional attention with positive features; see the module.

    Args:
        q_BHND: queries.
        k_BGMD: keys; G divides H.
        v_BGME: values.
        projection_HPD: rows w of each query head, not differentiated.
        kernel: of the features.
        key_mask: bool (B, M), True = keep.
        noise_BHMT: b, added to the exponents of the keys; not differentiated.

    Returns:
        (B, H, N, E) in the dtype of v.
    """
    inputs = (q_BHND, k_BGMD, v_BGME, projection_HPD, noise_BHMT, key_mask)
    if torch.compiler.is_compiling():
        return plain(*inputs, kernel)
    function: Any = _Blocked
    out: Tensor = function.apply(*inputs, kernel)
    return out


def plain(
    q_BHND: Tensor,
    k_BGMD: Tensor,
    v_BGME: Tensor,
    projection_HPD: Tensor,
    noise_BHMT: Tensor | None,
    key_mask: Tensor | None,
    kernel: Kernel,
) -> Tensor:
    """The same in differentiable operators, N x R numbers and all."""
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


@dataclass(frozen=True)
class _Piece:
    """Samples and query heads whose sums are held at once, with the blocks of tokens in them."""

    batch: slice
    heads: slice
    repeats: int
    size: int

    def tokens(self, count: int) -> Iterator[slice]:
        for start in range(0, count, self.size):
            yield slice(start, min(start + self.size, count))

    def own(self, x_BHNX: Tensor, n: slice, dtype: torch.dtype) -> Tensor:
        """The block (b * h, n, X) of a tensor with a part for every query head."""
        return x_BHNX[self.batch, self.heads, n].flatten(0, 1).to(dtype)

    def shared(self, x_BGMX: Tensor, n: slice, dtype: torch.dtype) -> Tensor:
        """The same of a tensor whose heads serve several query heads."""
        if self.repeats == 1:
            return self.own(x_BGMX, n, dtype)
        heads = [h // self.repeats for h in range(self.heads.start, self.heads.stop)]
        return x_BGMX[self.batch, heads, n].flatten(0, 1).to(dtype)

    def rows(self, x_HRD: Tensor) -> Tensor:
        """The rows (b * h, R, D) of the projection."""
        batch = self.batch.stop - self.batch.start
        x = x_HRD[self.heads]
        return x if batch == 1 else x.repeat(batch, 1, 1)

    def hidden(self, key_mask_BM: Tensor, n: slice) -> Tensor:
        """True where a key is masked, (b * h, n, 1)."""
        heads = self.heads.stop - self.heads.start
        masked = ~key_mask_BM[self.batch, n]
        return masked[:, None].expand(-1, heads, -1).flatten(0, 1).unsqueeze(-1)

    def write(self, x_BHNX: Tensor, n: slice, values: Tensor) -> None:
        target = x_BHNX[self.batch, self.heads, n]
        target.copy_(values.view(target.shape))


def _pieces(q: Tensor, k: Tensor, width: int) -> list[_Piece]:
    """Pieces whose blocks hold about NUMBERS features; ``width`` is R * T."""
    batch, heads, tokens, _ = q.shape
    tokens = max(tokens, k.shape[2], 1)
    numbers = NUMBERS * torch.get_num_threads() if q.device.type == "cpu" else LARGE
    room = max(1, numbers // width)  # tokens of all samples and heads of one block
    many = max(1, room // (heads * tokens))
    few = min(heads, max(1, room // min(tokens, 256)))
    size = max(1, min(tokens, max(64, room // (few if many == 1 else many * heads))))
    repeats = heads // k.shape[1]
    return [
        _Piece(slice(b, min(b + many, batch)), slice(h, min(h + few, heads)), repeats, size)
        for b in range(0, batch, many)
        for h in range(0, heads, few)
    ]


class _Keys:
    """Blocks of keys on their way into the sums and back."""

    def __init__(self, inputs: tuple[Any, ...], top: Tensor | None, kernel: Kernel) -> None:
        _, self.k, self.v, _, self.noise, self.mask = inputs
        self.kernel = kernel
        self.top = top
        self.accumulate = accumulation_dtype(self.v)

    def block(self, p: _Piece, n: slice, w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """k, v, l(k) + noise (b * h, n, T, R), and dl / d(dot) where that is not 1."""
        k, v = (p.shared(x, n, self.accumulate) for x in (self.k, self.v))
        hidden = None if self.mask is None else p.hidden(self.mask, n)
        if hidden is not None:
            k, v = k.masked_fill(hidden, 0.0), v.masked_fill(hidden, 0.0)
        slope = None
        if self.kernel.kind == "relu":
            log_phi, slope = _log_relu(torch.bmm(k, w.mT), self.kernel)
        else:
            shift = self.kernel.half_square(k).neg_()
            log_phi = torch.baddbmm(shift, k, w.mT)
            if self.top is not None:
                top = self.top[p.batch, p.heads].flatten(0, 1)
                log_phi, slope = _softened(log_phi.sub_(top), self.kernel)
        log_phi = log_phi.unsqueeze(2)
        if self.noise is not None:
            log_phi = log_phi + p.own(self.noise, n, self.accumulate).unsqueeze(-1)
        if hidden is not None:
            log_phi = log_phi.masked_fill_(hidden.unsqueeze(-1), FLOOR)
        return k, v, log_phi, slope

    def mapped(self, p: _Piece, n: slice, log_phi: Tensor, shift: Tensor) -> Tensor:
        """phi(k) (b * h, n, T, R) against the maxima (b * h, 1, T, R)."""
        phi = log_phi.sub_(shift).exp_()
        if self.mask is not None:
            phi = phi.masked_fill_(p.hidden(self.mask, n).unsqueeze(-1), 0.0)
        return phi


def _log_relu(dot: Tensor, kernel: Kernel) -> tuple[Tensor, Tensor]:
    phi = dot.relu().add_(kernel.eps)
    return phi.log(), (dot > 0).to(dot.dtype).div_(phi)


def _softened(log_phi: Tensor, kernel: Kernel) -> tuple[Tensor, Tensor]:
    soft = kernel.soften(log_phi)
    return soft, (log_phi - soft).exp_()


def _query_block(
    q: Tensor, p: _Piece, n: slice, w: Tensor, m: Tensor, kernel: Kernel
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """q, phi(q), and what :func:`_pull` needs where eps is above 0.

    phi(q) (b * h, n, T, R) = exp(l(q) + m - max) with the maxima m (b * h, 1, T, R) of the keys.
    """
    x = p.own(q, n, m.dtype)
    slope = place = None
    if kernel.eps == 0 and m.shape[2] == 1:  # the sum rides on the product
        log_phi = torch.baddbmm(m.squeeze(2), x, w.mT).unsqueeze(2)
    else:
        dot = torch.bmm(x, w.mT)
        if kernel.kind == "relu":
            dot, slope = _log_relu(dot, kernel)
        elif kernel.softened:
            top, place = dot.max(-1, keepdim=True)
            dot, slope = _softened(dot.sub_(kernel.half_square(x)).sub_(top), kernel)
        log_phi = dot.unsqueeze(2) + m
    return x, log_phi.sub_(log_phi.amax(-1, keepdim=True)).exp_(), slope, place


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


def _largest_dot(
    k: Tensor, mask: Tensor | None, w: Tensor, pieces: list[_Piece], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The largest w.k' of the visible keys of a head (B, H, 1, 1), and its place, key * R + row."""
    top = k.new_full((k.shape[0], w.shape[0], 1, 1), FLOOR, dtype=dtype)
    place = torch.zeros_like(top, dtype=torch.int64)
    for p in pieces:
        rows = p.rows(w)
        for n in p.tokens(k.shape[2]):
            x = p.shared(k, n, dtype)
            if mask is None:
                dot = torch.bmm(x, rows.mT)
            else:
                hidden = p.hidden(mask, n)
                dot = torch.bmm(x.masked_fill(hidden, 0.0), rows.mT).masked_fill_(hidden, FLOOR)
            best, at = dot.flatten(1).max(1)
            old = top[p.batch, p.heads]
            best, at = best.view(old.shape), at.view(old.shape) + n.start * rows.shape[1]
            higher = (best > old) | best.isnan()
            old.copy_(torch.where(higher, best, old))
            place[p.batch, p.heads] = torch.where(higher, at, place[p.batch, p.heads])
    return top, place


def _through_top(dk: Tensor, p: _Piece, place: Tensor, sums: Tensor, rows: Tensor) -> None:
    """Take the sum of all gradients of l(k) off the one dot product that was the largest."""
    target = dk[p.batch, p.heads]
    at = place[p.batch, p.heads]
    row = (at % rows.shape[1]).view(-1, 1, 1).expand(-1, 1, rows.shape[2])
    change = (rows.gather(1, row) * -sums).view(*at.shape[:3], -1)
    key = (at // rows.shape[1]).expand(change.shape)
    target.scatter_add_(2, key, change.to(target.dtype))


class _Blocked(torch.autograd.Function):
    """Keeps the inputs, S, z and the maxima; features exist block by block in either direction."""

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
        pieces = _pieces(q, k, draws * features)
        top = top_place = None
        if kernel.softened:
            top, top_place = _largest_dot(k, mask, w, pieces, accumulate)
        key_blocks = _Keys(inputs, top, kernel)
        for p in pieces:
            rows = p.rows(w)
            place = (p.batch, p.heads)
            s, z = state[place].flatten(0, 1), total[place].flatten(0, 1).unsqueeze(1)
            m = shift[place].flatten(0, 1).unsqueeze(1)
            for n in p.tokens(keys):
                _, value, log_phi, _ = key_blocks.block(p, n, rows)
                higher = torch.maximum(m, log_phi.amax(1, keepdim=True))
                shrink = (m - higher).exp_()
                phi = key_blocks.mapped(p, n, log_phi, higher)
                z = (z * shrink).add_(phi.sum(1, keepdim=True))
                s = torch.baddbmm(s * shrink.flatten(1).unsqueeze(-1), phi.flatten(2).mT, value)
                m = higher
            state[place], total[place], shift[place] = (
                x.view(y[place].shape) for x, y in ((s, state), (z, total), (m, shift))
            )
            for n in p.tokens(queries):
                phi = _query_block(q, p, n, rows, m, kernel)[1]
                inverse = _invert(_dot(phi, z), draws)
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
            return _replay(ctx, grad)
        q, k, v, projection, noise, mask, state, total, shift, *tops = ctx.saved_tensors
        kernel: Kernel = ctx.kernel
        w = kernel.directions(projection, state.dtype)
        draws, features = total.shape[2:]
        repeats = q.shape[1] // k.shape[1]
        dq = torch.empty_like(q)
        dk, dv = (_per_query_head(x, repeats) for x in (k, v))
        key_blocks = _Keys((q, k, v, projection, noise, mask), tops[0], kernel)
        with no_autocast(grad.device.type):
            for p in _pieces(q, k, draws * features):
                rows = p.rows(w)
                place = (p.batch, p.heads)
                s = state[place].flatten(0, 1)
                z, m = (x[place].flatten(0, 1).unsqueeze(1) for x in (total, shift))
                ds, dz = torch.zeros_like(s), torch.zeros_like(z)
                for n in p.tokens(q.shape[2]):
                    x, phi, slope, at = _query_block(q, p, n, rows, m, kernel)
                    g = p.own(grad, n, s.dtype)
                    weight = phi.mul_(_invert(_dot(phi, z), draws))
                    dphi = torch.bmm(g, s.mT).view(phi.shape)
                    mean = (dphi * weight).sum(-1, keepdim=True).mul_(draws)
                    ds = torch.baddbmm(ds, weight.flatten(2).mT, g)
                    dz -= _gather(weight, mean)
                    dlog = dphi.addcmul_(mean, z, value=-1.0).mul_(weight)
                    p.write(dq, n, _pull(dlog, x, rows, kernel, slope, at)[0])
                through: Tensor | None = None
                for n in p.tokens(k.shape[2]):
                    x, value, log_phi, slope = key_blocks.block(p, n, rows)
                    phi = key_blocks.mapped(p, n, log_phi, m)
                    p.write(dv, n, torch.bmm(phi.flatten(2), ds))
                    dlog = torch.bmm(value, ds.mT).view(phi.shape).add_(dz).mul_(phi)
                    dx, sums = _pull(dlog, x, rows, kernel, slope, None, keys=True)
                    p.write(dk, n, dx)
                    if sums is not None and not kernel.constant_top:
                        sums = sums.sum(1, keepdim=True)
                        through = sums if through is None else through + sums
                if through is not None:
                    _through_top(dk, p, tops[1], through, rows)
        return dq, _per_key_head(dk, k), _per_key_head(dv, v), None, None, None, None


def _invert(x: Tensor, draws: int) -> Tensor:
    """1 / (T x), and 0 where x is 0."""
    empty = x == 0
    return x.mul_(draws).reciprocal_().masked_fill_(empty, 0.0)


def _pull(
    dlog: Tensor,
    x: Tensor,
    rows: Tensor,
    kernel: Kernel,
    slope: Tensor | None,
    at: Tensor | None,
    *,
    keys: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """From the gradient of l (b * h, n, T, R) to that of x (b * h, n, D), and its sums over R."""
    dlog = dlog.squeeze(2) if dlog.shape[2] == 1 else dlog.sum(2)
    if slope is not None:
        dlog = dlog.mul_(slope)
    normed = kernel.kind != "relu" and (keys or kernel.softened)
    if not normed:
        return torch.bmm(dlog, rows), None
    sums = dlog.sum(-1, keepdim=True)
    if at is not None and not kernel.constant_top:
        dlog = dlog.scatter_add(-1, at, -sums)
    return torch.baddbmm(x * sums.mul(-(kernel.scale**2)), dlog, rows), sums


def _per_query_head(x: Tensor, repeats: int) -> Tensor:
    """Room for the gradient of keys or values from every query head."""
    if repeats == 1:
        return torch.empty_like(x)
    shape = (x.shape[0], x.shape[1] * repeats, *x.shape[2:])
    return x.new_empty(shape, dtype=accumulation_dtype(x))


def _per_key_head(dx: Tensor, x: Tensor) -> Tensor:
    if dx.shape == x.shape:
        return dx
    repeats = dx.shape[1] // x.shape[1]
    return dx.view(*x.shape[:2], repeats, *x.shape[2:]).sum(2).to(x.dtype)


def _replay(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients through the plain form, differentiable again."""
    q, k, v, projection, noise, mask, *_ = ctx.saved_tensors
    with torch.enable_grad(), no_autocast(grad.device.type):
        used = [x for x, needed in zip((q, k, v), ctx.needs_input_grad, strict=False) if needed]
        out = plain(q, k, v, projection, noise, mask, ctx.kernel)
        grads = iter(torch.autograd.grad(out, used, grad, create_graph=True))
    return (
        *(next(grads) if needed else None for needed in ctx.needs_input_grad[:3]),
        *(None,) * 4,
    )
