"""What the forms of attention with positive features share: pieces, blocks of tokens, gradients.

Shape suffixes: as in :mod:`isoattn.core.contract`; R features, T draws. Heads and samples of a
piece are one dimension, b * h, and n are the tokens of a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isoattn.core.ops.blocks import NUMBERS, accumulation_dtype
from isoattn.core.ops.positive_features import FLOOR, Kernel

LARGE = 2**25
"""Numbers in one block on other devices than a CPU."""


@dataclass(frozen=True)
class Piece:
    """Samples and query heads whose sums are held at once, with the blocks of tokens in them."""

    batch: slice
    heads: slice
    repeats: int
    size: int

    def tokens(self, count: int) -> Iterator[slice]:
        """The blocks of so many tokens."""
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
        """Store (b * h, n, X) as the block of a tensor with a part for every query head."""
        target = x_BHNX[self.batch, self.heads, n]
        target.copy_(values.view(target.shape))


def pieces(q: Tensor, k: Tensor, width: int) -> list[Piece]:
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
        Piece(slice(b, min(b + many, batch)), slice(h, min(h + few, heads)), repeats, size)
        for b in range(0, batch, many)
        for h in range(0, heads, few)
    ]


class KeyBlock(NamedTuple):
    """Keys of a block, (b * h, n, ...).

    Args:
        k: keys, 0 where masked.
        v: values, 0 where masked.
        logs: l(k) (b * h, n, R).
        slope: dl / d(dot), None where that is 1.
        hidden: True where a key is masked (b * h, n, 1), None without a mask.
    """

    k: Tensor
    v: Tensor
    logs: Tensor
    slope: Tensor | None
    hidden: Tensor | None


class Keys:
    """Blocks of keys on their way into the sums and back."""

    def __init__(self, inputs: tuple[Any, ...], top: Tensor | None, kernel: Kernel) -> None:
        _, self.k, self.v, _, self.noise, self.mask = inputs
        self.kernel = kernel
        self.top = top
        self.accumulate = accumulation_dtype(self.v)

    def block(self, p: Piece, n: slice, w: Tensor) -> KeyBlock:
        """The keys n of a piece, mapped by its rows w (b * h, R, D)."""
        k, v = (p.shared(x, n, self.accumulate) for x in (self.k, self.v))
        hidden = None if self.mask is None else p.hidden(self.mask, n)
        if hidden is not None:
            k, v = k.masked_fill(hidden, 0.0), v.masked_fill(hidden, 0.0)
        slope = None
        if self.kernel.kind == "relu":
            logs, slope = _log_relu(torch.bmm(k, w.mT), self.kernel)
        else:
            shift = self.kernel.half_square(k).neg_()
            logs = torch.baddbmm(shift, k, w.mT)
            if self.top is not None:
                top = self.top[p.batch, p.heads].flatten(0, 1)
                logs, slope = _softened(logs.sub_(top), self.kernel)
        return KeyBlock(k, v, logs, slope, hidden)


def exp_(x: Tensor) -> Tensor:
    """exp(x) in place of x, for x <= 0 or not much above.

    The smallest normal number stands for whatever is below it: numbers smaller still cost a CPU
    ten times as much.
    """
    return x.clamp_(min=math.log(torch.finfo(x.dtype).tiny) + 0.1).exp_()


def _log_relu(dot: Tensor, kernel: Kernel) -> tuple[Tensor, Tensor]:
    phi = dot.relu().add_(kernel.eps)
    return phi.log(), (dot > 0).to(dot.dtype).div_(phi)


def _softened(log_phi: Tensor, kernel: Kernel) -> tuple[Tensor, Tensor]:
    soft = kernel.soften(log_phi)
    return soft, exp_(log_phi - soft)


def query_block(
    q: Tensor, p: Piece, n: slice, w: Tensor, m: Tensor, kernel: Kernel
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """q, phi(q), and what :func:`pull` needs where eps is above 0.

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
    return x, exp_(log_phi.sub_(log_phi.amax(-1, keepdim=True))), slope, place


def largest_dot(
    k: Tensor, mask: Tensor | None, w: Tensor, pieces: list[Piece], dtype: torch.dtype
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


def through_top(dk: Tensor, p: Piece, place: Tensor, sums: Tensor, rows: Tensor) -> None:
    """Take the sum of all gradients of l(k) off the one dot product that was the largest."""
    target = dk[p.batch, p.heads]
    at = place[p.batch, p.heads]
    row = (at % rows.shape[1]).view(-1, 1, 1).expand(-1, 1, rows.shape[2])
    change = (rows.gather(1, row) * -sums).view(*at.shape[:3], -1)
    key = (at // rows.shape[1]).expand(change.shape)
    target.scatter_add_(2, key, change.to(target.dtype))


def invert(x: Tensor, draws: int) -> Tensor:
    """1 / (T x), and 0 where x is 0."""
    empty = x == 0
    return x.mul_(draws).reciprocal_().masked_fill_(empty, 0.0)


def pull(
    dlog: Tensor,
    x: Tensor,
    rows: Tensor,
    kernel: Kernel,
    slope: Tensor | None,
    at: Tensor | None,
    *,
    keys: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """From the gradient of l (b * h, n, R) to that of x (b * h, n, D), and its sums over R."""
    if slope is not None:
        dlog = dlog.mul_(slope)
    normed = kernel.kind != "relu" and (keys or kernel.softened)
    if not normed:
        return torch.bmm(dlog, rows), None
    sums = dlog.sum(-1, keepdim=True)
    if at is not None and not kernel.constant_top:
        dlog = dlog.scatter_add(-1, at, -sums)
    return torch.baddbmm(x * sums.mul(-(kernel.scale**2)), dlog, rows), sums


def per_query_head(x: Tensor, repeats: int) -> Tensor:
    """Room for the gradient of keys or values from every query head."""
    if repeats == 1:
        return torch.empty_like(x)
    shape = (x.shape[0], x.shape[1] * repeats, *x.shape[2:])
    return x.new_empty(shape, dtype=accumulation_dtype(x))


def per_key_head(dx: Tensor, x: Tensor) -> Tensor:
    """The gradient of keys or values x from those of their query heads."""
    if dx.shape == x.shape:
        return dx
    repeats = dx.shape[1] // x.shape[1]
    return dx.view(*x.shape[:2], repeats, *x.shape[2:]).sum(2).to(x.dtype)
