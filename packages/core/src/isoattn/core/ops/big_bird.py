"""Which blocks BigBird lists (Zaheer et al. 2020, section 2): global, near and random ones.

The random blocks of a row of blocks are picked among those not listed yet, so each key counts once.
Where the sequence is padded at the end, only the blocks up to the last token that is kept exist: a
padded sample has the blocks it has alone.

Shape suffixes: as in :mod:`isoattn.core.ops.block_sparse`; P rows of stored draws, r random blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BITS = 24
"""A draw is an integer below 2^24: exact in any dtype a module may be cast to."""


@dataclass(frozen=True)
class Layout:
    """Sizes in blocks.

    Args:
        size: b, tokens in a block.
        side: blocks seen on either side of a row's own.
        first: global blocks at the beginning.
        last: global blocks at the end.
    """

    size: int
    side: int
    first: int
    last: int


def existing_blocks(
    tokens: int, key_mask_BN: Tensor | None, size: int, device: torch.device
) -> Tensor:
    """Blocks up to the last token that is kept, int64 (B,); (1,) without a mask."""
    if key_mask_BN is None:
        return torch.full((1,), -(-tokens // size), device=device)
    place = torch.arange(1, tokens + 1, device=device)
    return (torch.where(key_mask_BN, place, 0).amax(1) + size - 1) // size


def big_bird_table(
    blocks: int, existing_B: Tensor, draws_HPr: Tensor, layout: Layout
) -> tuple[Tensor, Tensor]:
    """The lists of :func:`~isoattn.core.ops.block_sparse.block_sparse_attention`, and full rows.

    Args:
        blocks: T.
        existing_B: how many of them exist in each sample; none of the others is listed.
        draws_HPr: integers below 2^24; row t of blocks uses the draws of row t modulo P.
        layout: sizes.

    Returns:
        The table (B, H or 1, T, S), -1 where no block is left to list, and the indices of the rows
        of global blocks (B, R).
    """
    device = existing_B.device
    count = existing_B[:, None, None, None]
    row = torch.arange(blocks, device=device)[:, None]
    first = torch.arange(min(layout.first, blocks), device=device)
    last = existing_B[:, None] - 1 - torch.arange(min(layout.last, blocks), device=device)
    near = row + torch.arange(-layout.side, layout.side + 1, device=device)
    ends = layout.last
    is_near = (near >= layout.first) & (near < count - ends)
    parts = [
        first.where(first < count, -1).expand(-1, -1, blocks, -1),
        last.where(last >= layout.first, -1)[:, None, None].expand(-1, -1, blocks, -1),
        near.where(is_near, -1),
    ]
    table = torch.cat(parts, -1)
    if draws_HPr.shape[2]:
        draws = draws_HPr[:, row[:, 0] % draws_HPr.shape[1]].long()
        table = table.expand(-1, draws.shape[0], -1, -1)
        for draw in draws.unbind(-1):
            table = torch.cat([table, _pick(table, count[..., 0], draw).unsqueeze(-1)], -1)
    inside = torch.arange(layout.size, device=device)
    rows = (first[:, None] * layout.size + inside).flatten().expand(len(existing_B), -1)
    behind = (last.clamp(min=0)[:, :, None] * layout.size + inside).flatten(1)
    return table, torch.cat([rows, behind], 1)


def _pick(listed_BHTS: Tensor, count: Tensor, draw_HT: Tensor) -> Tensor:
    """A block below ``count`` that is not listed, (B, H, T); -1 where there is none."""
    taken = listed_BHTS >= 0
    free = count - taken.sum(-1)
    block = draw_HT * free.clamp(min=0) >> BITS  # its rank among the free ones
    for other in listed_BHTS.where(taken, 2**BITS).sort(-1).values.unbind(-1):
        block = block + (block >= other)
    return block.where(free > 0, -1)
