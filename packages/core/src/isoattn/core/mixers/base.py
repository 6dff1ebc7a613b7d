"""The contract of a mixer: a sequence in, a sequence of the same width out.

Shape suffixes: B batch, N tokens, C channels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from isoattn.core.contract import Capability, State, UnsupportedAttention
from isoattn.core.cost import Cost


class Mixer(nn.Module, ABC):
    """x -> y with projections of its own; no norm before and no residual around it.

    Rules that hold for every mixer: a padded token has exactly no influence, even where it holds
    NaN, and its own output is 0; causal outputs depend on no later token; what cannot be done
    raises :class:`UnsupportedAttention` with the reason.

    Args:
        dim: channels C.

    Raises:
        ValueError: a size below 1.
    """

    capability: Capability
    unsupported: dict[str, str] = {}

    def __init__(self, dim: int) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"{type(self).__name__} needs dim >= 1, got dim={dim}")
        self.dim = dim

    @abstractmethod
    def forward(self, x: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Mix tokens: x (B, N, C), mask bool (B, N) True = keep, to (B, N, C)."""

    def extend(
        self, x: Tensor, state: State | None = None, *, mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Continue the causal form after the tokens a state remembers: (B, N, C) and new state.

        Raises:
            UnsupportedAttention: there is no such form; says why.
        """
        reason = self.unsupported.get("state", "not defined for this mixer")
        raise UnsupportedAttention(f"{type(self).__name__} has no state to continue: {reason}")

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One token: x (B, C) gives (B, C) and the new state."""
        y, state = self.extend(x.unsqueeze(1), state)
        return y.squeeze(1), state

    @abstractmethod
    def cost(self, batch: int, tokens: int, *, causal: bool = False, itemsize: int = 4) -> Cost:
        """FLOPs and bytes of one call on x (B, N, C) that needs a gradient, without a mask.

        FLOPs are those of matrix products, projections included; convolutions over a few taps and
        scans have none. The least bytes are x, y and every parameter, once each. Saved bytes are
        those on a CPU; they are exact in float32. In another dtype the copies of parameters in
        float32 that autograd keeps are left out.

        Args:
            batch: B.
            tokens: N.
            causal: which form.
            itemsize: bytes of one element of x and of the parameters.

        Raises:
            UnsupportedAttention: there is no such form; says why.
            ValueError: a size below 1.
        """
