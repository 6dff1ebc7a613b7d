"""Rotary positions: pairs of channels turned by an angle that grows with the token's position.

RoFormer (Su et al. 2021, eq. 34): the product of two rotated vectors depends on the difference of
their positions alone.

Shape suffixes: N tokens, D channels; anything in front.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from isoattn.core.ops.blocks import accumulation_dtype

Layout = Literal["interleaved", "halves"]
"""Which channels make a pair: 2i and 2i + 1 (the paper), or i and i + D / 2 (GPT-NeoX, Llama)."""


def rotate(
    x_ND: Tensor,
    position_N: Tensor,
    *,
    channels: int | None = None,
    base: float = 10_000.0,
    layout: Layout = "interleaved",
) -> Tensor:
    """Turn pair i of the channels by the angle position * base^(-2i / channels).

    Args:
        x_ND: (..., N, D).
        position_N: integers that broadcast against (..., N).
        channels: how many leading channels are turned, an even number; all of them (but the last
            one where D is odd) unless given. The others stay as they are.
        base: of the frequencies.
        layout: which channels make a pair.

    Returns:
        (..., N, D) in the dtype of x. Angles are computed in float64, where the device has it: in
        float32 that of token 100,000 would be wrong by 0.004.

    Raises:
        ValueError: an odd number of channels, or more than D.
    """
    dim = x_ND.shape[-1]
    channels = dim - dim % 2 if channels is None else channels
    if channels % 2 or not 0 <= channels <= dim:
        raise ValueError(
            f"channels must be an even number from 0 to the {dim} of x, got {channels}"
        )
    wide = torch.float32 if x_ND.device.type == "mps" else torch.float64
    power = torch.arange(0, channels, 2, dtype=wide, device=x_ND.device) / max(channels, 1)
    angle = position_N.unsqueeze(-1).to(wide) * base**-power
    accumulate = accumulation_dtype(x_ND)
    cos, sin = angle.cos().to(accumulate), angle.sin().to(accumulate)
    turned = x_ND[..., :channels].to(accumulate)
    if layout == "interleaved":
        a, b = turned[..., ::2], turned[..., 1::2]
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    else:
        a, b = turned.chunk(2, -1)
        turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    return torch.cat([turned.to(x_ND.dtype), x_ND[..., channels:]], -1)


def ranks(keep_BN: Tensor, segments_BN: Tensor | None = None) -> Tensor:
    """Positions that count kept tokens alone, from 0, anew in each segment: int64 (B, N).

    A token that is not kept has the position of the next kept one.
    """
    kept = keep_BN.long()
    before = kept.cumsum(1) - kept
    if segments_BN is None:
        return before
    first = torch.ones_like(keep_BN)
    first[:, 1:] = segments_BN.diff(dim=1) != 0
    return before - before.where(first, 0).cummax(1).values
