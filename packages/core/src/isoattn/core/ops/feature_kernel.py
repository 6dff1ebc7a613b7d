"""What attentions by a feature map share: the map, its sums over keys, gradients block by block.

See :mod:`isoattn.core.ops.kernelised`.

Shape suffixes: as in :mod:`isoattn.core.contract`; F features, R = H / G query heads for each key
head, T chunks of C tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.ops.blocks import accumulation_dtype
from isoattn.core.ops.masking import zero_masked


class Sums(NamedTuple):
    """What is remembered of the keys: S (B, G, F, E), z (B, G, F), m (B, G) where weighted."""

    S: Tensor
    z: Tensor
    m: Tensor | None = None


class FeatureKernel(ABC):
    """A feature map with its normaliser; options only, as a frozen dataclass.

    The tensors it needs (projections, scales) are handed in as ``parameters``, so that gradients
    reach them.
    """

    weighted: bool = False
    """Whether keys have logarithmic weights."""
    bounded: bool = False
    """Whether :meth:`inverse` looks at |z|."""

    @abstractmethod
    def width(self, head_dim: int) -> int:
        """Number of features F."""

    @abstractmethod
    def keys(self, k: Tensor, parameters: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None]:
        """phi(k) (B, G', M, F) and log w (B, G', M) or None; G' may be any multiple of G."""

    @abstractmethod
    def queries(self, q: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """phi(q) (B, H, N, F)."""

    def inverse(self, bottom: Tensor, size: Tensor | None) -> Tensor:
        """1 / (phi(q) z) from phi(q) z and |z|; by default 0 where that is not above 0."""
        return guarded_inverse(bottom)


def guarded_inverse(x: Tensor) -> Tensor:
    """1 / x where x > 0, else 0 with zero gradient."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).reciprocal(), 0.0)


def mapped_keys(
    kernel: FeatureKernel,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    parameters: tuple[Tensor, ...],
) -> tuple[Tensor, Tensor, Tensor | None]:
    """phi(k) and v with masked tokens 0 (after the map: phi(0) is not 0), their log w at -inf."""
    wide = accumulation_dtype(v)
    # Before the map too: the derivative of a map at NaN is NaN, and 0 times it as well.
    phi, weight = kernel.keys(zero_masked(k, key_mask).to(wide), parameters)
    v = zero_masked(v, key_mask).to(wide)
    if phi.shape[1] != v.shape[1]:
        v = v.repeat_interleave(phi.shape[1] // v.shape[1], 1)
    if weight is not None and key_mask is not None:
        weight = weight.masked_fill(~key_mask[:, None, :], -torch.inf)
    return zero_masked(phi, key_mask), v, weight


def finite(m: Tensor) -> Tensor:
    """A maximum over nothing as 0, so that -inf - m stays -inf."""
    return m.masked_fill(m == -torch.inf, 0.0)


def absorb(
    kernel: FeatureKernel,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    parameters: tuple[Tensor, ...],
    sums: Sums | None,
) -> Sums:
    """The sums with all these keys added."""
    phi, v, weight = mapped_keys(kernel, k, v, key_mask, parameters)
    m = None
    if weight is not None:
        # padded, so that no keys have a maximum too
        m = F.pad(weight.detach(), (1, 0), value=-torch.inf).amax(-1)
        if sums is not None and sums.m is not None:
            m = torch.maximum(m, sums.m)
            fade = (sums.m - finite(m)).exp()
            sums = Sums(sums.S * fade[..., None, None], sums.z * fade[..., None], m)
    S, z = summed(phi, v, weight, m)
    return Sums(S, z, m) if sums is None else Sums(sums.S + S, sums.z + z, m)


def summed(
    phi: Tensor, v: Tensor, weight: Tensor | None, m: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Sum of w phi v^T and of w phi over tokens, w relative to a maximum m."""
    if weight is not None and m is not None:
        phi = phi * (weight - finite(m).unsqueeze(-1)).exp().unsqueeze(-1)
    return phi.transpose(-2, -1) @ v, phi.sum(-2)


def rows_of(
    kernel: FeatureKernel,
    q: Tensor,
    sums: Sums,
    parameters: tuple[Tensor, ...],
    dtype: torch.dtype,
) -> Tensor:
    """Outputs (B, H, N, E) of queries that all see the same sums."""
    (batch, heads, queries, _), groups = q.shape, sums.z.shape[1]
    phi = kernel.queries(q.to(sums.z.dtype), parameters)
    phi = phi.reshape(batch, groups, heads // groups * queries, phi.shape[-1])
    z = sums.z.unsqueeze(-1)
    size = norm(sums.z)[..., None, None] if kernel.bounded else None
    out = (phi @ sums.S) * kernel.inverse(phi @ z, size)
    return out.reshape(batch, heads, queries, sums.S.shape[-1]).to(dtype)


def norm(x: Tensor) -> Tensor:
    """|x| over the last axis, with zero gradient at 0."""
    square = x.square().sum(-1)
    positive = square > 0
    return torch.where(positive, torch.where(positive, square, 1.0).sqrt(), 0.0)


def token_pieces(tokens: int, size: int) -> Iterator[slice]:
    """Slices of that many tokens, the last one shorter; at least one, maybe empty."""
    for start in range(0, max(1, tokens), size):
        yield slice(start, min(start + size, tokens))


def mask_of(key_mask: Tensor | None, n: slice) -> Tensor | None:
    """The mask of some tokens."""
    return None if key_mask is None else key_mask[:, n]


def as_leaves(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The same numbers, to be differentiated by."""
    return tuple(x.detach().requires_grad_() for x in tensors)


def gradients(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    grads: Sequence[Tensor],
    wanted: Sequence[bool],
) -> list[Any]:
    """Gradients of the wanted inputs, differentiable again where the caller's are."""
    again = torch.is_grad_enabled()
    chosen = [x for x, want in zip(inputs, wanted, strict=True) if want]
    found = iter(torch.autograd.grad(outputs, chosen, grads, create_graph=again, allow_unused=True))
    return [next(found) if want else None for want in wanted]


def sum_of(total: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    """Sums one by one, where ``None`` is 0."""
    return [a if b is None else b if a is None else a + b for a, b in zip(total, more, strict=True)]
