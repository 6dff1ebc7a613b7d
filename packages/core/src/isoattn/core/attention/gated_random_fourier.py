"""Random feature attention with a gate."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from isoattn.core.attention.decay import DECAYING, UNSUPPORTED
from isoattn.core.attention.gated import GatedAttention
from isoattn.core.contract import State
from isoattn.core.cost import Cost, Shape
from isoattn.core.frequencies import gaussian
from isoattn.core.ops.decay import CHUNK, decay_flops
from isoattn.core.ops.gated_random_fourier import gated_random_fourier
from isoattn.core.ops.random_fourier import RandomFourierKernel
from isoattn.core.ops.reference import decay as reference
from isoattn.core.streams import Stream


class GatedRandomFourier(GatedAttention):
    """RFA-Gate: S_t = g_t S_(t-1) + (1 - g_t) phi(k_t) v_t^T, o_t = phi(q_t) S_t / phi(q_t) z_t.

    Peng et al. 2021, eq. 7; no code was released for it. The gate is g = exp(log_decay), in the
    paper the sigmoid of a projection of the token; without log_decay every token enters with weight
    1 and nothing is forgotten, as in :class:`RandomFourier`. phi = [sin, cos](sigma w.x) of q and
    k brought to length 1.

    The weights are signed. The denominator keeps its sign and, with n_t the sum of the gates'
    weights, at least the size eps n_t (in units in which phi(x).phi(x) = 1), so a row whose weights
    nearly cancel does not sum to 1.

    The directions are the buffer ``projection`` (heads, features, head_dim), drawn once: copy
    numbers into it to set them by hand. They stay the same in training, as a state needs it.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head.
        features: number of random directions R; phi has 2 R entries.
        lengths: ``"unit"`` brings q and k to length 1, ``"keep"`` takes them as they are.
        sigma_init: initial sigma of every channel; parameter ``sigma`` (H, 1, D).
        eps: of the denominator, see above; 0 keeps all but an exact 0.
        seed: of the draws.
        chunk: tokens computed together; ``None`` is all at once. It changes speed and memory, not
            the result.

    Raises:
        ValueError: a size or chunk below 1, an unknown option, or an eps outside [0, 1).
    """

    capability = replace(DECAYING, log_decay="head")
    unsupported = UNSUPPORTED
    no_weight_decay = frozenset({"sigma"})
    projection: Tensor

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        features: int = 64,
        lengths: Literal["unit", "keep"] = "unit",
        sigma_init: float = 1.0,
        eps: float = 1e-2,
        seed: int = 0,
        chunk: int | None = CHUNK,
    ) -> None:
        super().__init__(heads, head_dim)
        if features < 1:
            raise ValueError(f"features must be at least 1, got {features}")
        if lengths not in ("unit", "keep"):
            raise ValueError(f"lengths must be 'unit' or 'keep', got {lengths!r}")
        if not 0 <= eps < 1:
            raise ValueError(f"eps must be in [0, 1), got {eps}")
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk must be at least 1 or None (all tokens at once), got {chunk}")
        self.features, self.chunk = features, chunk
        self.kernel = RandomFourierKernel(features, lengths=lengths, eps=eps)
        self.sigma = nn.Parameter(torch.full((heads, 1, head_dim), float(sigma_init)))
        self.stream = Stream(seed)
        self.register_buffer("projection", self._drawn())

    def extra_repr(self) -> str:
        """Sizes and options shown by ``print(module)``."""
        return (
            f"{super().extra_repr()}, features={self.features}, "
            f"lengths={self.kernel.lengths!r}, eps={self.kernel.eps}, chunk={self.chunk}"
        )

    def reseed(self, seed: int) -> None:
        """Draw the directions from another seed."""
        self.stream.reseed(seed)
        self.projection.copy_(self._drawn())

    def _drawn(self) -> Tensor:
        return gaussian(self.stream.key(), self.heads, self.features, self.head_dim)

    def _recur(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor | None,
        in_gate: Tensor | None,
        state: State | None,
        key_mask: Tensor | None,
    ) -> tuple[Tensor, State]:
        given = None
        if state is not None:
            if not {"S", "z", "n"} <= state.keys():
                raise ValueError(
                    f"the state must hold 'S', 'z' and 'n', got {sorted(state)}; give what extend "
                    "returned"
                )
            sums = torch.cat([state["S"], state["z"].unsqueeze(-1)], -1)
            given = sums, state["n"][..., None, None]
        out, sums, weight = gated_random_fourier(
            q,
            k,
            v,
            log_decay,
            given,
            key_mask=key_mask,
            sigma_H1D=self.sigma,
            projection_HRD=self.projection,
            kernel=self.kernel,
            chunk=self.chunk,
        )
        return out, {"S": sums[..., :-1], "z": sums[..., -1], "n": weight[..., 0, 0]}

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """FLOPs and bytes of the eager path, log-decays given.

        Kept are the inputs and the directions; the backward pass runs the forward pass again.
        """
        rows, dim, width = shape.batch * shape.heads, shape.head_dim, shape.value_dim
        wide, tokens = max(4, shape.itemsize), shape.keys
        mapped = 4 * tokens * dim * self.features
        sums = decay_flops(tokens, 2 * self.features, width + 1, self.chunk, False)
        weights = decay_flops(tokens, 1, 1, self.chunk, False)
        forward = mapped + sums[0] + weights[0]
        inputs = rows * tokens * (2 * dim + width) * shape.itemsize
        matrix = self.projection.numel() * self.projection.element_size()
        return Cost(
            forward_flops=rows * forward,
            backward_flops=rows * (forward + mapped + sums[1] + weights[1]),
            min_bytes=inputs + rows * tokens * width * shape.itemsize,
            saved_bytes=inputs + rows * tokens * wide + matrix,
            state_bytes=rows * (2 * self.features * (width + 1) + 1) * wide,
        )

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
        log_decay: Tensor | None = None,
    ) -> Tensor:
        """The recurrence in float64, token by token."""
        return reference.gated_random_fourier(
            q,
            k,
            v,
            log_decay,
            self.sigma,
            self.projection,
            key_mask=key_mask,
            unit=self.kernel.lengths == "unit",
            eps=self.kernel.eps,
        )
