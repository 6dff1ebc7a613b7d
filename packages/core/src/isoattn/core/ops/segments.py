"""Packed sequences: many samples in one row of tokens, each seeing only itself.

Segments of similar length are gathered into padded batches (powers of two, so that less than half
of a batch is padding), put through the mechanism with a key mask, and scattered back.

Shape suffixes: as in :mod:`isoattn.core.contract`; T tokens of the whole batch, S segments, L the
longest of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor


def segment_bounds(segments_BN: Tensor) -> tuple[Tensor, Tensor]:
    """First token (in the flattened batch) and length of every run of equal ids.

    Raises:
        ValueError: ids that are not integers (B, N) or that decrease along a row.
    """
    if segments_BN.ndim != 2 or segments_BN.is_floating_point() or segments_BN.dtype == torch.bool:
        raise ValueError(
            "segments must be integer ids (batch, tokens), equal where tokens belong together; "
            f"got {segments_BN.dtype} {tuple(segments_BN.shape)}"
        )
    steps = segments_BN.diff(dim=1)
    if bool((steps < 0).any()):
        raise ValueError(
            "segments must not decrease along a row: tokens that belong together lie together. "
            "Sort the tokens by segment first (torch.sort(..., stable=True))"
        )
    first = torch.ones_like(segments_BN, dtype=torch.bool)
    first[:, 1:] = steps != 0
    start_S = first.flatten().nonzero()[:, 0]
    end = start_S.new_tensor([segments_BN.numel()])
    return start_S, torch.cat([start_S[1:], end]) - start_S


def _groups(start_S: Tensor, length_S: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Token index (S, L) and validity (S, L) of the segments of each power of two of length."""
    power = (2 * length_S - 1).log2().floor().long()
    for p in torch.unique(power).tolist():
        chosen = power == p
        length = length_S[chosen]
        offset = torch.arange(int(length.max()), device=length.device)
        valid = offset < length[:, None]
        yield (start_S[chosen, None] + offset).where(valid, 0), valid


def over_segments(
    call: Callable[..., Tensor],
    segments_BN: Tensor,
    tensors: Mapping[str, Tensor],
    key_mask: Tensor | None,
) -> Tensor:
    """Run ``call`` on each segment alone.

    Args:
        call: takes the tensors by name and ``key_mask``, returns (S, H, L, E).
        segments_BN: ids.
        tensors: each (B, heads, N, ...), tokens on axis 2.
        key_mask: bool (B, N), True = keep.

    Returns:
        (B, H, N, E).

    Raises:
        ValueError: segments that do not fit the tokens; says how.
    """
    batch, tokens = segments_BN.shape
    for name, x in tensors.items():
        if (x.shape[0], x.shape[2]) != (batch, tokens):
            raise ValueError(
                f"segments are for self-attention: {name} must have batch {batch} and {tokens} "
                f"tokens as the segments do, got {tuple(x.shape)}"
            )
    flat = {n: x.transpose(1, 2).flatten(0, 1) for n, x in tensors.items()}
    keep_T = None if key_mask is None else key_mask.flatten()
    pieces, places = [], []
    for index_SL, valid_SL in _groups(*segment_bounds(segments_BN)):
        keep = valid_SL if keep_T is None else valid_SL & keep_T[index_SL]
        padded = {n: x[index_SL].transpose(1, 2) for n, x in flat.items()}
        out: Tensor = call(**padded, key_mask=keep)
        pieces.append(out.transpose(1, 2)[valid_SL])
        places.append(index_SL[valid_SL])
    if not pieces:
        return call(**tensors, key_mask=key_mask)
    joined = torch.cat(pieces)
    out = torch.zeros_like(joined).index_copy(0, torch.cat(places), joined)
    return out.reshape(batch, tokens, *out.shape[1:]).transpose(1, 2)
