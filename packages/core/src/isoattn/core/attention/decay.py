"""Presets of the decay engine: what they share, and those without maps of their own.

S_t = diag(a_t) S_(t-1) + k_t v_t^T, o_t = s S_t^T q_t, not normalised.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

import torch
from torch import Tensor

from isoattn.core.attention.gated import GatedAttention
from isoattn.core.contract import Capability, State
from isoattn.core.cost import Cost, Shape
from isoattn.core.ops.decay import CHUNK, decay_attention, decay_flops
from isoattn.core.ops.reference import decay as reference

DECAYING = Capability(
    bidirectional=False, causal=True, state="constant", positions="rank", normalised=False
)
Mapped = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""q, k, v and log-decays as the engine takes them."""

UNSUPPORTED = {
    "bidirectional": "the state remembers the past alone; run it once in each direction instead",
    "cross": "query i is read from the state after key i, so there are as many of both",
    "in_gate": "its input gate is part of k or of log_decay",
    "log_decay": "its decay is its own",
}


class DecayAttention(GatedAttention):
    """What the presets share: the engine, its state ``{"S": (B, G, D, E)}``, cost and oracle.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head.
        chunk: tokens computed together. It changes speed and memory, not the result; ``None`` is
            all tokens at once, as the quadratic form does.
        scale: s; ``None`` is D^-1/2.

    Raises:
        ValueError: a size below 1, or a chunk below 1.
    """

    capability = DECAYING
    unsupported = UNSUPPORTED

    def __init__(
        self, heads: int, head_dim: int, *, chunk: int | None = CHUNK, scale: float | None = None
    ) -> None:
        super().__init__(heads, head_dim)
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk must be at least 1 or None (all tokens at once), got {chunk}")
        self.chunk = chunk
        self.scale = head_dim**-0.5 if scale is None else scale

    def extra_repr(self) -> str:
        """Sizes and options shown by ``print(module)``."""
        return f"{super().extra_repr()}, chunk={self.chunk}, scale={self.scale:.4g}"

    @abstractmethod
    def _mapped(
        self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, key_mask: Tensor | None
    ) -> Mapped:
        """What the engine takes for the given q, k, v and log_decay."""

    def _bonus(self) -> Tensor | None:
        """The factors u (H, D) of a token's own key, or none."""
        return None

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
        q, k, v, log_decay = self._mapped(q, k, v, log_decay, key_mask)
        out, end = decay_attention(
            q,
            k,
            v,
            log_decay,
            _given(state),
            key_mask=key_mask,
            scale=self.scale,
            chunk=self.chunk,
            bonus_HD=self._bonus(),
        )
        return out, {"S": end}

    @abstractmethod
    def _vector(self) -> bool:
        """Whether the engine gets a decay a key channel."""

    def _kept_bytes(self, shape: Shape) -> int:
        """Saved beyond q, k and v: the log-decays, in float32 at least."""
        gates = shape.batch * shape.heads * shape.keys * (shape.head_dim if self._vector() else 1)
        return gates * max(4, shape.itemsize)

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """FLOPs and bytes of the eager path, log-decays given.

        Kept are the inputs; the backward pass forms the weights and states of all chunks again.
        """
        rows, dim, width = shape.batch * shape.heads, shape.head_dim, shape.value_dim
        forward, backward = decay_flops(shape.keys, dim, width, self.chunk, self._vector())
        inputs = rows * (shape.queries * dim + shape.keys * (dim + width)) * shape.itemsize
        return Cost(
            forward_flops=rows * forward,
            backward_flops=rows * backward,
            min_bytes=inputs + rows * shape.queries * width * shape.itemsize,
            saved_bytes=inputs + self._kept_bytes(shape),
            state_bytes=rows * dim * width * max(4, shape.itemsize),
        )


def _given(state: State | None) -> Tensor | None:
    if state is None:
        return None
    if "S" not in state:
        raise ValueError(f"the state must hold 'S', got {sorted(state)}; give what extend returned")
    return state["S"]


