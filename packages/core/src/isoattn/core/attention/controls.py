"""Controls that bound what an attention is worth: the mean of all values, no mixing, nothing."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.contract import Attention, Capability, State
from isoattn.core.cost import Cost, Shape
from isoattn.core.ops.blocks import accumulation_dtype
from isoattn.core.ops.masking import zero_masked
from isoattn.core.ops.reference import direct as reference


def _zero_from(*tensors: Tensor) -> Tensor:
    """A scalar 0 that depends on the tensors: they get a zero gradient instead of none.

    Without it a model whose query projection is unused fails in distributed training. The sum runs
    over no token, so that not even NaN gets through.
    """
    total = tensors[0][:, :, :0].sum()
    for x in tensors[1:]:
        total = total + x[:, :, :0].sum()
    return total


def _min_bytes(shape: Shape, *, read: int) -> int:
    return shape.batch * shape.heads * (read + shape.queries) * shape.value_dim * shape.itemsize


class Mean(Attention):
    """o_i = the mean of the visible values: attention with all logits equal.

    Its state is their sum ``"total"`` (B, G, E) and their number ``"count"`` (B,), an integer.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head; q and k are not looked at.
    """

    capability = Capability(causal=True, cross=True, state="constant")

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        values, keep = _counted(v, key_mask)
        if causal:
            total, count = (_running(x, q.shape[2]) for x in (values, keep))
        else:
            total, count = (x.sum(2, keepdim=True) for x in (values, keep))
        return self._mean(total, count, q, k).to(v.dtype)

    def _extend(
        self, q: Tensor, k: Tensor, v: Tensor, state: State | None, key_mask: Tensor | None
    ) -> tuple[Tensor, State]:
        batch, groups, tokens, width = v.shape
        values, keep = _counted(v, key_mask)
        keep = keep.expand(batch, -1, -1, -1).long()
        if state is None:
            state = {
                "total": values.new_zeros(batch, groups, width),
                "count": keep.new_zeros(batch),
            }
        total = torch.cat([state["total"].unsqueeze(2), values], 2).cumsum(2)
        count = torch.cat([state["count"][:, None, None, None], keep], 2).cumsum(2)
        out = self._mean(total[:, :, 1:], count[:, :, 1:].to(total.dtype), q, k)
        last = {"total": total[:, :, tokens].clone(), "count": count[:, 0, tokens, 0].clone()}
        return out.to(v.dtype), last

    def _mean(self, total: Tensor, count: Tensor, q: Tensor, k: Tensor) -> Tensor:
        mean = total / count.clamp(min=1.0) + _zero_from(q, k)
        mean = mean.repeat_interleave(self.heads // k.shape[1], 1)
        # written out: a caller may change the result in place
        return mean.expand(-1, -1, q.shape[2], -1).contiguous()

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """No matrix product; the counts of visible keys are kept. The state: sum and count."""
        wide = max(4, shape.itemsize)
        total = shape.batch * shape.heads * shape.value_dim * wide
        return Cost(
            forward_flops=0,
            backward_flops=0,
            min_bytes=_min_bytes(shape, read=shape.keys),
            saved_bytes=(shape.queries if causal else 1) * wide,
            state_bytes=total + 8 * shape.batch,
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
        return reference.mean(q, k, v, key_mask=key_mask, causal=causal)


def _counted(v: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Values with masked ones 0, and 1 for each that counts: (B or 1, 1, M, 1)."""
    values = zero_masked(v, key_mask).to(accumulation_dtype(v))
    if key_mask is None:
        return values, values.new_ones(1, 1, v.shape[2], 1)
    return values, key_mask[:, None, :, None].to(values.dtype)


def _running(x: Tensor, queries: int) -> Tensor:
    """Sums over the tokens up to each query; after the last key they stay as they are."""
    return F.pad(x[:, :, :queries], (0, 0, 0, max(0, queries - x.shape[2]))).cumsum(2)


class Identity(Attention):
    """o_i = v_i: no token sees another, so the state that continues it is empty.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head; q and k are not looked at.
    """

    capability = Capability(causal=True, state="constant", mixes="nothing")
    unsupported = {"cross": "o_i = v_i needs one value for every query"}

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        v = zero_masked(v, key_mask)
        repeats = self.heads // v.shape[1]
        v = v if repeats == 1 else v.repeat_interleave(repeats, 1)
        return v + _zero_from(q, k)

    def _extend(
        self, q: Tensor, k: Tensor, v: Tensor, state: State | None, key_mask: Tensor | None
    ) -> tuple[Tensor, State]:
        return self._attend(q, k, v, key_mask, True), {}

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """No matrix product, nothing kept."""
        return Cost(0, 0, _min_bytes(shape, read=shape.keys), 0)

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
        return reference.identity(q, k, v, key_mask=key_mask)


class Zero(Attention):
    """o = 0 with zero gradients: the block without its attention. Its state is empty.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head; q and k are not looked at.
    """

    capability = Capability(
        causal=True, cross=True, state="constant", mixes="nothing", normalised=False
    )

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        return _zero_from(q, k, v).expand(*q.shape[:3], v.shape[3]).contiguous()

    def _extend(
        self, q: Tensor, k: Tensor, v: Tensor, state: State | None, key_mask: Tensor | None
    ) -> tuple[Tensor, State]:
        return self._attend(q, k, v, key_mask, True), {}

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """No matrix product, nothing read, nothing kept."""
        return Cost(0, 0, _min_bytes(shape, read=0), 0)

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
        return reference.zero(q, v)
