"""What the mixers with a convolution and a recurrence share: Mamba and Mamba-2.

Shape suffixes: B batch, N tokens, C channels.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from isoattn.core.contract import Capability, State, UnsupportedAttention
from isoattn.core.mixers.base import Mixer
from isoattn.core.mixers.checks import check_tokens, zero_pads


class RecurrentMixer(Mixer):
    """A causal mixer with a constant state; forward, extend and step are one form.

    A padded token is as good as absent, in the middle too: the recurrence stands still and the
    convolution counts kept tokens.
    """

    capability = Capability(
        bidirectional=False, causal=True, state="constant", positions="rank", normalised=False
    )
    unsupported = {
        "bidirectional": "its state remembers the past alone; pass causal=True, or run a second "
        "one on the reversed sequence",
        "cross": "everything is computed from one sequence",
    }

    @abstractmethod
    def _recur(self, x: Tensor, state: State | None, mask: Tensor | None) -> tuple[Tensor, State]:
        """Outputs and the next state, on checked inputs whose padded tokens are 0."""

    def forward(self, x: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Mix tokens.

        Args:
            x: (B, N, C).
            mask: bool (B, N), True = keep; the outputs of the others are 0.
            causal: must be True.

        Returns:
            (B, N, C).

        Raises:
            UnsupportedAttention: causal is False; says why.
            ValueError: shapes or dtypes that do not fit; names them.
        """
        check_tokens(type(self).__name__, self.dim, x, mask)
        if not causal:
            raise UnsupportedAttention(
                f"{type(self).__name__} has no bidirectional form: "
                f"{self.unsupported['bidirectional']}"
            )
        return zero_pads(self._recur(zero_pads(x, mask), None, mask)[0], mask)

    def extend(
        self, x: Tensor, state: State | None = None, *, mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Continue after the tokens a state remembers: x (B, N, C) to (B, N, C) and a new state."""
        check_tokens(type(self).__name__, self.dim, x, mask)
        y, state = self._recur(zero_pads(x, mask), state, mask)
        return zero_pads(y, mask), state


def step_bias(channels: int, low: float, high: float) -> Tensor:
    """Biases b with softplus(b) log-uniform in [low, high], at least 1e-4."""
    step = torch.exp(torch.rand(channels) * (math.log(high) - math.log(low)) + math.log(low))
    step = step.clamp(min=1e-4)
    return step + torch.log(-torch.expm1(-step))  # the inverse of the softplus


def convolution(channels: int, taps: int, bias: bool) -> nn.Conv1d:
    """Weights of a depthwise convolution under the names that published checkpoints have."""
    return nn.Conv1d(channels, channels, taps, groups=channels, bias=bias)
