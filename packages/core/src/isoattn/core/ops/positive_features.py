"""Positive random features, as logarithms: phi(x) = exp(l(x)), so that no exponent is above 0.

With x' = s x and rows w of a projection (Choromanski et al. 2021, "Rethinking attention with
performers", eq. 5 and lemma 1; factors common to all features are left out, they cancel):

* positive: l = w.x' - |x'|^2 / 2. hyperbolic: the rows w and -w.
* relu: l = log(relu(w.x') + eps).
* positive or hyperbolic with eps: l = log(exp(w.x' - |x'|^2 / 2 - c) + eps), c the largest w.x', of
  a query over its features, of the keys over all of a head. Released codes do so; the sum then
  mixes in the mean of all values, and c no longer cancels.

Shape suffixes: as in :mod:`isoattn.core.contract`; P rows of the projection, R features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Kind = Literal["positive", "hyperbolic", "relu"]

FLOOR = -1e30
"""The logarithm of 0 here: finite, so that a difference of two is 0 and not NaN."""


@dataclass(frozen=True)
class Kernel:
    """Which features.

    Args:
        kind: of the map.
        scale: s.
        eps: added to each feature; relu needs one.
        constant_top: whether c is a constant in the derivative, as in performer-pytorch.
    """

    kind: Kind
    scale: float
    eps: float = 0.0
    constant_top: bool = True

    @property
    def softened(self) -> bool:
        """Whether a constant is added to an exponential."""
        return self.eps > 0 and self.kind != "relu"

    def directions(self, projection_HPD: Tensor, dtype: torch.dtype) -> Tensor:
        """The scaled rows (H, R, D) of all features."""
        w = projection_HPD.to(dtype) * self.scale
        return torch.cat([w, -w], -2) if self.kind == "hyperbolic" else w

    def features(self, rows: int) -> int:
        """R, from the rows of the projection."""
        return 2 * rows if self.kind == "hyperbolic" else rows

    def half_square(self, x: Tensor) -> Tensor:
        """|x'|^2 / 2, (..., 1)."""
        return x.square().sum(-1, keepdim=True) * (0.5 * self.scale**2)

    def soften(self, log_phi: Tensor) -> Tensor:
        """log(exp(l) + eps)."""
        return torch.logaddexp(log_phi, log_phi.new_tensor(math.log(self.eps)))


def log_queries(q_BHND: Tensor, w_HRD: Tensor, kernel: Kernel) -> Tensor:
    """l(q) (B, H, N, R), up to a number per query where that cancels."""
    dot = q_BHND @ w_HRD.transpose(-2, -1)
    if kernel.kind == "relu":
        return (F.relu(dot) + kernel.eps).log()
    if not kernel.softened:
        return dot
    top = dot.amax(-1, keepdim=True)
    top = top.detach() if kernel.constant_top else top
    return kernel.soften(dot - kernel.half_square(q_BHND) - top)


def log_keys(k_BHMD: Tensor, w_HRD: Tensor, kernel: Kernel, key_mask_BM: Tensor | None) -> Tensor:
    """l(k) (B, H, M, R), FLOOR where masked; masked keys are 0 on entry."""
    dot = k_BHMD @ w_HRD.transpose(-2, -1)
    hidden = None if key_mask_BM is None else ~key_mask_BM[:, None, :, None]
    if kernel.kind == "relu":
        log_phi = (F.relu(dot) + kernel.eps).log()
    else:
        log_phi = dot - kernel.half_square(k_BHMD)
        if kernel.softened and k_BHMD.shape[2]:
            seen = dot if hidden is None else dot.masked_fill(hidden, FLOOR)
            top = seen.amax((-2, -1), keepdim=True)
            log_phi = kernel.soften(log_phi - (top.detach() if kernel.constant_top else top))
    return log_phi if hidden is None else log_phi.masked_fill(hidden, FLOOR)


def guarded_inverse(x: Tensor) -> Tensor:
    """1 / x, and 0 with zero gradient where x is 0; NaN stays NaN."""
    empty = x == 0
    return x.masked_fill(empty, 1.0).reciprocal().masked_fill(empty, 0.0)
