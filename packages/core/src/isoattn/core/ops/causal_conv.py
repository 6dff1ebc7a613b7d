"""Causal depthwise convolution over the kept tokens, continued from the last ones of a state.

Shape suffixes: B batch, N tokens, C channels, K taps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isoattn.core.ops.blocks import accumulation_dtype


def causal_conv(
    x_BNC: Tensor,
    weight_CK: Tensor,
    bias_C: Tensor | None = None,
    before_BKC: Tensor | None = None,
    *,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """y_t = b + sum_j w_j x_(t - K + 1 + j), counted over kept tokens.

    Args:
        x_BNC: tokens.
        weight_CK: taps of each channel, the last one for the token itself.
        bias_C: b.
        before_BKC: the K - 1 kept tokens before the first one, the latest last; ``None`` is 0.
        mask: bool (B, N), True = keep. The others are as good as absent; their outputs are 0.

    Returns:
        (B, N, C) in the dtype of x, summed in float32 at least, and the last K - 1 kept tokens.
    """
    (batch, tokens, channels), taps = x_BNC.shape, weight_CK.shape[1]
    if before_BKC is None:
        before_BKC = x_BNC.new_zeros(batch, taps - 1, channels)
    if mask is None:
        row = torch.cat([before_BKC.to(x_BNC.dtype), x_BNC], 1)
        return _taps(row, weight_CK, bias_C, tokens), row[:, tokens:]
    hidden = ~mask.unsqueeze(-1)
    order = torch.argsort((~mask).to(torch.uint8), dim=1, stable=True)
    kept_first = _take(x_BNC.masked_fill(hidden, 0.0), order)
    row = torch.cat([before_BKC.to(x_BNC.dtype), kept_first], 1)
    y = _take(_taps(row, weight_CK, bias_C, tokens), (mask.cumsum(1) - 1).clamp(min=0))
    last = mask.sum(1, keepdim=True) + torch.arange(taps - 1, device=mask.device)
    return y.masked_fill(hidden, 0.0), _take(row, last)


def _take(x_BNC: Tensor, index_BM: Tensor) -> Tensor:
    return x_BNC.gather(1, index_BM.unsqueeze(-1).expand(-1, -1, x_BNC.shape[2]))


def _taps(row: Tensor, weight_CK: Tensor, bias_C: Tensor | None, tokens: int) -> Tensor:
    accumulate = accumulation_dtype(row)
    weight = weight_CK.to(accumulate)
    wide = row.to(accumulate)
    y = wide[:, :tokens] * weight[:, 0]
    for j in range(1, weight.shape[1]):
        y = torch.addcmul(y, wide[:, j : j + tokens], weight[:, j])
    if bias_C is not None:
        y = y + bias_C.to(accumulate)
    return y.to(row.dtype)
