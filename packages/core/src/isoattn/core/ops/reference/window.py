"""Oracles of the attentions that see a window, first tokens and random blocks, token by token."""

from __future__ import annotations

import torch
from torch import Tensor

from isoattn.core.ops.reference.common import average, doubles, seen


def masked_softmax(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, *, key_mask: Tensor | None, causal: bool
) -> Tensor:
    """Softmax over the keys that ``visible``, broadcasting to (B, H, N, N), leaves."""
    q, k, v = doubles(q, k, v, key_mask)
    visible = visible & seen(q, k, key_mask, causal)
    logits = torch.einsum("bhnd,bhmd->bhnm", q, k) * q.shape[-1] ** -0.5
    top = logits.detach().masked_fill(~visible, -torch.inf).amax(-1, keepdim=True)
    weights = torch.exp(logits.where(visible, top) - top.where(top > -torch.inf, 0.0))
    return average(weights.where(visible, 0.0), v, visible)


def sliding_window(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    window: int,
    first: int = 0,
    key_mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """|i - j| <= window / 2, causally i - window <= j <= i, or j or i among the first."""
    place = torch.arange(q.shape[2])
    i, j = place[:, None], place[None, :]
    near = i - j <= window if causal else 2 * (i - j).abs() <= window
    visible = near | (j < first) | (i < first)
    return masked_softmax(q, k, v, visible, key_mask=key_mask, causal=causal)


def big_bird(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    draws_HPr: Tensor,
    *,
    size: int,
    side: int,
    first: int,
    last: int,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Near, global and random blocks, written down one row of blocks after another."""
    (batch, heads, tokens, _), blocks = q.shape, -(-q.shape[2] // size)
    visible = torch.zeros(batch, heads, blocks, blocks, dtype=torch.bool)
    for b in range(batch):
        end = tokens
        if key_mask is not None:
            end = int((torch.arange(tokens) + 1)[key_mask[b]].amax()) if key_mask[b].any() else 0
        count = -(-end // size)
        shared = {u for u in range(count) if u < first or u >= count - last}
        for h in range(heads):
            for t in range(blocks):
                seen = shared | {u for u in range(t - side, t + side + 1) if 0 <= u < count}
                for draw in draws_HPr[h, t % draws_HPr.shape[1]].tolist():
                    free = [u for u in range(count) if u not in seen]
                    seen |= {free[draw * len(free) // 2**24]} if free else set()
                if t in shared or t < first:
                    seen = set(range(blocks))
                visible[b, h, t, list(seen)] = True
    visible = visible.repeat_interleave(size, 2).repeat_interleave(size, 3)
    visible = visible[:, :, :tokens, :tokens]
    return masked_softmax(q, k, v, visible, key_mask=key_mask, causal=False)
