"""Mamba's mixer (Gu and Dao 2023, fig. 3, without the norm and the residual around it).

Shape suffixes: B batch, N tokens, C inner channels, R rank of the step sizes, S states.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoattn.core.contract import State
from isoattn.core.cost import Cost
from isoattn.core.mixers.costs import check_call, projection_flops, whole
from isoattn.core.mixers.recurrent import RecurrentMixer, convolution, step_bias
from isoattn.core.ops.causal_conv import causal_conv
from isoattn.core.ops.masking import no_autocast
from isoattn.core.ops.selective_scan import block_tokens, selective_scan


class SelectiveSSM(RecurrentMixer):
    """y = W_o (scan(u) * silu(z)), u = silu(conv(W_x x)), z = W_z x.

    The scan: h_t = exp(dt_t A) h_(t-1) + dt_t B_t u_t, o_t = C_t.h_t + D u_t with dt, B, C linear
    in u, dt = softplus(. + bias), A = -exp(A_log) per channel and state. Parameters have the names
    and shapes of state-spaces/mamba (``mamba_simple.py``), so its weights load as they are.

    Args:
        dim: channels of x and y.
        state_dim: states S of a channel.
        expand: inner channels C over dim.
        conv_width: taps of the causal convolution.
        dt_rank: R; dim / 16, rounded up, unless given.
        dt_range: of the step sizes at the start (log-uniform).
        bias: whether the projections in and out have one.
        conv_bias: whether the convolution has one.
        block: tokens whose (C, S) states exist together; a size that suits the cache unless given.
            It changes speed and memory, not the result.

    Raises:
        ValueError: a size below 1, or a range that is not 0 < low <= high.

    Example:
        >>> mixer = SelectiveSSM(64)
        >>> y = mixer(torch.randn(2, 50, 64), causal=True)
    """

    no_weight_decay = frozenset({"A_log", "D", "dt_proj.bias"})

    def __init__(
        self,
        dim: int,
        *,
        state_dim: int = 16,
        expand: int = 2,
        conv_width: int = 4,
        dt_rank: int | None = None,
        dt_range: tuple[float, float] = (1e-3, 0.1),
        bias: bool = False,
        conv_bias: bool = True,
        block: int | None = None,
    ) -> None:
        super().__init__(dim)
        rank = math.ceil(dim / 16) if dt_rank is None else dt_rank
        if min(state_dim, expand, conv_width, rank, 1 if block is None else block) < 1:
            raise ValueError(
                "SelectiveSSM needs state_dim, expand, conv_width, dt_rank and block of at least "
                f"1, got state_dim={state_dim}, expand={expand}, conv_width={conv_width}, "
                f"dt_rank={dt_rank}, block={block}"
            )
        low, high = dt_range
        if not 0.0 < low <= high:
            raise ValueError(f"dt_range must be (low, high) with 0 < low <= high, got {dt_range}")
        inner = expand * dim
        self.block = block
        self.in_proj = nn.Linear(dim, 2 * inner, bias=bias)
        self.conv1d = convolution(inner, conv_width, conv_bias)
        self.x_proj = nn.Linear(inner, rank + 2 * state_dim, bias=False)
        self.dt_proj = nn.Linear(rank, inner)
        self.A_log = nn.Parameter(torch.arange(1.0, state_dim + 1).log().repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, dim, bias=bias)
        with torch.no_grad():
            self.dt_proj.weight.uniform_(-(rank**-0.5), rank**-0.5)
            self.dt_proj.bias.copy_(step_bias(inner, low, high))

    def extra_repr(self) -> str:
        """Sizes shown by ``print(module)``."""
        return f"dim={self.dim}, state_dim={self.A_log.shape[1]}, block={self.block}"

    def cost(self, batch: int, tokens: int, *, causal: bool = False, itemsize: int = 4) -> Cost:
        """As :meth:`Mixer.cost`: the projections alone, as the scan has no matrix product.

        It takes about 12 N C S multiplications and additions forward. Kept are x, the convolution's
        row, input and output of silu, dt, B, C, z, the states between blocks and what goes into
        W_o.
        """
        check_call(self, batch, tokens, causal)
        rows, wide = batch * tokens, max(4, itemsize)
        inner, states = self.A_log.shape
        taps = self.conv1d.kernel_size[0]
        block = self.block or block_tokens(batch, inner, states)
        narrow = rows * (5 * inner + self.x_proj.out_features)  # silu's two; delta; z; into W_o
        numbers = batch * (tokens + taps - 1) * inner + 2 * inner * states
        numbers += batch * inner * states * -(-tokens // block)  # before each block
        layers = (self.in_proj, self.x_proj, self.dt_proj, self.out_proj)
        return whole(
            self,
            rows,
            itemsize,
            projected=projection_flops(rows, *layers),
            forward=0,
            backward=0,
            saved=narrow * itemsize + numbers * wide,
            state=batch * inner * ((taps - 1) * itemsize + states * wide),
        )

    def _recur(self, x: Tensor, state: State | None, mask: Tensor | None) -> tuple[Tensor, State]:
        u, z = self.in_proj(x).chunk(2, -1)
        before = None if state is None else state["conv"]
        states = self.A_log.shape[1]
        with no_autocast(x.device.type):
            weight = self.conv1d.weight.squeeze(1)
            u, conv = causal_conv(u, weight, self.conv1d.bias, before, mask=mask)
            u = F.silu(u)
        dt, B, C = self.x_proj(u).split([self.dt_proj.in_features, states, states], -1)
        delta = F.linear(dt, self.dt_proj.weight)
        with no_autocast(x.device.type):
            wide = torch.promote_types(self.A_log.dtype, torch.float32)
            y, h = selective_scan(
                u,
                delta,
                -self.A_log.to(wide).exp(),
                B.unsqueeze(2),
                C.unsqueeze(2),
                self.D,
                None if state is None else state["h"],
                z_BNC=z,
                delta_bias_C=self.dt_proj.bias,
                mask=mask,
                block=self.block,
            )
        return self.out_proj(y), {"conv": conv, "h": h}
