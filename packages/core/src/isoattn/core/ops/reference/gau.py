"""Float64 oracles of the gated attention unit and of FLASH, dense N x N, from the equations.

Hua et al. 2022, eq. 5, 7, 8 and the factors of appendix D. Shapes as in
:mod:`isoattn.core.ops.gau`; a masked token is as good as absent, so places count kept tokens alone.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor


def gau(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scaling: Literal["equation", "listing"] = "listing",
    bias: Tensor | None = None,
) -> Tensor:
    """relu(c1 q k^T + b)^2 v with b (N, N) over places; c1 = 1, or 1 over the keys a row sees."""
    place, seen = _places(q, mask, causal)
    logits = torch.einsum("bnd,bmd->bnm", q.double(), k.double())
    if scaling == "listing":
        logits = logits / seen.sum(-1, keepdim=True).clamp(min=1)
    if bias is not None:
        logits = logits + bias.double()[place[:, :, None], place[:, None, :]]
    return _weighted(logits.relu().square(), v, seen)


def flash(
    q: Tensor,
    k: Tensor,
    linear_q: Tensor,
    linear_k: Tensor,
    v: Tensor,
    *,
    chunk: int,
    mask: Tensor | None = None,
    causal: bool = False,
    scaling: Literal["equation", "listing"] = "listing",
    bias: Tensor | None = None,
) -> Tensor:
    """Quadratic where query and key share a chunk (bias (g, g)), linear across chunks."""
    place, seen = _places(q, mask, causal)
    inside, which = place % chunk, place // chunk
    logits = torch.einsum("bnd,bmd->bnm", q.double(), k.double())
    if scaling == "listing":
        logits = logits / chunk
    if bias is not None:
        logits = logits + bias.double()[inside[:, :, None], inside[:, None, :]]
    same = seen & (which[:, :, None] == which[:, None, :])
    out = _weighted(logits.relu().square(), v, same)

    across = seen & (which[:, :, None] > which[:, None, :]) if causal else seen
    weights = torch.einsum("bnd,bmd->bnm", linear_q.double(), linear_k.double())
    if scaling == "listing":
        weights = weights / across.sum(-1, keepdim=True).clamp(min=1)
    return out + _weighted(weights, v, across)


def _places(q: Tensor, mask: Tensor | None, causal: bool) -> tuple[Tensor, Tensor]:
    """The place (B, N) of each token among the kept ones, and who sees whom (B, N, N)."""
    batch, tokens, _ = q.shape
    keep = torch.ones(batch, tokens, dtype=torch.bool) if mask is None else mask
    place = (keep.long().cumsum(1) - 1).clamp(min=0)
    seen = keep[:, None, :].expand(batch, tokens, tokens)
    if causal:
        seen = seen & torch.ones(tokens, tokens, dtype=torch.bool).tril()
    return place, seen


def _weighted(weights: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    keep = seen.any(1)[:, :, None]
    return torch.where(seen, weights, 0.0) @ torch.where(keep, v.double(), 0.0)
