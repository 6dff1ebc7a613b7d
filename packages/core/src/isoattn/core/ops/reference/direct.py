"""Oracles of the attentions without landmarks, windows, draws or recurrence."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from isoattn.core.ops.reference.common import average, doubles, seen, unit


def softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Weights exp(s q_i.k_j) over their sum."""
    q, k, v = doubles(q, k, v, key_mask)
    logits = torch.einsum("bhnd,bhmd->bhnm", q, k) * (
        q.shape[-1] ** -0.5 if scale is None else scale
    )
    visible = seen(q, k, key_mask, causal)
    top = (
        logits.detach().masked_fill(~visible, -torch.inf).amax(-1, keepdim=True)
        if k.shape[2]
        else 0.0
    )
    weights = torch.exp(logits.where(visible, torch.as_tensor(top)) - top)
    return average(weights, v, visible)


def key_noise_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    bias_BHMT: Tensor | None,
    key_mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Weights exp(s q_i.k_j + b_jt) over their sum, averaged over the draws t."""
    if bias_BHMT is None:
        return softmax(q, k, v, key_mask=key_mask, causal=causal, scale=scale)
    q, k, v = doubles(q, k, v, key_mask)
    logits = torch.einsum("bhnd,bhmd->bhnm", q, k) * scale
    visible = seen(q, k, key_mask, causal)
    outs = []
    for b in bias_BHMT.unbind(-1):
        noisy = (logits + b[:, :, None, :]).masked_fill(~visible, -torch.inf)
        top = noisy.detach().amax(-1, keepdim=True)
        weights = torch.exp(noisy - top.masked_fill(top == -torch.inf, 0.0))
        outs.append(average(weights, v, visible))
    return torch.stack(outs).mean(0)


def cosine_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    temperature_H11: Tensor,
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Weights exp(tau_h cos(q_i, k_j)) over their sum."""
    q, k, v = doubles(q, k, v, key_mask)
    cosine = torch.einsum("bhnd,bhmd->bhnm", unit(q, -1), unit(k, -1))
    visible = seen(q, k, key_mask, causal)
    return average(torch.exp(cosine * temperature_H11.double()), v, visible)


PHI: Mapping[str, Callable[[Tensor], Tensor]] = {
    "elu1": lambda x: torch.where(x > 0, x + 1.0, torch.exp(x)),
    "relu": lambda x: torch.where(x > 0, x, 0.0),
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "exp": torch.exp,
}


def linear(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
    feature_map: str = "elu1",
    eps: float = 0.0,
) -> Tensor:
    """Weights phi(q_i).phi(k_j) over their sum plus eps."""
    q, k, v = doubles(q, k, v, key_mask)
    phi = PHI[feature_map]
    weights = torch.einsum("bhnd,bhmd->bhnm", phi(q), phi(k))
    return average(weights, v, seen(q, k, key_mask, causal), eps)


def cross_covariance(
    q: Tensor, k: Tensor, v: Tensor, temperature_H11: Tensor, *, key_mask: Tensor | None = None
) -> Tensor:
    """Channel a of o = sum over b of softmax_b(tau_h cos(q_a, k_b)) times channel b of v."""
    q, k, v = doubles(q, k, v, key_mask)
    if key_mask is not None:
        q = q.masked_fill(~key_mask[:, None, :, None], 0.0)
    cosine = torch.einsum("zhna,zhnb->zhab", unit(q, -2), unit(k, -2))
    weights = torch.exp(cosine * temperature_H11.double())
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.einsum("zhab,zhnb->zhna", weights, v)


def mean(
    q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Equal weights over the visible keys."""
    q, k, v = doubles(q, k, v, key_mask)
    visible = seen(q, k, key_mask, causal)
    return average(torch.ones(visible.shape, dtype=torch.float64), v, visible)


def identity(q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
    """Each value itself, 0 where the token is masked."""
    return doubles(q, k, v, key_mask)[2]


def zero(q: Tensor, v: Tensor) -> Tensor:
    """Nothing."""
    return torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
