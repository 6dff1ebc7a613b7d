"""Oracles of the attentions with positive random features, dense and without any shift."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isoattn.core.ops.reference.common import average, doubles, seen


def log_features(
    x: Tensor, projection_HPD: Tensor, kind: str, scale: float, eps: float = 0.0
) -> Tensor:
    """The logarithms of phi (B, H, N, R), eps of relu included."""
    x = x * scale
    w = projection_HPD.double()
    dot = torch.einsum("bhnd,hpd->bhnp", x, w)
    half = x.square().sum(-1, keepdim=True) / 2
    if kind == "relu":
        return torch.log(torch.clamp(dot, min=0.0) + eps)
    if kind == "hyperbolic":
        dot = torch.cat([dot, -dot], -1)
    return dot - half - math.log(dot.shape[-1]) / 2


def favor(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    projection_HPD: Tensor,
    *,
    kind: str,
    scale: float,
    eps: float = 0.0,
    key_mask: Tensor | None = None,
    causal: bool = False,
    noise_BHMT: Tensor | None = None,
    constant_top: bool = True,
    sum_eps: float = 0.0,
) -> Tensor:
    """Weights phi(q_i).phi(k_j) e^b_jt over their sum, averaged over the draws t.

    With an eps the exponentials are stabilised as released codes do before it is added. ``sum_eps``
    is added to every entry of sum phi(k), as performer-pytorch does where causal.
    """
    q, k, v = doubles(q, k, v, key_mask)
    visible = seen(q, k, key_mask, causal)
    log_q, log_k = (log_features(x, projection_HPD, kind, scale, eps) for x in (q, k))
    if kind != "relu" and eps and k.shape[2]:
        log_q, log_k = _released(q, k, log_q, log_k, scale, eps, key_mask, constant_top)
    noise = log_k.new_zeros(*log_k.shape[:3], 1) if noise_BHMT is None else noise_BHMT.double()
    # Factors common to a row or to all keys of a draw cancel; float64 holds what is left.
    top = log_q.detach().amax(-1, keepdim=True)
    phi_q = torch.exp(log_q if sum_eps else log_q - top)
    outs = []
    for b in noise.unbind(-1):
        joint = log_k + b[..., None]
        if k.shape[2] and not sum_eps:
            joint = joint - joint.detach().amax((-2, -1), keepdim=True)
        weights = torch.einsum("bhnr,bhmr->bhnm", phi_q, torch.exp(joint))
        extra = sum_eps * phi_q.sum(-1, keepdim=True)
        outs.append(average(weights, v, visible, extra))
    return torch.stack(outs).mean(0)


def _released(
    q: Tensor,
    k: Tensor,
    log_q: Tensor,
    log_k: Tensor,
    scale: float,
    eps: float,
    key_mask: Tensor | None,
    constant: bool,
) -> tuple[Tensor, Tensor]:
    """log(exp(w.x - |x|^2 / 2 - c) + eps) with c of a query, and of all keys of a head."""
    softened = []
    for x, logs, dims in ((q, log_q, (-1,)), (k, log_k, (-2, -1))):
        half = (x * scale).square().sum(-1, keepdim=True) / 2
        logs = logs + math.log(logs.shape[-1]) / 2
        dot = logs + half
        if key_mask is not None and len(dims) == 2:
            dot = dot.masked_fill(~key_mask[:, None, :, None], -torch.inf)
        top = dot.amax(dims, keepdim=True)
        top = top.masked_fill(top == -torch.inf, 0.0)
        soft = torch.exp(logs - (top.detach() if constant else top)) + eps
        softened.append(torch.log(soft) - math.log(logs.shape[-1]) / 2)
    return softened[0], softened[1]
