"""The layer of S4D (Gu et al. 2022): a convolution a channel, and a gated map across channels.

Shape suffixes: B batch, N tokens, C channels, S pairs of conjugate states.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoattn.core.contract import Capability, State, UnsupportedAttention
from isoattn.core.cost import Cost
from isoattn.core.mixers.base import Mixer
from isoattn.core.mixers.checks import check_tokens, zero_pads
from isoattn.core.mixers.costs import check_call, whole
from isoattn.core.ops.blocks import accumulation_dtype
from isoattn.core.ops.masking import no_autocast
from isoattn.core.ops.s4d import CHUNK, Diagonal, diagonal_state_space, discretise


class S4D(Mixer):
    """y = GLU(W gelu(K * x + D x)), K the kernel of a diagonal state space model.

    Parameters have the names and shapes of state-spaces/s4 (``models/s4/s4d.py``), so its weights
    load as they are. A padded token counts as a zero input: the distance over it remains.

    Args:
        dim: channels of x and y.
        state_dim: real states of a channel, two for each conjugate pair.
        bidirectional: False is causal; True adds a second kernel, of parameters ``C`` of its own,
            for the tokens behind, and has no causal form.
        dt_range: of the step sizes at the start (log-uniform).

    Raises:
        ValueError: a size below 1, an odd state_dim, or a range that is not 0 < low <= high.

    Example:
        >>> mixer = S4D(64)
        >>> y = mixer(torch.randn(2, 50, 64), causal=True)
    """

    capability = Capability(
        bidirectional=False, causal=True, state="constant", positions="distance", normalised=False
    )
    no_weight_decay = frozenset({"D", "kernel.log_dt", "kernel.log_A_real", "kernel.A_imag"})

    def __init__(
        self,
        dim: int,
        *,
        state_dim: int = 64,
        bidirectional: bool = False,
        dt_range: tuple[float, float] = (1e-3, 0.1),
    ) -> None:
        super().__init__(dim)
        if state_dim < 2 or state_dim % 2:
            raise ValueError(f"state_dim must be even and at least 2, got {state_dim}")
        low, high = dt_range
        if not 0.0 < low <= high:
            raise ValueError(f"dt_range must be (low, high) with 0 < low <= high, got {dt_range}")
        self.unsupported = {"cross": "everything is computed from one sequence"}
        if bidirectional:
            self.capability = replace(
                self.capability, bidirectional=True, causal=False, state="none"
            )
            self.unsupported["causal"] = (
                "its second kernel sees what is behind a token; use bidirectional=False"
            )
            self.unsupported["state"] = self.unsupported["causal"]
        else:
            self.unsupported["bidirectional"] = (
                "its one kernel sees the past alone; pass causal=True, or use bidirectional=True"
            )
        self.kernel = _Kernel(dim, state_dim // 2, low, high)
        self.backward_kernel = _Output(dim, state_dim // 2) if bidirectional else None
        self.D = nn.Parameter(torch.randn(dim))
        self.output_linear = nn.Sequential(nn.Conv1d(dim, 2 * dim, 1))

    def extra_repr(self) -> str:
        """Sizes and options shown by ``print(module)``."""
        pairs = self.kernel.C.shape[1]
        bidirectional = self.backward_kernel is not None
        return f"dim={self.dim}, state_dim={2 * pairs}, bidirectional={bidirectional}"

    def cost(self, batch: int, tokens: int, *, causal: bool = False, itemsize: int = 4) -> Cost:
        """As :meth:`Mixer.cost`: the map across channels and the products of whole chunks.

        Each chunk is multiplied by a table to its outputs and to its state, the state before it by
        one to its outputs; the last chunk once more, for the state at the end. Kept are those
        tables with the powers in float64 that they are made of, inputs and states of the chunks and
        the numbers around gelu and GLU. A single token needs no table and no product.
        """
        check_call(self, batch, tokens, causal)
        rows, wide, dim = batch * tokens, max(4, itemsize), self.dim
        lengths = [tokens] if self.backward_kernel is None else [tokens, tokens - 1]
        parts = [self._kernel_cost(batch, n, wide) for n in lengths if n]
        forward, again, kept = (sum(part) for part in zip(*parts, strict=True))
        narrow = 3 * rows * dim  # into W; into GLU
        return whole(
            self,
            rows,
            itemsize,
            projected=4 * rows * dim**2,
            forward=forward + again,
            backward=2 * forward,
            saved=narrow * itemsize + rows * dim * wide + kept,
            state=0 if self.backward_kernel else batch * dim * 2 * self.kernel.C.shape[1] * wide,
        )

    def _kernel_cost(self, batch: int, tokens: int, wide: int) -> tuple[int, int, int]:
        """FLOPs with a gradient and without, and kept bytes, of one kernel over its tokens."""
        dim, pairs = self.kernel.C.shape[:2]
        system = dim * (8 + pairs * (3 * 8 + 6 * 16))  # dt, real and complex numbers of A, B, C
        if tokens == 1:
            return 0, 0, system + batch * dim * (8 + 2 * 16 * pairs)  # the step is in float64
        chunks = -(-tokens // CHUNK)
        blocks, rest = batch * chunks, tokens - (chunks - 1) * CHUNK
        products = 2 * dim * blocks * CHUNK * (CHUNK + 4 * pairs)
        last = 4 * dim * batch * rest * pairs
        powers = 4 * dim * CHUNK * pairs * 16 + CHUNK * (3 * 8 + CHUNK * 9)  # with their places
        tables = dim * CHUNK * (CHUNK + 4 * pairs) * wide
        frame = (chunks + 1) * (8 + 16 * dim * pairs) + 4 * dim * chunks * pairs * wide
        states = 2 * dim * pairs * (4 * blocks + batch) + dim * pairs
        inputs = dim * blocks * CHUNK
        return products, last, system + powers + tables + frame + (states + inputs) * wide

    def forward(self, x: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Mix tokens.

        Args:
            x: (B, N, C).
            mask: bool (B, N), True = keep; the outputs of the others are 0.
            causal: must be True for one kernel and False for two.

        Returns:
            (B, N, C).

        Raises:
            UnsupportedAttention: the other form is asked for; says why.
            ValueError: shapes or dtypes that do not fit; names them.
        """
        check_tokens(type(self).__name__, self.dim, x, mask)
        form = "causal" if causal else "bidirectional"
        if not getattr(self.capability, form):
            raise UnsupportedAttention(
                f"{type(self).__name__} has no {form} form: {self.unsupported[form]}"
            )
        u_BNC = self._inputs(x, mask)
        with no_autocast(x.device.type):
            mixed, _ = diagonal_state_space(self.kernel.system(), u_BNC)
            if self.backward_kernel is not None:
                other = self.kernel.system(self.backward_kernel.C)
                behind, _ = diagonal_state_space(other, u_BNC[:, 1:].flip(1))
                mixed = mixed + F.pad(behind.flip(1), (0, 0, 0, 1))
        return self._out(mixed, u_BNC, x, mask)

    def extend(
        self, x: Tensor, state: State | None = None, *, mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Continue after the tokens a state remembers: x (B, N, C) to (B, N, C) and a new state.

        The state is ``x`` (B, C, S, 2), real and imaginary parts in float32 at least.
        """
        if self.capability.state == "none":
            return super().extend(x, state, mask=mask)
        check_tokens(type(self).__name__, self.dim, x, mask)
        u_BNC = self._inputs(x, mask)
        before = None if state is None else state["x"]
        with no_autocast(x.device.type):
            mixed, after = diagonal_state_space(self.kernel.system(), u_BNC, before)
        return self._out(mixed, u_BNC, x, mask), {"x": after}

    def _inputs(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return zero_pads(x, mask).to(accumulation_dtype(x))

    def _out(self, mixed_BNC: Tensor, u_BNC: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        with no_autocast(x.device.type):
            active_BNC = F.gelu(mixed_BNC + self.D.to(u_BNC.dtype) * u_BNC).to(x.dtype)
        weight, bias = self.output_linear.parameters()
        y = F.glu(F.linear(active_BNC, weight.squeeze(-1), bias), -1)
        return zero_pads(y, mask)


class _Output(nn.Module):
    """C of a kernel, standard normal complex numbers."""

    def __init__(self, channels: int, pairs: int) -> None:
        super().__init__()
        self.C = nn.Parameter(torch.randn(channels, pairs, 2) * 0.5**0.5)


class _Kernel(_Output):
    """A, dt and C of a kernel; A = -1/2 + i pi n (S4D-Lin)."""

    def __init__(self, channels: int, pairs: int, low: float, high: float) -> None:
        super().__init__(channels, pairs)
        log_low, log_high = math.log(low), math.log(high)
        self.log_dt = nn.Parameter(torch.empty(channels).uniform_(log_low, log_high))
        self.log_A_real = nn.Parameter(torch.full((channels, pairs), math.log(0.5)))
        self.A_imag = nn.Parameter(math.pi * torch.arange(pairs).repeat(channels, 1))

    def system(self, c: Tensor | None = None) -> Diagonal:
        return discretise(self.log_dt, self.log_A_real, self.A_imag, self.C if c is None else c)
