"""Walking over large tensors in pieces that stay in the cache of a CPU core.

A pass over q, k or v of 16,384 tokens costs more in memory traffic and page faults than in
arithmetic; in blocks of about 2^18 numbers the features and their gradients never leave the cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

NUMBERS = 2**18
"""Numbers in one block and thread: 1 MiB of float32."""


def _pieces(total: int, size: int) -> Iterator[slice]:
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


def batch_blocks(x_BHND: Tensor) -> Iterator[slice]:
    """Slices over the batch: one sample where it is long, many where they are short."""
    batch, heads, tokens, dim = x_BHND.shape
    if x_BHND.device.type != "cpu":  # there one large launch is best
        return iter((slice(0, batch),))
    size = NUMBERS * torch.get_num_threads() // max(1, heads * tokens * dim)
    return _pieces(batch, max(1, size))


def token_blocks(x_BHND: Tensor) -> Iterator[slice]:
    """Slices over the tokens of one batch block."""
    _, heads, tokens, dim = x_BHND.shape
    if x_BHND.device.type != "cpu":
        return iter((slice(0, tokens),))
    size = NUMBERS * torch.get_num_threads() // max(1, heads * dim)
    return _pieces(tokens, max(64, size))


def piece(x_BHND: Tensor, batch: slice, tokens: slice) -> Tensor:
    """A view of the samples and tokens of one block; x itself where the block is all of it."""
    if batch.stop - batch.start != x_BHND.shape[0]:
        x_BHND = x_BHND[batch]
    if tokens.stop - tokens.start != x_BHND.shape[2]:
        x_BHND = x_BHND[:, :, tokens]
    return x_BHND


def block(x_BHND: Tensor, batch: slice, tokens: slice, dtype: torch.dtype) -> Tensor:
    """The block (b * H, n, D) in the accumulation dtype; a view where strides and dtype allow."""
    return piece(x_BHND, batch, tokens).flatten(0, 1).to(dtype)


def write(x_BHND: Tensor, batch: slice, tokens: slice, values: Tensor) -> None:
    """Store (b * H, n, D), or anything of as many numbers in that order, into a block of x."""
    target = piece(x_BHND, batch, tokens)
    target.copy_(values.view(target.shape))


def hidden(key_mask_BM: Tensor, batch: slice, tokens: slice, heads: int) -> Tensor:
    """True where a token of the piece is masked: (b * H, n, 1)."""
    masked = ~key_mask_BM[batch, tokens]
    return masked[:, None, :].expand(-1, heads, -1).flatten(0, 1).unsqueeze(-1)


def accumulation_dtype(x: Tensor) -> torch.dtype:
    """float32, or float64 for float64 input."""
    return torch.promote_types(x.dtype, torch.float32)


def empty_heads(batch: int, heads: int, tokens: int, dim: int, like: Tensor) -> Tensor:
    """An empty (B, H, N, E) tensor laid out (B, N, H, E), so that merging heads is free."""
    return like.new_empty(batch, tokens, heads, dim).transpose(1, 2)
