"""Attention within a window of tokens, and to a few tokens that all see."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from isoattn.core.contract import Attention, Capability, State
from isoattn.core.cost import Cost, Shape
from isoattn.core.ops.reference import window as reference
from isoattn.core.ops.window import (
    covers,
    empty_state,
    extend_window,
    listed,
    window_attention,
)


class SlidingWindow(Attention):
    """Softmax over all global tokens and those near (Longformer, Beltagy et al. 2020, sec. 3.1).

    Row i sees the keys with |i - j| <= window / 2, or i - window <= j <= i where causal (window + 1
    tokens, as Griffin's local attention counts), and the global tokens; a global row sees every
    key. A window over the whole sequence is :class:`Softmax` itself.

    Longformer's global tokens stand anywhere: put copies of them first and mask the originals as
    keys. It also projects q, k and v of global rows by weights of their own: a second call.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head.
        window: tokens.
        global_tokens: this many first tokens see and are seen by all (causally: are seen).
        block: tokens whose keys are gathered together; changes the speed alone.

    Raises:
        ValueError: a size below 1, a negative window or number of global tokens.
    """

    capability = Capability(causal=True, state="constant", positions="distance")
    unsupported = {"cross": "a window needs each query to stand at the place of a key"}

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        window: int = 256,
        global_tokens: int = 0,
        block: int = 64,
    ) -> None:
        super().__init__(heads, head_dim)
        if window < 0 or global_tokens < 0 or block < 1:
            raise ValueError(
                "SlidingWindow needs window >= 0, global_tokens >= 0 and block >= 1, all in "
                f"tokens; got window={window}, global_tokens={global_tokens}, block={block}"
            )
        self.window = window
        self.global_tokens = global_tokens
        self.block = block
        if global_tokens:
            self.capability = replace(self.capability, positions="index")

    def extra_repr(self) -> str:
        """Sizes and options shown by ``print(module)``."""
        return (
            f"{super().extra_repr()}, window={self.window}, "
            f"global_tokens={self.global_tokens}, block={self.block}"
        )

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        return window_attention(
            q,
            k,
            v,
            window=self.window,
            first=self.global_tokens,
            block=self.block,
            key_mask=key_mask,
            causal=causal,
        )

    def _extend(
        self, q: Tensor, k: Tensor, v: Tensor, state: State | None, key_mask: Tensor | None
    ) -> tuple[Tensor, State]:
        if state is None:
            state = empty_state(k, v, self.window, self.global_tokens)
        return extend_window(
            q,
            k,
            v,
            state,
            window=self.window,
            first=self.global_tokens,
            key_mask=key_mask,
        )

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """FLOPs of whole blocks against the gathered keys, and of global rows against all.

        Kept are q, k, v and the table; the backward pass computes the weights again, so it has five
        products where the forward pass has two.
        """
        rows, tokens, wide = shape.batch * shape.heads, shape.queries, max(4, shape.itemsize)
        both = shape.head_dim + shape.value_dim
        pairs, table = tokens * tokens, 0
        if not covers(tokens, self.window, causal):
            first = self.global_tokens
            blocks = -(-tokens // self.block)
            columns = listed(tokens, self.window, first, self.block, causal)
            shared = 0 if causal else min(first, tokens)
            pairs = blocks * columns * self.block**2 + shared * tokens
            table = 8 * ((blocks if columns == blocks else blocks * columns) + shared)
        inputs = rows * tokens * (both + shape.head_dim)
        kept = self.window + self.global_tokens
        return Cost(
            forward_flops=2 * rows * pairs * both,
            backward_flops=2 * rows * pairs * (both + both + shape.head_dim),
            min_bytes=(inputs + rows * tokens * shape.value_dim) * shape.itemsize,
            saved_bytes=inputs * shape.itemsize + table,
            state_bytes=rows * kept * both * wide + shape.batch * (kept + 8),
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
        return reference.sliding_window(
            q,
            k,
            v,
            window=self.window,
            first=self.global_tokens,
            key_mask=key_mask,
            causal=causal,
        )
