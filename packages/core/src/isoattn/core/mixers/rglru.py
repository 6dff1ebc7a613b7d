"""The recurrent block of Griffin and Hawk (De et al. 2024, section 2.3, figure 2).

Shape suffixes: B batch, N tokens, C channels, W inner channels, H blocks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoattn.core.contract import State
from isoattn.core.cost import Cost
from isoattn.core.mixers.costs import check_call, projection_flops, whole
from isoattn.core.mixers.recurrent import RecurrentMixer
from isoattn.core.ops.causal_conv import causal_conv
from isoattn.core.ops.masking import no_autocast
from isoattn.core.ops.rglru import block_diagonal, rg_lru
from isoattn.core.ops.segments import over_segments


class RGLRU(RecurrentMixer):
    """y = W_o (RG-LRU(conv(W_x x)) * gelu(W_y x)): Griffin's recurrent block.

    Parameters have the names and shapes of google-deepmind/recurrentgemma (``RecurrentBlock``), so
    its weights load as they are; gelu is its tanh form. A sequence begins with h = i x, without the
    factor sqrt(1 - a^2), as there.

    Args:
        dim: channels of x and y.
        width: inner channels W; dim unless given.
        heads: blocks of the two gates' linear maps; a divisor of the width.
        conv_width: taps of the causal convolution.
        radius: bounds of a = exp(-softplus(Lambda)) at the start, uniform in the ring between them.

    Raises:
        ValueError: a size below 1, heads that do not divide the width, or a radius that is not
            0 < low <= high < 1.

    Example:
        >>> mixer = RGLRU(64, heads=4)
        >>> y = mixer(torch.randn(2, 50, 64), causal=True)
    """

    no_weight_decay = frozenset({"rg_lru.a_param"})

    def __init__(
        self,
        dim: int,
        *,
        width: int | None = None,
        heads: int = 1,
        conv_width: int = 4,
        radius: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        super().__init__(dim)
        inner = dim if width is None else width
        if min(inner, heads, conv_width) < 1 or inner % heads:
            raise ValueError(
                "RGLRU needs width and conv_width of at least 1 and heads that divide the width; "
                f"got width={inner}, heads={heads}, conv_width={conv_width}"
            )
        low, high = radius
        if not 0.0 < low <= high < 1.0:
            raise ValueError(f"radius must be (low, high) with 0 < low <= high < 1, got {radius}")
        self.linear_y = nn.Linear(dim, inner)
        self.linear_x = nn.Linear(dim, inner)
        self.linear_out = nn.Linear(inner, dim)
        self.conv_1d = _Conv(inner, conv_width)
        self.rg_lru = _Recurrence(inner, heads, low, high)

    def extra_repr(self) -> str:
        """Sizes shown by ``print(module)``."""
        taps, inner = self.conv_1d.w.shape
        heads = self.rg_lru.a_gate.w.shape[0]
        return f"dim={self.dim}, width={inner}, heads={heads}, conv_width={taps}"

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Mix tokens, as :meth:`RecurrentMixer.forward`.

        Args:
            x: (B, N, C).
            mask: bool (B, N), True = keep; the outputs of the others are 0.
            causal: must be True.
            segments: integer ids (B, N), not decreasing along a row: packed sequences, each of
                which begins anew. Not under ``torch.compile(fullgraph=True)``.

        Returns:
            (B, N, C).
        """
        if segments is None:
            return super().forward(x, mask=mask, causal=causal)

        def alone(x: Tensor, key_mask: Tensor | None) -> Tensor:
            return self.forward(x[:, 0], mask=key_mask, causal=causal).unsqueeze(1)

        return over_segments(alone, segments, {"x": x.unsqueeze(1)}, mask).squeeze(1)

    def cost(self, batch: int, tokens: int, *, causal: bool = False, itemsize: int = 4) -> Cost:
        """As :meth:`Mixer.cost`: three projections and the two gates' block-diagonal maps.

        The scan has no matrix product: it takes about 6 N W multiplications and additions. Kept are
        x, the convolution's row and the numbers between the steps of the recurrence.
        """
        check_call(self, batch, tokens, causal)
        rows, wide = batch * tokens, max(4, itemsize)
        taps, inner = self.conv_1d.w.shape
        gates = 2 * 2 * rows * inner * self.rg_lru.a_gate.w.shape[1]
        narrow = 4 * rows * inner  # into gelu, out of it; into the gates; into W_o
        numbers = batch * (tokens + taps - 1) * inner + 9 * rows * inner + inner
        return whole(
            self,
            rows,
            itemsize,
            projected=projection_flops(rows, self.linear_x, self.linear_y, self.linear_out),
            forward=gates,
            backward=2 * gates,
            saved=narrow * itemsize + numbers * wide + rows,  # a bool a token: where a row begins
            state=batch * ((taps - 1) * inner * itemsize + inner * wide + 8),
        )

    def _recur(self, x: Tensor, state: State | None, mask: Tensor | None) -> tuple[Tensor, State]:
        gate = F.gelu(self.linear_y(x), approximate="tanh")
        u = self.linear_x(x)
        before = None if state is None else state["conv"]
        kept = x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        seen_BN = kept.cumsum(1) if state is None else kept.cumsum(1) + state["count"]
        with no_autocast(x.device.type):
            u, conv = causal_conv(u, self.conv_1d.w.t(), self.conv_1d.b, before, mask=mask)
            begins = kept & (seen_BN == 1)
            h, last = self.rg_lru(u, None if state is None else state["h"], begins, mask)
        y = self.linear_out(h.to(gate.dtype) * gate)
        count_B1 = kept.sum(1, keepdim=True) + (0 if state is None else state["count"])
        return y, {"conv": conv, "h": last, "count": count_B1}


class _Conv(nn.Module):
    """Weights (taps, W) and bias of the depthwise convolution."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(taps, channels).uniform_(-(taps**-0.5), taps**-0.5))
        self.b = nn.Parameter(torch.zeros(channels))


class _Gate(nn.Module):
    """Weights (H, W / H, W / H) and bias of a block-diagonal linear map."""

    def __init__(self, channels: int, blocks: int) -> None:
        super().__init__()
        size = channels // blocks
        self.w = nn.Parameter(torch.randn(blocks, size, size) * size**-0.5)
        self.b = nn.Parameter(torch.zeros(blocks, size))

    def forward(self, x: Tensor) -> Tensor:
        return block_diagonal(x, self.w.to(x.dtype), self.b.to(x.dtype))


class _Recurrence(nn.Module):
    """Lambda and the two gates of the recurrence."""

    def __init__(self, channels: int, blocks: int, low: float, high: float) -> None:
        super().__init__()
        log_a = 0.5 * torch.empty(channels).uniform_(low**2, high**2).log()
        self.a_param = nn.Parameter(torch.expm1(-log_a).log())  # the inverse of softplus
        self.input_gate = _Gate(channels, blocks)
        self.a_gate = _Gate(channels, blocks)

    def forward(
        self, x: Tensor, h0: Tensor | None, reset: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return rg_lru(
            x, self.a_gate(x), self.input_gate(x), self.a_param, h0, reset_BN=reset, mask=mask
        )
