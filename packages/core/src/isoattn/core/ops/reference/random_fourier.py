"""Oracle of random feature attention."""

from __future__ import annotations

import torch
from torch import Tensor

from isoattn.core.ops.reference.common import doubles, seen

RELEASED = {"released": 1.0, "released_masked": 1e-3, "released_cross": 1.0}


def random_fourier(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sigma_H1D: Tensor,
    projection_HRD: Tensor,
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
    kernel: str = "gaussian",
    lengths: str = "unit",
    norm_eps: float = 0.0,
    clamp: str = "relative",
    eps: float = 0.0,
) -> Tensor:
    """Weights w_j phi(q_i).phi(k_j) over their clamped sum, phi with the scale that is written."""
    q, k, v = doubles(q, k, v, key_mask)
    if lengths == "unit":
        q, k = (_shortened(x, norm_eps) for x in (q, k))
    q, k = q * sigma_H1D.double(), k * sigma_H1D.double()
    count = projection_HRD.shape[1]
    scale = count**-0.5 if clamp == "relative" else 0.1
    angle_q, angle_k = (torch.einsum("bhnd,hrd->bhnr", x, projection_HRD.double()) for x in (q, k))
    if kernel == "gaussian":
        phi_q, phi_k = (scale * torch.cat([x.sin(), x.cos()], -1) for x in (angle_q, angle_k))
        if lengths == "weigh":
            phi_k = phi_k * torch.exp(k.square().sum(-1, keepdim=True) / 2.0)
    else:
        phi_q, phi_k = (scale * torch.where(x > 0, x, 0.0) for x in (angle_q, angle_k))
    visible = seen(q, k, key_mask, causal)
    weights = torch.where(visible, torch.einsum("bhnr,bhmr->bhnm", phi_q, phi_k), 0.0)
    bottom = weights.sum(-1, keepdim=True)
    if kernel == "arccos":
        bottom = torch.where(bottom > 0, bottom, 1.0)
    elif clamp == "relative":
        z = torch.einsum("bhnm,bhmr->bhnr", visible.double(), phi_k)
        some = visible.any(-1, keepdim=True)
        z = torch.where(some, z, 1.0)
        peak = z.detach().abs().amax(-1, keepdim=True).clamp(min=1.0)  # exp(376) has no square
        length = peak * (z / peak).norm(dim=-1, keepdim=True)
        least = torch.where(some, eps * phi_q.norm(dim=-1, keepdim=True) * length, 1.0)
        clamped = torch.where(bottom < 0, -1.0, 1.0) * least
        bottom = torch.where(bottom.abs() >= least, bottom, clamped)
    elif clamp == "released":
        bottom = bottom.clamp(min=RELEASED[clamp])
    else:
        bottom = bottom.abs().clamp(min=RELEASED[clamp])
    return torch.einsum("bhnm,bhme->bhne", weights / bottom, v)


def _shortened(x: Tensor, eps: float) -> Tensor:
    square = x.square().sum(-1, keepdim=True)
    length = torch.where(square > 0, square, 1.0).sqrt() + eps
    return torch.where(square > 0, x / length, 0.0)
