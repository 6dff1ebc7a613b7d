"""Mamba-2's mixer (Dao and Gu 2024, fig. 6 right, without the norm and residual around it).

Shape suffixes: B batch, N tokens, H heads, P channels of a head, G groups, S states.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoattn.core.contract import State
from isoattn.core.cost import Cost
from isoattn.core.mixers.costs import check_call, projection_flops, whole
from isoattn.core.mixers.recurrent import RecurrentMixer, convolution, step_bias
from isoattn.core.ops.blocks import accumulation_dtype
from isoattn.core.ops.causal_conv import causal_conv
from isoattn.core.ops.decay import CHUNK, decay_flops
from isoattn.core.ops.masking import no_autocast
from isoattn.core.ops.state_space_dual import state_space_dual

GateNorm = Literal["rms", "none"]


class Mamba2(RecurrentMixer):
    """y = W_o norm(ssd(x', dt, B', C') * silu(z)), (z, x, B, C, dt) = W x, x', B', C' by conv.

    The state space: one decay exp(-exp(A_log) dt) a head and token, dt = softplus(. + bias), and a
    skip D x'. The convolution is causal and followed by silu; the norm is an RMS over the channels
    of a group. Parameters have the names and shapes of state-spaces/mamba (``mamba2.py``), so its
    weights load as they are.

    Args:
        dim: channels of x and y.
        head_dim: P; it divides expand * dim.
        state_dim: S.
        groups: G; heads / groups consecutive heads share B and C.
        expand: inner channels over dim.
        conv_width: taps of the causal convolution.
        dt_range: of the step sizes at the start (log-uniform).
        decay_range: of the decay rates exp(A_log) at the start (uniform).
        norm: ``"rms"`` as released, or ``"none"`` for the gate alone.
        norm_eps: added to the mean square.
        bias: whether the projections in and out have one.
        conv_bias: whether the convolution has one.
        chunk: tokens computed together; ``None`` is all at once. It changes speed and memory, not
            the result.

    Raises:
        ValueError: sizes that do not fit, or a range that is not 0 < low <= high.

    Example:
        >>> mixer = Mamba2(64, head_dim=32, state_dim=16)
        >>> y = mixer(torch.randn(2, 50, 64), causal=True)
    """

    no_weight_decay = frozenset({"A_log", "D", "dt_bias"})

    def __init__(
        self,
        dim: int,
        *,
        head_dim: int = 64,
        state_dim: int = 128,
        groups: int = 1,
        expand: int = 2,
        conv_width: int = 4,
        dt_range: tuple[float, float] = (1e-3, 0.1),
        decay_range: tuple[float, float] = (1.0, 16.0),
        norm: GateNorm = "rms",
        norm_eps: float = 1e-5,
        bias: bool = False,
        conv_bias: bool = True,
        chunk: int | None = CHUNK,
    ) -> None:
        super().__init__(dim)
        inner = expand * dim
        sizes = (head_dim, state_dim, groups, expand, conv_width, 1 if chunk is None else chunk)
        if min(sizes) < 1 or inner % head_dim or (inner // head_dim) % groups:
            raise ValueError(
                "Mamba2 needs sizes of at least 1, a head_dim that divides expand * dim = "
                f"{inner} and groups that divide the heads; got head_dim={head_dim}, "
                f"state_dim={state_dim}, groups={groups}, expand={expand}, "
                f"conv_width={conv_width}, chunk={chunk}"
            )
        for name, (low, high) in (("dt_range", dt_range), ("decay_range", decay_range)):
            if not 0.0 < low <= high:
                raise ValueError(
                    f"{name} must be (low, high) with 0 < low <= high, got {(low, high)}"
                )
        if norm not in get_args(GateNorm):
            raise ValueError(f"norm must be one of {', '.join(get_args(GateNorm))}, got {norm!r}")
        heads = inner // head_dim
        self.heads, self.head_dim, self.state_dim = heads, head_dim, state_dim
        self.groups, self.chunk = groups, chunk
        mixed = inner + 2 * groups * state_dim
        self.in_proj = nn.Linear(dim, inner + mixed + heads, bias=bias)
        self.conv1d = convolution(mixed, conv_width, conv_bias)
        self.dt_bias = nn.Parameter(step_bias(heads, *dt_range))
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(*decay_range).log())
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = nn.RMSNorm(inner, eps=norm_eps) if norm == "rms" else None
        self.out_proj = nn.Linear(inner, dim, bias=bias)

    def extra_repr(self) -> str:
        """Sizes shown by ``print(module)``."""
        return (
            f"dim={self.dim}, heads={self.heads}, head_dim={self.head_dim}, "
            f"state_dim={self.state_dim}, groups={self.groups}, chunk={self.chunk}"
        )

    def cost(self, batch: int, tokens: int, *, causal: bool = False, itemsize: int = 4) -> Cost:
        """As :meth:`Mixer.cost`: the projections and the decay engine of every head.

        Kept are x, the convolution's row, input and output of each activation, q, k, v and
        log-decays of the engine, the norm's numbers and what goes into W_o.
        """
        check_call(self, batch, tokens, causal)
        heads, states, channels = self.heads, self.state_dim, self.head_dim
        rows, inner, wide = batch * tokens, heads * channels, max(4, itemsize)
        mixed, taps = self.conv1d.in_channels, self.conv1d.kernel_size[0]
        forward, backward = decay_flops(tokens, states, channels, self.chunk, False)
        narrow = rows * (mixed + 2 * inner)  # before silu; z; into W_o
        numbers = batch * (tokens + taps - 1) * mixed + 2 * heads
        numbers += rows * (3 * heads + 2 * heads * states + 4 * inner)  # steps, q and k, x, v, gate
        if self.norm is not None:
            numbers += rows * (2 * inner + self.groups)
        return whole(
            self,
            rows,
            itemsize,
            projected=projection_flops(rows, self.in_proj, self.out_proj),
            forward=batch * heads * forward,
            backward=batch * heads * backward,
            saved=narrow * itemsize + numbers * wide,
            state=batch * ((taps - 1) * mixed * itemsize + inner * states * wide),
        )

    def _recur(self, x: Tensor, state: State | None, mask: Tensor | None) -> tuple[Tensor, State]:
        inner, shared = self.heads * self.head_dim, self.groups * self.state_dim
        sizes = [inner, inner + 2 * shared, self.heads]
        z, xBC, dt = torch.split(self.in_proj(x), sizes, -1)
        with no_autocast(x.device.type):
            weight = self.conv1d.weight.squeeze(1)
            before = None if state is None else state["conv"]
            xBC, conv = causal_conv(xBC, weight, self.conv1d.bias, before, mask=mask)
            parts = torch.split(F.silu(xBC), [inner, shared, shared], -1)
            by_head, B, C = (
                torch.unflatten(part, -1, (parts_of, -1))
                for part, parts_of in zip(
                    parts, (self.heads, self.groups, self.groups), strict=True
                )
            )
            y, S = state_space_dual(
                by_head,
                dt,
                self.A_log,
                B,
                C,
                self.D,
                None if state is None else state["S"],
                dt_bias_H=self.dt_bias,
                mask=mask,
                chunk=self.chunk,
            )
            y = self._gate(y.flatten(2), z)
        return self.out_proj(y), {"conv": conv, "S": S}

    def _gate(self, y_BNC: Tensor, z_BNC: Tensor) -> Tensor:
        """The gate y silu(z), over its root mean square in each group of channels."""
        accumulate = accumulation_dtype(y_BNC)
        y = y_BNC.to(accumulate) * F.silu(z_BNC.to(accumulate))
        if self.norm is not None:
            y = torch.unflatten(y, -1, (self.groups, -1))
            y = F.rms_norm(y, y.shape[-1:], eps=self.norm.eps).flatten(-2)
            y = y * self.norm.weight.to(accumulate)
        return y.to(y_BNC.dtype)
