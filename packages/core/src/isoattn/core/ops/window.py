"""Which blocks of keys a window reaches, and continuing a causal one from a buffer.

Longformer (Beltagy et al. 2020, section 3.1): a row sees the keys near it and all global tokens;
a global row sees everything. Griffin (De et al. 2024, section 2.4) counts a causal window without
the query itself, so window + 1 tokens are seen.

Shape suffixes: as in :mod:`isoattn.core.contract` and :mod:`isoattn.core.ops.block_sparse`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.contract import State
from isoattn.core.ops.block_sparse import (
    Band,
    Blocks,
    block_sparse_attention,
    full_attention,
)
from isoattn.core.ops.blocks import accumulation_dtype
from isoattn.core.ops.masking import zero_masked


def reach(window: int, causal: bool) -> tuple[int, int]:
    """Tokens seen before and behind a query."""
    return (window, 0) if causal else (window // 2, window // 2)


def listed(tokens: int, window: int, first: int, block: int, causal: bool) -> int:
    """S, the blocks of keys in one list."""
    left, right = reach(window, causal)
    blocks = -(-tokens // block)
    return min(blocks, -(-first // block) + 1 + -(-left // block) + -(-right // block))


def window_table(
    tokens: int, window: int, first: int, block: int, causal: bool, device: torch.device
) -> Tensor:
    """The list of each block of queries, (1, 1, T, S).

    Global blocks, then the window's, each once; all blocks where that is no more.
    """
    blocks, columns = -(-tokens // block), listed(tokens, window, first, block, causal)
    row = torch.arange(blocks, device=device)
    if columns == blocks:
        return row.expand(1, 1, blocks, blocks)
    before, behind = (-(-side // block) for side in reach(window, causal))
    offsets = torch.arange(-before, behind + 1, device=device)
    near = row[:, None] + offsets
    shared = -(-first // block)
    near = near.where((near >= shared) & (near < blocks), -1)
    return torch.cat([row[:shared].expand(blocks, -1), near], 1)[None, None]


def window_attention(
    q_BHND: Tensor,
    k_BGND: Tensor,
    v_BGNE: Tensor,
    *,
    window: int,
    first: int = 0,
    block: int = 64,
    key_mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Softmax over the first tokens and those within the window; any length.

    Args:
        q_BHND: queries.
        k_BGND: keys, as many as queries; G divides H.
        v_BGNE: values.
        window: seen are the keys with |i - j| <= window / 2, or causally i - window <= j <= i.
        first: this many first tokens are seen by all rows and, if not causal, see all keys.
        block: tokens whose keys are gathered together.
        key_mask: bool (B, N), True = keep.
        causal: query i sees keys j <= i only.

    Returns:
        (B, H, N, E) in the dtype of v.
    """
    tokens = q_BHND.shape[2]
    left, right = reach(window, causal)
    if covers(tokens, window, causal):
        return full_attention(q_BHND, k_BGND, v_BGNE, key_mask, causal)
    table = window_table(tokens, window, first, block, causal, q_BHND.device)
    rows = None
    if first and not causal:
        rows = torch.arange(min(first, tokens), device=q_BHND.device)[None]
    return block_sparse_attention(
        q_BHND,
        k_BGND,
        v_BGNE,
        table,
        Blocks(block, Band(left, right, first, causal)),
        key_mask=key_mask,
        rows_BR=rows,
    )


def covers(tokens: int, window: int, causal: bool) -> bool:
    """Whether the window reaches over the whole sequence."""
    return tokens <= 1 + reach(window, causal)[0]


