"""Oracle of the delta rule: token by token from its definition, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from isoattn.core.ops.reference.common import doubles, unit


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    in_gate: Tensor | None,
    *,
    key_mask: Tensor | None = None,
    scale: float = 1.0,
    most: float = 1.0,
) -> Tensor:
    """S = Diag(a) S, then S = S + b k (v - S^T k)^T, o = s S^T q, with k of length 1.

    Args:
        q: (B, H, N, D).
        k: (B, G, N, D).
        v: (B, G, N, E).
        log_decay: log a (B, G, N) or (B, G, N, D); ``None`` is 0.
        in_gate: b = most * sigmoid(in_gate), (B, G, N); ``None`` is 0.
        key_mask: bool (B, N); at a masked token the state stays as it is.
        scale: s.
        most: largest b.
    """
    repeats = q.shape[1] // k.shape[1]
    log_decay = k.new_zeros(k.shape) if log_decay is None else log_decay
    log_decay = log_decay.unsqueeze(-1) if log_decay.ndim == 3 else log_decay
    in_gate = k.new_zeros(k.shape[:3]) if in_gate is None else in_gate
    log_decay, in_gate = (g.double().repeat_interleave(repeats, 1) for g in (log_decay, in_gate))
    q, k, v = doubles(q, k, v, key_mask)
    if key_mask is not None:
        pads = ~key_mask[:, None, :]
        log_decay = log_decay.masked_fill(pads.unsqueeze(-1), 0.0)
        in_gate = in_gate.masked_fill(pads, -torch.inf)
    a, b = log_decay.exp(), most * torch.sigmoid(in_gate)
    k = unit(k, -1)
    S = torch.zeros(*k.shape[:2], k.shape[3], v.shape[3], dtype=torch.float64)
    out = []
    for t in range(q.shape[2]):
        S = a[:, :, t].unsqueeze(-1) * S
        error = v[:, :, t] - torch.einsum("bhde,bhd->bhe", S, k[:, :, t])
        S = S + torch.einsum("bh,bhd,bhe->bhde", b[:, :, t], k[:, :, t], error)
        out.append(scale * torch.einsum("bhde,bhd->bhe", S, q[:, :, t]))
    return torch.stack(out, 2)
