"""The map of random feature attention (Peng et al. 2021, arXiv 2103.02143).

With w ~ N(0, I), scaled channel by channel by sigma,

    gaussian (eq. 2-5):  phi(x) = [sin(sigma w.x), cos(sigma w.x)],  so that phi(x).phi(y) / D
                         estimates exp(-|sigma (x - y)|^2 / 2),
    arccos:              phi(x) = relu(sigma w.x).

The factor D^-1/2 of the paper cancels and is left out. With the weight exp(|sigma k|^2 / 2) of a
key the estimate is of exp(sigma q . sigma k) (appendix A.4); the factor of the query cancels.

The gaussian denominator is signed. Three normalisers of the released code (Noahs-ARK/RFA) disagree
with each other; its phi is 0.1 [sin, cos], hence a bound of 100 here where it writes 1.

Shape suffixes: as in :mod:`isoattn.core.contract`; R random directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from isoattn.core.ops.feature_kernel import FeatureKernel, guarded_inverse

Clamp = Literal["relative", "released", "released_masked", "released_cross"]

Lengths = Literal["unit", "keep", "weigh"]

BOUNDS = {"released": 1.0, "released_masked": 1e-3, "released_cross": 1.0}
"""Smallest denominators of the released code, for phi = 0.1 [sin, cos]."""


@dataclass(frozen=True)
class RandomFourierKernel(FeatureKernel):
    """Options of the map; its parameters are sigma (H, 1, D) and the directions w (H, R, D).

    Args:
        features: R.
        gaussian: sine and cosine, or else the arccos map.
        lengths: ``"unit"`` divides x by |x| + norm_eps first, ``"keep"`` takes it as it is,
            ``"weigh"`` gives keys a weight besides.
        norm_eps: see there.
        clamp: how small the signed denominator may be: ``"relative"`` keeps its sign and makes it
            at least eps |phi(q)| |z|; the others are those of the released code.
        eps: see there.
    """

    features: int
    gaussian: bool = True
    lengths: Lengths = "unit"
    norm_eps: float = 0.0
    clamp: Clamp = "relative"
    eps: float = 0.0

    @property
    def weighted(self) -> bool:  # type: ignore[override]
        """Whether keys are weighed by their length."""
        return self.lengths == "weigh"

    @property
    def bounded(self) -> bool:  # type: ignore[override]
        """Only the relative bound looks at |z|."""
        return self.gaussian and self.clamp == "relative"

    def width(self, head_dim: int) -> int:
        """2 R with sine and cosine, else R."""
        return self.features * (1 + self.gaussian)

    def keys(self, k: Tensor, parameters: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None]:
        """phi(k) (B, H, M, F), a key head for each query head, and |sigma k|^2 / 2."""
        sigma, _ = parameters
        if sigma.shape[0] != k.shape[1]:
            k = k.repeat_interleave(sigma.shape[0] // k.shape[1], 1)
        k = self._scaled(k, sigma)
        weight = k.square().sum(-1) / 2.0 if self.weighted else None
        return self._mapped(k, parameters), weight

    def queries(self, q: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """phi(q) (B, H, N, F)."""
        return self._mapped(self._scaled(q, parameters[0]), parameters)

    def inverse(self, bottom: Tensor, size: Tensor | None) -> Tensor:
        """1 / (phi(q) z), within bounds."""
        if not self.gaussian:
            return guarded_inverse(bottom)
        if size is not None:
            return signed_inverse(bottom, self.eps * self.features**0.5 * size)
        least = 100.0 * BOUNDS[self.clamp]
        return (bottom if self.clamp == "released" else bottom.abs()).clamp(min=least).reciprocal()

    def _scaled(self, x: Tensor, sigma: Tensor) -> Tensor:
        return (unit(x, self.norm_eps) if self.lengths == "unit" else x) * sigma.to(x.dtype)

    def _mapped(self, x: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        angle = x @ parameters[1].to(x.dtype).transpose(-2, -1)
        if self.gaussian:
            return torch.cat([angle.sin(), angle.cos()], -1)
        return angle.relu()


def unit(x: Tensor, eps: float = 0.0) -> Tensor:
    """Return x / (|x| + eps) over the last axis, 0 with zero gradient where x is 0."""
    square = x.square().sum(-1, keepdim=True)
    positive = square > 0
    length = torch.where(positive, square, 1.0).sqrt()
    # NaN is not above 0, but stays one
    return x * torch.where(positive, (length + eps).reciprocal(), 0.0)


def signed_inverse(bottom: Tensor, least: Tensor) -> Tensor:
    """1 / x for the x of bottom's sign and of |bottom|, or of ``least`` >= 0 where that is larger.

    0 with zero gradient where both are 0.
    """
    inside = bottom.abs() >= least
    x = torch.where(inside, bottom, torch.where(bottom < 0, -least, least))
    empty = x == 0
    return torch.where(empty, 0.0, torch.where(empty, 1.0, x).reciprocal())
