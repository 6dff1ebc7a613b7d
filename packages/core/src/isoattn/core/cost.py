"""Cost model: the shape of one attention call, and its FLOPs and bytes in closed form.

FLOPs count a multiply-add as two and matrix products only, which is the convention of
``torch.utils.flop_counter``; softmax, exponentials and norms are left out, as they are there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """The sizes of one call.

    Args:
        batch: B.
        heads: H.
        queries: N.
        keys: M.
        head_dim: D of q and k.
        value_dim: E of v.
        itemsize: bytes of one element (4 for float32).
    """

    batch: int
    heads: int
    queries: int
    keys: int
    head_dim: int
    value_dim: int
    itemsize: int = 4

    @classmethod
    def square(
        cls, batch: int, heads: int, tokens: int, head_dim: int, *, itemsize: int = 4
    ) -> Shape:
        """Self-attention: as many queries as keys, values as wide as keys."""
        return cls(batch, heads, tokens, tokens, head_dim, head_dim, itemsize)


@dataclass(frozen=True)
class Cost:
    """What one call costs, with as many key heads as query heads and no key mask.

    The conformance suite holds FLOPs against torch's counter and saved bytes against autograd's
    hooks, exactly; so do the laws of mixers for whole layers.

    Args:
        forward_flops: of the forward pass, softmax on its unfused path.
        backward_flops: of the backward pass alone, what it computes again included.
        min_bytes: what the mechanism needs of its inputs read once, the output written once.
        saved_bytes: kept between forward and backward by the eager path of the class when q, k and
            v all need gradients: every tensor that passes
            ``torch.autograd.graph.saved_tensors_hooks``, inputs included, each memory once,
            parameters excluded.
        state_bytes: of the state after all keys, 0 where there is none; it does not depend on their
            number where the state is constant.
        saved_output_bytes: those of saved_bytes that are the output itself, 0 where it is not kept.
            A layer that works on the output keeps it anyway, and not twice.
    """

    forward_flops: int
    backward_flops: int
    min_bytes: int
    saved_bytes: int
    state_bytes: int = 0
    saved_output_bytes: int = 0

    @property
    def flops(self) -> int:
        """Forward plus backward."""
        return self.forward_flops + self.backward_flops
