"""Softmax attention and its cosine form."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from isoattn.core.contract import Attention, Capability, State
from isoattn.core.cost import Cost, Shape
from isoattn.core.ops.masking import zero_masked
from isoattn.core.ops.reference import direct as reference
from isoattn.core.ops.softmax import (
    cached,
    fused_softmax_attention,
    math_softmax_attention,
    unit_scaled,
)

Path = Literal["fused", "math"]


class _SoftmaxForm(Attention):
    """What the two forms share: the choice of the kernel, the products and the cache of keys."""

    capability = Capability(causal=True, cross=True, state="growing", double_backward=False)

    def __init__(self, heads: int, head_dim: int, *, path: Path = "fused") -> None:
        super().__init__(heads, head_dim)
        if path not in ("fused", "math"):
            raise ValueError(f"path must be 'fused' or 'math', got {path!r}")
        self.path = path
        self._attention = fused_softmax_attention if path == "fused" else math_softmax_attention
        if path == "math":
            self.capability = replace(self.capability, double_backward=True)

    def extra_repr(self) -> str:
        """Sizes and options shown by ``print(module)``."""
        return f"{super().extra_repr()}, path={self.path!r}"

    def _continue(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: State | None,
        key_mask: Tensor | None,
        scale: float | None = None,
    ) -> tuple[Tensor, State]:
        """One call of the kernel on all keys so far."""
        after = cached(k, v, key_mask, state)
        out = self._attention(
            q,
            after["k"],
            after["v"],
            key_mask=after.get("key_mask"),
            causal=True,
            scale=scale,
            earlier=after["k"].shape[2] - k.shape[2],
        )
        return out, after

    def _cost(self, shape: Shape, causal: bool, kept: int, extra_saved: int = 0) -> Cost:
        """The two products; what the chosen path keeps, with ``kept`` bytes a number."""
        rows, wide = shape.batch * shape.heads, max(4, shape.itemsize)
        flops = 2 * rows * shape.queries * shape.keys * (shape.head_dim + shape.value_dim)
        q = rows * shape.queries * shape.head_dim
        kv = rows * shape.keys * (shape.head_dim + shape.value_dim)
        o = rows * shape.queries * shape.value_dim
        output = 0
        if self.path == "fused":
            saved = (q + kv + o) * kept + rows * shape.queries * wide
            output = o * kept if kept == shape.itemsize else 0  # else a copy is handed out
        else:
            saved = (q + kv + rows * shape.queries * shape.keys) * wide
            saved += causal * shape.queries * shape.keys  # the bool mask
        least = (q + kv + o) * shape.itemsize
        return Cost(flops, 2 * flops, least, saved + extra_saved, kv * kept, output)


class Softmax(_SoftmaxForm):
    """o_i = softmax_j(q_i.k_j / sqrt(D)) v_j (Vaswani et al. 2017, eq. 1).

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head.
        path: ``"fused"`` is torch's kernel, which has no second derivatives; ``"math"`` writes the
            formula out in float32 at least, holds N x M weights and is twice differentiable.

    Raises:
        ValueError: a size below 1 or an unknown path.
    """

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        return self._attention(q, k, v, key_mask=key_mask, causal=causal)

    def _extend(
        self, q: Tensor, k: Tensor, v: Tensor, state: State | None, key_mask: Tensor | None
    ) -> tuple[Tensor, State]:
        return self._continue(q, k, v, state, key_mask)

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """FLOPs of the full N x M products, also when causal; saved bytes of the chosen path.

        The fused kernel keeps q, k, v, o and one log-sum-exp a row; that needs value_dim equal to
        head_dim, otherwise torch itself falls back to a path that holds N x M weights. The state is
        k and v; a key mask, once one is given, adds a byte a token and sample.
        """
        return self._cost(shape, causal, shape.itemsize)

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """The definition in float64."""
        return reference.softmax(q, k, v, key_mask=key_mask, causal=causal)


class CosineSoftmax(_SoftmaxForm):
    """o_i = softmax_j(tau_h cos(q_i, k_j)) v_j: softmax attention on unit vectors.

    The partner of :class:`CrossCovariance` in a comparison: same parameters, same names, same
    normalisation of the logits, but tokens attend to tokens (query-key normalisation, Henry et al.
    2020). The norms run over D, per token.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head.
        temperature_init: initial tau of every head; parameter ``temperature`` (H, 1, 1).
        learn_temperature: False freezes tau (``requires_grad=False``).
        path: as in :class:`Softmax`.

    Raises:
        ValueError: a size below 1 or an unknown path.
    """

    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"temperature"})

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        temperature_init: float = 1.0,
        learn_temperature: bool = True,
        path: Path = "fused",
    ) -> None:
        super().__init__(heads, head_dim, path=path)
        initial = torch.full((heads, 1, 1), float(temperature_init))
        self.temperature = nn.Parameter(initial, requires_grad=learn_temperature)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        q, k, v = self._unit(q, k, v, key_mask)
        return self._attention(q, k, v, key_mask=key_mask, causal=causal, scale=1.0)

    def _extend(
        self, q: Tensor, k: Tensor, v: Tensor, state: State | None, key_mask: Tensor | None
    ) -> tuple[Tensor, State]:
        return self._continue(*self._unit(q, k, v, key_mask), state, key_mask, scale=1.0)

    def _unit(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """They stay in float32: rounded to half they move a logit by tau / 1000."""
        q = unit_scaled(q, self.temperature)
        return q, unit_scaled(zero_masked(k, key_mask)), v.to(q.dtype)

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """As of :class:`Softmax`; besides the unit vectors also q, k and their norms are kept.

        The state is the unit keys and v in float32 at least, so that a step is one kernel call.
        """
        rows, wide = shape.batch * shape.heads, max(4, shape.itemsize)
        tokens = rows * (shape.queries + shape.keys)
        inverse_norms = tokens * (2 * wide + 1)
        if self.temperature.requires_grad:
            inverse_norms += rows * shape.queries * wide
        return self._cost(shape, causal, wide, tokens * shape.head_dim * wide + inverse_norms)

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """The definition in float64."""
        return reference.cosine_softmax(q, k, v, self.temperature, key_mask=key_mask, causal=causal)
