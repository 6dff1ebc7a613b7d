"""Favor: attention with random features that are unbiased for softmax (Performer)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from torch import Tensor

from isoattn.core.contract import Attention, Capability, State
from isoattn.core.cost import Cost, Shape
from isoattn.core.frequencies import Norms, Projection
from isoattn.core.ops.favor import favor_attention
from isoattn.core.ops.favor_causal import BLOCK, favor_causal
from isoattn.core.ops.positive_features import Kernel
from isoattn.core.ops.reference import favor as reference


class Favor(Attention):
    """o_i = phi(q_i) S / phi(q_i) z, S = sum phi(k_j) v_j^T, z = sum phi(k_j) (FAVOR+).

    phi(x)_r = exp(w_r.x' - |x'|^2 / 2) with x' = D^-1/4 x and random w_r, so that phi(q).phi(k)
    estimates exp(q.k D^-1/2) without bias (Choromanski et al. 2021, "Rethinking attention with
    performers", lemma 1 and eq. 5). Each query head has a projection of its own, the buffer
    ``projection.rows`` (heads, rows, head_dim): copy numbers into it to set them by hand.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head.
        features: number R of features; the nearest to D log D, and at least D, unless given.
        kind: ``"positive"`` as above; ``"hyperbolic"`` has each w and -w, R / 2 of them; ``"relu"``
            is relu(w.x') + eps, which estimates another kernel.
        orthogonal: whether rows are orthogonal within each D of them, or independent.
        norms: lengths of orthogonal rows, ``"chi"`` as of Gaussian ones or ``"sqrt"`` all sqrt(D).
        redraw_every: calls in training mode after which the projection is drawn anew; 0 is never.
            Evaluation keeps the last one, and a checkpoint continues the draws.
        seed: of the draws.
        eps: added to each feature. By default nothing, and 1e-3 with ``kind="relu"``. Released
            codes (google-research, performer-pytorch) add 1e-4 after the exponential, which mixes
            in the mean of all values: with it the exponents are taken against theirs, which are
            maxima over all keys, and there is no causal form.

    Raises:
        ValueError: a size or an option out of range; says which.
    """

    capability = Capability(causal=True, cross=True, state="constant")

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        features: int | None = None,
        kind: Literal["positive", "hyperbolic", "relu"] = "positive",
        orthogonal: bool = True,
        norms: Norms = "chi",
        redraw_every: int = 0,
        seed: int = 0,
        eps: float | None = None,
    ) -> None:
        super().__init__(heads, head_dim)
        if kind not in ("positive", "hyperbolic", "relu"):
            raise ValueError(f"kind must be positive, hyperbolic or relu, got {kind!r}")
        double = kind == "hyperbolic"
        if features is None:
            features = max(head_dim, int(head_dim * math.log(head_dim)))
            features += features % 2 if double else 0
        if features < 1 or (double and features % 2):
            want = "an even number >= 2, half of them with -w" if double else "at least 1"
            raise ValueError(f"features must be {want} for kind={kind!r}, got {features}")
        if eps is None:
            eps = 1e-3 if kind == "relu" else 0.0
        if eps < 0 or (kind == "relu" and not eps > 0):
            bound = "> 0 for kind='relu', whose features may else all be 0" if eps == 0 else ">= 0"
            raise ValueError(f"eps must be {bound}, got {eps}")
        self.features = features
        self.kernel = Kernel(kind, head_dim**-0.25, eps)
        self.projection = Projection(
            heads,
            features // 2 if double else features,
            head_dim,
            orthogonal=orthogonal,
            norms=norms,
            redraw_every=redraw_every,
            seed=seed,
        )
        if redraw_every == 1:
            self.capability = replace(self.capability, stochastic=True)
        if self.kernel.softened:
            constant = (
                "the largest exponent is a constant in the derivative, though it does not cancel"
            )
            self.deviations = {"first_derivatives": constant, "second_derivatives": constant}
            self.capability = replace(self.capability, causal=False, state="none")
            self.unsupported = {
                "causal": f"with eps={eps} the exponents are taken against a maximum over all "
                "keys, the future included, and it does not cancel; use eps=0"
            }

    def extra_repr(self) -> str:
        """Sizes and options shown by ``print(module)``."""
        kernel = self.kernel
        return (
            f"{super().extra_repr()}, features={self.features}, kind={kernel.kind!r}, "
            f"eps={kernel.eps}"
        )

    def reseed(self, seed: int) -> None:
        """Draw the projection anew, from another seed."""
        self.projection.reseed(seed)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        rows = self.projection()
        if causal:
            return favor_causal(q, k, v, rows, self.kernel, key_mask=key_mask)[0]
        return favor_attention(q, k, v, rows, self.kernel, key_mask=key_mask)

    def _extend(
        self, q: Tensor, k: Tensor, v: Tensor, state: State | None, key_mask: Tensor | None
    ) -> tuple[Tensor, State]:
        sums = None if state is None else (state["sum"], state["total"], state["top"])
        rows = self.projection()
        out, (s, z, m) = favor_causal(q, k, v, rows, self.kernel, sums, key_mask=key_mask)
        return out, {"sum": s, "total": z, "top": m}

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """FLOPs and bytes of the eager path, with one projection throughout.

        Bidirectional: dot products with the rows for q and k, phi(k)^T v, phi(q) S and phi(q) z;
        kept are q, k, v, the projection, S, z and the maxima. With an eps above 0 beside an
        exponential the dot products of k are taken twice, for their maximum first. Causal: the
        same over blocks of 128 tokens with all pairs inside, and once more in the backward pass;
        kept are q, k, v, the scaled rows, and S, z and the maxima before each block. A block whose
        keys rise by e^30 above its first one, as very long ones may at the start, costs more.
        """
        rows, dim, width = shape.batch * shape.heads, shape.head_dim, shape.value_dim
        size = max(4, shape.itemsize)
        inputs = rows * (shape.queries * dim + shape.keys * (dim + width)) * shape.itemsize
        output = rows * shape.queries * width * shape.itemsize
        table = self.projection.rows
        drawn = table.numel() * table.element_size()
        features = self.features
        if causal:
            tokens, blocks = shape.queries, -(-shape.queries // BLOCK)
            mapped = 4 * rows * tokens * features * dim
            pairs = sum(min(BLOCK, tokens - n * BLOCK) ** 2 for n in range(blocks))
            products = 2 * rows * features * tokens * (2 * width + 1)
            products += 2 * rows * pairs * (features + width)
            forward, backward = mapped + products, 2 * mapped + 3 * products
            saved = rows * tokens * (2 * dim + width) * shape.itemsize
            saved += shape.heads * features * dim * size
            saved += blocks * rows * features * (width + 2) * size
        else:
            mapped = 2 * rows * features * (dim + width)
            forward = mapped * (shape.queries + shape.keys)
            backward = 2 * forward + 4 * rows * features * shape.queries
            forward += 2 * rows * features * shape.queries
            if self.kernel.softened:
                forward += 2 * rows * features * dim * shape.keys
            saved = inputs + drawn + rows * features * (width + 2) * size
            saved += rows * (size + 8) if self.kernel.softened else 0
        state = rows * features * (width + 2) * size if self.capability.causal else 0
        return Cost(
            forward_flops=forward,
            backward_flops=backward,
            min_bytes=inputs + output,
            saved_bytes=saved,
            state_bytes=state,
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
        """The definition in float64, with the present projection."""
        return reference.favor(
            q,
            k,
            v,
            self.projection.rows,
            kind=self.kernel.kind,
            scale=self.kernel.scale,
            eps=self.kernel.eps,
            key_mask=key_mask,
            causal=causal,
        )
