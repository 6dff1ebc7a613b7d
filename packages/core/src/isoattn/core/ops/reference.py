"""Float64 oracles: every attention from its definition, dense and without any trick.

Nothing here is shared with the fast forms. All functions take q (B, H, N, D), k (B, G, M, D),
v (B, G, M, E) of any float dtype and return (B, H, N, E) in float64; gradients flow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


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
    q, k, v = _doubles(q, k, v, key_mask)
    logits = torch.einsum("bhnd,bhmd->bhnm", q, k) * (
        q.shape[-1] ** -0.5 if scale is None else scale
    )
    seen = _seen(q, k, key_mask, causal)
    top = (
        logits.detach().masked_fill(~seen, -torch.inf).amax(-1, keepdim=True) if k.shape[2] else 0.0
    )
    weights = torch.exp(logits.where(seen, torch.as_tensor(top)) - top)
    return _average(weights, v, seen)


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
    q, k, v = _doubles(q, k, v, key_mask)
    cosine = torch.einsum("bhnd,bhmd->bhnm", _unit(q, -1), _unit(k, -1))
    seen = _seen(q, k, key_mask, causal)
    return _average(torch.exp(cosine * temperature_H11.double()), v, seen)


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
    q, k, v = _doubles(q, k, v, key_mask)
    phi = PHI[feature_map]
    weights = torch.einsum("bhnd,bhmd->bhnm", phi(q), phi(k))
    return _average(weights, v, _seen(q, k, key_mask, causal), eps)


def cross_covariance(
    q: Tensor, k: Tensor, v: Tensor, temperature_H11: Tensor, *, key_mask: Tensor | None = None
) -> Tensor:
    """Channel a of o = sum over b of softmax_b(tau_h cos(q_a, k_b)) times channel b of v."""
    q, k, v = _doubles(q, k, v, key_mask)
    if key_mask is not None:
        q = q.masked_fill(~key_mask[:, None, :, None], 0.0)
    cosine = torch.einsum("zhna,zhnb->zhab", _unit(q, -2), _unit(k, -2))
    weights = torch.exp(cosine * temperature_H11.double())
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.einsum("zhab,zhnb->zhna", weights, v)


def mean(
    q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Equal weights over the visible keys."""
    q, k, v = _doubles(q, k, v, key_mask)
    seen = _seen(q, k, key_mask, causal)
    return _average(torch.ones(seen.shape, dtype=torch.float64), v, seen)


def identity(q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
    """Each value itself, 0 where the token is masked."""
    return _doubles(q, k, v, key_mask)[2]


def zero(q: Tensor, v: Tensor) -> Tensor:
    """Nothing."""
    return torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)


def _doubles(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> tuple[Tensor, ...]:
    """Float64, a key head for each query head, masked keys and values 0 (they may hold NaN)."""
    repeats = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(repeats, 1) for x in (k, v))
    if key_mask is not None:
        k, v = (x.masked_fill(~key_mask[:, None, :, None], 0.0) for x in (k, v))
    return q.double(), k, v


def _seen(q: Tensor, k: Tensor, key_mask: Tensor | None, causal: bool) -> Tensor:
    """(B, H, N, M), True where the query sees the key."""
    shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    seen = torch.ones(shape, dtype=torch.bool)
    if causal:
        seen = seen & (torch.arange(shape[2])[:, None] >= torch.arange(shape[3])[None, :])
    if key_mask is not None:
        seen = seen & key_mask[:, None, None, :]
    return seen


def _average(weights: Tensor, v: Tensor, seen: Tensor, eps: float = 0.0) -> Tensor:
    """Values averaged with non-negative weights; rows without weight are 0."""
    weights = torch.where(seen, weights, 0.0)
    total = weights.sum(-1, keepdim=True) + eps
    weights = weights / torch.where(total > 0, total, 1.0)
    return torch.einsum("bhnm,bhme->bhne", weights, v)


def _unit(x: Tensor, dim: int) -> Tensor:
    square = x.square().sum(dim, keepdim=True)
    return torch.where(square > 0, x / torch.where(square > 0, square, 1.0).sqrt(), 0.0)
