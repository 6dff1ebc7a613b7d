"""Oracles of the attentions with a decaying state: token by token, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from isoattn.core.ops.reference.common import doubles
from isoattn.core.ops.reference.common import unit as _unit


def recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    *,
    key_mask: Tensor | None = None,
    scale: float = 1.0,
    bonus: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs and the last state of S_t = diag(a_t) S_(t-1) + k_t v_t^T, o_t = s S_t^T q_t.

    Args:
        q: queries.
        k: keys.
        v: values.
        log_decay: log a_t, (B, G, N) or (B, G, N, D), or none.
        key_mask: bool (B, N); at a masked token the state stays as it is.
        scale: s.
        bonus: u (H, D). With it o_t = s (S_(t-1) + diag(u) k_t v_t^T)^T q_t.
        state: S_0 (B, H, D, E), else 0.
    """
    repeats = q.shape[1] // k.shape[1]
    q, k, v = doubles(q, k, v, key_mask)
    if log_decay is None:
        decay = torch.ones_like(k)
    else:
        if log_decay.ndim == 3:
            log_decay = log_decay.unsqueeze(-1).expand(*log_decay.shape, k.shape[3])
        log_decay = log_decay.double().repeat_interleave(repeats, 1)
        if key_mask is not None:
            log_decay = log_decay.masked_fill(~key_mask[:, None, :, None], 0.0)
        decay = log_decay.exp()
    last = q.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]) if state is None else state.double()
    outputs = []
    for t in range(q.shape[2]):
        new = torch.einsum("bhd,bhe->bhde", k[:, :, t], v[:, :, t])
        read = last if bonus is None else last + bonus.double().unsqueeze(-1) * new
        last = decay[:, :, t].unsqueeze(-1) * last + new
        read = last if bonus is None else read
        outputs.append(torch.einsum("bhd,bhde->bhe", q[:, :, t], read) * scale)
    if not outputs:
        return v, last
    return torch.stack(outputs, 2), last


def gated_random_fourier(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    sigma_H1D: Tensor,
    projection_HRD: Tensor,
    *,
    key_mask: Tensor | None = None,
    unit: bool = True,
    eps: float = 0.0,
) -> Tensor:
    """S and z of eq. 7 of RFA; the denominator in size at least eps times the gates' weights."""
    repeats = q.shape[1] // k.shape[1]
    q, k, v = doubles(q, k, v, key_mask)
    if unit:
        q, k = _unit(q, -1), _unit(k, -1)
    angles = [
        torch.einsum("bhnd,hrd->bhnr", x * sigma_H1D.double(), projection_HRD.double())
        for x in (q, k)
    ]
    root = projection_HRD.shape[1] ** -0.5
    phi_q, phi_k = (root * torch.cat([x.sin(), x.cos()], -1) for x in angles)
    enters = torch.ones_like(v[..., :1])
    if key_mask is not None:
        enters = enters.masked_fill(~key_mask[:, None, :, None], 0.0)
    if log_decay is not None:
        log_decay = log_decay.double().repeat_interleave(repeats, 1)
        if key_mask is not None:
            log_decay = log_decay.masked_fill(~key_mask[:, None, :], 0.0)
        enters = enters * (1.0 - log_decay.exp()).unsqueeze(-1)
    ones = torch.ones_like(enters)
    top, _ = recurrence(phi_q, enters * phi_k, v, log_decay)
    bottom, _ = recurrence(phi_q, enters * phi_k, ones, log_decay)
    least = eps * recurrence(ones, enters, ones, log_decay)[0]
    bottom = torch.where(bottom.abs() >= least, bottom, torch.where(bottom < 0, -least, least))
    some = bottom != 0
    return torch.where(some, top / torch.where(some, bottom, 1.0), 0.0)