def empty_state(k_BGND: Tensor, v_BGNE: Tensor, window: int, first: int) -> State:
    """Nothing seen: a buffer for ``window`` tokens and one for the first ones."""
    (batch, groups, _, dim), width = k_BGND.shape, v_BGNE.shape[3]
    wide = accumulation_dtype(v_BGNE)
    state = {"seen": k_BGND.new_zeros(batch, window + first, dtype=torch.bool)}
    state["k"] = k_BGND.new_zeros(batch, groups, window + first, dim, dtype=wide)
    state["v"] = v_BGNE.new_zeros(batch, groups, window + first, width, dtype=wide)
    state["count"] = k_BGND.new_zeros(batch, dtype=torch.int64)
    return state


def extend_window(
    q_BHND: Tensor,
    k_BGND: Tensor,
    v_BGNE: Tensor,
    state: State,
    *,
    window: int,
    first: int,
    key_mask: Tensor | None = None,
) -> tuple[Tensor, State]:
    """The causal form after the tokens of a state, in pieces of at most a window or 64 tokens.

    Args:
        q_BHND: queries of the new tokens.
        k_BGND: keys.
        v_BGNE: values.
        state: ``k`` and ``v`` of the first tokens and of the last ones, in this order, ``seen``,
            which of them exist and are not masked, and ``count``, the tokens so far.
        window: as in :func:`window_attention`.
        first: likewise.
        key_mask: bool (B, N), True = keep.

    Returns:
        (B, H, N, E) in the dtype of v, and the new state.
    """
    batch, _, tokens, _ = k_BGND.shape
    if key_mask is None:
        key_mask = torch.ones(batch, tokens, dtype=torch.bool, device=k_BGND.device)
    size, outputs = max(window, 64), []
    for start in range(0, tokens, size):
        q, k, v = (x[:, :, start : start + size] for x in (q_BHND, k_BGND, v_BGNE))
        kept = key_mask[:, start : start + size]
        k, v = zero_masked(k, kept), zero_masked(v, kept)
        out, state = _piece(q, k, v, kept, state, window, first)
        outputs.append(out)
    if not outputs:
        return q_BHND[..., :1].expand(-1, -1, -1, v_BGNE.shape[3]), state
    return torch.cat(outputs, 2), state


def _piece(
    q: Tensor, k: Tensor, v: Tensor, kept: Tensor, state: State, window: int, first: int
) -> tuple[Tensor, State]:
    """Rows of a piece against the first tokens, the buffer and the piece, each key once."""
    new, wide, count_B1 = q.shape[2], state["k"].dtype, state["count"][:, None]
    device = q.device
    # The buffer and the piece, by their distance from the first new token.
    slot = torch.arange(-window, new, device=device)
    row = torch.arange(new, device=device)[:, None]
    joined = torch.cat([state["seen"][:, first:], kept], 1)
    near = (joined & (count_B1 + slot >= first))[:, None] & Band(window, 0)(row, slot)
    # The first tokens, some of which may just have come; likewise.
    distance = torch.arange(first, device=device) - count_B1
    come = (distance >= 0) & (distance < new)
    place = distance.clamp(0, new - 1)
    shared = torch.where(come, kept.gather(1, place), state["seen"][:, :first])
    seen_BNM = torch.cat([shared[:, None] & (distance[:, None] <= row), near], 2)

    memory: State = {"count": state["count"] + new}
    tensors = []
    for name, x in (("k", k), ("v", v)):
        index = place[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
        old, x = state[name], x.to(wide)
        ahead = torch.where(come[:, None, :, None], x.gather(2, index), old[:, :, :first])
        behind = torch.cat([old[:, :, first:], x], 2)
        memory[name] = torch.cat([ahead, behind[:, :, new:]], 2)
        tensors.append(torch.cat([ahead, behind], 2).to(q.dtype))
    memory["seen"] = torch.cat([shared, joined[:, new:]], 1)
    keys, values = tensors
    empty = ~seen_BNM.any(-1, keepdim=True)
    out = F.scaled_dot_product_attention(
        q,
        keys,
        values,
        attn_mask=(seen_BNM | empty)[:, None],
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out.masked_fill(empty[:, None], 0.0), memory
