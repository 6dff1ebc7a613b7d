"""Controls that bound what an attention is worth: the mean of all values, no mixing, nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from isoattn.core.contract import Attention, Capability
from isoattn.core.cost import Cost, Shape
from isoattn.core.ops.softmax import zero_masked


def _zero_from(*tensors: Tensor) -> Tensor:
    """A scalar 0 that depends on the tensors, so that each gets a zero gradient instead of none."""
    return sum((x[:, :, :0].sum() for x in tensors), start=tensors[0].new_zeros(()))


def _bytes(shape: Shape, *, reads: int) -> int:
    return shape.batch * shape.heads * (reads + shape.queries) * shape.value_dim * shape.itemsize


class Mean(Attention):
    """o_i = the mean of the visible values: attention with all logits equal."""

    capability = Capability(causal=True, cross=True)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        accumulate = torch.promote_types(v.dtype, torch.float32)
        wide = zero_masked(v, key_mask).to(accumulate)
        if key_mask is None:
            keep = torch.ones(1, 1, v.shape[2], 1, dtype=accumulate, device=v.device)
        else:
            keep = key_mask[:, None, :, None].to(accumulate)
        if causal:
            last = torch.arange(q.shape[2], device=v.device).clamp(max=v.shape[2] - 1)
            total, count = wide.cumsum(2)[:, :, last], keep.cumsum(2)[:, :, last]
        else:
            total, count = wide.sum(2, keepdim=True), keep.sum(2, keepdim=True)
        mean = (total / count.clamp(min=1.0) + _zero_from(q, k)).to(v.dtype)
        mean = mean.repeat_interleave(self.heads // v.shape[1], 1)
        return mean.expand(-1, -1, q.shape[2], -1).contiguous()

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """No matrix product."""
        return Cost(0, 0, _bytes(shape, reads=shape.keys), 0)


class Identity(Attention):
    """o_i = v_i: no token sees another."""

    capability = Capability(causal=True, mixes="nothing")
    unsupported = {"cross": "o_i = v_i needs a value for every query"}

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        out = zero_masked(v, key_mask).repeat_interleave(self.heads // v.shape[1], 1)
        return out + _zero_from(q, k).to(v.dtype)

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """No matrix product."""
        return Cost(0, 0, _bytes(shape, reads=shape.keys), 0)


class Zero(Attention):
    """o = 0 with zero gradients: the block without its attention."""

    capability = Capability(causal=True, cross=True, mixes="nothing")

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        zero = _zero_from(q, k, v).to(v.dtype)
        return zero.expand(*q.shape[:3], v.shape[3]).contiguous()

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """No matrix product."""
        return Cost(0, 0, _bytes(shape, reads=0), 0)
