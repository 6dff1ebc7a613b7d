"""Linformer: softmax over keys and values that are projected along the tokens to p slots.

k' = E^T k, v' = F^T v, o = softmax(s q k'^T) v' (Wang et al. 2020, eq. 7), s = D^-1/2.

Shape suffixes: as in :mod:`isoattn.core.contract`; P slots, T the most tokens, S projections
(1 or H).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.ops.blocks import accumulation_dtype
from isoattn.core.ops.masking import zero_masked


def linformer_attention(
    q_BHND: Tensor,
    k_BGMD: Tensor,
    v_BGME: Tensor,
    e_STP: Tensor,
    f_STP: Tensor,
    *,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Softmax attention over the P slots.

    Args:
        q_BHND: queries.
        k_BGMD: keys, at most T; G divides H.
        v_BGME: values.
        e_STP: E, its first M rows count; one for all heads (S = 1) or one for each of H.
        f_STP: F likewise.
        key_mask: bool (B, M), True = keep. Masked rows of k and v are 0, so they add nothing to a
            slot, but every slot keeps its share of the softmax.

    Returns:
        (B, H, N, E), in float32 at least.
    """
    accumulate = accumulation_dtype(v_BGME)
    heads = q_BHND.shape[1]
    k = to_slots(zero_masked(k_BGMD, key_mask).to(accumulate), e_STP, heads)
    v = to_slots(zero_masked(v_BGME, key_mask).to(accumulate), f_STP, heads)
    return F.scaled_dot_product_attention(q_BHND.to(accumulate), k, v)


def to_slots(x_BGMD: Tensor, projection_STP: Tensor, heads: int) -> Tensor:
    """Sum over the tokens of each slot's weights times x: (B, H, P, D)."""
    batch, groups, tokens, dim = x_BGMD.shape
    sets, _, slots = projection_STP.shape
    weight = projection_STP[:, :tokens].to(x_BGMD.dtype).transpose(1, 2)
    if sets == 1:
        weight = weight.expand(batch * groups, slots, tokens)
        shared = torch.bmm(weight, x_BGMD.flatten(0, 1)).view(batch, groups, slots, dim)
        repeats = heads // groups
        return shared if repeats == 1 else shared.repeat_interleave(repeats, 1)
    # One product a key head, over all samples: its query heads one after the other.
    weight = weight.reshape(groups, heads // groups * slots, tokens)
    columns = x_BGMD.permute(1, 2, 0, 3).reshape(groups, tokens, batch * dim)
    out = torch.bmm(weight, columns).view(groups, heads // groups, slots, batch, dim)
    return out.permute(3, 0, 1, 2, 4).reshape(batch, heads, slots, dim)
