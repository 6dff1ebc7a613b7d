"""Softmax attention of blocks of queries to listed blocks of keys (Zaheer et al. 2020, app. D).

A table names, for each block of queries, the blocks of keys it may see; those are gathered and go
through torch's scaled_dot_product_attention. Some rows may see every key instead. No N x N numbers
exist at any time: a piece of blocks is gathered, used, and its gradients are added where they
belong. Between forward and backward q, k, v and the table alone are kept.

Shape suffixes: as in :mod:`isoattn.core.contract`; Z heads of the table (1, or H where heads see
different blocks), T blocks of queries, S blocks of keys in a list, b tokens of a block, R rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.ops.blocks import NUMBERS, accumulation_dtype, empty_heads
from isoattn.core.ops.masking import no_autocast, zero_masked
from isoattn.core.ops.softmax import fused_softmax_attention, math_softmax_attention


@dataclass(frozen=True)
class Band:
    """Query i sees key j of a listed block where -left <= j - i <= right, or j < first, j <= last.

    Args:
        left: tokens before.
        right: tokens behind.
        first: this many first tokens are seen whatever the distance.
        causal: no key behind the query, a first token neither.
    """

    left: int
    right: int
    first: int = 0
    causal: bool = False

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        """True where i sees j."""
        seen = (j - i <= self.right) & (i - j <= self.left)
        if self.first:
            seen = seen | (j < self.first)
        return seen & (j <= i) if self.causal else seen


@dataclass(frozen=True)
class Blocks:
    """How a table is read.

    Args:
        size: b, tokens in a block.
        band: which keys of a listed block are seen; ``None`` all.
    """

    size: int
    band: Band | None = None


def block_sparse_attention(
    q_BHND: Tensor,
    k_BGND: Tensor,
    v_BGNE: Tensor,
    table_BZTS: Tensor,
    blocks: Blocks,
    *,
    key_mask: Tensor | None = None,
    rows_BR: Tensor | None = None,
) -> Tensor:
    """Attend to the listed blocks.

    Args:
        q_BHND: queries.
        k_BGND: keys, as many as queries; G divides H.
        v_BGNE: values.
        table_BZTS: int64, the blocks of keys of each block of queries; -1 is no block. A block
            listed twice counts twice. The batch may be 1, Z may be 1 or H; T is N / b rounded up.
        blocks: how the table is read.
        key_mask: bool (B, N), True = keep.
        rows_BR: int64 indices of rows that see every key; the batch may be 1.

    Returns:
        (B, H, N, E) in the dtype of v; a row that sees nothing is 0.
    """
    inputs = (q_BHND, k_BGND, v_BGNE, key_mask, table_BZTS, rows_BR, blocks)
    if torch.compiler.is_compiling():
        return plain(*inputs, fused=True)
    function: Any = _BlockSparse
    out: Tensor = function.apply(*inputs)
    return out


def full_attention(
    q_BHND: Tensor, k_BGND: Tensor, v_BGNE: Tensor, key_mask: Tensor | None, causal: bool
) -> Tensor:
    """Softmax attention to every key, which keeps q, k and v alone and is twice differentiable."""
    if torch.compiler.is_compiling():
        return fused_softmax_attention(q_BHND, k_BGND, v_BGNE, key_mask=key_mask, causal=causal)
    function: Any = _Full
    out: Tensor = function.apply(q_BHND, k_BGND, v_BGNE, key_mask, causal)
    return out


class _Layout:
    """Sizes, the gathering of key blocks, and masks, for one call."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        key_mask: Tensor | None,
        table: Tensor,
        blocks: Blocks,
    ) -> None:
        self.batch, self.heads, self.tokens, _ = q.shape
        self.groups, self.size, self.band = k.shape[1], blocks.size, blocks.band
        self.lists, self.listed = table.shape[2], table.shape[3]
        self.units = self.heads if table.shape[1] > 1 else self.groups
        self.table, self.key_mask = table, key_mask
        self.rows = self.heads // self.units * self.size

    def pieces(self, device: torch.device) -> Iterator[tuple[slice, slice]]:
        """Slices of the batch and of the lists whose weights stay in the cache of a CPU core."""
        budget = NUMBERS * torch.get_num_threads() if device.type == "cpu" else 2**27
        each = self.heads * self.listed * self.size**2
        lists = max(1, min(self.lists, budget // each))
        samples = max(1, budget // (each * self.lists))
        for b in range(0, self.batch, samples):
            for t in range(0, self.lists, lists):
                yield (
                    slice(b, min(b + samples, self.batch)),
                    slice(t, min(t + lists, self.lists)),
                )

    def padded(self, x: Tensor) -> Tensor:
        """Tokens filled up to whole blocks."""
        return F.pad(x, (0, 0, 0, self.lists * self.size - self.tokens))

    def key_blocks(self, x: Tensor) -> Tensor:
        """Keys or values as rows of one block each, (B * G * T, b * D)."""
        return self.padded(x).reshape(self.batch * self.groups * self.lists, -1)

    def listing(self, b: slice, t: slice) -> Tensor:
        """The table of a piece, (1 or samples, Z, lists, S)."""
        table = self.table[:, :, t]
        return table if table.shape[0] == 1 else table[b]

    def places(self, b: slice, t: slice) -> Tensor:
        """Rows of :meth:`key_blocks` that a piece reads: flat, of (samples, units, lists, S)."""
        device = self.table.device
        sample = torch.arange(b.start, b.stop, device=device)[:, None] * self.groups
        unit = torch.arange(self.units, device=device) * self.groups // self.units
        head = (sample + unit)[:, :, None, None] * self.lists
        return (head + self.listing(b, t).clamp(min=0)).flatten()

    def gather(self, rows: Tensor, places: Tensor, lists: int) -> Tensor:
        """Gathered keys or values (samples * units, lists, S * b, D)."""
        dim = rows.shape[1] // self.size
        return rows.index_select(0, places).view(-1, lists, self.listed * self.size, dim)

    def queries(self, x: Tensor, b: slice, t: slice) -> Tensor:
        """Padded queries of a piece as (samples * units, lists, rows, D)."""
        x = x[b, :, t.start * self.size : t.stop * self.size]
        samples, lists, dim = x.shape[0], t.stop - t.start, x.shape[3]
        x = x.reshape(samples * self.units, -1, lists, self.size, dim)
        return x.transpose(1, 2).reshape(samples * self.units, lists, self.rows, dim)

    def heads_of(self, x: Tensor) -> Tensor:
        """The way back: (samples, H, lists * b, D)."""
        units, lists, _, dim = x.shape
        x = x.view(units, lists, self.rows // self.size, self.size, dim).transpose(1, 2)
        return x.reshape(units // self.units, self.heads, lists * self.size, dim)

    def seen(self, b: slice, t: slice) -> tuple[Tensor, Tensor]:
        """Who sees whom in a piece, (1 or samples * units, lists, 1 or rows, S * b).

        And the rows that see nothing, (..., 1); they see all instead, so that no softmax is empty.
        """
        table = self.listing(b, t)
        offset = torch.arange(self.size, device=table.device)
        key = (table.unsqueeze(-1) * self.size + offset).flatten(3)
        seen = (key >= 0) & (key < self.tokens)
        if self.key_mask is not None:
            kept = F.pad(self.key_mask[b], (0, self.lists * self.size - self.tokens))
            key_b = key.expand(kept.shape[0], -1, -1, -1)
            inside = key_b.clamp(min=0).flatten(1)
            seen = seen & kept.gather(1, inside).view(key_b.shape)
        seen = seen.unsqueeze(-2)
        if self.band is not None:
            query = torch.arange(t.start, t.stop, device=table.device)[:, None] * self.size + offset
            seen = seen & self.band(query.unsqueeze(-1), key.unsqueeze(-2))
        if seen.shape[0] > 1 or seen.shape[1] > 1:
            seen = seen.expand(b.stop - b.start, self.units, -1, -1, -1)
        seen = seen.flatten(0, 1)
        if seen.shape[2] > 1 and self.rows > self.size:
            seen = seen.repeat(1, 1, self.rows // self.size, 1)
        empty = ~seen.any(-1, keepdim=True)
        return seen | empty, empty


def plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    table: Tensor,
    rows: Tensor | None,
    blocks: Blocks,
    *,
    fused: bool = False,
) -> Tensor:
    """All blocks at once in differentiable operators, twice so unless ``fused``."""
    layout = _Layout(q, k, key_mask, table, blocks)
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    b, t = slice(0, layout.batch), slice(0, layout.lists)
    places = layout.places(b, t)
    keys, values = (layout.gather(layout.key_blocks(x), places, layout.lists) for x in (k, v))
    padded = layout.padded(q)
    seen, empty = layout.seen(b, t)
    queries = layout.queries(padded, b, t)
    if fused:
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=seen)
    else:
        wide = accumulation_dtype(v)
        logits = queries.to(wide) * q.shape[-1] ** -0.5 @ keys.to(wide).transpose(-2, -1)
        out = logits.masked_fill(~seen, -torch.inf).softmax(-1) @ values.to(wide)
    out = layout.heads_of(out.masked_fill(empty, 0.0).to(v.dtype))
    if rows is not None:
        form = fused_softmax_attention if fused else math_softmax_attention
        chosen = _chosen(rows, padded)
        full = form(padded.gather(2, chosen), k, v, key_mask=key_mask)
        out = out.scatter(2, _chosen(rows, out), full)
    return out[:, :, : layout.tokens]


def _chosen(rows_BR: Tensor, x_BHND: Tensor) -> Tensor:
    """The rows as an index for gather and scatter along the tokens of x."""
    batch, heads, _, dim = x_BHND.shape
    return rows_BR[:, None, :, None].expand(batch, heads, -1, dim)


class _BlockSparse(torch.autograd.Function):
    """Keeps q, k, v, the mask and the table; weights are computed again in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        table: Tensor,
        rows: Tensor | None,
        blocks: Blocks,
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, key_mask, table, rows)
        ctx.blocks = blocks
        layout = _Layout(q, k, key_mask, table, blocks)
        k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
        key_rows, value_rows, padded = layout.key_blocks(k), layout.key_blocks(v), layout.padded(q)
        # Half precision is slow on the CPU; a piece is converted where it lies in the cache.
        work = accumulation_dtype(v) if v.device.type == "cpu" else v.dtype
        out = empty_heads(layout.batch, layout.heads, padded.shape[2], v.shape[3], v)
        for b, t in layout.pieces(v.device):
            places, lists = layout.places(b, t), t.stop - t.start
            keys, values = (
                layout.gather(x, places, lists).to(work) for x in (key_rows, value_rows)
            )
            seen, empty = layout.seen(b, t)
            mixed = F.scaled_dot_product_attention(
                layout.queries(padded, b, t).to(work), keys, values, attn_mask=seen
            )
            mixed = mixed.masked_fill(empty, 0.0)
            out[b, :, t.start * blocks.size : t.stop * blocks.size] = layout.heads_of(mixed)
        if rows is not None:
            chosen = padded.gather(2, _chosen(rows, padded))
            full = fused_softmax_attention(chosen, k, v, key_mask=key_mask)
            out.scatter_(2, _chosen(rows, out), full)
        return out[:, :, : layout.tokens]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, key_mask, table, rows = ctx.saved_tensors
        nothing = (None, None, None, None)
        if torch.is_grad_enabled():
            return *_replay(
                plain, ctx, grad, (q, k, v), key_mask, table, rows, ctx.blocks
            ), *nothing
        layout = _Layout(q, k, key_mask, table, ctx.blocks)
        k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
        wide = accumulation_dtype(v)
        padded, grad = layout.padded(q), layout.padded(grad)
        dq = torch.empty_like(padded)
        with no_autocast(grad.device.type):
            dk, dv = (torch.zeros_like(x, dtype=wide, memory_format=_C) for x in (k, v))
            if rows is not None:
                again = _repeated(rows)[:, None, :, None]
                part = grad.gather(2, _chosen(rows, grad)).masked_fill(again, 0.0)
                grad = grad.scatter(2, _chosen(rows, grad), 0.0)
                chosen = padded.gather(2, _chosen(rows, padded))
                dchosen = _full_backward(chosen, k, v, key_mask, False, part, dk, dv)
            dk, dv = layout.padded(dk), layout.padded(dv)
            key_rows, value_rows = layout.key_blocks(k), layout.key_blocks(v)
            dkey_rows, dvalue_rows = (
                x.view(y.shape) for x, y in ((dk, key_rows), (dv, value_rows))
            )
            for b, t in layout.pieces(v.device):
                places, lists = layout.places(b, t), t.stop - t.start
                keys, values = (
                    layout.gather(x, places, lists).to(wide) for x in (key_rows, value_rows)
                )
                seen, empty = layout.seen(b, t)
                piece = layout.queries(padded, b, t).to(wide)
                dout = layout.queries(grad, b, t).to(wide).masked_fill(empty, 0.0)
                dpiece, dkeys, dvalues = _softmax_backward(piece, keys, values, seen, dout)
                inside = slice(t.start * layout.size, t.stop * layout.size)
                dq[b, :, inside] = layout.heads_of(dpiece).to(dq.dtype)
                dkey_rows.index_add_(0, places, dkeys.view(places.shape[0], -1))
                dvalue_rows.index_add_(0, places, dvalues.view(places.shape[0], -1))
            if rows is not None:
                dq.scatter_add_(2, _chosen(rows, dq), dchosen)
        dk, dv = (
            zero_masked(x[:, :, : layout.tokens], key_mask).to(like.dtype)
            for x, like in ((dk, k), (dv, v))
        )
        return dq[:, :, : layout.tokens], dk, dv, *nothing


class _Full(torch.autograd.Function):
    """Softmax attention that keeps q, k and v, with second derivatives."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, key_mask)
        ctx.causal = causal
        return fused_softmax_attention(q, k, v, key_mask=key_mask, causal=causal)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, key_mask = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_replay(_math, ctx, grad, (q, k, v), key_mask, ctx.causal), None, None
        k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
        wide = accumulation_dtype(v)
        dk, dv = (torch.zeros_like(x, dtype=wide, memory_format=_C) for x in (k, v))
        with no_autocast(grad.device.type):
            dq = _full_backward(q, k, v, key_mask, ctx.causal, grad, dk, dv)
        dk, dv = zero_masked(dk, key_mask).to(k.dtype), zero_masked(dv, key_mask).to(v.dtype)
        return dq, dk, dv, None, None


_C = torch.contiguous_format


def _math(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool) -> Tensor:
    return math_softmax_attention(q, k, v, key_mask=key_mask, causal=causal)


def _replay(
    form: Any, ctx: Any, grad: Tensor, inputs: tuple[Tensor, ...], *options: Any
) -> tuple[Tensor | None, ...]:
    """Gradients that can be differentiated again, through the form in plain operators."""
    with no_autocast(grad.device.type):
        out = form(*inputs, *options)
        used = [x for x, needed in zip(inputs, ctx.needs_input_grad, strict=False) if needed]
        grads = iter(torch.autograd.grad(out, used, grad, create_graph=True))
    return tuple(next(grads) if needed else None for needed in ctx.needs_input_grad[:3])


def _repeated(rows_BR: Tensor) -> Tensor:
    """True where an index has stood earlier in its row."""
    same = rows_BR[:, :, None] == rows_BR[:, None, :]
    return same.tril(-1).any(-1)


def _softmax_backward(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, dout: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of softmax(s q k^T) v from its inputs: five products, the weights included."""
    scale = q.shape[-1] ** -0.5
    weights = (q * scale) @ k.transpose(-2, -1)
    if seen is not None:
        weights.masked_fill_(~seen, -torch.inf)
    weights = weights.softmax(-1)
    dv = weights.transpose(-2, -1) @ dout
    dweights = dout @ v.transpose(-2, -1)
    mean = (dweights * weights).sum(-1, keepdim=True)
    dlogits = dweights.sub_(mean).mul_(weights).mul_(scale)
    return dlogits @ k, dlogits.transpose(-2, -1) @ q, dv


def _full_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    causal: bool,
    grad: Tensor,
    dk: Tensor,
    dv: Tensor,
) -> Tensor:
    """Gradient of rows that see every key; adds to those of k and v. A few rows at a time."""
    wide, repeats = accumulation_dtype(v), q.shape[1] // k.shape[1]
    batch, heads, queries, _ = q.shape
    keys, dim = k.shape[2], k.shape[3]
    dq = torch.empty_like(q)
    budget = 4 * NUMBERS * torch.get_num_threads() if v.device.type == "cpu" else 2**27
    size = max(1, budget // max(1, heads * keys))
    samples = max(1, size // max(1, queries))
    column = torch.arange(keys, device=q.device)
    for start in range(0, batch, samples):
        b = slice(start, min(start + samples, batch))
        key, value = k[b].to(wide), v[b].to(wide)
        kept = None if key_mask is None else key_mask[b, None, None, :]
        for first in range(0, queries, size):
            n = slice(first, min(first + size, queries))
            shape = (key.shape[0], key.shape[1], repeats * (n.stop - n.start), -1)
            seen, dout = kept, grad[b, :, n].to(wide)
            if causal:
                reach = column <= column[n, None]
                seen = reach if seen is None else seen & reach
            if seen is not None:
                empty = ~seen.any(-1, keepdim=True)
                dout, seen = dout.masked_fill(empty, 0.0), seen | empty
                if causal and repeats > 1:
                    seen = (
                        seen.repeat(1, 1, repeats, 1) if seen.ndim == 4 else seen.repeat(repeats, 1)
                    )
            piece = q[b, :, n].to(wide).reshape(*shape[:3], dim)
            dpiece, dkey, dvalue = _softmax_backward(
                piece, key, value, seen, dout.reshape(*shape[:3], dout.shape[-1])
            )
            dq[b, :, n] = dpiece.reshape(q[b, :, n].shape).to(dq.dtype)
            dk[b] += dkey
            dv[b] += dvalue
    return dq
