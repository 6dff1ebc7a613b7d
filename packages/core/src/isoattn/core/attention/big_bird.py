"""Attention to near, global and random blocks of keys."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from isoattn.core.contract import Attention, Capability
from isoattn.core.cost import Cost, Shape
from isoattn.core.ops.big_bird import BITS, Layout, big_bird_table, existing_blocks
from isoattn.core.ops.block_sparse import Blocks, block_sparse_attention
from isoattn.core.ops.reference import window as reference
from isoattn.core.streams import Stream, draw

GlobalEnds = Literal["first", "both"]

ROWS = 512
"""Rows of blocks with draws of their own; later ones use them again."""


class BigBird(Attention):
    """Softmax over a window, global and random blocks (Zaheer et al. 2020, sec. 2 and app. D).

    A row of blocks sees the blocks within the window, the global blocks and ``random_blocks``
    others, each key once; the rows of global blocks see every key. The random blocks are drawn
    once, differ by head and row, and are kept: buffer ``draws`` (H, 512, random_blocks) holds
    integers below 2^24, and floor(draw * free / 2^24) is the rank of the block picked among the
    free ones, in order. Set it by copying into it. A padded sample has the blocks it has alone.

    The released code counts a block that is listed twice twice, and in evaluation sets every random
    block to block 0, so that block counts 1 + random_blocks times; here neither happens.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head.
        window: tokens; an odd number of blocks.
        global_tokens: this many first tokens see and are seen by all; whole blocks.
        global_ends: ``"both"``, as the released code, makes as many last tokens (of whole blocks)
            global too.
        random_blocks: further blocks a row sees.
        block: tokens in a block.

    Raises:
        ValueError: a size below 1 or sizes that are not whole blocks.
    """

    capability = Capability(positions="index")
    unsupported = {
        "causal": "its global and random blocks lie ahead of a query as often as behind it; use "
        "SlidingWindow",
        "cross": "a window needs each query to stand at the place of a key",
    }
    draws: Tensor

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        window: int = 192,
        global_tokens: int = 64,
        global_ends: GlobalEnds = "first",
        random_blocks: int = 3,
        block: int = 64,
    ) -> None:
        super().__init__(heads, head_dim)
        if block < 1 or random_blocks < 0:
            raise ValueError(
                f"BigBird needs block >= 1 and random_blocks >= 0, got block={block}, "
                f"random_blocks={random_blocks}"
            )
        if window < 1 or window % block or window // block % 2 == 0:
            raise ValueError(
                f"window must be an odd number of blocks of {block} tokens, such as {block} or "
                f"{3 * block}; got {window}"
            )
        if global_tokens < 0 or global_tokens % block:
            raise ValueError(
                f"global_tokens must be whole blocks of {block} tokens, such as 0 or {block}; "
                f"got {global_tokens}"
            )
        if global_ends not in get_args(GlobalEnds):
            raise ValueError(f"global_ends must be 'first' or 'both', got {global_ends!r}")
        self.window = window
        self.global_tokens = global_tokens
        self.global_ends: GlobalEnds = global_ends
        self.random_blocks = random_blocks
        self.block = block
        first = global_tokens // block
        self._layout = Layout(block, window // block // 2, first, first * (global_ends == "both"))
        self.stream = Stream()
        self.register_buffer("draws", self._drawn())

    def _drawn(self) -> Tensor:
        shape = (self.heads, ROWS, self.random_blocks)
        places: Tensor = draw(self.stream.advance(), shape, kind="uniform") * 2**BITS
        return places.to(torch.int32)

    def reseed(self, seed: int) -> None:
        """Draw other random blocks."""
        self.stream.reseed(seed)
        self.draws.copy_(self._drawn())

    def extra_repr(self) -> str:
        """Sizes and options shown by ``print(module)``."""
        return (
            f"{super().extra_repr()}, window={self.window}, global_tokens={self.global_tokens}, "
            f"global_ends={self.global_ends!r}, random_blocks={self.random_blocks}, "
            f"block={self.block}"
        )

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        tokens = q.shape[2]
        existing = existing_blocks(tokens, key_mask, self.block, q.device)
        table, rows = big_bird_table(-(-tokens // self.block), existing, self.draws, self._layout)
        return block_sparse_attention(
            q,
            k,
            v,
            table,
            Blocks(self.block),
            key_mask=key_mask,
            rows_BR=rows if self.global_tokens else None,
        )

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """FLOPs of whole blocks against the listed keys, and of global rows against all.

        Kept are q, k, v and the table; the backward pass computes the weights again, so it has five
        products where the forward pass has two.
        """
        heads, tokens, layout = shape.batch * shape.heads, shape.queries, self._layout
        both = shape.head_dim + shape.value_dim
        blocks = -(-tokens // self.block)
        shared = min(layout.first, blocks) + min(layout.last, blocks)
        columns = shared + 2 * layout.side + 1 + self.random_blocks
        pairs = blocks * columns * self.block**2 + shared * self.block * tokens
        tables = shape.heads if self.random_blocks else 1
        inputs = heads * tokens * (both + shape.head_dim)
        return Cost(
            forward_flops=2 * heads * pairs * both,
            backward_flops=2 * heads * pairs * (both + both + shape.head_dim),
            min_bytes=(inputs + heads * tokens * shape.value_dim) * shape.itemsize,
            saved_bytes=inputs * shape.itemsize
            + 8 * (tables * blocks * columns + shared * self.block),
        )

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """The definition in float64."""
        layout = self._layout
        return reference.big_bird(
            q,
            k,
            v,
            self.draws,
            size=layout.size,
            side=layout.side,
            first=layout.first,
            last=layout.last,
            key_mask=key_mask,
        )
