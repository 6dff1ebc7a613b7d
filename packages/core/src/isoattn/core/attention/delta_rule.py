"""The delta rule: DeltaNet, Gated DeltaNet and Kimi delta attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from torch import Tensor

from isoattn.core.attention.gated import GatedAttention
from isoattn.core.contract import Capability, State
from isoattn.core.cost import Cost, Shape
from isoattn.core.ops import delta_rule as ops
from isoattn.core.ops.reference import delta_rule as reference

Decay = Literal["none", "head", "channel"]


class DeltaRule(GatedAttention):
    """S_t = a_t S_(t-1) + b_t k_t (v_t - a_t S_(t-1)^T k_t)^T, o_t = s S_t^T q_t, |k_t| = 1.

    The state first decays, a_t = exp(``log_decay``), then what it holds under k_t is replaced by
    v_t to the part b_t = sigmoid(``in_gate``), as every released delta rule has it: ``in_gate``
    holds the logits of b (without, they are 0 and b is 1/2; give ``torch.logit(b)`` for a b of your
    own). A step multiplies the state by I - b_t k_t k_t^T, which expands it where b_t |k_t|^2 > 2,
    so keys are brought to length 1 here; the released layers bring queries there too, which is the
    caller's part. A key of zeros writes nothing. The function
    :func:`isoattn.core.ops.delta_rule.delta_rule` takes keys as they are too.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head.
        decay: ``"none"`` is DeltaNet (Yang et al. 2024, arXiv:2406.06484, eq. 2); ``"head"``, one a
            head and token, Gated DeltaNet (Yang et al. 2025, arXiv:2412.06464, eq. 10);
            ``"channel"``, one a key channel, Kimi delta attention (2025, arXiv:2510.26692, eq. 1).
        negative_eigenvalues: b_t = 2 sigmoid(``in_gate``), so that the state can be reflected
            (Grazzi et al. 2025, arXiv:2411.12537, sec. 4).
        chunk: tokens of one triangular system; ``None`` is all at once. With a decay a channel it
            is rounded up to a power of two. It changes speed and memory, not the result.
        scale: s; ``None`` is D^-1/2, as flash-linear-attention has it.

    Raises:
        ValueError: a size below 1, an unknown decay, a chunk below 1.
    """

    capability = Capability(
        bidirectional=False,
        causal=True,
        state="constant",
        log_decay="head",
        in_gate=True,
        positions="rank",
        normalised=False,
    )
    unsupported = {
        "bidirectional": "the state remembers the past alone; pass causal=True",
        "cross": "query i is read from the state after key i, so there are as many of both",
        "log_decay": "decay='none' forgets only what it replaces; build it with decay='head'",
    }

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        decay: Decay = "head",
        negative_eigenvalues: bool = False,
        chunk: int | None = 64,
        scale: float | None = None,
    ) -> None:
        super().__init__(heads, head_dim)
        if decay not in ("none", "head", "channel"):
            raise ValueError(f"decay must be 'none', 'head' or 'channel', got {decay!r}")
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk must be at least 1, or None for all tokens, got {chunk}")
        self.decay: Decay = decay
        self.negative_eigenvalues = negative_eigenvalues
        self.chunk = chunk
        self.scale = head_dim**-0.5 if scale is None else scale
        self.capability = replace(self.capability, log_decay=decay)

    def extra_repr(self) -> str:
        """Sizes and options shown by ``print(module)``."""
        return (
            f"{super().extra_repr()}, decay={self.decay!r}, "
            f"negative_eigenvalues={self.negative_eigenvalues}, chunk={self.chunk}, "
            f"scale={self.scale:.4g}"
        )

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
        out, end = ops.delta_rule(
            q,
            k,
            v,
            log_decay,
            in_gate,
            None if state is None else _given(state, k, v),
            key_mask=key_mask,
            scale=self.scale,
            most=self._most(),
            chunk=self.chunk,
        )
        return out, {"S": end}

    def _most(self) -> float:
        return 2.0 if self.negative_eigenvalues else 1.0

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """FLOPs and bytes of the eager path, with its gates.

        Products of keys and of queries with keys, of both with the states, and of what is written
        with either, over whole chunks; the triangular solves, C^2 (D + E) each, are left out as
        torch's counter leaves them out. Kept are the inputs and the state before each block, and
        the backward pass runs the forward pass once more.
        """
        rows, tokens = shape.batch * shape.heads, shape.queries
        dim, width, channel = shape.head_dim, shape.value_dim, self.decay == "channel"
        chunk = ops.chunk_size(tokens, self.chunk, channel)
        block = ops.block_tokens((shape.batch, shape.heads, tokens, dim), chunk)
        chunks = rows * max(1, -(-tokens // chunk))
        forward, backward = ops.chunk_flops(chunk, dim, width, channel)
        accumulate = max(4, shape.itemsize)
        inputs = rows * tokens * (2 * dim + width) * shape.itemsize
        gates = 1 + {"none": 0, "head": 1, "channel": dim}[self.decay]
        state = rows * dim * width * accumulate
        blocks = max(1, -(-tokens // block))
        return Cost(
            forward_flops=chunks * forward,
            backward_flops=chunks * backward,
            min_bytes=inputs + rows * tokens * width * shape.itemsize,
            saved_bytes=inputs + rows * tokens * gates * accumulate + blocks * state,
            state_bytes=state,
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
        in_gate: Tensor | None = None,
    ) -> Tensor:
        """The recurrence in float64, token by token."""
        self._check(q, k, v, key_mask, causal)
        return reference.delta_rule(
            q,
            k,
            v,
            log_decay,
            in_gate,
            key_mask=key_mask,
            scale=self.scale,
            most=self._most(),
        )


def _given(state: State, k: Tensor, v: Tensor) -> Tensor:
    """S of a state that fits the call."""
    want = (*k.shape[:2], k.shape[3], v.shape[3])
    if set(state) != {"S"} or state["S"].shape != want:
        got = ", ".join(f"{name} {tuple(x.shape)}" for name, x in state.items())
        raise ValueError(
            f"DeltaRule: the state must hold S (batch, key heads, head_dim, value dim) = {want}; "
            f"got {got}. Give what extend returned"
        )
    return state["S"]
