"""Linformer: softmax attention over projected keys and values."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from isoattn.core.contract import Attention, Capability
from isoattn.core.cost import Cost, Shape
from isoattn.core.ops.linformer import linformer_attention
from isoattn.core.ops.reference import landmark as reference
from isoattn.core.streams import draw

Share = Literal["none", "heads", "keys and values"]


class Linformer(Attention):
    """o = softmax(s q (E^T k)^T) F^T v, E and F learned (Wang et al. 2020, eq. 7); s = D^-1/2.

    Row j of E and F belongs to token j from the start, so pads belong at the end, and fewer tokens
    use the first rows. Masked keys and values count as 0: they add nothing to a slot, but every
    slot keeps its share of the softmax, so mass still spreads over all p slots however few keys
    are visible, and rows of the matrix do not sum to 1.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head.
        max_tokens: most keys it takes, the rows of E and F.
        projected: number p of slots.
        share: what E and F are shared by. ``"heads"``: one E and one F for all heads, as
            lucidrains/linformer; ``"none"``: a pair for each query head; ``"keys and values"``: one
            E = F for all heads.
        seed: of the initial numbers, uniform within max_tokens^-1/2 of 0, as torch's Linear over
            tokens: a slot is about as large as a token. (The paper's proof has variance 1 / p,
            lucidrains 1 / (3 p); with many tokens these make the softmax hard from the start.)

    Parameters ``project_k``, ``project_v`` (1 or H, max_tokens, p); the latter is missing where
    keys and values share.

    Raises:
        ValueError: a size or option out of range; says which. Calls with more keys than
            ``max_tokens``.
    """

    capability = Capability(
        cross=True, positions="index", normalised=False, double_backward=False, max_tokens=4096
    )
    unsupported = {"causal": "each slot sums over all tokens, the future included"}

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        max_tokens: int = 4096,
        projected: int = 64,
        share: Share = "heads",
        seed: int = 0,
    ) -> None:
        super().__init__(heads, head_dim)
        if max_tokens < 1 or projected < 1:
            raise ValueError(
                "max_tokens and projected must be at least 1; "
                f"got max_tokens={max_tokens}, projected={projected}"
            )
        if share not in get_args(Share):
            raise ValueError(f"share must be one of {', '.join(get_args(Share))}; got {share!r}")
        self.capability = replace(self.capability, max_tokens=max_tokens)
        self.max_tokens = max_tokens
        self.projected = projected
        self.share: Share = share
        size = (heads if share == "none" else 1, max_tokens, projected)
        self.project_k = nn.Parameter(torch.empty(size))
        self.project_v = None if share == "keys and values" else nn.Parameter(torch.empty(size))
        self.reseed(seed)

    def extra_repr(self) -> str:
        """Sizes and options shown by ``print(module)``."""
        return (
            f"{super().extra_repr()}, max_tokens={self.max_tokens}, projected={self.projected}, "
            f"share={self.share!r}"
        )

    def reseed(self, seed: int) -> None:
        """Draw E and F anew; done before weights are loaded, since those are final."""
        with torch.no_grad():
            for number, weight in enumerate((self.project_k, self.project_v)):
                if weight is not None:
                    drawn = draw(torch.tensor([seed, number]), weight.shape, kind="uniform")
                    weight.copy_((2.0 * drawn - 1.0) * self.max_tokens**-0.5)

    def _projections(self) -> tuple[Tensor, Tensor]:
        return self.project_k, self.project_k if self.project_v is None else self.project_v

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        if k.shape[2] > self.max_tokens:
            raise ValueError(
                f"Linformer has projections of max_tokens={self.max_tokens} tokens, got "
                f"{k.shape[2]} keys. Build it with a larger max_tokens, or give fewer."
            )
        return linformer_attention(q, k, v, *self._projections(), key_mask=key_mask)

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """FLOPs and bytes of the eager path, values as wide as keys.

        Two projections and two products with p slots; kept are q, k, v, o, the slots and one
        log-sum-exp a row, in float32 at least.
        """
        rows, wide = shape.batch * shape.heads, max(4, shape.itemsize)
        widths = shape.head_dim + shape.value_dim
        tokens = rows * (shape.queries + shape.keys) * widths
        forward = 2 * tokens * self.projected
        kept = tokens + rows * (self.projected * widths + shape.queries)
        output = rows * shape.queries * shape.value_dim * wide
        least = tokens * shape.itemsize
        same = wide == shape.itemsize  # else a copy is handed out
        return Cost(forward, 2 * forward, least, kept * wide, 0, output if same else 0)

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
        return reference.linformer(q, k, v, *self._projections(), key_mask=key_mask)
