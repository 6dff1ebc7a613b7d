"""Linear attention with an elementwise feature map."""

from __future__ import annotations

from torch import Tensor

from isoattn.core.contract import Attention, Capability
from isoattn.core.cost import Cost, Shape
from isoattn.core.features import FEATURE_MAPS, FeatureMap
from isoattn.core.ops.linear import linear_attention


class Linear(Attention):
    """phi(q_i) S / phi(q_i) z with S = sum phi(k_j) v_j^T (Katharopoulos et al. 2020, eq. 5-6).

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head.
        feature_map: phi, elementwise.
        eps: added to the denominator; released code (LoFTR, fast-transformers) uses 1e-6.
    """

    capability = Capability(cross=True)

    def __init__(
        self, heads: int, head_dim: int, *, feature_map: FeatureMap = "elu1", eps: float = 0.0
    ) -> None:
        super().__init__(heads, head_dim)
        if feature_map not in FEATURE_MAPS:
            raise ValueError(
                f"feature_map must be one of {', '.join(FEATURE_MAPS)}, got {feature_map!r}"
            )
        self.feature_map = feature_map
        self.eps = eps

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        phi = FEATURE_MAPS[self.feature_map]
        return linear_attention(phi(q), phi(k), v, key_mask=key_mask, eps=self.eps)

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """Of phi(k)^T v and phi(q) S; the denominator is one more column of S."""
        rows = shape.batch * shape.heads
        flops = (
            2
            * rows
            * shape.head_dim
            * (shape.keys * shape.value_dim + shape.queries * (shape.value_dim + 1))
        )
        inputs = rows * (
            shape.queries * shape.head_dim + shape.keys * (shape.head_dim + shape.value_dim)
        )
        output = rows * shape.queries * shape.value_dim
        return Cost(
            forward_flops=flops,
            backward_flops=2 * flops,
            min_bytes=(inputs + output) * shape.itemsize,
            saved_bytes=(inputs + output) * shape.itemsize,
        )
