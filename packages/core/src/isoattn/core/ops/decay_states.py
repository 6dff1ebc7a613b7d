"""Passing a decaying state from chunk to chunk.

Shape suffixes: W rows, T chunks, D and E dimensions of keys and values.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def scan(
    decay_WTD1: Tensor, added_WTDE: Tensor, state_WDE: Tensor, *, reverse: bool = False
) -> tuple[Tensor, Tensor]:
    """S <- decay_t * S + added_t over the chunks.

    Args:
        decay_WTD1: (W, T, D or 1, 1), at most 1.
        added_WTDE: what each chunk adds.
        state_WDE: before the first chunk.
        reverse: from the last chunk to the first.

    Returns:
        The states before each chunk was taken in (W, T, D, E), and the one after all.
    """
    if added_WTDE.device.type == "cpu" and not _followed(decay_WTD1, added_WTDE, state_WDE):
        return _in_turn(decay_WTD1, added_WTDE, state_WDE, reverse)
    if reverse:
        before, last = _doubling(decay_WTD1.flip(1), added_WTDE.flip(1), state_WDE)
        return before.flip(1), last
    return _doubling(decay_WTD1, added_WTDE, state_WDE)


def _followed(*tensors: Tensor) -> bool:
    """Whether autograd records: then no loop over a number of chunks."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _in_turn(decay: Tensor, added: Tensor, state: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    chunks = added.shape[1]
    before = torch.empty_like(added)
    for t in reversed(range(chunks)) if reverse else range(chunks):
        before[:, t] = state
        state = torch.addcmul(added[:, t], decay[:, t], state)
    return before, state


def _doubling(decay: Tensor, added: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """log2(T) passes: each adds what lies 1, 2, 4, ... chunks back."""
    chunks = added.shape[1]
    first = added[:, :1] + decay[:, :1] * state.unsqueeze(1)
    after = torch.cat([first, added[:, 1:]], 1)
    shift = 1
    while shift < chunks:
        skip = (0, 0, 0, 0, shift, 0)
        after = after + decay * F.pad(after[:, :-shift], skip)
        decay = decay * F.pad(decay[:, :-shift], skip)
        shift *= 2
    return torch.cat([state.unsqueeze(1), after[:, :-1]], 1), after[:, -1]
