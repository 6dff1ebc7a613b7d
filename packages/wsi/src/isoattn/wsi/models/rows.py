"""The weights that the first token gives to all tokens, for any attention, in O(n) of memory.

An attention is linear in v, so the gradient of its first output with respect to v is the first row
of its matrix. Nystrom writes its rows out itself, those of the zero tokens in front included.

Shape suffixes: as in :mod:`isoattn.core.contract`; P zero tokens in front.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isoattn.core import Attention, Nystrom, UnsupportedAttention


def first_row(
    core: Attention, q_BHND: Tensor, k_BGND: Tensor, key_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Row 0 of the implied matrix (B, H, N), and what it gives to zero tokens in front (B, H).

    Weights are those of the attention: signed where it has negative ones.

    Args:
        core: in evaluation mode.
        q_BHND: all queries; the class token's is the first.
        k_BGND: keys.
        key_mask: bool (B, N), as given to the attention.

    Raises:
        UnsupportedAttention: it mixes channels, so there are no weights of tokens.
    """
    if core.capability.mixes == "channels":
        raise UnsupportedAttention(
            f"{type(core).__name__} mixes channels: the class token gives no weights to tiles, so "
            "there is no heat map of it. Use an attention that mixes tokens"
        )
    if isinstance(core, Nystrom):
        rows = core.cls_row(q_BHND[:, :, :1], q_BHND, k_BGND, key_mask=key_mask, front=True)
        front = rows.shape[3] - k_BGND.shape[2]
        return rows[:, :, 0, front:], rows[:, :, 0, :front].sum(-1)
    own = core.capability
    # One query where its output is its own affair: softmax is O(n) then.
    q = q_BHND[:, :, :1] if own.cross and own.independent_queries else q_BHND
    with torch.inference_mode(False), torch.enable_grad():
        # Copies: what was made in inference mode cannot take part in a gradient.
        q, k = q.detach().clone(), k_BGND.detach().clone()
        mask = None if key_mask is None else key_mask.clone()
        # As wide as the heads: with another width torch's softmax kernel holds N x N numbers.
        v = torch.zeros_like(k).requires_grad_()
        out = core(q, k, v, key_mask=mask)
        (rows,) = torch.autograd.grad(out[:, :, 0, 0].sum(), v)
    return rows[..., 0], rows.new_zeros(rows.shape[:2])