class GivenDecay(DecayAttention):
    """Presets that take log-decays and leave q, k and v as they are."""

    def _mapped(
        self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, key_mask: Tensor | None
    ) -> Mapped:
        return q, k, v, log_decay

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
        out, _ = reference.recurrence(
            q, k, v, log_decay, key_mask=key_mask, scale=self.scale, bonus=self._bonus()
        )
        return out


class StateSpaceDual(GivenDecay):
    """o_t = S_t^T q_t, S_t = a_t S_(t-1) + k_t v_t^T with one decay a_t a head and token (SSD).

    The state space dual form of Mamba-2 (Dao and Gu 2024, eq. 6).

    For the layer's numbers give q = C, k = B (repeated for the heads of its group), v = dt x and
    log_decay = -exp(A_log) dt with dt = softplus(. + bias); the skip D x is the caller's. No scale.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head, the state size N of the paper.
        chunk: tokens computed together; ``None`` is all at once. It changes speed and memory, not
            the result.

    Raises:
        ValueError: a size or chunk below 1.
    """

    capability = replace(DECAYING, log_decay="head")

    def __init__(self, heads: int, head_dim: int, *, chunk: int | None = CHUNK) -> None:
        super().__init__(heads, head_dim, chunk=chunk, scale=1.0)

    def _vector(self) -> bool:
        return False


class GatedLinear(GivenDecay):
    """o_t = s S_t^T q_t, S_t = diag(a_t) S_(t-1) + k_t v_t^T, one decay a key channel and token.

    Gated linear attention (Yang et al. 2024, eq. 3), s = D^-1/2.

    The layer's gate is log_decay = logsigmoid(W x) / 16.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head.
        chunk: tokens computed together, rounded up to a power of two; ``None`` is all at once. It
            changes speed and memory, not the result.
        scale: of the output; ``None`` is D^-1/2, as flash-linear-attention has it.

    Raises:
        ValueError: a size or chunk below 1.
    """

    capability = replace(DECAYING, log_decay="channel")

    def _vector(self) -> bool:
        return True


class Retention(DecayAttention):
    """o_t = s sum_(j<=t) g_h^(t-j) (q_t.k_j) v_j with a fixed decay g_h = 1 - 2^(-5-h) a head.

    Retention (Sun et al. 2023, eq. 5-7), s = D^-1/2.

    The sum itself: neither rotation nor norm, which belong to the layer
    (:class:`isoattn.core.mixers.retention_block.MultiScaleRetention`).

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head.
        chunk: tokens computed together; ``None`` is all at once. It changes speed and memory, not
            the result.
        scale: of the output; ``None`` is D^-1/2.

    Raises:
        ValueError: a size or chunk below 1.
    """

    def log_decays(self, device: torch.device | None = None) -> Tensor:
        """log(1 - 2^(-5-h)) of the heads (H,), float64."""
        return head_decays(self.heads, device)

    def _mapped(
        self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, key_mask: Tensor | None
    ) -> Mapped:
        if k.shape[1] != self.heads:  # the decay is that of the query head, and so is the state
            repeats = self.heads // k.shape[1]
            k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        decays = self.log_decays(q.device).to(torch.promote_types(q.dtype, torch.float32))
        return q, k, v, decays[None, :, None].expand(k.shape[:3])

    def _vector(self) -> bool:
        return False

    def _kept_bytes(self, shape: Shape) -> int:
        return shape.heads * max(4, shape.itemsize)

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """The recurrence in float64, token by token."""
        repeats = self.heads // k.shape[1]
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        decays = torch.tensor([1.0 - 2.0 ** (-5 - h) for h in range(self.heads)]).double().log()
        decays = decays[None, :, None].expand(k.shape[:3])
        return reference.recurrence(q, k, v, decays, key_mask=key_mask, scale=self.scale)[0]


def head_decays(heads: int, device: torch.device | None = None) -> Tensor:
    """RetNet's log(1 - 2^(-5-h)) (H,), float64."""
    exponents = torch.arange(heads, dtype=torch.float64, device=device) + 5.0
    return torch.log1p(-torch.exp2(-exponents))
