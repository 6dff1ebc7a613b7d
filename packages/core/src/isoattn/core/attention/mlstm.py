"""The matrix memory of xLSTM."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from isoattn.core.attention.gated import GatedAttention
from isoattn.core.contract import Capability, State
from isoattn.core.cost import Cost, Shape
from isoattn.core.ops import mlstm as ops
from isoattn.core.ops.reference import mlstm as reference

InputGate = Literal["exponential", "sigmoid"]


class MLSTM(GatedAttention):
    """h_t = C_t^T q_t / max(|n_t.q_t|, 1), C_t = f_t C_(t-1) + i_t k_t v_t^T, n alike with k_t.

    Beck et al. 2024 (xLSTM), eq. 19-27, with q instead of k scaled by D^-1/2. ``log_decay`` is
    log f_t, ``in_gate`` the pre-activation of i_t. The state holds C, n and, where i is
    exponential, the scale m: the memory is C exp(m), and k is not scaled in it, as in
    mlstm_kernels. (xlstm's step keeps k D^-1/2, so that its states must be multiplied by D^1/2.)

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head.
        input_gate: ``"exponential"`` is i = exp(i~), ``"sigmoid"`` (xLSTM-7B) i = sigmoid(i~).
        eps: added to the denominator. 0 is the definition; xlstm and mlstm_kernels release 1e-6,
            added after both sides are divided by exp(m). They begin with m = 0, here it is -inf;
            a state of zeros reproduces theirs.
        chunk: tokens of a chunk, ``None`` for all at once. It changes cost, not results.

    Raises:
        ValueError: a size below 1, an unknown gate, a negative eps, a chunk below 1.
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
        "bidirectional": "the memory at a token holds the tokens before it; pass causal=True",
        "cross": "queries read the memory as it grows by their own keys",
    }

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        input_gate: InputGate = "exponential",
        eps: float = 0.0,
        chunk: int | None = 64,
    ) -> None:
        super().__init__(heads, head_dim)
        if input_gate not in ("exponential", "sigmoid"):
            raise ValueError(f"input_gate must be 'exponential' or 'sigmoid', got {input_gate!r}")
        if eps < 0:
            raise ValueError(f"eps must not be negative, got {eps}")
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk must be at least 1, or None for all tokens, got {chunk}")
        self.input_gate: InputGate = input_gate
        self.eps = eps
        self.chunk = chunk

    def extra_repr(self) -> str:
        """Sizes and options shown by ``print(module)``."""
        return (
            f"{super().extra_repr()}, input_gate={self.input_gate!r}, eps={self.eps}, "
            f"chunk={self.chunk}"
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
        sigmoid = self.input_gate == "sigmoid"
        before = None if state is None else self._given(state, k, v)
        out, (C, n, m) = ops.mlstm(
            q,
            k,
            v,
            log_decay,
            in_gate,
            before,
            key_mask=key_mask,
            sigmoid=sigmoid,
            eps=self.eps,
            chunk=self.chunk,
        )
        return out, {"C": C, "n": n} if sigmoid else {"C": C, "n": n, "m": m}

    def _given(self, state: State, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """C, n and m of a state that fits the call."""
        names = ("C", "n", "m") if self.input_gate == "exponential" else ("C", "n")
        if set(state) != set(names):
            raise ValueError(
                f"MLSTM: the state must hold {', '.join(names)}; got {', '.join(state)}. It "
                "continues a module with the same input_gate"
            )
        C, n = state["C"], state["n"]
        m = state["m"] if "m" in state else n.new_zeros(n.shape[:2])
        batch, groups, _, dim = k.shape
        want = [(batch, groups, dim, v.shape[3]), (batch, groups, dim), (batch, groups)]
        if [tuple(x.shape) for x in (C, n, m)] != want:
            raise ValueError(
                f"MLSTM: the state must have C {want[0]}, n {want[1]} and m {want[2]}; got "
                f"C {tuple(C.shape)}, n {tuple(n.shape)}, m {tuple(m.shape)}"
            )
        return C, n, m

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """FLOPs and bytes of the eager path on a CPU, with both gates.

        Products of q k^T, of its weights with v, of q with the states and of k^T v, over whole
        chunks, and the decays between the states of a block; v and C are one column wider, which
        is n. Kept are the inputs and the state before each block, and the backward pass runs the
        forward pass once more.
        """
        rows, tokens = shape.batch * shape.heads, shape.queries
        dim, wide = shape.head_dim, shape.value_dim + 1
        chunk = max(1, tokens if self.chunk is None else min(self.chunk, tokens))
        block = ops.block_tokens((shape.batch, shape.heads, tokens, dim), chunk)
        flops, blocks = 0, 0
        for start in range(0, tokens, block):
            chunks = -(-min(block, tokens - start) // chunk)
            inside = chunks * chunk * (chunk * (dim + wide) + 2 * dim * wide)
            flops += 2 * rows * (inside + (chunks + 1) ** 2 * dim * wide)
            blocks += 1
        accumulate = max(4, shape.itemsize)
        inputs = rows * tokens * (2 * dim + shape.value_dim) * shape.itemsize
        gates = 2 * rows * tokens * accumulate
        exponential = self.input_gate == "exponential"
        state = rows * (dim * wide + exponential) * accumulate
        return Cost(
            forward_flops=flops,
            backward_flops=3 * flops,
            min_bytes=inputs + rows * tokens * shape.value_dim * shape.itemsize,
            saved_bytes=inputs + gates + blocks * rows * (dim * wide + 1) * accumulate,
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
        """The definition in float64."""
        self._check(q, k, v, key_mask, causal)
        return reference.mlstm(
            q,
            k,
            v,
            log_decay,
            in_gate,
            key_mask=key_mask,
            sigmoid=self.input_gate == "sigmoid",
            eps=self.eps,
        )
