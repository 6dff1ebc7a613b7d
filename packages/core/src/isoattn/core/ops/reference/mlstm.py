"""Oracle of the matrix memory: token by token from its definition, without a stabiliser.

float64 holds exp(+-700), so gates of +-80 need none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isoattn.core.ops.reference.common import doubles


def mlstm(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    in_gate: Tensor | None,
    *,
    key_mask: Tensor | None = None,
    sigmoid: bool = False,
    eps: float = 0.0,
) -> Tensor:
    """C = f C + i k v^T, n = f n + i k, h = C^T q / max(|n.q|, 1), q scaled by D^-1/2.

    Args:
        q: (B, H, N, D).
        k: (B, G, N, D).
        v: (B, G, N, E).
        log_decay: log f (B, G, N); ``None`` is 0.
        in_gate: i~ (B, G, N); ``None`` is 0.
        key_mask: bool (B, N); at a masked token the memory stays as it is.
        sigmoid: i = sigmoid(i~) instead of exp(i~).
        eps: what is added to the denominator; with exp(i~) it is eps exp(m_t).
    """
    repeats = q.shape[1] // k.shape[1]
    none = k.new_zeros(k.shape[:3])
    gates = (none if g is None else g for g in (log_decay, in_gate))
    log_f, i_tilde = (g.double().repeat_interleave(repeats, 1) for g in gates)
    q, k, v = doubles(q, k, v, key_mask)
    q = q * q.shape[-1] ** -0.5
    log_i = torch.nn.functional.logsigmoid(i_tilde) if sigmoid else i_tilde
    if key_mask is not None:
        pads = ~key_mask[:, None, :]
        log_f, log_i = log_f.masked_fill(pads, 0.0), log_i.masked_fill(pads, -torch.inf)
    f, i = log_f.exp(), log_i.exp()
    C = torch.zeros(*q.shape[:2], q.shape[3], v.shape[3], dtype=torch.float64)
    n = torch.zeros(*q.shape[:2], q.shape[3], dtype=torch.float64)
    m = torch.full(q.shape[:2], -torch.inf, dtype=torch.float64)
    out = []
    for t in range(q.shape[2]):
        k_t, v_t, q_t = k[:, :, t], v[:, :, t], q[:, :, t]
        f_t, i_t = f[:, :, t, None], i[:, :, t, None]
        C = f_t[..., None] * C + i_t[..., None] * k_t[..., :, None] * v_t[..., None, :]
        n = f_t * n + i_t * k_t
        m = torch.maximum(log_f[:, :, t] + m, log_i[:, :, t])
        bottom = (n * q_t).sum(-1).abs().clamp(min=1.0)
        if eps:
            bottom = bottom + (eps if sigmoid else eps * m.exp())
        out.append(torch.einsum("bhd,bhde->bhe", q_t, C) / bottom[..., None])
    return torch.stack(out, 2)
