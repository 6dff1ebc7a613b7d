"""Masks (bool, True = keep), and leaving autocast for the length of a sum.

Shape suffixes: as in :mod:`isoattn.core.contract`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def zero_masked(x_BGMD: Tensor, key_mask_BM: Tensor | None) -> Tensor:
    """Copy with masked tokens set to 0, whatever they held: 0 times NaN would stay NaN."""
    if key_mask_BM is None:
        return x_BGMD
    return x_BGMD.masked_fill(~key_mask_BM[:, None, :, None], 0.0)


def visible(
    queries: int,
    keys: int,
    key_mask_BM: Tensor | None,
    causal: bool,
    device: torch.device,
    earlier: int = 0,
) -> Tensor | None:
    """Which query sees which key, broadcasting to (B, H, N, M); ``None`` where all do.

    Where causal, that many keys stand before the first query.
    """
    mask = None if key_mask_BM is None else key_mask_BM[:, None, None, :]
    if causal:
        lower = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(earlier)
        mask = lower if mask is None else lower & mask
    return mask


def no_autocast(device_type: str) -> AbstractContextManager[object]:
    """Autocast would run the products of float32 sums in half precision."""
    if device_type != "meta" and torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()
