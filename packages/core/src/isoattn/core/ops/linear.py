"""Linear attention o_i = phi(q_i) S / phi(q_i) z, S = sum phi(k_j) v_j^T (Katharopoulos et al. 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from isoattn.core.ops.softmax import zero_masked


def linear_attention(
    phi_q_BHND: Tensor,
    phi_k_BGMD: Tensor,
    v_BGME: Tensor,
    *,
    key_mask: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Normalised linear attention of features that are already mapped, in float32 at least."""
    accumulate = torch.promote_types(v_BGME.dtype, torch.float32)
    batch, heads, queries, features = phi_q_BHND.shape
    groups = phi_k_BGMD.shape[1]
    phi_k = zero_masked(phi_k_BGMD.to(accumulate), key_mask)
    v = zero_masked(v_BGME, key_mask).to(accumulate)
    state_BGDE = phi_k.transpose(-2, -1) @ v
    total_BGD1 = phi_k.sum(-2).unsqueeze(-1)
    phi_q = phi_q_BHND.to(accumulate).reshape(batch, groups, -1, features)
    top = phi_q @ state_BGDE
    bottom = phi_q @ total_BGD1 + eps
    out = torch.where(bottom > 0, top / torch.where(bottom > 0, bottom, 1.0), 0.0)
    return out.reshape(batch, heads, queries, -1).to(v_BGME.dtype)
