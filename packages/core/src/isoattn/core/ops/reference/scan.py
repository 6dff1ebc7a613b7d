"""Oracle of the diagonal scan: one token after another."""

from __future__ import annotations

import torch
from torch import Tensor


def diagonal_scan(log_a: Tensor, x: Tensor, h0: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """h_t = exp(log_a_t) h_(t-1) + x_t over axis 1 of (B, N, C...), in float64."""
    log_a, x = log_a.double().expand_as(x), x.double()
    h = torch.zeros_like(x.sum(1)) if h0 is None else h0.double()
    states = []
    for decay, add in zip(log_a.exp().unbind(1), x.unbind(1), strict=True):
        h = decay * h + add
        states.append(h)
    return torch.stack(states, 1) if states else x, h
