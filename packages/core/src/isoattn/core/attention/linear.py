"""Linear attention with an elementwise feature map."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from isoattn.core.contract import Attention, Capability, State
from isoattn.core.cost import Cost, Shape
from isoattn.core.features import FEATURES, FeatureMap
from isoattn.core.ops.kernel_chunks import block_tokens, whole_chunk
from isoattn.core.ops.linear import linear_attention, linear_extension
from isoattn.core.ops.reference import direct as reference


class Linear(Attention):
    """o_i = phi(q_i) S / phi(q_i) z, S = sum phi(k_j) v_j^T (Katharopoulos et al. 2020, eq. 5-6).

    No factor D^-1/2. A row whose weights are all 0 (possible with ``relu``) gives 0.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head.
        feature_map: phi. ``"elu1"`` is elu(x) + 1, ``"exp"`` is exp(x) in a form that cannot
            overflow; ``"relu"`` and ``"softplus"`` are themselves.
        eps: added to the denominator. 0 is the definition; LoFTR (linear_attention.py) and
            fast-transformers (linear_attention.py) release 1e-6.
        chunk: tokens of the causal form that see each other by a matrix; earlier ones by S and z.

    Raises:
        ValueError: a size or chunk below 1, an unknown map, a negative eps, or an eps with
            ``"exp"``, whose denominator is only known up to a factor.
    """

    capability = Capability(causal=True, cross=True, state="constant")

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        feature_map: FeatureMap = "elu1",
        eps: float = 0.0,
        chunk: int = 64,
    ) -> None:
        super().__init__(heads, head_dim)
        if feature_map not in FEATURES:
            raise ValueError(
                f"feature_map must be one of {', '.join(FEATURES)}, got {feature_map!r}"
            )
        if eps < 0:
            raise ValueError(f"eps must not be negative, got {eps}")
        self.chunk = whole_chunk(chunk)
        self.feature_map: FeatureMap = feature_map
        self.eps = eps
        if FEATURES[feature_map].shifted:
            if eps:
                raise ValueError(
                    f"eps={eps} has no meaning with feature_map={feature_map!r}: numerator and "
                    "denominator are divided by a common factor against overflow. Use eps=0."
                )
            self.capability = replace(self.capability, causal=False, state="none")
            self.unsupported = {
                "causal": "the exponent of a key is shifted by a maximum over all keys, the future "
                "included; use feature_map='elu1' or 'softplus'"
            }

    def extra_repr(self) -> str:
        """Sizes and options shown by ``print(module)``."""
        return (
            f"{super().extra_repr()}, feature_map={self.feature_map!r}, eps={self.eps}, "
            f"chunk={self.chunk}"
        )

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        return linear_attention(
            q,
            k,
            v,
            key_mask=key_mask,
            causal=causal,
            feature_map=self.feature_map,
            eps=self.eps,
            chunk=self.chunk,
        )

    def _extend(
        self, q: Tensor, k: Tensor, v: Tensor, state: State | None, key_mask: Tensor | None
    ) -> tuple[Tensor, State]:
        return linear_extension(
            q,
            k,
            v,
            state,
            key_mask=key_mask,
            feature_map=self.feature_map,
            eps=self.eps,
            chunk=self.chunk,
        )

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """FLOPs and bytes of the eager path.

        Bidirectional: the products phi(k)^T v, phi(q) S and phi(q) z; kept are q, k, v, S and z.
        Causal: those and the two products inside each chunk, over whole chunks; kept are q, k, v
        and S and z before each block of about 1,024 tokens, and the backward pass runs the forward
        pass once more. The state is S and z.
        """
        rows, dim, width = shape.batch * shape.heads, shape.head_dim, shape.value_dim
        inputs = rows * (shape.queries * dim + shape.keys * (dim + width))
        output = rows * shape.queries * width
        wide = max(4, shape.itemsize)
        state = rows * dim * (width + 1) * wide
        if causal:
            chunk = min(self.chunk, shape.queries)
            tokens = -(-shape.queries // chunk) * chunk
            flops = 2 * rows * tokens * (2 * dim * width + dim + chunk * (dim + width))
            blocks = -(-shape.queries // block_tokens(chunk))
            backward, sums = 3 * flops, (blocks - 1) * state
        else:
            flops = 2 * rows * dim * (shape.keys * width + shape.queries * (width + 1))
            backward, sums = 2 * flops, state
            if FEATURES[self.feature_map].shifted:
                sums += rows * dim * shape.itemsize
        return Cost(
            forward_flops=flops,
            backward_flops=backward,
            min_bytes=(inputs + output) * shape.itemsize,
            saved_bytes=inputs * shape.itemsize + sums,
            state_bytes=state if self.capability.state != "none" else 0,
        )

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
        return reference.linear(
            q,
            k,
            v,
            key_mask=key_mask,
            causal=causal,
            feature_map=self.feature_map,
            eps=self.eps,
        )
