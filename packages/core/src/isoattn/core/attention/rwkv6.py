"""RWKV6: a decaying state that is read before it decays, the current token through a bonus."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from isoattn.core.attention.decay import DECAYING, GivenDecay
from isoattn.core.ops.decay import CHUNK


class RWKV6(GivenDecay):
    """o_t = (S_(t-1) + diag(u) k_t v_t^T)^T r_t, then S_t = diag(a_t) S_(t-1) + k_t v_t^T.

    Peng et al. 2024 (Eagle and Finch), eq. 15-17, without token shift and gate, which are the
    layer's. q is the receptance r; the layer's decay is log_decay = -exp(w). No scale.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head.
        chunk: tokens computed together, rounded up to a power of two; ``None`` is all at once. It
            changes speed and memory, not the result.

    Raises:
        ValueError: a size or chunk below 1.
    """

    capability = replace(DECAYING, log_decay="channel")
    no_weight_decay = frozenset({"bonus"})

    def __init__(self, heads: int, head_dim: int, *, chunk: int | None = CHUNK) -> None:
        super().__init__(heads, head_dim, chunk=chunk, scale=1.0)
        # u, learned. At 1 the current token counts as if it were in the state already.
        self.bonus = nn.Parameter(torch.ones(heads, head_dim))

    def _vector(self) -> bool:
        return True

    def _bonus(self) -> Tensor | None:
        return self.bonus
