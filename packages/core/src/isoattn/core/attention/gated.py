"""What the attentions with gates share: causal forms that carry a decaying state.

Gates are arguments, not projections: whoever owns the block computes them from its input.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial

import torch
from torch import Tensor

from isoattn.core.contract import Attention, State
from isoattn.core.ops.blocks import accumulation_dtype
from isoattn.core.ops.masking import no_autocast
from isoattn.core.ops.segments import over_segments


class GatedAttention(Attention):
    """A causal attention with a constant state S_t = a_t S_(t-1) + k_t v_t^T, o_t = S_t^T q_t.

    A subclass declares ``log_decay`` and ``in_gate`` in its capability and implements
    :meth:`_recur`; forward, extend and step are that one form. A masked token is as good as absent:
    the state neither decays nor grows at it.
    """

    @abstractmethod
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
        """Outputs and the last state, on checked inputs outside autocast; gates in float32 up."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
        segments: Tensor | None = None,
        log_decay: Tensor | None = None,
        in_gate: Tensor | None = None,
    ) -> Tensor:
        """Attend, as :meth:`Attention.forward`, with gates.

        Args:
            q: queries (B, H, N, D).
            k: keys (B, G, N, D); G divides H.
            v: values (B, G, N, E).
            key_mask: bool (B, N), True = keep.
            causal: must be True.
            segments: integer ids (B, N), as in :meth:`Attention.forward`.
            log_decay: log a_t <= 0, (B, G, N) or (B, G, N, D) as the capability says; ``None`` is
                no decay.
            in_gate: logarithmic input gate (B, G, N) where the capability has one; ``None`` is 0.

        Returns:
            (B, H, N, E) in the dtype of v.

        Raises:
            UnsupportedAttention: the form is not defined for this mechanism; says why.
            ValueError: shapes or dtypes that do not fit; names them.
        """
        gates = self._check_gates(k, log_decay, in_gate)
        if segments is not None:
            self._check(q, k, v, key_mask, causal)
            call = partial(self.forward, causal=causal)
            return over_segments(call, segments, {"q": q, "k": k, "v": v, **gates}, key_mask)
        self._check(q, k, v, key_mask, causal)
        return self._run(q, k, v, None, key_mask, gates)[0]

    def extend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: State | None = None,
        *,
        key_mask: Tensor | None = None,
        log_decay: Tensor | None = None,
        in_gate: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Continue after the tokens a state remembers, as :meth:`Attention.extend`, with gates."""
        gates = self._check_gates(k, log_decay, in_gate)
        self._check_extend(q, k, v, key_mask)
        return self._run(q, k, v, state, key_mask, gates)

    def step(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: State | None = None,
        *,
        log_decay: Tensor | None = None,
        in_gate: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """One token: q (B, H, D), k (B, G, D), v (B, G, E); gates without their token axis."""
        q, k, v = (x.unsqueeze(2) for x in (q, k, v))
        log_decay, in_gate = (g if g is None else g.unsqueeze(2) for g in (log_decay, in_gate))
        out, state = self.extend(q, k, v, state, log_decay=log_decay, in_gate=in_gate)
        return out.squeeze(2), state

    def matrix(
        self,
        q: Tensor,
        k: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
        log_decay: Tensor | None = None,
        in_gate: Tensor | None = None,
    ) -> Tensor:
        """The implied mixing matrix (B, H, N, N): the output for v = I."""
        batch, groups, keys, _ = k.shape
        identity = torch.eye(keys, dtype=k.dtype, device=k.device)
        identity = identity.expand(batch, groups, keys, keys)
        return self.forward(
            q,
            k,
            identity,
            key_mask=key_mask,
            causal=causal,
            log_decay=log_decay,
            in_gate=in_gate,
        )

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        return self._recur(q, k, v, None, None, None, key_mask)[0]

    def _run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: State | None,
        key_mask: Tensor | None,
        gates: dict[str, Tensor],
    ) -> tuple[Tensor, State]:
        wide = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
        dtype = v.dtype
        q, k, v = q.to(wide), k.to(wide), v.to(wide)
        gates = {name: g.to(accumulation_dtype(v)) for name, g in gates.items()}
        with no_autocast(v.device.type):
            out, state = self._recur(
                q, k, v, gates.get("log_decay"), gates.get("in_gate"), state, key_mask
            )
        return out.to(dtype), state

    def _check_gates(
        self, k: Tensor, log_decay: Tensor | None, in_gate: Tensor | None
    ) -> dict[str, Tensor]:
        name, capability = type(self).__name__, self.capability
        found = {}
        if log_decay is not None:
            if capability.log_decay == "none":
                self._refuse("log_decay", "log_decay")
            want = k.shape if capability.log_decay == "channel" else k.shape[:-1]
            _check_gate(name, "log_decay", log_decay, want)
            found["log_decay"] = log_decay
        if in_gate is not None:
            if not capability.in_gate:
                self._refuse("in_gate", "in_gate")
            _check_gate(name, "in_gate", in_gate, k.shape[:-1])
            found["in_gate"] = in_gate
        return found


def _check_gate(name: str, gate: str, x: Tensor, want: torch.Size) -> None:
    if x.shape != want or not x.is_floating_point():
        axes = (
            "(batch, key heads, tokens, head_dim)"
            if len(want) == 4
            else "(batch, key heads, tokens)"
        )
        raise ValueError(
            f"{name}: {gate} must be floating point ({axes}) = {tuple(want)}; "
            f"got {x.dtype} {tuple(x.shape)}"
        )
