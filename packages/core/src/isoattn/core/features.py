"""Feature maps phi of linear attention, element by element, all of them non-negative.

Shape suffixes: as in :mod:`isoattn.core.contract`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

FeatureMap = Literal["elu1", "relu", "softplus", "exp"]


@dataclass(frozen=True)
class Feature:
    """One map phi with its derivative.

    Args:
        phi: the map.
        slope: phi' as a function of phi, so that a backward pass needs no second look at x.
        shifted: phi(x) = exp(x), which is only safe with its exponents moved below 0, see
            :func:`key_shift`.
    """

    phi: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    shifted: bool = False

    def keys(self, k: Tensor, shift: Tensor | None) -> Tensor:
        """phi(k), or exp(k - shift) where the map is shifted."""
        return self.phi(k if shift is None else k - shift)

    def queries(self, q: Tensor, shift: Tensor | None) -> Tensor:
        """phi(q), or exp(q + shift - max) where the map is shifted.

        The two shifts cancel in phi(q).phi(k), the maximum over D cancels in the normalisation.
        """
        if shift is None:
            return self.phi(q)
        q = q + shift
        return self.phi(q - q.detach().amax(-1, keepdim=True))


def elu1(x: Tensor) -> Tensor:
    """Return elu(x) + 1, computed as relu(x) + exp(min(x, 0)).

    That form is positive down to x = -103 in float32; elu(x) + 1 rounds to 0 from -17 on.
    """
    return x.clamp(max=0.0).exp() + x.relu()


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x)); torch's default threshold of 20 is too low for float64."""
    return F.softplus(x, threshold=40.0)


FEATURES: Mapping[str, Feature] = {
    "elu1": Feature(elu1, lambda phi: phi.clamp(max=1.0)),
    "relu": Feature(F.relu, lambda phi: phi.sign()),
    "softplus": Feature(softplus, lambda phi: -torch.expm1(-phi)),
    "exp": Feature(torch.exp, lambda phi: phi, shifted=True),
}


def key_shift(k_BGMD: Tensor, key_mask_BM: Tensor | None) -> Tensor:
    """The largest visible key of each channel (B, G, 1, D), detached; 0 where no key is visible.

    With it exp(k - shift) <= 1, and the row maximum of q + shift leaves a denominator >= 1.
    """
    k_BGMD = k_BGMD.detach()
    if key_mask_BM is not None:
        k_BGMD = k_BGMD.masked_fill(~key_mask_BM[:, None, :, None], -torch.inf)
    if k_BGMD.shape[2] == 0:
        return k_BGMD.new_zeros(*k_BGMD.shape[:2], 1, k_BGMD.shape[3])
    top = k_BGMD.amax(2, keepdim=True)
    return top.masked_fill(top == -torch.inf, 0.0)
